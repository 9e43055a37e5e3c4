#include "kernels/core/arithmetic.h"
#include "kernels/lists/tensors.h"

static int64_t chunks(const tfu_tensor *t) { return divide_up(tfu_count(&t->shape), TENSORS_CHUNK); }

int64_t tensors_chunks(const tfu_tensor *list, int n) {
  int64_t all = 0;
  for (int i = 0; i < n; i++) all += chunks(&list[i]);
  return all;
}

int tensors_fill(tensors_table *t, const tfu_tensor *const *lists, int roles, int n, int from) {
  int i = from;
  t->chunks_before = from ? t->chunks_before + t->first[t->tensors] : 0;
  t->base = from;
  t->first[0] = 0;
  /* Chunks are counted in an int: what would pass it waits for the next table. */
  for (int k = 0; i < n && k < TENSORS_MOST; i++, k++) {
    const int64_t next = t->first[k] + chunks(&lists[0][i]);
    if (k && next > INT32_MAX) break;
    t->count[k] = tfu_count(&lists[0][i].shape);
    for (int r = 0; r < roles; r++) t->at[k][r] = lists[r][i].data;
    t->first[k + 1] = (int)next;
  }
  t->tensors = i - from;
  return i;
}
