/* batched_matmul.h - arguments and attributes of the batched product, as kernels see them. */
#ifndef TFUSE_BATCHED_MATMUL_H_
#define TFUSE_BATCHED_MATMUL_H_

#include <stdint.h>

enum { TFU_BATCHED_A, TFU_BATCHED_B, TFU_BATCHED_LIKE, TFU_BATCHED_TRANSPOSE_A, TFU_BATCHED_TRANSPOSE_B };
enum { TFU_BATCHED_SCALE, TFU_BATCHED_TF32 };

/* Bytes of what the GPU writes out to be summed, unless a single result is larger; a test has less. */
extern int64_t tfu_batched_parts;

#endif
