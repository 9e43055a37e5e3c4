/* tensors_cpu.h - lists of tensors on the CPU: cut into chunks, which are the tasks of one parallel loop. */
#ifndef TFUSE_TENSORS_CPU_H_
#define TFUSE_TENSORS_CPU_H_

#include "tfuse.h"

typedef struct tensors_chunks_cpu {
  int64_t n;      /* chunks of all tensors                                           */
  int64_t *first; /* by tensor: the number of its first chunk; and n for what follows */
} tensors_chunks_cpu;

typedef struct tensors_piece {
  int tensor;
  int64_t begin, end; /* elements */
} tensors_piece;

TFU_MUST_USE tfu_code tensors_chunks_open(tfu_call *call, const tfu_list *list, tensors_chunks_cpu *chunks);
tensors_piece tensors_piece_of(const tensors_chunks_cpu *chunks, const tfu_list *list, int64_t chunk);

#endif
