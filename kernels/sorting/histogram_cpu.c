/* Histogram on the CPU: one row of values, whose bins are found by a division in double. */
#include "kernels/sorting/bins_cpu.h"

static void find_values(bin_run *r, int64_t at, int n, int32_t *bins) {
  const double last = (double)r->size - 1, low = r->low, width = r->width;
  double v[TFU_TILE];
  float narrow[TFU_TILE];
  if (r->of->dtype == TFU_F64) {
    memcpy(v, (const double *)r->of->data + at, (size_t)n * sizeof *v);
  } else if (r->of->dtype < TFU_FLOATS) {
    const float *from = tfu_load_f32(r->of->data, r->of->dtype, at, n, narrow);
    for (int i = 0; i < n; i++) v[i] = from[i];
  } else {
    for (int i = 0; i < n; i++) v[i] = (double)tfu_integer(r->of, at + i);
  }
  for (int i = 0; i < n; i++) {
    const double above = v[i] < low ? 0 : (v[i] - low) / width, bin = above < last ? above : last;
    bins[i] = v[i] != v[i] ? (int32_t)r->size : (int32_t)bin;
  }
}

/* A value of the range, as a double. */
static double edge(const tfu_tensor *t, int i) {
  float buffer;
  if (t->dtype == TFU_F64) return ((const double *)t->data)[i];
  return t->dtype < TFU_FLOATS ? *tfu_load_f32(t->data, t->dtype, i, 1, &buffer) : (double)tfu_integer(t, i);
}

tfu_code tfu_histogram_cpu(tfu_call *call) {
  const tfu_tensor *v = &call->in[0];
  const double low = edge(&call->in[1], 0), high = edge(&call->in[1], 1);
  bin_run r = {.of = v, .find = find_values, .rows = 1, .cols = tfu_count(&v->shape), .low = low};
  TFU_REQUIRE(call->err, low < high, "range must be a value and a greater one, got %g and %g", low, high);
  r.width = (high - low) / (double)tfu_cols(&call->out[0].shape);
  return tfu_bins_cpu(call, &r);
}
