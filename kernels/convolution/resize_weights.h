/* resize_weights.h - entries of the table of resizing (resize.h), in the arithmetic type REAL: read once for each such
 * type, with FUNCTION and FN(name) as activation_math.h has them. */

/* Keys's cubic polynomials of a distance. */
FUNCTION REAL FN(resize_cubic)(REAL x, REAL a) {
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

FUNCTION REAL FN(resize_lanczos)(REAL x, REAL radius) {
  const REAL pi = (REAL)3.14159265358979323846;
  if (x > radius) return 0;
  return x <= (REAL)1e-3 ? 1 : radius * sin(pi * x) * sin(pi * x / radius) / (pi * pi * x * x);
}

/* w(o, i), of o's window, before they are scaled to a sum of 1. */
FUNCTION REAL FN(resize_raw)(const resize_axis *a, const resize_window *w, int i) {
  if (a->kind == RESIZE_NEAREST || (a->kind == RESIZE_BILINEAR && w->count == 1)) return 1;
  if (a->kind == RESIZE_BILINEAR) return i == w->first ? 1 - (REAL)w->at : (REAL)w->at;
  if (a->kind == RESIZE_KEYS) return FN(resize_cubic)(fabs((REAL)(i - w->base) - (REAL)w->at), (REAL)-0.5);
  if (a->kind == RESIZE_CUBIC) {
    REAL sum = 0;
    for (int k = -1; k <= 2; k++)
      if (resize_inside(w->base + k, a->in) == i) sum += FN(resize_cubic)(fabs((REAL)k - (REAL)w->at), (REAL)-0.75);
    return sum;
  }
  const REAL x = fabs((REAL)i + (REAL)0.5 - (REAL)w->at) * (REAL)a->shrink;
  if (a->kind == SPAN_TRIANGLE) return x < 1 ? 1 - x : 0;
  return a->kind == SPAN_KEYS ? FN(resize_cubic)(x, (REAL)-0.5) : FN(resize_lanczos)(x, (REAL)a->radius);
}

/* What scales them. */
FUNCTION REAL FN(resize_share)(const resize_axis *a, const resize_window *w) {
  if (a->kind < RESIZE_KEYS) return 1;
  REAL sum = 0;
  for (int k = 0; k < w->count; k++) sum += FN(resize_raw)(a, w, w->first + k);
  return fabs(sum) >= (REAL)1.2e-35 ? 1 / sum : 1; /* a thousand times float32's least, as in TensorFlow */
}

/* What position t of `to` reads: its first position of `from`, how many there are, and taps weights. */
FUNCTION void FN(resize_entry)(const resize_axis *a, int back, int t, int *first, int *count, REAL *weights) {
  int n = 0;
  if (back) {
    const int begin = resize_first_reader(a, t);
    for (int o = begin; o < a->out && n < a->taps; o++) {
      const resize_window w = resize_window_of(a, o);
      if (w.first > t) break;
      weights[n++] = FN(resize_raw)(a, &w, t) * FN(resize_share)(a, &w);
    }
    *first = begin;
  } else {
    const resize_window w = resize_window_of(a, t);
    const REAL share = FN(resize_share)(a, &w);
    for (; n < w.count && n < a->taps; n++) weights[n] = FN(resize_raw)(a, &w, w.first + n) * share;
    *first = w.first;
  }
  *count = n;
  for (; n < a->taps; n++) weights[n] = 0;
}
