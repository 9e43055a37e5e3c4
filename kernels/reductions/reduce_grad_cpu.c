/* The gradient of reductions on the CPU. The state of each result and dy give two numbers, (p, q), and these the
 * gradient of each value v that the result is made of: p where v is q (max, min), p exp(v - q) (logsumexp; q is the
 * maximum, for the result has no digits left for the sum where values are large), p (v - q) (variance, std, l2), p / v
 * with p as a product of p and 2^q (prod). A product with zeros has an infinite q; p is the gradient of the zero where
 * there is one, times the zero's sign. */
#ifndef REAL
#include <string.h>

#include "kernels/core/arithmetic.h"
#include "kernels/reductions/reduce_cpu.h"

typedef struct pair {
  double p, q;
} pair;

typedef struct job {
  const tfu_tensor *x, *dy, *dx;
  const tfu_groups *groups;
  pair *pairs;
  int64_t line;    /* elements of the last group                                 */
  int kind, apart; /* whether the elements of a line belong to different results */
} job;

static pair pair_of(int kind, tfu_state s, double dy, int64_t n) {
  const double y = tfu_state_result(kind, s, n);
  switch (kind) {
    case TFU_REDUCE_MAX:
    case TFU_REDUCE_MIN: return (pair){.p = y == y ? dy / s.b : y, .q = y};
    case TFU_REDUCE_LSE: return (pair){.p = dy / s.b, .q = isfinite(s.a) ? s.a : 0};
    case TFU_REDUCE_PROD:
      if (s.b == 0) return (pair){.p = dy * s.a, .q = s.c};
      return (pair){.p = dy * (s.b == 1 ? ldexp(s.a, (int)fmin(fmax(s.c, -5000), 5000)) : s.a * 0), .q = INFINITY};
    case TFU_REDUCE_VARIANCE: return (pair){.p = 2 * dy / (double)n, .q = s.a};
    case TFU_REDUCE_STD: return (pair){.p = dy / ((double)n * y), .q = s.a};
    default: return (pair){.p = dy / y};
  }
}

/* The result that the element `at` belongs to. */
static int64_t result_of(const tfu_groups *g, int64_t at) {
  int64_t result = at % g->kept[g->n], results = g->kept[g->n];
  at /= g->kept[g->n];
  for (int i = g->n - 1; i >= 0; i--) {
    at /= g->reduced[i];
    result += at % g->kept[i] * results;
    results *= g->kept[i];
    at /= g->kept[i];
  }
  return result;
}

/* The gradient of sums: dy, bit for bit. */
static void spread(void *arg, int64_t begin, int64_t end) {
  const job *j = arg;
  const size_t size = tfu_dtype_size(j->dx->dtype);
  for (int64_t line = begin; line < end; line++) {
    const char *dy = (const char *)j->dy->data + (size_t)result_of(j->groups, line * j->line) * size;
    char *dx = (char *)j->dx->data + (size_t)(line * j->line) * size;
    size_t done = j->apart ? (size_t)j->line * size : size;
    const size_t all = (size_t)j->line * size;
    memcpy(dx, dy, done);
    for (; done < all; done *= 2) memcpy(dx + done, dx, done < all - done ? done : all - done);
  }
}

static double of_product(double v, double p, double q) {
  int e;
  if (q == INFINITY) return p * copysign(v == 0, v);
  const double m = frexp(v, &e);
  return ldexp(p / m, (int)fmin(fmax(q - (isfinite(v) ? e : 0), -5000), 5000));
}

#define TFU_SELF "kernels/reductions/reduce_grad_cpu.c"
#include "kernels/core/cpu/stamp.h"
TFU_BY_REAL(tfu_reduce_grad_cpu)

#else

/* dx[i] of n values v[i], whose pairs are `step` apart: 1, or 0 where they share one. */
static void FN(slopes)(int kind, REAL *dx, const REAL *v, const pair *pairs, int step, int n) {
  REAL p[TFU_TILE], q[TFU_TILE];
  for (int i = 0; i < n; i++) p[i] = (REAL)pairs[i * step].p, q[i] = (REAL)pairs[i * step].q;
  switch (kind) {
    case TFU_REDUCE_MAX:
    case TFU_REDUCE_MIN:
      TFU_VECTORISED(i, n) dx[i] = v[i] == q[i] || q[i] != q[i] ? p[i] : 0;
      return;
    case TFU_REDUCE_LSE:
      TFU_VECTORISED(i, n) dx[i] = p[i] * FN(exp_of)(v[i] - q[i]);
      return;
    case TFU_REDUCE_PROD:
      for (int i = 0; i < n; i++) dx[i] = (REAL)of_product(v[i], pairs[i * step].p, pairs[i * step].q);
      return;
    default: TFU_VECTORISED(i, n) dx[i] = p[i] * (v[i] - q[i]);
  }
}

static void FN(lines)(void *arg, int64_t begin, int64_t end) {
  const job *j = arg;
  REAL in[TFU_TILE], out[TFU_TILE];
  for (int64_t line = begin; line < end; line++) {
    const pair *pairs = j->pairs + result_of(j->groups, line * j->line);
    for (TFU_EACH_TILE(at, left, 0, j->line)) {
      const int n = (int)left;
      const int64_t first = line * j->line + at;
      REAL *dx = FN(tfu_room)(j->dx->data, j->dx->dtype, first, out);
      FN(slopes)
      (j->kind, dx, FN(tfu_load)(j->x->data, j->x->dtype, first, n, in), pairs + (j->apart ? at : 0), j->apart, n);
      FN(tfu_store)(j->dx->data, j->dx->dtype, first, n, dx);
    }
  }
}

static tfu_code FN(tfu_reduce_grad_cpu)(tfu_call *call) {
  const tfu_tensor *dy = &call->in[0], *x = &call->in[1];
  const tfu_shape *shape = &call->out[0].shape;
  unsigned reduced;
  TFU_TRY(tfu_reduced_axes(shape, call->attr[1].i, &reduced, call->err));
  const tfu_groups g = tfu_groups_of(shape, reduced);
  const int64_t results = tfu_count(&dy->shape);
  int64_t all = 1;
  for (int i = 0; i < g.n; i++) all *= g.reduced[i];
  const tfu_tensor *y = &call->in[2];
  tfu_state *states = NULL;
  job j = {.x = x, .dy = dy, .dx = &call->out[0], .groups = &g, .kind = (int)call->attr[0].i};
  j.apart = g.kept[g.n] != 1 || g.n == 0;
  j.line = j.apart ? g.kept[g.n] : g.reduced[g.n - 1];
  const int64_t n = tfu_count(shape), size = tfu_task_size(n, 1024), each = j.line < size ? size / j.line : 1;
  if (j.kind == TFU_REDUCE_SUM) {
    tfu_parallel_ranges(n / j.line, each, spread, &j);
    return TFU_OK;
  }
  const int known = j.kind == TFU_REDUCE_L2 && tfu_given(&y->shape); /* p is dy / y */
  if (!known) TFU_TRY(tfu_reduce_states(call, x, &g, j.kind, &states));
  TFU_SCRATCH(call, results, j.pairs);
  for (int64_t i = 0; i < results; i++) {
    REAL one, root;
    const double of = *FN(tfu_load)(dy->data, dy->dtype, i, 1, &one);
    if (known) j.pairs[i] = (pair){.p = of / *FN(tfu_load)(y->data, y->dtype, i, 1, &root)};
    else j.pairs[i] = pair_of(j.kind, states[i], of, all);
  }
  tfu_parallel_ranges(n / j.line, each, FN(lines), &j);
  return TFU_OK;
}
#endif
