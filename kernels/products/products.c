#include "kernels/products/products.h"

static int64_t size_at(const tfu_shape *s, int from_last) {
  return from_last <= s->rank ? s->dim[s->rank - from_last] : 1;
}

/* Elements from one matrix to the next along an axis, which lies outside `*inside` elements. */
static int64_t step(const tfu_shape *s, int from_last, int64_t *inside) {
  const int64_t size = size_at(s, from_last), own = size == 1 ? 0 : *inside;
  *inside *= size;
  return own;
}

static int goes_on(const tfu_batch_axis *outer, const tfu_batch_axis *inner) {
  return outer->a == inner->a * inner->size && outer->b == inner->b * inner->size && outer->y == inner->y * inner->size;
}

/* The axes of the batch, the innermost first, joined where they can be. */
static int axes_of(const tfu_shape *a, const tfu_shape *b, const tfu_shape *y, tfu_batch_axis *axis) {
  const int rank = a->rank > b->rank ? a->rank : b->rank;
  int64_t in_a = size_at(a, 1) * size_at(a, 2), in_b = size_at(b, 1) * size_at(b, 2);
  int64_t in_y = size_at(y, 1) * size_at(y, 2);
  int n = 0;
  for (int i = 3; i <= rank; i++) {
    const tfu_batch_axis x = {.size = size_at(a, i) == 1 ? size_at(b, i) : size_at(a, i),
                              .a = step(a, i, &in_a),
                              .b = step(b, i, &in_b),
                              .y = step(y, i, &in_y)};
    if (x.size == 1) continue;
    if (n > 0 && goes_on(&x, &axis[n - 1])) axis[n - 1].size *= x.size;
    else axis[n++] = x;
  }
  return n;
}

/* Makes the axis rows or terms of the product; 0 where it cannot be. */
static int absorb(tfu_products *p, const tfu_batch_axis *x, int a_transposed, int b_transposed) {
  const int64_t in_a = p->m * p->k, in_b = p->k * p->n, in_y = p->m * p->n;
  if (x->y == in_y && x->a == in_a && x->b == 0 && !a_transposed) return p->m *= x->size, 1;
  if (x->y == 0 && x->a == in_a && x->b == in_b && a_transposed && !b_transposed) return p->k *= x->size, 1;
  return 0;
}

tfu_products tfu_products_of(const tfu_shape *a, int a_transposed, const tfu_shape *b, int b_transposed,
                             const tfu_shape *y) {
  tfu_products p = {.m = size_at(y, 2), .n = size_at(y, 1), .k = size_at(a, a_transposed ? 2 : 1)};
  tfu_batch_axis all[TFU_MAX_RANK];
  const int n = axes_of(a, b, y, all);
  int left = 0;
  for (int i = 0; i < n; i++)
    if (!absorb(&p, &all[i], a_transposed, b_transposed)) all[left++] = all[i];
  for (int summed = 0; summed < 2; summed++) {
    for (int i = left - 1; i >= 0; i--)
      if ((all[i].y == 0) == summed) p.axis[p.axes++] = all[i];
    if (!summed) p.kept = p.axes;
  }
  return p;
}

int64_t tfu_batch_count(const tfu_products *p, int from, int to) {
  int64_t n = 1;
  for (int i = from; i < to; i++) n *= p->axis[i].size;
  return n;
}

tfu_batch_axis tfu_batch_at(const tfu_products *p, int from, int to, int64_t index) {
  tfu_batch_axis at = {.size = 1};
  for (int i = to - 1; i >= from; i--) {
    const tfu_batch_axis *x = &p->axis[i];
    const int64_t along = index % x->size;
    at.a += along * x->a;
    at.b += along * x->b;
    at.y += along * x->y;
    index /= x->size;
  }
  return at;
}
