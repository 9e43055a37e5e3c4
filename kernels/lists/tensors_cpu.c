#include "kernels/lists/tensors_cpu.h"

#include "kernels/core/arithmetic.h"

enum { CHUNK = 1 << 14 }; /* elements: 64 KiB of float32, some microseconds of work */

tfu_code tensors_chunks_open(tfu_call *call, const tfu_list *list, tensors_chunks_cpu *c) {
  TFU_SCRATCH(call, list->n + 1, c->first);
  c->n = 0;
  for (int i = 0; i < list->n; i++) {
    c->first[i] = c->n;
    c->n += divide_up(tfu_count(&list->at[i].shape), CHUNK);
  }
  c->first[list->n] = c->n;
  return TFU_OK;
}

/* The last tensor that does not begin later: one without elements begins with the next. */
tensors_piece tensors_piece_of(const tensors_chunks_cpu *c, const tfu_list *list, int64_t chunk) {
  int low = 0, high = list->n;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (c->first[middle] <= chunk) low = middle;
    else high = middle;
  }
  const int64_t begin = (chunk - c->first[low]) * CHUNK, n = tfu_count(&list->at[low].shape);
  return (tensors_piece){.tensor = low, .begin = begin, .end = begin + CHUNK < n ? begin + CHUNK : n};
}
