/* rope on the CPU: pairs (p, q) of a head become (p cos - q sin, q cos + p sin).
 *
 * Angles are computed in double, since positions reach millions, into one table of cosines and sines per (b, t), which
 * all heads of query and key share; where the position depends on t alone, so do all samples. */
#ifndef REAL
#include "ops/elementwise/rope.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/cpu/rows_cpu.h"

typedef struct job {
  tfu_call *call;
  int64_t batch, time, head, rotary;
  int64_t per_task, tasks; /* places (b, t) of a task */
  double scale;
  int interleaved, inverse;
  const double *frequencies; /* those that are given, or base^(-2i / rotary) */
  void *tables;              /* of each task: rotary / 2 cosines, as many sines */
} job;

/* A place in batch and time. */
typedef struct place {
  int64_t b, t;
} place;

static place place_of(const job *j, int64_t i) {
  if (j->call->in[TFU_ROPE_POSITIONS].shape.rank == 0)
    return (place){i % j->batch, i / j->batch}; /* samples share a table */
  return (place){i / j->time, i % j->time};
}

static double position_of(const job *j, place p) {
  const tfu_tensor *positions = &j->call->in[TFU_ROPE_POSITIONS];
  const int rank = positions->shape.rank;
  if (rank == 2) return (double)tfu_integer(positions, p.b * j->time + p.t) * j->scale;
  return (double)(tfu_integer(positions, rank == 1 ? p.b : 0) + p.t) * j->scale;
}

static tfu_code plan(tfu_call *call, job *j, size_t real) {
  const tfu_shape *q = &call->in[0].shape, *k = &call->in[1].shape;
  *j = (job){.call = call,
             .batch = q->dim[0],
             .time = q->dim[1],
             .head = q->dim[3],
             .interleaved = call->attr[TFU_ROPE_PAIRING].i == TFU_ROPE_INTERLEAVED,
             .rotary = call->attr[TFU_ROPE_ROTARY].i ? call->attr[TFU_ROPE_ROTARY].i : q->dim[3],
             .inverse = call->attr[TFU_ROPE_INVERSE].b,
             .scale = call->attr[TFU_ROPE_SCALE].f};
  TFU_TRY(tfu_check_integers(call, "positions", &call->in[TFU_ROPE_POSITIONS]));
  double *frequencies;
  TFU_SCRATCH(call, j->rotary / 2, frequencies);
  const float *given = tfu_given_data(&call->in[TFU_ROPE_FREQUENCIES]);
  for (int64_t i = 0; i < j->rotary / 2; i++)
    frequencies[i] = given ? given[i] : pow(call->attr[TFU_ROPE_BASE].f, -2.0 * (double)i / (double)j->rotary);
  j->frequencies = frequencies;
  enum { UNIT = 1024 };
  const int64_t places = j->batch * j->time, elements = tfu_count(q) + (tfu_given(k) ? tfu_count(k) : 0);
  j->per_task = places ? tfu_task_size(elements, UNIT) * places / (elements ? elements : 1) + 1 : 1;
  j->tasks = divide_up(places, j->per_task);
  return tfu_scratch(call, (size_t)(j->tasks * j->rotary) * real, &j->tables);
}

#define TFU_SELF "kernels/elementwise/rope_cpu.c"
#include "kernels/core/cpu/stamp.h"
TFU_BY_REAL(tfu_rope_cpu)

#else

static void FN(fill_table)(const job *j, double position, REAL *table) {
  const int64_t half = j->rotary / 2;
  for (int64_t i = 0; i < half; i++) {
    const double angle = position * j->frequencies[i];
    table[i] = (REAL)cos(angle);
    table[half + i] = (REAL)(j->inverse ? -sin(angle) : sin(angle));
  }
}

static void FN(rotate_halves)(REAL *y, REAL *z, const REAL *p, const REAL *q, const REAL *cosine, const REAL *sine,
                              int n) {
  TFU_VECTORISED(i, n) {
    const REAL a = p[i], b = q[i];
    y[i] = a * cosine[i] - b * sine[i];
    z[i] = b * cosine[i] + a * sine[i];
  }
}

static void FN(rotate_pairs)(REAL *y, const REAL *p, const REAL *cosine, const REAL *sine, int n) {
  TFU_VECTORISED(i, n) {
    const REAL a = p[2 * i], b = p[2 * i + 1];
    y[2 * i] = a * cosine[i] - b * sine[i];
    y[2 * i + 1] = b * cosine[i] + a * sine[i];
  }
}

/* One head, from element `at` on. */
static void FN(rotate_head)(const job *j, const tfu_tensor *x, const tfu_tensor *y, int64_t at, const REAL *table) {
  enum { PIECE = TFU_TILE / 2 };
  REAL xs[TFU_TILE], ys[TFU_TILE];
  const int64_t half = j->rotary / 2;
  for (int64_t i = 0; i < half; i += PIECE) {
    const int n = half - i < PIECE ? (int)(half - i) : PIECE;
    const REAL *cosine = table + i, *sine = table + half + i;
    const int64_t first = at + (j->interleaved ? 2 * i : i), second = at + half + i;
    REAL *v = FN(tfu_room)(y->data, y->dtype, first, ys);
    if (j->interleaved) {
      FN(rotate_pairs)(v, FN(tfu_load)(x->data, x->dtype, first, 2 * n, xs), cosine, sine, n);
      FN(tfu_store)(y->data, y->dtype, first, 2 * n, v);
      continue;
    }
    REAL *w = FN(tfu_room)(y->data, y->dtype, second, ys + PIECE);
    const REAL *p = FN(tfu_load)(x->data, x->dtype, first, n, xs);
    FN(rotate_halves)(v, w, p, FN(tfu_load)(x->data, x->dtype, second, n, xs + PIECE), cosine, sine, n);
    FN(tfu_store)(y->data, y->dtype, first, n, v);
    FN(tfu_store)(y->data, y->dtype, second, n, w);
  }
  const size_t size = tfu_dtype_size(x->dtype), rest = (size_t)(j->head - j->rotary) * size;
  const int64_t from = (at + j->rotary) * (int64_t)size;
  if (rest) memcpy((char *)y->data + from, (const char *)x->data + from, rest);
}

static void FN(task)(void *arg, int64_t task) {
  const job *j = arg;
  const int64_t places = j->batch * j->time, end = (task + 1) * j->per_task;
  REAL *table = (REAL *)j->tables + task * j->rotary;
  double before = NAN;
  for (int64_t i = task * j->per_task; i < end && i < places; i++) {
    const place p = place_of(j, i);
    const double position = position_of(j, p);
    if (position != before) FN(fill_table)(j, before = position, table);
    for (int k = 0; k < 2; k++) {
      const tfu_tensor *x = &j->call->in[k], *y = &j->call->out[k];
      if (!tfu_given(&x->shape)) continue;
      const int64_t heads = x->shape.dim[2], first = (p.b * j->time + p.t) * heads;
      for (int64_t h = 0; h < heads; h++) FN(rotate_head)(j, x, y, (first + h) * j->head, table);
    }
  }
}

static tfu_code FN(tfu_rope_cpu)(tfu_call *call) {
  job j;
  TFU_TRY(plan(call, &j, sizeof(REAL)));
  tfu_parallel(j.tasks, FN(task), &j);
  return TFU_OK;
}
#endif
