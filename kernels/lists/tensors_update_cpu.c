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
  int rule, squares; /* squares: whether those of a gradient lie behind it */
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
    void *memory;
    TFU_TRY(tfu_scratch(call, (size_t)(2 * u.chunks.n + u.weights->n) * sizeof *u.sums, &memory));
    u.sums = memory;
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

/* Rules, a tile at a time: g, w and the slots s are changed in place. */
typedef void FN(rule)(const FN(numbers) * n, const REAL *g, REAL *w, REAL (*s)[TFU_TILE], int count);

static void FN(sgd)(const FN(numbers) * n, const REAL *g, REAL *w, REAL (*s)[TFU_TILE], int count) {
  const REAL rate = n->rate;
  (void)s;
  TFU_VECTORISED(i, count) w[i] -= g[i] * rate;
}

static void FN(momentum)(const FN(numbers) * n, const REAL *g, REAL *w, REAL (*s)[TFU_TILE], int count) {
  const REAL rate = n->rate, beta = n->beta_1;
  REAL *m = s[0];
  TFU_VECTORISED(i, count) {
    m[i] = m[i] * beta - g[i] * rate;
    w[i] += m[i];
  }
}

static void FN(nesterov)(const FN(numbers) * n, const REAL *g, REAL *w, REAL (*s)[TFU_TILE], int count) {
  const REAL rate = n->rate, beta = n->beta_1;
  REAL *m = s[0];
  TFU_VECTORISED(i, count) {
    m[i] = m[i] * beta - g[i] * rate;
    w[i] += m[i] * beta - g[i] * rate;
  }
}

static void FN(moments)(const FN(numbers) * n, const REAL *g, REAL (*s)[TFU_TILE], int count) {
  const REAL rest_1 = n->rest_1, rest_2 = n->rest_2;
  const REAL *square = s[SQUARE];
  REAL *m = s[0], *v = s[1];
  TFU_VECTORISED(i, count) {
    m[i] += (g[i] - m[i]) * rest_1;
    v[i] += (square[i] - v[i]) * rest_2;
  }
}

static void FN(descend)(const FN(numbers) * n, REAL *w, const REAL *m, const REAL *v, int count) {
  const REAL alpha = n->alpha, epsilon = n->epsilon;
  TFU_VECTORISED(i, count) w[i] -= m[i] * alpha / (FN(root)(v[i]) + epsilon);
}

static void FN(adam)(const FN(numbers) * n, const REAL *g, REAL *w, REAL (*s)[TFU_TILE], int count) {
  FN(moments)(n, g, s, count);
  FN(descend)(n, w, s[0], s[1], count);
}

static void FN(amsgrad)(const FN(numbers) * n, const REAL *g, REAL *w, REAL (*s)[TFU_TILE], int count) {
  FN(moments)(n, g, s, count);
  TFU_VECTORISED(i, count) s[2][i] = IS_MAX(s[2][i], s[1][i]) ? s[2][i] : s[1][i];
  FN(descend)(n, w, s[0], s[2], count);
}

static void FN(lion)(const FN(numbers) * n, const REAL *g, REAL *w, REAL (*s)[TFU_TILE], int count) {
  const REAL rate = n->rate, beta_1 = n->beta_1, beta_2 = n->beta_2, rest_1 = n->rest_1, rest_2 = n->rest_2;
  REAL *m = s[0];
  TFU_VECTORISED(i, count) {
    const REAL way = m[i] * beta_1 + g[i] * rest_1;
    w[i] -= rate * (way > 0 ? 1 : way < 0 ? -1 : way); /* NaN stays */
    m[i] = m[i] * beta_2 + g[i] * rest_2;
  }
}

/* The second walk: the slots are new already. */
static void FN(lamb)(const FN(numbers) * n, const REAL *g, REAL *w, REAL (*s)[TFU_TILE], int count) {
  const REAL step = n->ratio * n->rate, bias_1 = n->bias_1, bias_2 = n->bias_2, epsilon = n->epsilon;
  const REAL *m = s[0], *v = s[1];
  (void)g;
  TFU_VECTORISED(i, count) w[i] -= step * (m[i] / bias_1 / (FN(root)(v[i] / bias_2) + epsilon));
}

static FN(rule) *const FN(rules)[TFU_RULE_COUNT] = {
#define X(name, slots) [TFU_RULE_##name] = FN(name),
    TFU_RULES(X)
#undef X
};

/* Adds a tile's w * w and u * u to the sums of a chunk. */
static void FN(lamb_sums)(const FN(numbers) * n, const REAL *w, REAL (*s)[TFU_TILE], int count, double *sums) {
  for (int i = 0; i < count; i++) {
    const REAL u = s[0][i] / n->bias_1 / (FN(root)(s[1][i] / n->bias_2) + n->epsilon);
    sums[0] += (double)(w[i] * w[i]);
    sums[1] += (double)(u * u);
  }
}

static void FN(prepare)(const FN(numbers) * n, REAL *g, REAL *w, int count) {
  const REAL factor = n->factor, divisor = n->divisor, bound = n->bound, decay = n->decay, rate = n->rate;
  TFU_VECTORISED(i, count) {
    const REAL v = g[i] * factor / divisor;
    g[i] = v < -bound ? -bound : v > bound ? bound : v;
  }
  if (decay == 0) return;
  TFU_VECTORISED(i, count) w[i] -= w[i] * decay * rate;
}

static void FN(square)(const REAL *g, REAL *square, int count) {
  TFU_VECTORISED(i, count) square[i] = g[i] * g[i];
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
    FN(prepare)(&n, g, w, m);
    if (u->squares) FN(copy_in)(&u->gradients->at[t], tfu_count(&u->weights->at[t].shape) + at, m, s[SQUARE]);
    else FN(square)(g, s[SQUARE], m);
    if (first) {
      FN(moments)(&n, g, s, m);
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
#endif
