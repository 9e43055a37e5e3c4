/* conv_choose.c - which of cuDNN's engines computes a convolution is decided by timing and, in exact float32, by error,
 * with timing switched off too, once (tuned.h). What is remembered is a place in the list of proposals that cuDNN makes
 * for the shape, the same for one version and GPU. */
#include "kernels/convolution/conv_choose.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/core/cpu/cpu.h"
#include "kernels/core/gpu/cuda.h"
#include "kernels/core/recycle.h"
#include "ops/convolution/conv.h"

_Static_assert(sizeof(conv_key) <= TFU_TUNED_KEY, "tuned.h has room for it");

typedef struct plan_key {
  conv_key key;
  int32_t config;
} plan_key;
_Static_assert(sizeof(plan_key) == sizeof(conv_key) + sizeof(int32_t) && sizeof(plan_key) <= TFU_PLAN_KEY, "no gap");

/* Most engines want next to nothing. Those that pad channels or copy tensors want as much as these take: for 256 images
 * of 224 x 224 in three channels 104 MiB. */
#define MOST_WORKSPACE ((int64_t)256 << 20)
/* What is there for a captured call, beside a bias of zeros and a kernel of up to as much. */
enum { SMALL_WORKSPACE = TFU_CONV_ROOM / 8 * 3 };
enum { CANDIDATES = 10 }; /* that are timed, or whose errors are compared */

/* ---- plans ---- */

/* The graph with cuDNN's proposals; NULL where there are none. */
static tfu_graph *ask(const conv_request *r, const conv_key *key, tfu_error *err) {
  tfu_graph *g = tfu_graph_new(r->dnn);
  if (!g) return NULL;
  tfu_conv_describe(g, key);
  if (tfu_graph_ask(g, r->handle->handle, NULL, TFU_GRAPH_CONFIGS, tfu_conv_avoid(key), tfu_conv_fewest(key), err) ==
      TFU_OK)
    return g;
  tfu_graph_free(g);
  return NULL;
}

static tfu_code take_least(tfu_graph *g, const conv_key *key, cudnnHandle_t handle, tfu_error *err) {
  int64_t least = INT64_MAX;
  int best = -1;
  for (int i = 0; i < g->n_configs; i++)
    if (tfu_conv_trusts(key, tfu_graph_engine(g, i)) && tfu_graph_take(g, handle, i, err) == TFU_OK &&
        g->workspace < least)
      least = g->workspace, best = i;
  return best < 0 ? tfu_fail(err, TFU_INTERNAL, "no engine plans it") : tfu_graph_take(g, handle, best, err);
}

static tfu_graph *plan(const void *key_, void *request_, char *why, size_t size) {
  const plan_key *key = key_;
  const conv_request *r = request_;
  const cudnnHandle_t handle = r->handle->handle;
  tfu_error err = {"out of host memory"};
  tfu_graph *g = ask(r, &key->key, &err);
  if (g && key->config < g->n_configs) {
    const tfu_code code =
        key->config < 0 ? take_least(g, &key->key, handle, &err) : tfu_graph_take(g, handle, key->config, &err);
    if (code == TFU_OK) return g;
  }
  snprintf(why, size, "%s", err.text);
  tfu_graph_free(g);
  return NULL;
}

tfu_planned *tfu_conv_plan(conv_request *r, int config) {
  const plan_key key = {.key = r->key, .config = config};
  tfu_planned *p = tfu_plan_get("convolution", &key, sizeof key, plan, r);
  if (p && !p->graph) {
    tfu_plan_release(p, NULL);
    return NULL;
  }
  return p;
}

int tfu_conv_try_scratch(conv_request *r, int64_t bytes, void **memory) {
  const int there = tfu_try_scratch(r->call, (size_t)bytes, memory);
  r->short_of_memory |= !there;
  return there;
}

int tfu_conv_has_workspace(conv_request *r, int64_t bytes) {
  enum { ALIGN = 256 };
  void *memory;
  if (bytes <= r->space) return 1;
  if (!tfu_conv_try_scratch(r, bytes + ALIGN, &memory)) return 0;
  r->workspace = (void *)(((uintptr_t)memory + ALIGN - 1) & ~(uintptr_t)(ALIGN - 1));
  r->space = bytes;
  return 1;
}

/* ---- choosing ---- */

static const char *const products[CONV_PRODUCTS] = {
    [CONV_FORWARD] = "convolution", [CONV_DATA] = "data gradient", [CONV_FILTER] = "filter gradient"};

static void describe(const void *key, void *request_, char *text, size_t size) {
  const conv_request *r = request_;
  const conv_key *k = key;
  char gpu[64];
  tfu_device_name(gpu, sizeof gpu);
  snprintf(
      text, size,
      "%s, cuDNN %d, %s %s%s epilogue %d, %d x %dx%dx%d to %dx%dx%d, window %dx%dx%d, groups %d of %d to %d, stride "
      "%dx%dx%d, dilation %dx%dx%d, before %dx%dx%d",
      gpu, r->dnn->version, products[k->product], tfu_dtype_name((tfu_dtype)k->dtype),
      k->tf32             ? " as tf32"
      : tfu_conv_exact(k) ? " exact"
                          : "",
      k->epilogue, k->batch, k->in[0], k->in[1], k->in[2], k->out[0], k->out[1], k->out[2], k->window[0], k->window[1],
      k->window[2], k->groups, k->c, k->k, k->stride[0], k->stride[1], k->stride[2], k->dilation[0], k->dilation[1],
      k->dilation[2], k->before[0], k->before[1], k->before[2]);
}

conv_choice tfu_conv_chosen_of(const tfu_choice *choice) {
  conv_choice c;
  memcpy(&c, choice->data, sizeof c);
  return c;
}

static int plans(conv_request *r, int config, int64_t most) {
  if (config < 0 || config >= TFU_GRAPH_CONFIGS) return 0;
  tfu_planned *p = tfu_conv_plan(r, config);
  const int fits = p && p->graph->workspace <= most;
  if (p) tfu_plan_release(p, NULL);
  return fits;
}

static int usable(const void *key, void *request_, const tfu_choice *choice) {
  (void)key;
  const conv_choice c = tfu_conv_chosen_of(choice);
  return plans(request_, c.best, MOST_WORKSPACE) && (c.small < 0 || plans(request_, c.small, SMALL_WORKSPACE));
}

static tfu_code run_trial(void *request_) {
  const conv_request *r = request_;
  return tfu_graph_run(r->trial, r->handle->handle, r->memory, r->workspace, r->call->err);
}

/* relu as max(x, 0) may make 0 of NaN: the engine is asked, by a bias of NaN. */
static tfu_code keeps_nan(conv_request *r, int *keeps) {
  const tfu_dtype dtype = (tfu_dtype)r->key.dtype;
  const size_t size = tfu_dtype_size(dtype), words = ((size_t)(r->key.groups * r->key.k) * size + 3) / 4;
  _Alignas(double) char result[sizeof(double)];
  float buffer;
  conv_request probe = *r;
  if (!r->nan) {
    if (!tfu_conv_try_scratch(r, (int64_t)words * 4, &r->nan)) return TFU_EXHAUSTED;
    TFU_TRY(tfu_fill(r->call, r->nan, UINT32_MAX, words)); /* which is NaN in every type */
  }
  probe.memory[CONV_AT_BIAS] = r->nan;
  TFU_TRY(run_trial(&probe));
  TFU_TRY(tfu_peek(r->call, r->memory[CONV_AT_Y], result, size));
  *keeps = dtype == TFU_F64 ? isnan(*(double *)result) : isnan(*tfu_load_f32(result, dtype, 0, 1, &buffer));
  return TFU_OK;
}

/* Whether the trial may be taken; looks at its error where there is a sample, and times it where `timed` is set. What
 * waits for the GPU is not to be done while the call is captured: an engine that ends in relu is not taken then. */
static int try_out(conv_request *r, int timed, conv_candidate *c) {
  tfu_error *err = r->call->err, ignored;
  const int relu = r->key.epilogue & CONV_RELU;
  int good = !relu;
  if (!tfu_may_wait(r->call)) return good;
  if (!relu && !timed && !r->sample) return 1;
  if (!tfu_conv_has_workspace(r, r->trial->workspace)) return 0;
  r->call->err = &ignored;
  tfu_code code = relu ? keeps_nan(r, &good) : TFU_OK;
  if (code == TFU_OK && good && r->sample) {
    code = run_trial(r);
    if (code == TFU_OK) code = tfu_conv_sample_error(r->call, r->sample, &c->error);
    good = c->error <= tfu_conv_sample_limit(r->sample);
  }
  if (code == TFU_OK && good && timed) code = tfu_time(r->call, run_trial, r, &c->microseconds);
  r->call->err = err;
  return code == TFU_OK && good;
}

static void name(const conv_request *r, const tfu_graph *g, int config, tfu_choice *choice) {
  const int n = snprintf(choice->label, sizeof choice->label, "cuDNN %s%s, engine %d", products[r->key.product],
                         r->key.epilogue ? " with epilogue" : "", tfu_graph_engine(g, config));
  if (choice->microseconds > 0)
    snprintf(choice->label + n, sizeof choice->label - (size_t)n, ", %.1f us", choice->microseconds);
}

/* How many times the least error is still as good: time is worth some of it, where there are times. */
static double alike(int timed) { return timed ? 1.5 : 1.1; }

int tfu_conv_pick(const conv_candidate *tried, int n, int64_t space, double times) {
  int best = -1;
  double least = INFINITY;
  for (int i = 0; i < n; i++)
    if (tried[i].workspace <= space) least = fmin(least, tried[i].error);
  for (int i = 0; i < n; i++)
    if (tried[i].workspace <= space && tried[i].error <= times * least &&
        (best < 0 || tried[i].microseconds < tried[best].microseconds))
      best = i;
  return best;
}

/* The best of the first proposals that can be planned; the first ones where none is to be timed or compared. Where no
 * result has an error, as with data of zeros, they do not tell which engine loses least: r->unsure. */
static conv_choice best_of(conv_request *r, tfu_graph *g, int timed, conv_candidate *taken) {
  tfu_error ignored;
  conv_candidate tried[TFU_GRAPH_CONFIGS];
  const int tries = timed || r->sample;
  int n = 0, small = 0;
  double worst = 0;
  for (int i = 0; i < g->n_configs && (tries ? n < CANDIDATES : !n || !small); i++) {
    if (!tfu_conv_trusts(&r->key, tfu_graph_engine(g, i)) ||
        tfu_graph_take(g, r->handle->handle, i, &ignored) != TFU_OK || g->workspace > MOST_WORKSPACE)
      continue;
    r->trial = g;
    tried[n] = (conv_candidate){.config = i, .workspace = g->workspace};
    if (!try_out(r, timed, &tried[n])) continue;
    small |= g->workspace <= SMALL_WORKSPACE;
    worst = fmax(worst, tried[n++].error);
  }
  r->unsure = tries && tfu_conv_exact(&r->key) && n > 1 && worst == 0;
  const int best = tfu_conv_pick(tried, n, MOST_WORKSPACE, alike(timed)),
            least = tfu_conv_pick(tried, n, SMALL_WORKSPACE, alike(timed));
  if (best >= 0) *taken = tried[best];
  return (conv_choice){.best = best < 0 ? -1 : tried[best].config, .small = least < 0 ? -1 : tried[least].config};
}

typedef struct own_run {
  tfu_recycled space;
  const conv_request *r;
} own_run;
static tfu_code run_own(void *own_) {
  own_run *own = own_;
  return tfu_conv_own_run(tfu_recycle(&own->space), (conv_product)own->r->key.product, CONV_TENSOR, 0, TFU_F32,
                          *own->r->a);
}

/* Whether the product is so small that tfuse's own kernel is done with it in some 100 microseconds, by reckoning. */
static int is_small(const conv_key *k) {
  const double most = (double)(1 << 29); /* products of two numbers */
  double work = (double)k->batch * k->groups * k->c * k->k;
  for (int i = 0; i < CONV_AXES; i++) work *= (double)k->out[i] * k->window[i];
  return work <= most;
}

/* Whether tfuse's own kernel loses so much less than the engine that was taken, at so small a price, that it serves. */
static int own_wins(const conv_request *r, int timed, const conv_candidate *taken) {
  const float price = 2 * taken->microseconds + 100;
  tfu_error *err = r->call->err, ignored;
  own_run own = {.r = r};
  float took = INFINITY;
  double error = INFINITY;
  if (!r->sample || taken->error == 0 || !(timed || is_small(&r->key))) return 0;
  conv_sample sample = *r->sample;
  if (sample.m.turned) sample.m.result = r->a->kernel, sample.m.turned = 0;
  r->call->err = &ignored;
  tfu_recycled_open(&own.space, r->call);
  tfu_code code = timed ? tfu_time(r->call, run_own, &own, &took) : run_own(&own);
  if (code == TFU_OK && (!timed || took <= price)) code = tfu_conv_sample_error(r->call, &sample, &error);
  r->call->err = err;
  return code == TFU_OK && alike(timed) * error < taken->error;
}

/* Results in exact float32 as they should be, if they can be had now. */
static conv_sample *take_sample(const conv_request *r, conv_sample *sample) {
  static const int at[CONV_PRODUCTS] = {
      [CONV_FORWARD] = CONV_AT_Y, [CONV_DATA] = CONV_AT_X, [CONV_FILTER] = CONV_AT_KERNEL};
  const conv_product product = (conv_product)r->key.product;
  tfu_error *err = r->call->err, ignored;
  if (!tfu_may_wait(r->call) || !tfu_conv_exact(&r->key)) return NULL;
  r->call->err = &ignored;
  const tfu_code code = tfu_conv_sample_take(r->call, product, r->a, r->memory[at[product]], sample);
  r->call->err = err;
  return code == TFU_OK ? sample : NULL;
}

static int choose_among(conv_request *r, int timed, tfu_choice *choice) {
  tfu_error ignored;
  conv_sample sample;
  tfu_graph *g = ask(r, &r->key, &ignored);
  *choice = (tfu_choice){.none = 1};
  if (!g) return 0;
  r->sample = take_sample(r, &sample);
  conv_candidate taken = {0};
  const conv_choice c = best_of(r, g, timed, &taken);
  if (c.best >= 0 && !own_wins(r, timed, &taken)) {
    choice->none = 0;
    choice->microseconds = taken.microseconds;
    memcpy(choice->data, &c, sizeof c);
    name(r, g, c.best, choice);
  }
  r->sample = NULL;
  tfu_graph_free(g);
  return !choice->none;
}

static tfu_chosen choose(const void *key, void *request_, tfu_choice *choice) {
  (void)key;
  conv_request *r = request_;
  const int can_time = tfu_may_wait(r->call), relu = r->key.epilogue & CONV_RELU;
  choose_among(r, tfu_tuning() && can_time, choice);
  if (choice->none && r->short_of_memory) return TFU_CHOSEN_ONCE; /* another time there may be more */
  if (r->short_of_memory) choice->microseconds = 0;               /* nor is the file to have what was left of them */
  if (r->unsure) return TFU_CHOSEN_ONCE;                          /* as data of zeros leaves it */
  return can_time || !(tfu_tuning() || relu || tfu_conv_exact(&r->key)) ? TFU_CHOSEN : TFU_CHOSEN_ONCE;
}

/* Sizes that change with the data: the batch, and those of images. */
double tfu_conv_apart(const void *key, const void *other) {
  const conv_key *a = key;
  conv_key b = *(const conv_key *)other;
  double sum = fabs(log2((double)a->batch / (double)b.batch));
  for (int i = 0; i < CONV_AXES; i++) {
    sum += fabs(log2((double)a->in[i] / (double)b.in[i]));
    b.in[i] = a->in[i], b.out[i] = a->out[i], b.before[i] = a->before[i];
  }
  b.batch = a->batch;
  return memcmp(a, &b, sizeof b) ? -1 : sum;
}

/* Another size has other proposals: cuDNN's first is taken, or the first of the most exact; nothing is timed. */
static int adopt(const void *key, const void *other, void *request_, tfu_choice *choice) {
  (void)key, (void)other;
  return choose_among(request_, 0, choice);
}

const tfu_tuner tfu_conv_tuner = {.bytes = sizeof(conv_key),
                                  .describe = describe,
                                  .usable = usable,
                                  .choose = choose,
                                  .apart = tfu_conv_apart,
                                  .adopt = adopt};
