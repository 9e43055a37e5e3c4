/* Optimizer steps on the CPU; formulas, and which memory may be shared: ops/lists/tensors_update.c. A task is a chunk
 * of one tensor, taken a tile at a time: read into buffers, changed there, and written.
 *
 * Products and sums are rounded one by one, as Keras's are: lion asks for the sign of a difference that may be nothing
 * at all. Lamb walks twice, with the ratio of norms found in between. */
#ifndef REAL
#pragma GCC optimize("fp-contract=off")
#include "kernels/lists/tensors_update.h"

#include <math.h>

#include "kernels/core/cpu/cpu.h"
#include "kernels/lists/tensors_cpu.h"
#include "ops/lists/rules.h"

_Static_assert((int)HYPERS == TFU_HYPERS, "the op and the kernels count the same numbers");

typedef struct update {
  const tfu_list *gradients, *weights, *slots, *new_weights, *new_slots;
  const tfu_tensor *rate, *step, *hyper, *norm, *scale;
  int rule, squares; /* squares: whether those of a gradient lie after it */
  tensors_chunks_cpu chunks;
  double *sums;   /* lamb, by chunk: of w * w and u * u */
  double *ratios; /* by tensor; NULL in lamb's first walk */
} update;

/* Behind the slots in a buffer: g * g, or what stands for it. */
enum { SQUARE = TFU_MOST_SLOTS, BUFFERS };

/* Whether max(a, b) is a: NaN wins, as in TensorFlow. */
#define IS_MAX(a, b) ((a) > (b) || (a) != (a))

#define TFU_SELF "kernels/lists/tensors_update_cpu.c"
#include "kernels/core/cpu/stamp.h"

static void find_ratios(const update *u, int real64, double *ratios) {
  for (int i = 0; i < u->weights->n; i++) {
    double w = 0, g = 0;
    for (int64_t c = u->chunks.first[i]; c < u->chunks.first[i + 1]; c++) w += u->sums[2 * c], g += u->sums[2 * c + 1];
    w = sqrt(real64 ? w : (float)w);
    g = sqrt(real64 ? g : (float)g);
    ratios[i] = w > 0 && g > 0 ? w / g : 1;
  }
}

tfu_code tfu_tensors_update_cpu(tfu_call *call) {
  const tfu_list *in = call->lists->in, *out = call->lists->out;
  update u = {.gradients = &in[TFU_UPDATE_GRADIENTS],
              .weights = &in[TFU_UPDATE_WEIGHTS],
              .slots = &in[TFU_UPDATE_SLOTS],
              .new_weights = &out[TFU_UPDATE_NEW_WEIGHTS],
              .new_slots = &out[TFU_UPDATE_NEW_SLOTS],
              .rate = in[TFU_UPDATE_RATE].at,
              .step = in[TFU_UPDATE_STEP].at,
              .hyper = in[TFU_UPDATE_HYPER].at,
              .norm = in[TFU_UPDATE_NORM].at,
              .scale = in[TFU_UPDATE_SCALE].at,
              .rule = (int)call->attr[TFU_UPDATE_RULE].i,
              .squares = call->attr[TFU_UPDATE_SQUARES].b};
  const int f64 = u.rate->dtype == TFU_F64;
  TFU_REQUIRE(call->err, f64 == (u.gradients->at->dtype == TFU_F64),
              "gradients of float64 need weights of float64, got %s beside %s", tfu_dtype_name(u.gradients->at->dtype),
              tfu_dtype_name(u.weights->at->dtype));
  void (*const task)(void *, int64_t) = f64 ? task_f64 : task_f32;
  TFU_TRY(tensors_chunks_open(call, u.weights, &u.chunks));
  if (u.rule == TFU_RULE_lamb) {
    TFU_SCRATCH(call, 2 * u.chunks.n + u.weights->n, u.sums);
    tfu_parallel(u.chunks.n, task, &u);
    u.ratios = u.sums + 2 * u.chunks.n;
    find_ratios(&u, f64, u.ratios);
  }
  tfu_parallel(u.chunks.n, task, &u);
  return TFU_OK;
}

#else
typedef struct FN(numbers) {
  REAL rate, decay, beta_1, beta_2, rest_1, rest_2, epsilon;
  REAL factor, divisor, bound;       /* of the gradient: what scales and clips it     */
  REAL bias_1, bias_2, alpha, ratio; /* 1 - beta^t; the step of adam; lamb's ratio    */
} FN(numbers);

static REAL FN(power)(REAL base, REAL t) { return sizeof t == sizeof(double) ? pow(base, t) : powf(base, t); }
static REAL FN(root)(REAL x) { return sizeof x == sizeof(double) ? sqrt(x) : sqrtf(x); }

static FN(numbers) FN(read)(const update *u, int tensor) {
  const REAL *h = u->hyper->data, *norm = tfu_given_data(u->norm);
  /* Norms are those of what comes in, before it is divided by the scale. */
  const REAL scale = tfu_given(&u->scale->shape) ? *(const REAL *)u->scale->data : 1;
  FN(numbers)
  n = {.rate = *(const REAL *)u->rate->data,
       .decay = h[DECAY],
       .beta_1 = h[BETA_1],
       .beta_2 = h[BETA_2],
       .rest_1 = h[REST_1],
       .rest_2 = h[REST_2],
       .epsilon = h[EPSILON],
       .factor = 1,
       .divisor = scale,
       .bound = h[CLIP_VALUES] != 0 ? h[CLIP] : (REAL)INFINITY};
  if (norm && u->norm->shape.rank == 1) {
    const REAL own = norm[tensor] / scale;
    n.factor = h[CLIP];
    n.divisor = (IS_MAX(own, n.factor) ? own : n.factor) * scale;
  } else if (norm) {
    const REAL all = *norm / scale, by_norm = 1 / all, by_clip = 1 / h[CLIP];
    n.factor = h[CLIP] * (by_norm < by_clip ? by_norm : by_clip) + (all - all);
  }
  const REAL t = (REAL)(*(const int64_t *)u->step->data + 1);
  n.bias_1 = 1 - FN(power)(n.beta_1, t);
  n.bias_2 = 1 - FN(power)(n.beta_2, t);
  n.alpha = n.rate * FN(root)(n.bias_2) / n.bias_1;
  n.ratio = u->ratios ? (REAL)u->ratios[tensor] : 1;
  return n;
}

/* Rules, a tile at a time: w and the slots are changed in place. A rule is a statement of element i of the gradient g,
 * the weight w, the slots m, v and top, and of g's square, with the step's numbers k. */
typedef void FN(rule)(const FN(numbers) * n, const REAL *g, REAL *w, REAL (*s)[TFU_TILE], int count);
#define RULE(name, ...)                                                                                \
  static void FN(name)(const FN(numbers) * n, const REAL *g, REAL *w, REAL(*s)[TFU_TILE], int count) { \
    const FN(numbers) k = *n;                                                                          \
    const REAL *square = s[SQUARE];                                                                    \
    REAL *m = s[0], *v = s[1], *top = s[2];                                                            \
    (void)g, (void)w, (void)square, (void)m, (void)v, (void)top;                                       \
    TFU_VECTORISED(i, count) {                                                                         \
      __VA_ARGS__                                                                                      \
    }                                                                                                  \
  }
#define MOMENTS m[i] += (g[i] - m[i]) * k.rest_1, v[i] += (square[i] - v[i]) * k.rest_2
#define DESCEND(v) w[i] -= m[i] * k.alpha / (FN(root)((v)[i]) + k.epsilon)
#define LAMB_STEP (m[i] / k.bias_1 / (FN(root)(v[i] / k.bias_2) + k.epsilon))

RULE(sgd, w[i] -= g[i] * k.rate;)
RULE(momentum, m[i] = m[i] * k.beta_1 - g[i] * k.rate; w[i] += m[i];)
RULE(nesterov, m[i] = m[i] * k.beta_1 - g[i] * k.rate; w[i] += m[i] * k.beta_1 - g[i] * k.rate;)
RULE(adam, MOMENTS; DESCEND(v);)
RULE(amsgrad, MOMENTS; top[i] = IS_MAX(top[i], v[i]) ? top[i] : v[i]; DESCEND(top);)
RULE(lion, const REAL way = m[i] * k.beta_1 + g[i] * k.rest_1; /* NaN stays */
     w[i] -= k.rate * (way > 0   ? 1
                       : way < 0 ? -1
                                 : way);
     m[i] = m[i] * k.beta_2 + g[i] * k.rest_2;)
/* Lamb's first walk, which also adds up w * w and u * u; and its second: the slots are new already. */
RULE(lamb_slots, MOMENTS;)
RULE(lamb, w[i] -= k.ratio * k.rate * LAMB_STEP;)

static FN(rule) *const FN(rules)[TFU_RULE_COUNT] = {
#define X(name, slots) [TFU_RULE_##name] = FN(name),
    TFU_RULES(X)
#undef X
};

/* Adds a tile's w * w and u * u to the sums of a chunk. */
static void FN(lamb_sums)(const FN(numbers) * n, const REAL *w, REAL (*s)[TFU_TILE], int count, double *sums) {
  const FN(numbers) k = *n;
  const REAL *m = s[0], *v = s[1];
  for (int i = 0; i < count; i++) {
    const REAL u = LAMB_STEP;
    sums[0] += (double)(w[i] * w[i]);
    sums[1] += (double)(u * u);
  }
}

static void FN(prepare)(const FN(numbers) * n, REAL *g, REAL *w, REAL *square, int count) {
  const REAL factor = n->factor, divisor = n->divisor, bound = n->bound, decay = n->decay, rate = n->rate;
  TFU_VECTORISED(i, count) {
    const REAL v = g[i] * factor / divisor;
    g[i] = v < -bound ? -bound : v > bound ? bound : v;
    square[i] = g[i] * g[i];
  }
  if (decay == 0) return;
  TFU_VECTORISED(i, count) w[i] -= w[i] * decay * rate;
}

static void FN(copy_in)(const tfu_tensor *t, int64_t at, int n, REAL *to) {
  const REAL *v = FN(tfu_load)(t->data, t->dtype, at, n, to);
  if (v != to) memcpy(to, v, (size_t)n * sizeof *to);
}

static void FN(task)(void *arg, int64_t task) {
  const update *u = arg;
  const tensors_piece p = tensors_piece_of(&u->chunks, u->weights, task);
  const int count = u->weights->n, slots = u->slots->n / count, t = p.tensor;
  const int first = u->sums && !u->ratios, second = u->sums && u->ratios; /* of lamb's two walks; else neither */
  const FN(numbers) n = FN(read)(u, t);
  const tfu_tensor *old = second ? u->new_slots->at : u->slots->at, *new_slots = u->new_slots->at;
  REAL g[TFU_TILE], w[TFU_TILE], s[BUFFERS][TFU_TILE];
  double sums[2] = {0, 0};
  for (TFU_EACH_TILE(at, left, p.begin, p.end)) {
    const int m = (int)left;
    FN(copy_in)(&u->gradients->at[t], at, m, g);
    FN(copy_in)(&u->weights->at[t], at, m, w);
    for (int k = 0; k < slots; k++) FN(copy_in)(&old[k * count + t], at, m, s[k]);
    FN(prepare)(&n, g, w, s[SQUARE], m);
    if (u->squares) FN(copy_in)(&u->gradients->at[t], tfu_count(&u->weights->at[t].shape) + at, m, s[SQUARE]);
    if (first) {
      FN(lamb_slots)(&n, g, w, s, m);
      FN(lamb_sums)(&n, w, s, m, sums);
    } else {
      FN(rules)[u->rule](&n, g, w, s, m);
      FN(tfu_store)(u->new_weights->at[t].data, u->new_weights->at[t].dtype, at, m, w);
    }
    for (int k = 0; k < slots && !second; k++)
      FN(tfu_store)(new_slots[k * count + t].data, new_slots[k * count + t].dtype, at, m, s[k]);
  }
  if (first) memcpy(u->sums + 2 * task, sums, sizeof sums);
}
#undef RULE
#undef MOMENTS
#undef DESCEND
#undef LAMB_STEP
#endif
