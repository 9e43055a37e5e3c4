#include "kernels/core/recycle.h"

/* The smallest free piece that is large enough, or a new one, which takes the place of the smallest free one where
 * there is no other to remember it by: the outer call has them all to the end. */
static void *allocate(tfu_call *call, size_t bytes) {
  tfu_recycled *r = (tfu_recycled *)call; /* its first member */
  int best = -1, place = -1;
  for (int i = 0; i < TFU_RECYCLED; i++) {
    if (!r->piece[i].taken && (place < 0 || r->piece[i].bytes < r->piece[place].bytes)) place = i;
    if (!r->piece[i].taken && r->piece[i].bytes >= bytes && (best < 0 || r->piece[i].bytes < r->piece[best].bytes))
      best = i;
  }
  if (best >= 0) {
    r->piece[best].taken = 1;
    return r->piece[best].memory;
  }
  void *memory = r->outer->allocate(r->outer, bytes);
  if (memory && place >= 0) {
    r->piece[place].memory = memory;
    r->piece[place].bytes = bytes;
    r->piece[place].taken = 1;
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

tfu_call *tfu_part(tfu_recycled *r, const tfu_op *op) {
  tfu_call *call = tfu_recycle(r);
  call->op = op;
  call->constant = 0;  /* those bits are of the outer call's inputs */
  call->kernel = NULL; /* what it launches names it, not the part before it */
  for (int i = 0; i < TFU_MAX_ARGS; i++)
    call->in[i] = call->out[i] = (tfu_tensor){.dtype = r->outer->in[0].dtype, .shape = {.rank = 1}};
  for (int i = 0; i < TFU_MAX_ATTRS; i++) call->attr[i] = (tfu_value){0};
  return call;
}

tfu_code tfu_scratch_like(tfu_call *call, tfu_tensor like, tfu_tensor *t) {
  *t = like;
  return tfu_scratch(call, (size_t)tfu_count(&like.shape) * tfu_dtype_size(like.dtype), &t->data);
}
