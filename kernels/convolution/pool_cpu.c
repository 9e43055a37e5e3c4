/* Pooling on the CPU: lines of the result are tasks, and loops run over the channels. In gradients a position of dx
 * goes through the windows that see it, in a fixed order. */
#ifndef REAL
#include "ops/convolution/pool.h"

#include <math.h>

#include "kernels/core/arithmetic.h"
#include "kernels/core/cpu/cpu.h"

typedef struct pool_job {
  tfu_pool p;
  tfu_tensor from, to;
  uint64_t *positions; /* NULL: not wanted */
  int64_t words;
  int back;   /* what is made is dx, and not y */
  void *make; /* of the arithmetic type */
} pool_job;

/* What is gone through along an axis: the input's positions that window o sees, with those outside where zeros count;
 * or the windows that see position i. */
typedef struct span {
  int64_t first, end;
} span;
static span seen(const tfu_pool *p, int axis, int64_t o) {
  const tfu_window *w = &p->axis[axis];
  const int64_t from = o * w->stride - w->before;
  if (p->zeros) return (span){from, from + w->size};
  return (span){from > 0 ? from : 0, least(from + w->size, w->in)};
}
static span seeing(const tfu_pool *p, int axis, int64_t i) {
  const tfu_window *w = &p->axis[axis];
  const int64_t after = i + w->before - w->size + 1;
  return (span){after > 0 ? divide_up(after, w->stride) : 0, least((i + w->before) / w->stride + 1, w->out)};
}
static int64_t in_window(const tfu_window *w, int64_t i, int64_t o) { return i + w->before - o * w->stride; }

/* A position of the result: where it is, and what it goes through. */
typedef struct pool_position {
  int64_t batch, at[TFU_POOL_AXES];
  span through[TFU_POOL_AXES];
} pool_position;

static int64_t seen_by(const tfu_pool *p, const int64_t *o) {
  int64_t count = 1;
  for (int i = 0; i < TFU_POOL_AXES; i++) {
    const span s = seen(p, i, o[i]);
    count *= s.end - s.first;
  }
  return count;
}
/* The number of input position i in window o. */
static int64_t tap(const tfu_pool *p, const int64_t *i, const int64_t *o) {
  const tfu_window *axis = p->axis;
  return (in_window(&axis[0], i[0], o[0]) * axis[1].size + in_window(&axis[1], i[1], o[1])) * axis[2].size +
         in_window(&axis[2], i[2], o[2]);
}
static int is_inside(const tfu_pool *p, const int64_t *i) {
  int inside = 1;
  for (int a = 0; a < TFU_POOL_AXES; a++) inside &= i[a] >= 0 && i[a] < p->axis[a].in;
  return inside;
}
static int64_t place_in(const tfu_pool *p, int64_t batch, const int64_t *i) {
  return ((batch * p->axis[0].in + i[0]) * p->axis[1].in + i[1]) * p->axis[2].in + i[2];
}
static int64_t place_out(const tfu_pool *p, int64_t batch, const int64_t *o) {
  return ((batch * p->axis[0].out + o[0]) * p->axis[1].out + o[1]) * p->axis[2].out + o[2];
}

/* The bytes of the channels from `channel` on at a position of the result. Words are little-endian, as on every
 * processor that TensorFlow has releases for. */
static uint8_t *places_of(const pool_job *j, int64_t position, int64_t channel) {
  return (uint8_t *)(j->positions + position * j->words) + channel;
}

#define THROUGH(position, v)                                                             \
  for (v[0] = (position)->through[0].first; v[0] < (position)->through[0].end; v[0]++)   \
    for (v[1] = (position)->through[1].first; v[1] < (position)->through[1].end; v[1]++) \
      for (v[2] = (position)->through[2].first; v[2] < (position)->through[2].end; v[2]++)

#define TFU_SELF "kernels/convolution/pool_cpu.c"
#include "kernels/core/cpu/stamp.h"
TFU_BY_REAL(tfu_max_pool_cpu)
TFU_BY_REAL(tfu_max_pool_grad_cpu)
TFU_BY_REAL(tfu_average_pool_cpu)
TFU_BY_REAL(tfu_average_pool_grad_cpu)

#else

/* n channels from `channel` on at one position, as values. */
typedef void FN(make)(const pool_job *j, const pool_position *at, int64_t channel, int n, REAL *values);

/* x there, which is 0 outside. */
static const REAL *FN(load_x)(const pool_job *j, int64_t batch, const int64_t *i, int64_t channel, int n,
                              REAL *buffer) {
  if (is_inside(&j->p, i))
    return FN(tfu_load)(j->from.data, j->from.dtype, place_in(&j->p, batch, i) * j->p.channels + channel, n, buffer);
  return memset(buffer, 0, (size_t)n * sizeof *buffer);
}

static void FN(make_max)(const pool_job *j, const pool_position *at, int64_t channel, int n, REAL *best) {
  const int64_t first[] = {at->through[0].first, at->through[1].first, at->through[2].first};
  REAL buffer[TFU_TILE], where[TFU_TILE]; /* a position in the window, as a REAL: masks of one width serve both */
  int64_t i[TFU_POOL_AXES];
  for (int k = 0; k < n; k++) best[k] = -(REAL)INFINITY, where[k] = (REAL)tap(&j->p, first, at->at);
  THROUGH(at, i) {
    const REAL here = (REAL)tap(&j->p, i, at->at);
    const REAL *x = FN(load_x)(j, at->batch, i, channel, n, buffer);
    if (!j->positions) {
      TFU_VECTORISED(k, n) best[k] = x[k] > best[k] || x[k] != x[k] ? x[k] : best[k];
      continue;
    }
    TFU_VECTORISED(k, n) {
      const int greater = !(x[k] <= best[k]) & (best[k] == best[k]); /* the first NaN stays */
      best[k] = greater ? x[k] : best[k];
      where[k] = greater ? here : where[k];
    }
  }
  if (!j->positions) return;
  uint8_t *positions = places_of(j, place_out(&j->p, at->batch, at->at), channel);
  for (int k = 0; k < n; k++) positions[k] = (uint8_t)where[k];
  for (int k = n; k % TFU_POOL_BYTES; k++) positions[k] = 0;
}

static void FN(make_max_grad)(const pool_job *j, const pool_position *at, int64_t channel, int n, REAL *sum) {
  REAL buffer[TFU_TILE];
  int64_t o[TFU_POOL_AXES];
  memset(sum, 0, (size_t)n * sizeof *sum);
  THROUGH(at, o) {
    const int64_t position = place_out(&j->p, at->batch, o);
    const REAL here = (REAL)tap(&j->p, at->at, o);
    const uint8_t *positions = places_of(j, position, channel);
    const REAL *dy = FN(tfu_load)(j->from.data, j->from.dtype, position * j->p.channels + channel, n, buffer);
    TFU_VECTORISED(k, n) {
      const REAL there = positions[k], d = dy[k]; /* read in any case: what is read on a condition is not vectorised */
      sum[k] += there == here ? d : 0;
    }
  }
}

static void FN(make_average)(const pool_job *j, const pool_position *at, int64_t channel, int n, REAL *sum) {
  REAL buffer[TFU_TILE];
  int64_t i[TFU_POOL_AXES];
  const REAL count = (REAL)seen_by(&j->p, at->at);
  memset(sum, 0, (size_t)n * sizeof *sum);
  THROUGH(at, i) {
    const REAL *x = FN(load_x)(j, at->batch, i, channel, n, buffer);
    for (int k = 0; k < n; k++) sum[k] += x[k];
  }
  for (int k = 0; k < n; k++) sum[k] /= count;
}

static void FN(make_average_grad)(const pool_job *j, const pool_position *at, int64_t channel, int n, REAL *sum) {
  REAL buffer[TFU_TILE];
  int64_t o[TFU_POOL_AXES];
  memset(sum, 0, (size_t)n * sizeof *sum);
  THROUGH(at, o) {
    const REAL share = 1 / (REAL)seen_by(&j->p, o);
    const REAL *dy =
        FN(tfu_load)(j->from.data, j->from.dtype, place_out(&j->p, at->batch, o) * j->p.channels + channel, n, buffer);
    for (int k = 0; k < n; k++) sum[k] += dy[k] * share;
  }
}

static void FN(make_line)(void *job, int64_t line) {
  const pool_job *j = job;
  const tfu_window *axis = j->p.axis;
  FN(make) *make = (FN(make) *)j->make;
  const int back = j->back;
  const int64_t height = back ? axis[1].in : axis[1].out, depth = back ? axis[0].in : axis[0].out;
  const int64_t width = back ? axis[2].in : axis[2].out;
  pool_position at = {.batch = line / height / depth, .at = {line / height % depth, line % height, 0}};
  REAL values[TFU_TILE];
  for (int64_t w = 0; w < width; w++) {
    at.at[2] = w;
    for (int i = 0; i < TFU_POOL_AXES; i++)
      at.through[i] = back ? seeing(&j->p, i, at.at[i]) : seen(&j->p, i, at.at[i]);
    for (int64_t channel = 0; channel < j->p.channels; channel += TFU_TILE) {
      const int n = (int)least(TFU_TILE, j->p.channels - channel);
      make(j, &at, channel, n, values);
      FN(tfu_store)(j->to.data, j->to.dtype, (line * width + w) * j->p.channels + channel, n, values);
    }
  }
}

static tfu_code FN(run)(tfu_call *call, int back, const tfu_tensor *from, const tfu_tensor *to, void *positions,
                        FN(make) * make) {
  pool_job j = {.from = *from, .to = *to, .positions = positions, .back = back, .make = (void *)make};
  TFU_TRY(tfu_pool_read(back ? &to->shape : &from->shape, call->attr, &j.p, call->err));
  j.words = divide_up(j.p.channels, TFU_POOL_BYTES);
  tfu_parallel(to->shape.dim[0] * to->shape.dim[1] * to->shape.dim[2], FN(make_line), &j);
  return TFU_OK;
}

static tfu_code FN(tfu_max_pool_cpu)(tfu_call *call) {
  const tfu_tensor *positions = &call->out[TFU_POOL_POSITIONS];
  return FN(run)(call, 0, &call->in[TFU_POOL_X], &call->out[TFU_POOL_Y],
                 tfu_count(&positions->shape) ? positions->data : NULL, FN(make_max));
}
static tfu_code FN(tfu_max_pool_grad_cpu)(tfu_call *call) {
  return FN(run)(call, 1, &call->in[TFU_MAXGRAD_DY], &call->out[0], call->in[TFU_MAXGRAD_POSITIONS].data,
                 FN(make_max_grad));
}
static tfu_code FN(tfu_average_pool_cpu)(tfu_call *call) {
  return FN(run)(call, 0, &call->in[TFU_POOL_X], &call->out[TFU_POOL_Y], NULL, FN(make_average));
}
static tfu_code FN(tfu_average_pool_grad_cpu)(tfu_call *call) {
  return FN(run)(call, 1, &call->in[TFU_AVERAGEGRAD_DY], &call->out[0], NULL, FN(make_average_grad));
}
#endif
