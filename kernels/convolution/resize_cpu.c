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

/* What the line reads of n values, from value `at` of every line of `from` on: in sum, or where it is one line as it
 * is, the line itself. */
static const REAL *FN(add_lines)(const resize_job *j, const FN(line_place) * p, int64_t at, int n, REAL *sum) {
  REAL buffer[TFU_TILE];
  const int64_t line = (int64_t)j->axis[2].from * j->channels;
  int begun = 0;
  for (int d = 0; d < p->count[0]; d++)
    for (int h = 0; h < p->count[1]; h++) {
      const REAL weight = p->weights[0][d] * p->weights[1][h];
      const int64_t row = (p->batch * j->axis[0].from + p->first[0] + d) * j->axis[1].from + p->first[1] + h;
      const int64_t first = row * line + at;
      if (weight == 0) continue;
      if (p->count[0] * p->count[1] == 1 && weight == 1)
        return FN(tfu_load)(j->from.data, j->from.dtype, first, n, sum);
      for (TFU_EACH_TILE(i, m, 0, n)) {
        const REAL *x = FN(tfu_load)(j->from.data, j->from.dtype, first + i, (int)m, buffer);
        REAL *s = sum + i;
        if (begun) {
          TFU_VECTORISED(k, m) s[k] += weight * x[k];
        } else {
          TFU_VECTORISED(k, m) s[k] = weight * x[k];
        }
      }
      begun = 1;
    }
  if (!begun) memset(sum, 0, (size_t)n * sizeof *sum);
  return sum;
}

/* y = what positions [begin, end) of a line read of `sum`, which begins with the first one's. Inline, so that there is
 * a copy for each of the usual small numbers of channels. */
static inline __attribute__((always_inline)) void FN(add_positions)(const resize_job *j, int64_t begin, int64_t end,
                                                                    const REAL *sum, const int c, REAL *y) {
  const resize_axis *wide = &j->axis[2];
  const int *first = j->first + wide->entry, *count = j->count + wide->entry;
  const REAL *weights = (const REAL *)j->weights + wide->weight + begin * wide->taps;
  for (int64_t i = begin; i < end; i++, weights += wide->taps, y += c) {
    const REAL *s = sum + (int64_t)(first[i] - first[begin]) * c, a = count[i] ? weights[0] : 0;
    if (count[i] == 2) {
      const REAL b = weights[1];
      TFU_VECTORISED(k, c) y[k] = a * s[k] + b * s[c + k];
      continue;
    }
    TFU_VECTORISED(k, c) y[k] = count[i] ? a * s[k] : 0;
    for (int t = 1; t < count[i]; t++) {
      const REAL *next = s + (int64_t)t * c, weight = weights[t];
      TFU_VECTORISED(k, c) y[k] += weight * next[k];
    }
  }
}

static void FN(add_columns)(const resize_job *j, int64_t begin, int64_t end, const REAL *sum, REAL *y) {
  switch (j->channels) {
    case 1: return FN(add_positions)(j, begin, end, sum, 1, y);
    case 2: return FN(add_positions)(j, begin, end, sum, 2, y);
    case 3: return FN(add_positions)(j, begin, end, sum, 3, y);
    case 4: return FN(add_positions)(j, begin, end, sum, 4, y);
    default: return FN(add_positions)(j, begin, end, sum, (int)j->channels, y);
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
      const REAL *x = FN(add_lines)(j, p, (j->first[e] + k) * j->channels + channel, (int)n, part), weight = weights[k];
      TFU_VECTORISED(i, n) sum[i] += weight * x[i];
    }
    FN(tfu_store)(j->to.data, j->to.dtype, at + channel, (int)n, sum);
  }
}

static void FN(resize_line)(void *job, int64_t line) {
  const resize_job *j = job;
  const resize_axis *wide = &j->axis[2];
  const int *first = j->first + wide->entry, *count = j->count + wide->entry;
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
    const REAL *x = FN(add_lines)(j, &p, begin * c, (int)((first[end - 1] + count[end - 1] - begin) * c), sum);
    REAL *y = FN(tfu_room)(j->to.data, j->to.dtype, start, buffer);
    FN(add_columns)(j, w, end, x, y);
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
