#include "kernels/jit/jit_args.h"

/* Elements of x from one index of an axis to the next, that axis being number `from_last` of the result's; 0 where x is
 * stretched along it. */
static int64_t stride_of(const tfu_shape *x, int from_last) {
  if (from_last >= x->rank || x->dim[x->rank - 1 - from_last] == 1) return 0;
  int64_t elements = 1;
  for (int i = x->rank - from_last; i < x->rank; i++) elements *= x->dim[i];
  return elements;
}

jit_plan jit_plan_of(const tfu_lists *l, const tfu_shape *shape, int rows, jit_args *a) {
  jit_plan p = {.axes = 0};
  *a = (jit_args){.n = rows ? tfu_rows(shape) : tfu_count(shape), .cols = rows ? tfu_cols(shape) : 1};
  for (int axis = rows; axis < shape->rank; axis++) {
    const int64_t size = shape->dim[shape->rank - 1 - axis];
    int64_t stride[JIT_MOST_IN];
    if (size == 1) continue;
    int joins = p.axes > 0;
    for (int i = 0; i < l->inputs; i++) {
      stride[i] = stride_of(&l->in[0].at[i].shape, axis);
      joins = joins && stride[i] == a->stride[i][p.axes - 1] * a->size[p.axes - 1];
    }
    if (joins) {
      a->size[p.axes - 1] *= size;
      continue;
    }
    a->size[p.axes] = size;
    for (int i = 0; i < l->inputs; i++) a->stride[i][p.axes] = stride[i];
    p.axes++;
  }
  for (int i = 0; i < l->inputs; i++) {
    const tfu_tensor *x = &l->in[0].at[i];
    a->in[i] = x->data;
    if (rows ? tfu_cols(&x->shape) != 1 || tfu_cols(shape) == 1 : a->stride[i][0] != 0) p.moves |= 1u << i;
    if (tfu_count(&x->shape) == 1) p.single |= 1u << i;
  }
  for (int i = 0; i < l->outputs; i++) a->out[i] = l->out[0].at[i].data;
  return p;
}
