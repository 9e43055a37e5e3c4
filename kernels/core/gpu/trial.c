#include "kernels/core/gpu/trial.h"

#include <math.h>

#include "kernels/core/cpu/cpu.h"
#include "kernels/core/gpu/cuda.h"

static const char fails[] = "it does not run";

static tfu_code keeps_nan(tfu_trial *t, int *keeps) {
  const size_t size = tfu_dtype_size(t->dtype), words = ((size_t)t->channels * size + 3) / 4;
  _Alignas(double) char result[sizeof(double)];
  float buffer;
  if (!t->nan) {
    t->short_of_memory |= !tfu_try_scratch(t->call, words * 4, &t->nan);
    if (!t->nan) return TFU_EXHAUSTED;
    TFU_TRY(tfu_fill(t->call, t->nan, UINT32_MAX, words)); /* which is NaN in every type */
  }
  TFU_TRY(t->run_biased(t->with, t->nan));
  TFU_TRY(tfu_peek(t->call, t->result, result, size));
  *keeps = t->dtype == TFU_F64 ? isnan(*(double *)result) : isnan(*tfu_load_f32(result, t->dtype, 0, 1, &buffer));
  return TFU_OK;
}

static const char *compare(const tfu_trial *t, tfu_tried *p) {
  double limit = 0;
  if (t->run(t->with) != TFU_OK || t->error(t->with, &p->error, &limit) != TFU_OK) return fails;
  return p->error <= limit ? NULL : "its error is too large";
}

/* What waits for the GPU is only done where `waits` is set. */
static const char *try_plan(tfu_trial *t, int waits, tfu_tried *p) {
  const int timed = waits && t->timed, relu = t->run_biased != NULL;
  if (!waits) return relu ? "whether its relu keeps NaN cannot be asked" : NULL;
  if (!relu && !timed && !t->compared && !t->runs) return NULL;
  if (t->has_workspace && !t->has_workspace(t->with, p->workspace)) return "its workspace is not to be had";
  if (relu) {
    int keeps;
    if (keeps_nan(t, &keeps) != TFU_OK) return fails;
    if (!keeps) return "its relu makes 0 of NaN";
  }
  const char *why_not = t->compared ? compare(t, p) : NULL;
  if (why_not) return why_not;
  if (!timed) return relu || t->compared || t->run(t->with) == TFU_OK ? NULL : fails;
  if (tfu_time(t->call, t->run, t->with, &p->microseconds) == TFU_OK) return NULL;
  p->microseconds = 0;
  return fails;
}

int tfu_trial_run(tfu_trial *t, tfu_tried *tried) {
  tfu_error *err = t->call->err, ignored;
  t->call->err = &ignored;
  const int waits = !t->dry && tfu_may_wait(t->call);
  t->compared = waits && (!t->prepare || t->prepare(t->with) == TFU_OK) && t->error;
  const int tries = (waits && t->timed) || t->compared;
  int n = 0, good = 0, enough = 0;
  while (n < t->plans && !(tries ? good == t->most : enough)) {
    tfu_tried *p = &tried[n];
    *p = (tfu_tried){.plan = n++};
    if (t->take) p->why_not = t->take(t->with, p);
    if (!p->why_not) p->why_not = try_plan(t, waits, p);
    good += !p->why_not;
    enough |= !p->why_not && p->workspace <= t->enough;
  }
  t->call->err = err;
  return n;
}

int tfu_trial_pick(const tfu_tried *tried, int n, int64_t space, double times) {
  int best = -1;
  double least = INFINITY;
  for (int i = 0; i < n; i++)
    if (!tried[i].why_not && tried[i].workspace <= space) least = fmin(least, tried[i].error);
  for (int i = 0; i < n; i++)
    if (!tried[i].why_not && tried[i].workspace <= space && tried[i].error <= times * least &&
        (best < 0 || tried[i].microseconds < tried[best].microseconds))
      best = i;
  return best;
}
