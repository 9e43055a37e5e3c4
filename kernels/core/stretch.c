#include "kernels/core/stretch.h"

tfu_stretch tfu_stretch_of(const tfu_shape *small, const tfu_shape *large) {
  tfu_stretch s = {.axes = 0};
  int64_t elements = 1; /* of small, in the axes after this one */
  for (int i = 1; i <= large->rank; i++) {
    const int64_t size = large->dim[large->rank - i], own = i <= small->rank ? small->dim[small->rank - i] : 1;
    const int64_t stride = own == 1 ? 0 : elements;
    elements *= own;
    if (i == 1) {
      s.column = stride;
      continue;
    }
    if (size == 1) continue;
    const int last = s.axes - 1;
    const int joins = last >= 0 && stride == s.stride[last] * s.size[last];
    if (joins) {
      s.size[last] *= size;
    } else {
      s.size[s.axes] = size;
      s.stride[s.axes++] = stride;
    }
  }
  return s;
}
