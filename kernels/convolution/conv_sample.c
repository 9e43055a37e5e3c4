/* Launches conv_sample.cu, and tells errors from what it finds. */
#include "kernels/convolution/conv_sample.h"

#include <float.h>
#include <math.h>

#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/walk.h"

TFU_MODULE(conv_sample);
static tfu_kernel sample_kernel = {.module = &module, .name = "conv_sample"};
static tfu_kernel sampled_kernel = {.module = &module, .name = "conv_sampled"};

static int64_t within(int64_t least, int64_t n, int64_t most) { return n < least ? least : n > most ? most : n; }

conv_sample_args tfu_conv_sample_plan(conv_pass pass, const conv_args *a) {
  const int64_t all = 1 << 26; /* terms, of some hundred instructions each, once for all engines */
  const conv_shape *s = &a->s;
  const int64_t taps = conv_volume(s->window), outputs = s->groups * s->k, positions = s->batch * conv_volume(s->out);
  const int64_t results[CONV_PASSES] = {[CONV_FORWARD] = positions * outputs,
                                        [CONV_DATA] = s->batch * conv_volume(s->in) * s->groups * s->c,
                                        [CONV_FILTER] = taps * s->c * outputs};
  const int64_t terms[CONV_PASSES] = {
      [CONV_FORWARD] = taps * s->c, [CONV_DATA] = taps * s->k, [CONV_FILTER] = positions};
  conv_sample_args m = {.a = *a,
                        .pass = (int32_t)pass,
                        .results = results[pass],
                        .terms = terms[pass],
                        .transposed = pass == CONV_FILTER};
  const int64_t samples = within(CONV_SAMPLE_LEAST, all / m.terms, CONV_SAMPLE_MOST);
  m.samples = (int32_t)(samples < m.results ? samples : m.results);
  m.parts = (int32_t)within(1, m.terms / TFU_THREADS, CONV_SAMPLE_BLOCKS / m.samples);
  return m;
}

/* Where float can hold neither the terms nor their sums, an error says nothing of the engine. */
static int can_be_judged(double size) { return size > 1e-30 && size < FLT_MAX; }

tfu_code tfu_conv_sample_take(tfu_call *call, conv_pass pass, const conv_args *a, const void *result, conv_sample *s) {
  static const size_t bytes = CONV_SAMPLE_BLOCKS * 2 * sizeof(double);
  double sums[CONV_SAMPLE_BLOCKS][2];
  void *memory;
  s->m = tfu_conv_sample_plan(pass, a);
  TFU_TRY(tfu_scratch(call, bytes + CONV_SAMPLE_MOST * sizeof(double), &memory));
  s->m.result = result, s->m.sums = memory, s->m.got = s->m.sums + CONV_SAMPLE_BLOCKS * 2;
  const tfu_grid grid = {.x = (unsigned)s->m.samples, .y = (unsigned)s->m.parts, .threads = TFU_THREADS};
  TFU_TRY(tfu_launch(call, &sample_kernel, 0, TFU_F32, grid, &s->m));
  TFU_TRY(tfu_peek(call, s->m.sums, sums, (size_t)(s->m.samples * s->m.parts) * sizeof *sums));
  for (int i = 0; i < s->m.samples; i++) {
    s->sum[i] = s->size[i] = 0;
    for (int p = i * s->m.parts; p < (i + 1) * s->m.parts; p++) s->sum[i] += sums[p][0], s->size[i] += sums[p][1];
    if (a->relu && s->sum[i] < 0) s->sum[i] = 0;
    if (!can_be_judged(s->size[i])) s->size[i] = 0;
  }
  return TFU_OK;
}

tfu_code tfu_conv_sample_error(tfu_call *call, conv_sample *s, double *error) {
  double got[CONV_SAMPLE_MOST], squares = 0;
  int judged = 0;
  TFU_TRY(tfu_launch(call, &sampled_kernel, 0, TFU_F32, (tfu_grid){.threads = TFU_THREADS}, &s->m));
  TFU_TRY(tfu_peek(call, s->m.got, got, (size_t)s->m.samples * sizeof *got));
  for (int i = 0; i < s->m.samples; i++) {
    if (s->size[i] == 0) continue;
    const double apart = (got[i] - s->sum[i]) / s->size[i];
    squares += isfinite(apart) ? apart * apart : INFINITY;
    judged++;
  }
  *error = judged ? sqrt(squares / judged) : 0;
  return TFU_OK;
}

double tfu_conv_sample_limit(const conv_sample *s) { return FLT_EPSILON * (64 + sqrt((double)s->m.terms)); }
