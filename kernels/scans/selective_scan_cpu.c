/* selective_scan on the CPU: a task has a strip of channels of one sequence, from its first step to its last, and back
 * again for the gradient. Loops go over the channels of the strip, which lie side by side. */
#ifndef REAL
#include "kernels/scans/selective_scan.h"

#include "kernels/core/cpu/cpu.h"
#include "kernels/core/cpu/exp_cpu.h"

enum { STRIP = 64, STEPS = 8, STATES = TFU_SELECT_SLOTS, ROWS = TFU_SELECT_ROWS };

typedef struct job {
  selective_args a;
  tfu_dtype dtype, real;
} job;

#define TFU_SELF "kernels/scans/selective_scan_cpu.c"
#include "kernels/core/cpu/stamp.h"
TFU_BY_REAL(tfu_selective_scan_cpu)
TFU_BY_REAL(tfu_selective_scan_grad_cpu)

#else

/* A strip at work: n channels from `channel` on, of group `group` of sequence `batch`. */
typedef struct FN(strip) {
  int64_t batch, group, number, channel;
  int n, states;
  REAL a[STATES][STRIP], h[STATES][STRIP], skip[STRIP];
  REAL x[STRIP], delta[STRIP], b[STATES], c[STATES];
} FN(strip);

/* [channels, states] of a strip, from the channel's row on, as [states][STRIP], and back. */
static void FN(turn)(const REAL *from, int64_t row, int n, int states, REAL to[STATES][STRIP]) {
  for (int s = 0; s < states; s++)
    for (int i = 0; i < n; i++) to[s][i] = from ? from[(row + i) * states + s] : 0;
}
static void FN(turn_back)(REAL from[STATES][STRIP], int64_t row, int n, int states, REAL *to) {
  for (int s = 0; s < states; s++)
    for (int i = 0; i < n; i++) to[(row + i) * states + s] = from[s][i];
}

static void FN(begin)(const job *j, int64_t task, FN(strip) * p) {
  const selective_args *a = &j->a;
  const int64_t each = a->channels / a->groups;
  p->number = task % a->strips;
  p->group = task / a->strips % a->groups;
  p->batch = task / a->strips / a->groups;
  p->channel = p->group * each + p->number * STRIP;
  p->n = (int)least(STRIP, each - p->number * STRIP);
  p->states = (int)a->states;
  FN(turn)(a->a, p->channel, p->n, p->states, p->a);
  FN(turn)(a->initial, p->batch * a->channels + p->channel, p->n, p->states, p->h);
  FN(tfu_copy)(p->skip, a->skip, j->real, p->channel, p->n);
}

static void FN(load_step)(const job *j, FN(strip) * p, int64_t t) {
  const selective_args *a = &j->a;
  const int64_t row = p->batch * a->length + t;
  FN(tfu_copy)(p->x, a->x, j->dtype, row * a->channels + p->channel, p->n);
  FN(tfu_copy)(p->delta, a->delta, j->dtype, row * a->channels + p->channel, p->n);
  FN(tfu_copy)(p->b, a->b, j->dtype, (row * a->groups + p->group) * p->states, p->states);
  FN(tfu_copy)(p->c, a->c, j->dtype, (row * a->groups + p->group) * p->states, p->states);
}

static void FN(step)(FN(strip) * p) {
  for (int s = 0; s < p->states; s++) {
    REAL *h = p->h[s], *a = p->a[s];
    const REAL b = p->b[s];
    TFU_VECTORISED(i, p->n) h[i] = FN(exp_any)(p->delta[i] * a[i]) * h[i] + p->delta[i] * p->x[i] * b;
  }
}

static void FN(forward)(void *arg, int64_t task) {
  const job *j = arg;
  FN(strip) p;
  FN(begin)(j, task, &p);
  for (int64_t t = 0; t < j->a.length; t++) {
    REAL y[STRIP];
    FN(load_step)(j, &p, t);
    FN(step)(&p);
    TFU_VECTORISED(i, p.n) y[i] = p.skip[i] * p.x[i];
    for (int s = 0; s < p.states; s++)
      TFU_VECTORISED(i, p.n) y[i] += p.c[s] * p.h[s][i];
    FN(tfu_store)(j->a.y, j->dtype, (p.batch * j->a.length + t) * j->a.channels + p.channel, p.n, y);
  }
  FN(turn_back)(p.h, p.batch * j->a.channels + p.channel, p.n, p.states, j->a.last);
}

/* ---- the gradient ---- */

static REAL FN(sum)(const REAL *v, int n) {
  REAL sum = 0;
  for (int i = 0; i < n; i++) sum += v[i];
  return sum;
}

/* Where the states of a strip before a segment are kept. */
static REAL *FN(kept)(const job *j, const FN(strip) * p, int64_t segment, int s) {
  const selective_args *a = &j->a;
  return (REAL *)a->kept + ((p->batch * a->segments + segment) * STATES + s) * a->channels + p->channel;
}

/* A step backwards: g is that of the states after it, and then of those before, `before`. */
static void FN(step_back)(const job *j, FN(strip) * p, int64_t t, REAL before[STATES][STRIP], REAL g[STATES][STRIP],
                          REAL weights[ROWS][STRIP]) {
  const selective_args *a = &j->a;
  const int64_t at = (p->batch * a->length + t) * a->channels + p->channel;
  REAL dy[STRIP], dx[STRIP], ddelta[STRIP], inner[STRIP], given[2][STRIP];
  REAL *factors =
      (REAL *)a->factors + (((p->number * a->batch + p->batch) * a->length + t) * a->groups + p->group) * 2 * STATES;
  FN(load_step)(j, p, t);
  FN(tfu_copy)(dy, a->dy, j->dtype, at, p->n);
  memset(inner, 0, sizeof inner);
  memset(ddelta, 0, sizeof ddelta);
  TFU_VECTORISED(i, p->n) weights[STATES][i] += dy[i] * p->x[i];
  for (int s = 0; s < p->states; s++) {
    const REAL b = p->b[s], c = p->c[s], *factor = p->a[s], *old = before[s];
    REAL *now = g[s], *da = weights[s];
    TFU_VECTORISED(i, p->n) {
      const REAL e = FN(exp_any)(p->delta[i] * factor[i]), left = e * old[i], input = p->delta[i] * p->x[i];
      const REAL all = now[i] + dy[i] * c, along = all * left;
      given[0][i] = all * input;
      given[1][i] = dy[i] * (left + input * b);
      inner[i] += all * b;
      ddelta[i] += along * factor[i];
      da[i] += along * p->delta[i];
      now[i] = all * e;
    }
    factors[s] = FN(sum)(given[0], p->n);
    factors[STATES + s] = FN(sum)(given[1], p->n);
  }
  TFU_VECTORISED(i, p->n) {
    ddelta[i] += inner[i] * p->x[i];
    dx[i] = inner[i] * p->delta[i] + p->skip[i] * dy[i];
  }
  FN(tfu_store)(a->dx, j->dtype, at, p->n, dx);
  FN(tfu_store)(a->ddelta, j->dtype, at, p->n, ddelta);
}

static void FN(backward)(void *arg, int64_t task) {
  const job *j = arg;
  const selective_args *a = &j->a;
  FN(strip) p;
  REAL g[STATES][STRIP], before[STEPS][STATES][STRIP], weights[ROWS][STRIP];
  FN(begin)(j, task, &p);
  for (int64_t t = 0; t < a->length; t++) {
    if (t % STEPS == 0)
      for (int s = 0; s < p.states; s++) memcpy(FN(kept)(j, &p, t / STEPS, s), p.h[s], (size_t)p.n * sizeof(REAL));
    FN(load_step)(j, &p, t);
    FN(step)(&p);
  }
  FN(turn)(a->dlast, p.batch * a->channels + p.channel, p.n, p.states, g);
  memset(weights, 0, sizeof weights);
  for (int64_t segment = a->segments - 1; segment >= 0; segment--) {
    const int64_t first = segment * STEPS;
    const int steps = (int)least(STEPS, a->length - first);
    for (int s = 0; s < p.states; s++) memcpy(p.h[s], FN(kept)(j, &p, segment, s), (size_t)p.n * sizeof(REAL));
    for (int k = 0; k < steps; k++) {
      memcpy(before[k], p.h, sizeof p.h);
      FN(load_step)(j, &p, first + k);
      FN(step)(&p);
    }
    for (int k = steps - 1; k >= 0; k--) FN(step_back)(j, &p, first + k, before[k], g, weights);
  }
  for (int s = 0; s < ROWS; s++)
    memcpy((REAL *)a->weights + (p.batch * ROWS + s) * a->channels + p.channel, weights[s], (size_t)p.n * sizeof(REAL));
  if (a->dinitial) FN(turn_back)(g, p.batch * a->channels + p.channel, p.n, p.states, a->dinitial);
}

/* db and dc, of all strips of a group. */
static void FN(fold_factors)(void *arg, int64_t begin, int64_t end) {
  const job *j = arg;
  const selective_args *a = &j->a;
  const int64_t all = a->batch * a->length * a->groups;
  const int states = (int)a->states;
  for (int64_t row = begin; row < end; row++) {
    REAL sums[2 * STATES] = {0};
    for (int64_t strip = 0; strip < a->strips; strip++) {
      const REAL *part = (REAL *)a->factors + (strip * all + row) * 2 * STATES;
      for (int s = 0; s < states; s++) sums[s] += part[s], sums[STATES + s] += part[STATES + s];
    }
    FN(tfu_store)(a->db, j->dtype, row * states, states, sums);
    FN(tfu_store)(a->dc, j->dtype, row * states, states, sums + STATES);
  }
}

/* da and dskip, of all sequences. */
static void FN(fold_weights)(const job *j) {
  const selective_args *a = &j->a;
  REAL *da = a->da, *dskip = a->dskip;
  for (int s = 0; s < ROWS; s++)
    for (int64_t d = 0; d < a->channels; d++) {
      REAL sum = 0;
      for (int64_t b = 0; b < a->batch; b++) sum += ((REAL *)a->weights)[(b * ROWS + s) * a->channels + d];
      if (s < a->states) da[d * a->states + s] = sum;
      else if (s == STATES && dskip) dskip[d] = sum;
    }
}

static tfu_code FN(tfu_selective_scan_cpu)(tfu_call *call) {
  job j = {.a = tfu_selective_of(call, STRIP, STEPS), .dtype = call->in[0].dtype, .real = tfu_real(call->in[0].dtype)};
  tfu_parallel(j.a.batch * j.a.groups * j.a.strips, FN(forward), &j);
  return TFU_OK;
}

static tfu_code FN(tfu_selective_scan_grad_cpu)(tfu_call *call) {
  job j = {.a = tfu_selective_of(call, STRIP, STEPS), .dtype = call->in[0].dtype, .real = tfu_real(call->in[0].dtype)};
  selective_args *a = &j.a;
  TFU_TRY(tfu_scratch(call, (size_t)tfu_selective_kept(a, STRIP) * sizeof(REAL), &a->kept));
  TFU_TRY(tfu_scratch(call, (size_t)tfu_selective_factors(a) * sizeof(REAL), &a->factors));
  TFU_TRY(tfu_scratch(call, (size_t)tfu_selective_weights(a) * sizeof(REAL), &a->weights));
  tfu_parallel(a->batch * a->groups * a->strips, FN(backward), &j);
  tfu_parallel_ranges(a->batch * a->length * a->groups, 64, FN(fold_factors), &j);
  FN(fold_weights)(&j);
  return TFU_OK;
}
#endif
