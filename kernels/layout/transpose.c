#include "kernels/layout/transpose.h"

tfu_permutation tfu_permutation_of(const tfu_call *call) {
  const tfu_shape *x = &call->in[0].shape;
  int64_t stride[TFU_MAX_RANK], n = 1;
  tfu_permutation t = {.axes = 0};
  for (int i = x->rank; i-- > 0; n *= x->dim[i]) stride[i] = n;
  for (int i = 0; i < x->rank; i++) {
    const int axis = (int)(call->attr[0].i >> 4 * i & 15);
    const int64_t size = x->dim[axis], from = stride[axis];
    if (size == 1) continue;
    if (t.axes > 0 && t.from[t.axes - 1] == from * size) {
      t.size[t.axes - 1] *= size;
      t.from[t.axes - 1] = from;
    } else {
      t.size[t.axes] = size;
      t.from[t.axes++] = from;
    }
  }
  if (t.axes == 0) t.size[0] = t.from[0] = t.axes = 1;
  n = 1;
  for (int i = t.axes; i-- > 0; n *= t.size[i]) t.to[i] = n;
  return t;
}
