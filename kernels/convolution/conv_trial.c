/* conv_trial.c - which of cuDNN's engines computes a convolution best: by time and, in exact float32, by error, too. */
#include <math.h>

#include "kernels/convolution/conv_choose.h"
#include "kernels/core/recycle.h"

enum { CANDIDATES = 10 }; /* that are timed, or whose errors are compared */

/* How many times the least error is still as good: time is worth some of it, where there are times. */
static double alike(int timed) { return timed ? 1.5 : 1.1; }

static const char *take(void *request, tfu_tried *tried) {
  const conv_request *r = request;
  tfu_error ignored;
  if (!tfu_conv_trusts(&r->key, tfu_graph_engine(r->trial, tried->plan))) return "it is known to be wrong";
  if (tfu_graph_take(r->trial, r->handle->handle, tried->plan, &ignored) != TFU_OK) return "it cannot be planned";
  tried->workspace = r->trial->workspace;
  return tried->workspace <= CONV_MOST_WORKSPACE ? NULL : "it wants too much workspace";
}

static int has_workspace(void *request, int64_t bytes) { return tfu_conv_has_workspace(request, bytes); }

static tfu_code run(void *request) {
  const conv_request *r = request;
  return tfu_graph_run(r->trial, r->handle->handle, r->memory, r->workspace, r->call->err);
}

static tfu_code run_biased(void *request, void *bias) {
  conv_request biased = *(const conv_request *)request;
  biased.memory[CONV_AT_BIAS] = bias;
  return run(&biased);
}

/* Results in exact float32 as they should be. */
static tfu_code take_sample(void *request) {
  static const int at[CONV_PASSES] = {
      [CONV_FORWARD] = CONV_AT_Y, [CONV_DATA] = CONV_AT_X, [CONV_FILTER] = CONV_AT_KERNEL};
  const conv_request *r = request;
  const conv_pass pass = (conv_pass)r->key.pass;
  return tfu_conv_sample_take(r->call, pass, r->a, r->memory[at[pass]], r->sample);
}

static tfu_code error_of(void *request, double *error, double *limit) {
  const conv_request *r = request;
  *limit = tfu_conv_sample_limit(r->sample);
  return tfu_conv_sample_error(r->call, r->sample, error);
}

/* ---- tfuse's own kernel ---- */

typedef struct own_run {
  tfu_recycled space;
  const conv_request *r;
  conv_sample sample;
} own_run;

static tfu_code open_own(void *own_) {
  own_run *own = own_;
  conv_sample_args *m = &own->sample.m;
  if (m->transposed) m->result = own->r->a->kernel, m->transposed = 0;
  tfu_recycled_open(&own->space, own->r->call);
  return TFU_OK;
}

static tfu_code run_own(void *own_) {
  own_run *own = own_;
  return tfu_conv_own_run(tfu_recycle(&own->space), (conv_pass)own->r->key.pass, CONV_TENSOR, 0, TFU_F32, *own->r->a);
}

static tfu_code error_of_own(void *own_, double *error, double *limit) {
  own_run *own = own_;
  *limit = INFINITY;
  return tfu_conv_sample_error(own->r->call, &own->sample, error);
}

/* Whether the product is so small that tfuse's own kernel is done with it in some 100 microseconds, by reckoning. */
static int is_small(const conv_key *k) {
  const double most = (double)(1 << 29); /* products of two numbers */
  double work = (double)k->batch * k->groups * k->c * k->k;
  for (int i = 0; i < CONV_AXES; i++) work *= (double)k->out[i] * k->window[i];
  return work <= most;
}

/* Whether tfuse's own kernel loses so much less than the engine that was taken, at so small a price, that it serves. */
static int own_wins(const conv_request *r, int timed, const tfu_tried *taken) {
  const float price = 2 * taken->microseconds + 100;
  own_run with = {.r = r, .sample = *r->sample};
  tfu_trial t = {.call = r->call,
                 .with = &with,
                 .plans = 1,
                 .most = 1,
                 .timed = timed,
                 .prepare = open_own,
                 .run = run_own,
                 .error = error_of_own};
  tfu_tried own;
  if (taken->error == 0 || !(timed || is_small(&r->key))) return 0;
  return tfu_trial_run(&t, &own) && !own.why_not && own.microseconds <= price &&
         alike(timed) * own.error < taken->error;
}

/* Where no result has an error, as with data of zeros, they do not tell which engine loses least. */
static int tells_nothing(const tfu_tried *tried, int n) {
  int good = 0;
  double worst = 0;
  for (int i = 0; i < n; i++)
    if (!tried[i].why_not) good++, worst = fmax(worst, tried[i].error);
  return good > 1 && worst == 0;
}

int tfu_conv_try(conv_request *r, tfu_graph *g, int timed, conv_choice *choice, tfu_tried *best) {
  tfu_tried tried[TFU_GRAPH_CONFIGS];
  conv_sample sample;
  const int exact = tfu_conv_exact(&r->key);
  tfu_trial t = {.call = r->call,
                 .with = r,
                 .plans = g->n_configs,
                 .most = CANDIDATES,
                 .enough = CONV_SMALL_WORKSPACE,
                 .timed = timed,
                 .prepare = exact ? take_sample : NULL,
                 .take = take,
                 .has_workspace = has_workspace,
                 .run = run,
                 .error = exact ? error_of : NULL,
                 .run_biased = r->key.epilogue & CONV_RELU ? run_biased : NULL,
                 .dtype = (tfu_dtype)r->key.dtype,
                 .channels = r->key.groups * r->key.k,
                 .result = r->memory[CONV_AT_Y]};
  r->trial = g, r->sample = &sample;
  const int n = tfu_trial_run(&t, tried);
  r->short_of_memory |= t.short_of_memory;
  r->unsure = (timed || t.compared) && exact && tells_nothing(tried, n);
  const int first = tfu_trial_pick(tried, n, CONV_MOST_WORKSPACE, alike(timed)),
            small = tfu_trial_pick(tried, n, CONV_SMALL_WORKSPACE, alike(timed));
  if (first < 0) return 0;
  *best = tried[first];
  *choice = (conv_choice){.best = tried[first].plan, .small = small < 0 ? -1 : tried[small].plan};
  return !(t.compared && own_wins(r, timed, best));
}
