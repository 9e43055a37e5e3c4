/* axes.h - the axes that a reduction takes away, and what is left of a shape.
 *
 * Several axes are one attribute, a mask of bits: bit k is axis k, bit 8 + k is axis -1 - k, counted from the end as
 * Python does, and bit 16 is all axes. So an axis can be named while not even the rank is known. */
#ifndef TFUSE_REDUCTIONS_AXES_H_
#define TFUSE_REDUCTIONS_AXES_H_

#include "tfuse.h"

enum { TFU_FROM_END = 8, TFU_ALL_AXES = 1 << 16 };

/* The axes of x that are reduced, a bit each. */
TFU_MUST_USE static inline tfu_code tfu_reduced_axes(const tfu_shape *x, int64_t axes, unsigned *reduced,
                                                     tfu_error *err) {
  *reduced = axes & TFU_ALL_AXES ? (1u << x->rank) - 1 : 0;
  for (int bit = 0; bit < 2 * TFU_FROM_END; bit++) {
    if (!(axes >> bit & 1)) continue;
    const int named = bit < TFU_FROM_END ? bit : TFU_FROM_END - 1 - bit, axis = named < 0 ? named + x->rank : named;
    TFU_REQUIRE(err, axis >= 0 && axis < x->rank, "axis must be one of the %d axes of x %s, got %d", x->rank,
                tfu_show(x).text, named);
    TFU_REQUIRE(err, !(*reduced >> axis & 1), "axis must name no axis of x %s twice, got %d", tfu_show(x).text, named);
    *reduced |= 1u << axis;
  }
  return TFU_OK;
}

/* x's shape without the reduced axes, or with 1 in their places. */
static inline tfu_shape tfu_reduced_shape(const tfu_shape *x, unsigned reduced, int keepdims) {
  tfu_shape y = {.rank = 0};
  for (int i = 0; i < x->rank; i++)
    if (!(reduced >> i & 1)) y.dim[y.rank++] = x->dim[i];
    else if (keepdims) y.dim[y.rank++] = 1;
  return y;
}

/* A shape as kept and reduced sizes in turn, neighbours of one kind made one: kept[0], reduced[0], kept[1], …,
 * reduced[n - 1], kept[n]. Where there is none, the size is 1. */
typedef struct tfu_groups {
  int n;
  int64_t kept[TFU_MAX_RANK + 1], reduced[TFU_MAX_RANK];
} tfu_groups;

static inline tfu_groups tfu_groups_of(const tfu_shape *x, unsigned reduced) {
  tfu_groups g = {.n = 0, .kept = {1}};
  int inside = 0; /* the axis before was reduced */
  for (int i = 0; i < x->rank; i++) {
    if (x->dim[i] == 1) continue;
    if (!(reduced >> i & 1)) {
      g.kept[g.n] *= x->dim[i];
      inside = 0;
    } else if (inside) {
      g.reduced[g.n - 1] *= x->dim[i];
    } else {
      g.reduced[g.n++] = x->dim[i];
      g.kept[g.n] = 1;
      inside = 1;
    }
  }
  return g;
}

#endif
