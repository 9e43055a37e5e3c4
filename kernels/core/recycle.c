#include "kernels/core/recycle.h"

/* The smallest free piece that is large enough, or a new one; where there is no room to remember it, it is the outer
 * call's to the end. */
static void *allocate(tfu_call *call, size_t bytes) {
  tfu_recycled *r = (tfu_recycled *)call; /* its first member */
  int best = -1, empty = -1;
  for (int i = 0; i < TFU_RECYCLED; i++) {
    if (!r->piece[i].memory) empty = i;
    else if (!r->piece[i].taken && r->piece[i].bytes >= bytes && (best < 0 || r->piece[i].bytes < r->piece[best].bytes))
      best = i;
  }
  if (best >= 0) {
    r->piece[best].taken = 1;
    return r->piece[best].memory;
  }
  void *memory = r->outer->allocate(r->outer, bytes);
  if (memory && empty >= 0) {
    r->piece[empty].memory = memory;
    r->piece[empty].bytes = bytes;
    r->piece[empty].taken = 1;
  }
  return memory;
}

void tfu_recycled_open(tfu_recycled *r, tfu_call *outer) {
  *r = (tfu_recycled){.call = *outer, .outer = outer};
  r->call.allocate = allocate;
}

tfu_call *tfu_recycle(tfu_recycled *r) {
  for (int i = 0; i < TFU_RECYCLED; i++) r->piece[i].taken = 0;
  return &r->call;
}
