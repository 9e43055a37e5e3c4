/* conv_cudnn.c - convolutions by cuDNN: which of its engines is taken is decided by timing, once (tuned.h). What is
 * remembered is a place in the list of proposals that cuDNN makes for the shape, the same for one version and GPU. */
#include "kernels/convolution/conv_cudnn.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/core/cpu/cpu.h"
#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/tuned.h"
#include "kernels/core/nvidia/plan_cache.h"
#include "kernels/layout/transpose.h"
#include "ops/convolution/conv.h"

_Static_assert(sizeof(conv_key) <= TFU_TUNED_KEY, "tuned.h has room for it");

/* A plan of a proposal, or of the one that needs the least workspace. */
enum { LEAST_SPACE = -1 };
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
enum { CANDIDATES = 10 }; /* that are timed */

/* Places in the list of proposals: the fastest, and the fastest with a small workspace; negative: none. */
typedef struct conv_choice {
  int32_t best, small;
} conv_choice;

typedef struct request {
  tfu_call *call;
  const tfu_cudnn *dnn;
  tfu_cudnn_handle *handle;
  const conv_args *a;
  conv_key key;
  void *memory[CONV_SLOTS];
  tfu_graph *trial; /* what is timed */
  void *workspace;
  int64_t space; /* bytes of it */
  int short_of_memory;
  void *nan; /* a bias of NaN, once it is needed */
} request;

/* ---- plans ---- */

/* The graph with cuDNN's proposals; NULL where there are none. */
static tfu_graph *ask(const request *r, const conv_key *key, tfu_error *err) {
  tfu_graph *g = tfu_graph_new(r->dnn);
  if (!g) return NULL;
  tfu_conv_describe(g, key);
  if (tfu_graph_ask(g, r->handle->handle, NULL, TFU_GRAPH_CONFIGS, tfu_conv_avoid(key), 1, err) == TFU_OK) return g;
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
  const request *r = request_;
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

/* NULL where there is none. */
static tfu_planned *get_plan(request *r, int config) {
  const plan_key key = {.key = r->key, .config = config};
  tfu_planned *p = tfu_plan_get("convolution", &key, sizeof key, plan, r);
  if (p && !p->graph) {
    tfu_plan_release(p, NULL);
    return NULL;
  }
  return p;
}

/* Whether there is so much scratch memory. */
static int try_scratch(request *r, int64_t bytes, void **memory) {
  const int there = tfu_try_scratch(r->call, (size_t)bytes, memory);
  r->short_of_memory |= !there;
  return there;
}

/* Whether there is so much workspace. What was taken for one plan serves the next. */
static int has_workspace(request *r, int64_t bytes) {
  enum { ALIGN = 256 };
  void *memory;
  if (bytes <= r->space) return 1;
  if (!try_scratch(r, bytes + ALIGN, &memory)) return 0;
  r->workspace = (void *)(((uintptr_t)memory + ALIGN - 1) & ~(uintptr_t)(ALIGN - 1));
  r->space = bytes;
  return 1;
}

/* ---- choosing ---- */

static const char *const products[CONV_PRODUCTS] = {
    [CONV_FORWARD] = "convolution", [CONV_DATA] = "data gradient", [CONV_FILTER] = "filter gradient"};

static void describe(const void *key, void *request_, char *text, size_t size) {
  const request *r = request_;
  const conv_key *k = key;
  char gpu[64];
  tfu_device_name(gpu, sizeof gpu);
  snprintf(
      text, size,
      "%s, cuDNN %d, %s %s%s epilogue %d, %d x %dx%dx%d to %dx%dx%d, window %dx%dx%d, groups %d of %d to %d, stride "
      "%dx%dx%d, dilation %dx%dx%d, before %dx%dx%d",
      gpu, r->dnn->version, products[k->product], tfu_dtype_name((tfu_dtype)k->dtype), k->tf32 ? " as tf32" : "",
      k->epilogue, k->batch, k->in[0], k->in[1], k->in[2], k->out[0], k->out[1], k->out[2], k->window[0], k->window[1],
      k->window[2], k->groups, k->c, k->k, k->stride[0], k->stride[1], k->stride[2], k->dilation[0], k->dilation[1],
      k->dilation[2], k->before[0], k->before[1], k->before[2]);
}

static conv_choice chosen_of(const tfu_choice *choice) {
  conv_choice c;
  memcpy(&c, choice->data, sizeof c);
  return c;
}

static int plans(request *r, int config, int64_t most) {
  if (config < 0 || config >= TFU_GRAPH_CONFIGS) return 0;
  tfu_planned *p = get_plan(r, config);
  const int fits = p && p->graph->workspace <= most;
  if (p) tfu_plan_release(p, NULL);
  return fits;
}

static int usable(const void *key, void *request_, const tfu_choice *choice) {
  (void)key;
  const conv_choice c = chosen_of(choice);
  return plans(request_, c.best, MOST_WORKSPACE) && (c.small < 0 || plans(request_, c.small, SMALL_WORKSPACE));
}

static tfu_code run_trial(void *request_) {
  const request *r = request_;
  return tfu_graph_run(r->trial, r->handle->handle, r->memory, r->workspace, r->call->err);
}

/* relu as max(x, 0) may make 0 of NaN: the engine is asked, by a bias of NaN. */
static tfu_code keeps_nan(request *r, int *keeps) {
  const tfu_dtype dtype = (tfu_dtype)r->key.dtype;
  const size_t size = tfu_dtype_size(dtype), words = ((size_t)(r->key.groups * r->key.k) * size + 3) / 4;
  _Alignas(double) char result[sizeof(double)];
  float buffer;
  request probe = *r;
  if (!r->nan) {
    TFU_TRY(tfu_scratch(r->call, words * 4, &r->nan));
    TFU_TRY(tfu_fill(r->call, r->nan, UINT32_MAX, words)); /* which is NaN in every type */
  }
  probe.memory[CONV_AT_BIAS] = r->nan;
  TFU_TRY(run_trial(&probe));
  TFU_TRY(tfu_peek(r->call, r->memory[CONV_AT_Y], result, size));
  *keeps = dtype == TFU_F64 ? isnan(*(double *)result) : isnan(*tfu_load_f32(result, dtype, 0, 1, &buffer));
  return TFU_OK;
}

/* Whether the trial may be taken; times it where `microseconds` is given. What waits for the GPU is not to be done
 * while the call is captured: an engine that ends in relu is not taken then. */
static int try_out(request *r, float *microseconds) {
  tfu_error *err = r->call->err, ignored;
  const int relu = r->key.epilogue & CONV_RELU;
  int keeps = !relu;
  if (!tfu_may_wait(r->call)) return keeps;
  if (!relu && !microseconds) return 1;
  if (!has_workspace(r, r->trial->workspace)) return 0;
  r->call->err = &ignored;
  tfu_code code = relu ? keeps_nan(r, &keeps) : TFU_OK;
  if (code == TFU_OK && keeps && microseconds) code = tfu_time(r->call, run_trial, r, microseconds);
  r->call->err = err;
  return code == TFU_OK && keeps;
}

static void name(const request *r, const tfu_graph *g, int config, tfu_choice *choice) {
  const int n = snprintf(choice->label, sizeof choice->label, "cuDNN %s%s, engine %d", products[r->key.product],
                         r->key.epilogue ? " with epilogue" : "", tfu_graph_engine(g, config));
  if (choice->microseconds > 0)
    snprintf(choice->label + n, sizeof choice->label - (size_t)n, ", %.1f us", choice->microseconds);
}

/* The fastest of the first proposals that can be planned; the first ones where none is to be timed. */
static conv_choice best_of(request *r, tfu_graph *g, int timed, float *microseconds) {
  tfu_error ignored;
  conv_choice c = {.best = -1, .small = -1};
  float small = 0;
  int tried = 0;
  for (int i = 0; i < g->n_configs && (timed ? tried < CANDIDATES : c.best < 0 || c.small < 0); i++) {
    float time = 0;
    if (!tfu_conv_trusts(&r->key, tfu_graph_engine(g, i)) ||
        tfu_graph_take(g, r->handle->handle, i, &ignored) != TFU_OK || g->workspace > MOST_WORKSPACE)
      continue;
    r->trial = g;
    if (!try_out(r, timed ? &time : NULL)) continue;
    tried++;
    if (c.best < 0 || time < *microseconds) c.best = i, *microseconds = time;
    if (g->workspace <= SMALL_WORKSPACE && (c.small < 0 || time < small)) c.small = i, small = time;
  }
  return c;
}

static int choose_among(request *r, int timed, tfu_choice *choice) {
  tfu_error ignored;
  tfu_graph *g = ask(r, &r->key, &ignored);
  *choice = (tfu_choice){.none = 1};
  if (!g) return 0;
  const conv_choice c = best_of(r, g, timed, &choice->microseconds);
  if (c.best >= 0) {
    choice->none = 0;
    memcpy(choice->data, &c, sizeof c);
    name(r, g, c.best, choice);
  }
  tfu_graph_free(g);
  return c.best >= 0;
}

static tfu_chosen choose(const void *key, void *request_, tfu_choice *choice) {
  (void)key;
  request *r = request_;
  const int can_time = tfu_may_wait(r->call), relu = r->key.epilogue & CONV_RELU;
  choose_among(r, tfu_tuning() && can_time, choice);
  if (choice->none && r->short_of_memory) return TFU_CHOSEN_ONCE; /* another time there may be more */
  return can_time || (!tfu_tuning() && !relu) ? TFU_CHOSEN : TFU_CHOSEN_ONCE;
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

/* Another size has other proposals: cuDNN's first is taken, and nothing is timed. */
static int adopt(const void *key, const void *other, void *request_, tfu_choice *choice) {
  (void)key, (void)other;
  return choose_among(request_, 0, choice);
}

static const tfu_tuner tuner = {.bytes = sizeof(conv_key),
                                .describe = describe,
                                .usable = usable,
                                .choose = choose,
                                .apart = tfu_conv_apart,
                                .adopt = adopt};

/* ---- running ---- */

static const char no_room[] = "cuDNN wants more scratch memory than there is";

/* The matrix [rows][cols] from its transpose. */
static tfu_turn turn_of(int64_t rows, int64_t cols) {
  return (tfu_turn){.axes = 2, .size = {rows, cols}, .from = {1, rows}, .to = {cols, 1}};
}

/* The bias where there is none, but something behind it. */
static tfu_code zero_bias(request *r) {
  const size_t bytes = (size_t)(r->key.groups * r->key.k) * tfu_dtype_size((tfu_dtype)r->key.dtype);
  if (!(r->key.epilogue & CONV_ADDS_BIAS) || r->a->bias) return TFU_OK;
  TFU_TRY(tfu_scratch(r->call, bytes, &r->memory[CONV_AT_BIAS]));
  return tfu_clear(r->call, r->memory[CONV_AT_BIAS], bytes);
}

/* Whether there is memory for the kernel as cuDNN takes it, where that differs from ours. */
static int has_turned(request *r) {
  const conv_shape *s = &r->a->s;
  const int64_t rows = conv_volume(s->window) * s->c, outputs = s->groups * s->k;
  return rows == 1 || outputs == 1 ||
         try_scratch(r, rows * outputs * (int64_t)tfu_dtype_size((tfu_dtype)r->key.dtype), &r->memory[CONV_AT_KERNEL]);
}

/* Before the run, or behind it where the kernel is what was asked for. */
static tfu_code turn_kernel(request *r, int behind) {
  const conv_shape *s = &r->a->s;
  const int64_t rows = conv_volume(s->window) * s->c, outputs = s->groups * s->k;
  const int64_t size = (int64_t)tfu_dtype_size((tfu_dtype)r->key.dtype);
  void *ours = r->a->kernel, *turned = r->memory[CONV_AT_KERNEL];
  if (ours == turned || behind != (r->key.product == CONV_FILTER)) return TFU_OK;
  return behind ? tfu_turn_gpu(r->call, turn_of(rows, outputs), turned, ours, size)
                : tfu_turn_gpu(r->call, turn_of(outputs, rows), ours, turned, size);
}

/* A plan, and its workspace; NULL where either is not to be had. */
static tfu_planned *plan_with_space(request *r, int config) {
  tfu_planned *p = get_plan(r, config);
  if (!p || has_workspace(r, p->graph->workspace)) return p;
  tfu_plan_release(p, NULL);
  return NULL;
}

/* The chosen plan or, where its workspace is not to be had, one that needs less; NULL where that is not either. Plans
 * may be made here, also while the call is captured. That relu keeps NaN is known of those that were chosen only. */
static tfu_planned *prepare(request *r, const char **label, const char **why) {
  tfu_choice choice;
  const int mode = r->call->captured ? tfu_capture_relax() : 0;
  tfu_planned *p = NULL;
  *label = tfu_tuned_get(&tuner, &r->key, r, &choice);
  if (!choice.none) {
    const conv_choice c = chosen_of(&choice);
    p = plan_with_space(r, c.best);
    if (!p) *label = NULL;
    if (!p && c.small >= 0) p = plan_with_space(r, c.small);
  }
  if (!p && r->short_of_memory && !(r->key.epilogue & CONV_RELU)) p = plan_with_space(r, LEAST_SPACE);
  *why = r->short_of_memory ? no_room : "cuDNN has no plan for it";
  if (r->call->captured) tfu_capture_restore(mode);
  return p;
}

static tfu_code serve(request *r, int *served, const char **why) {
  const char *label;
  TFU_TRY(zero_bias(r));
  *why = no_room;
  if (!has_turned(r)) return TFU_OK;
  TFU_TRY(turn_kernel(r, 0));
  tfu_planned *p = prepare(r, &label, why);
  if (!p) return TFU_OK;
  *served = 1;
  r->call->kernel = label ? label : "cuDNN convolution";
  const tfu_code code = tfu_graph_run(p->graph, r->handle->handle, r->memory, r->workspace, r->call->err);
  tfu_plan_release(p, r->call);
  return code == TFU_OK ? turn_kernel(r, 1) : code;
}

tfu_code tfu_conv_cudnn(tfu_call *call, conv_product product, tfu_dtype dtype, int tf32, const conv_args *a,
                        int *served, const char **why) {
  request r = {.call = call,
               .a = a,
               .memory = {[CONV_AT_X] = a->x,
                          [CONV_AT_KERNEL] = a->kernel,
                          [CONV_AT_Y] = a->y,
                          [CONV_AT_BIAS] = (void *)a->bias,
                          [CONV_AT_RESIDUAL] = (void *)a->residual}};
  tfu_device device;
  tfu_error ignored;
  *served = 0;
  r.dnn = tfu_cudnn_get(why);
  if (!r.dnn) return TFU_OK;
  TFU_TRY(tfu_device_now(&device, call->err));
  if ((*why = tfu_conv_key_of(a, product, dtype, tf32, device.ordinal, &r.key))) return TFU_OK;
  *why = "cuDNN cannot be started";
  const int mode = call->captured ? tfu_capture_relax() : 0;
  const tfu_code started = tfu_cudnn_borrow(r.dnn, call->stream, &r.handle, &ignored);
  if (call->captured) tfu_capture_restore(mode);
  if (started != TFU_OK) return TFU_OK;
  const tfu_code code = serve(&r, served, why);
  tfu_cudnn_return(r.handle);
  return code;
}
