/* tensor_map.h - a matrix in the GPU's memory as its copies of whole tiles (TMA) know it: CUtensorMap. It goes to the
 * device as part of a kernel's arguments, which are __grid_constant__. */
#ifndef TFUSE_TENSOR_MAP_H_
#define TFUSE_TENSOR_MAP_H_

#include <stdint.h>

typedef struct tfu_tensor_map {
  uint64_t words[16];
} __attribute__((aligned(64))) tfu_tensor_map;

#ifndef TFU_DEVICE
#include "tfuse.h"

#pragma GCC visibility push(default)
/* Boxes of `box` rows, 256 at most, by 64 columns of a row-major matrix of 16 bits, that begins on 16 bytes; columns
 * are a multiple of 8. They come to shared memory as tiles of wgmma.cuh. */
TFU_MUST_USE tfu_code tfu_map_matrix(tfu_tensor_map *map, const void *matrix, int64_t rows, int64_t columns, int box,
                                     tfu_error *err);
#pragma GCC visibility pop
#endif

#endif
