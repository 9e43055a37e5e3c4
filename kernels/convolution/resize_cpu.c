/* Resizing on the CPU: lines of the result are tasks. What a line reads of x along depth and height is added up first,
 * as whole pieces of lines with all their channels, then that along the width. */
#ifndef REAL
#include "kernels/convolution/resize.h"

#include "kernels/core/cpu/cpu.h"

enum { ROOM = 4096 }; /* values of a piece of a line */

typedef struct resize_job {
  resize_axis axis[TFU_RESIZE_AXES];
  tfu_tensor from, to;
  int64_t channels;
  const int *first, *count; /* by axis[i].entry and the position */
  const void *weights;
} resize_job;

#define TFU_SELF "kernels/convolution/resize_cpu.c"
#include "kernels/core/cpu/stamp.h"
TFU_BY_REAL(tfu_resize_cpu)
TFU_BY_REAL(tfu_resize_grad_cpu)

#else

#define FUNCTION static
#include "kernels/convolution/resize_weights.h"
#undef FUNCTION

/* The windows of a line along depth and height. */
typedef struct FN(line_place) {
  int64_t batch;
  int first[2], count[2];
  const REAL *weights[2];
} FN(line_place);

/* sum = what the line reads of n values, from value `at` of every line of `from` on. */
static void FN(add_lines)(const resize_job *j, const FN(line_place) * p, int64_t at, int n, REAL *sum) {
  REAL buffer[TFU_TILE];
  const int64_t line = (int64_t)j->axis[2].from * j->channels;
  memset(sum, 0, (size_t)n * sizeof *sum);
  for (int d = 0; d < p->count[0]; d++)
    for (int h = 0; h < p->count[1]; h++) {
      const REAL weight = p->weights[0][d] * p->weights[1][h];
      const int64_t row = (p->batch * j->axis[0].from + p->first[0] + d) * j->axis[1].from + p->first[1] + h;
      if (weight == 0) continue;
      for (TFU_EACH_TILE(i, m, 0, n)) {
        const REAL *x = FN(tfu_load)(j->from.data, j->from.dtype, row * line + at + i, (int)m, buffer);
        REAL *s = sum + i;
        TFU_VECTORISED(k, m) s[k] += weight * x[k];
      }
    }
}

/* y = the weighted sum of `count` positions of n values each, `step` values apart. */
static void FN(add_positions)(const REAL *sum, int count, const REAL *weights, int64_t step, int n, REAL *y) {
  if (count == 2) {
    const REAL a = weights[0], b = weights[1];
    TFU_VECTORISED(k, n) y[k] = a * sum[k] + b * sum[step + k];
    return;
  }
  const REAL a = count ? weights[0] : 0;
  TFU_VECTORISED(k, n) y[k] = a * sum[k];
  for (int i = 1; i < count; i++) {
    const REAL *s = sum + i * step, weight = weights[i];
    TFU_VECTORISED(k, n) y[k] += weight * s[k];
  }
}

/* One position of the result whose window is too large for a piece: some channels of one position at a time. */
static void FN(resize_position)(const resize_job *j, const FN(line_place) * p, int w, int64_t at) {
  const resize_axis *wide = &j->axis[2];
  const REAL *weights = (const REAL *)j->weights + wide->weight + (int64_t)w * wide->taps;
  const int e = wide->entry + w;
  REAL sum[TFU_TILE], part[TFU_TILE];
  for (TFU_EACH_TILE(channel, n, 0, j->channels)) {
    memset(sum, 0, sizeof sum);
    for (int k = 0; k < j->count[e]; k++) {
      if (weights[k] == 0) continue;
      FN(add_lines)(j, p, (j->first[e] + k) * j->channels + channel, (int)n, part);
      const REAL weight = weights[k];
      TFU_VECTORISED(i, n) sum[i] += weight * part[i];
    }
    FN(tfu_store)(j->to.data, j->to.dtype, at + channel, (int)n, sum);
  }
}

static void FN(resize_line)(void *job, int64_t line) {
  const resize_job *j = job;
  const resize_axis *wide = &j->axis[2];
  const int *first = j->first + wide->entry, *count = j->count + wide->entry;
  const REAL *weights = (const REAL *)j->weights + wide->weight;
  const int64_t c = j->channels, heights = j->axis[1].to, depths = j->axis[0].to;
  const int64_t at[] = {line / heights % depths, line % heights};
  FN(line_place) p = {.batch = line / heights / depths};
  for (int i = 0; i < 2; i++) {
    const int64_t e = j->axis[i].entry + at[i];
    p.first[i] = j->first[e], p.count[i] = j->count[e];
    p.weights[i] = (const REAL *)j->weights + j->axis[i].weight + at[i] * j->axis[i].taps;
  }
  REAL sum[ROOM], buffer[ROOM];
  for (int64_t w = 0, end; w < wide->to; w = end) {
    const int64_t begin = first[w], start = (line * wide->to + w) * c;
    for (end = w; end < wide->to && (first[end] + count[end] - begin) * c <= ROOM && (end + 1 - w) * c <= ROOM;) end++;
    if (end == w) {
      FN(resize_position)(j, &p, (int)w, start), end++;
      continue;
    }
    FN(add_lines)(j, &p, begin * c, (int)((first[end - 1] + count[end - 1] - begin) * c), sum);
    REAL *y = FN(tfu_room)(j->to.data, j->to.dtype, start, buffer);
    for (int64_t i = w; i < end; i++)
      FN(add_positions)(sum + (first[i] - begin) * c, count[i], weights + i * wide->taps, c, (int)c, y + (i - w) * c);
    FN(tfu_store)(j->to.data, j->to.dtype, start, (int)((end - w) * c), y);
  }
}

static tfu_code FN(run)(tfu_call *call, int back) {
  resize_job j = {.from = call->in[TFU_RESIZE_X], .to = call->out[0], .channels = call->out[0].shape.dim[4]};
  const int64_t batch = resize_axes_of(call, back, j.axis);
  int entries, weights, *first, *count;
  REAL *values;
  resize_place(j.axis, &entries, &weights);
  TFU_SCRATCH(call, entries, first);
  TFU_SCRATCH(call, entries, count);
  TFU_SCRATCH(call, weights + 1, values);
  for (int i = 0; i < TFU_RESIZE_AXES; i++) {
    const resize_axis *a = &j.axis[i];
    for (int t = 0; t < a->to; t++) FN(resize_entry)
    (a, back, t, &first[a->entry + t], &count[a->entry + t], values + a->weight + (int64_t)t * a->taps);
  }
  j.first = first, j.count = count, j.weights = values;
  tfu_parallel(batch * j.axis[0].to * j.axis[1].to, FN(resize_line), &j);
  return TFU_OK;
}

static tfu_code FN(tfu_resize_cpu)(tfu_call *call) { return FN(run)(call, 0); }
static tfu_code FN(tfu_resize_grad_cpu)(tfu_call *call) { return FN(run)(call, 1); }
#endif
