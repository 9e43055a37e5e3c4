#include "kernels/layout/concat.h"

tfu_sides tfu_sides_of(const tfu_call *call, int split) {
  const tfu_lists *l = call->lists;
  const tfu_list *parts = split ? &l->out[0] : &l->in[0];
  const tfu_tensor *whole = split ? l->in[0].at : l->out[0].at;
  const int axis = (int)(call->attr[0].i < 0 ? call->attr[0].i + whole->shape.rank : call->attr[0].i);
  tfu_sides s = {.parts = parts->at,
                 .whole = whole->data,
                 .n = parts->n,
                 .split = split,
                 .rows = 1,
                 .size = (int64_t)tfu_dtype_size(whole->dtype)};
  for (int i = 0; i < axis; i++) s.rows *= whole->shape.dim[i];
  s.pitch = tfu_count(&whole->shape) / s.rows * s.size;
  return s;
}

int64_t tfu_side_width(const tfu_sides *s, int i) { return tfu_count(&s->parts[i].shape) / s->rows * s->size; }
