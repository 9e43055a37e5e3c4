/* gated on the CPU: y = act(a) * b, da = dy * b * act'(a), db = dy * act(a), a tile of y at a time.
 *
 * Without b, a row of a is two halves. A tile then lies within a row or, where rows are short, has several whole ones,
 * whose halves are gathered: the loops over a tile are long in any case. */
#ifndef REAL
#include "kernels/core/arithmetic.h"
#include "kernels/core/cpu/cpu.h"

typedef struct job {
  tfu_call *call;
  const tfu_tensor *a, *b;
  const tfu_activation *act;
  int split;
  int64_t rows, cols;   /* of y; one row where it is not split             */
  int64_t across, down; /* tiles in a row, rows in a tile: one of them is 1 */
} job;

/* Elements at .. at + n of y, and where those of a begin. */
typedef struct tile {
  int64_t at, a_at;
  int n, gathered;
} tile;

static tile tile_of(const job *j, int64_t i) {
  const int64_t row = i / j->across * j->down, col = i % j->across * TFU_TILE;
  const int64_t rows = least(j->rows - row, j->down), cols = least(j->cols - col, TFU_TILE);
  return (tile){.at = row * j->cols + col,
                .a_at = row * j->cols * (j->split ? 2 : 1) + col,
                .n = (int)(rows * cols),
                .gathered = rows > 1};
}

#define TFU_SELF "kernels/elementwise/gated_cpu.c"
#include "kernels/core/cpu/stamp.h"

/* y: the op's result, or dy. */
static tfu_code run(tfu_call *call, const tfu_tensor *a, const tfu_tensor *b, const tfu_shape *y,
                    void (*range)(void *, int64_t, int64_t)) {
  job j = {.call = call, .a = a, .b = b, .act = &tfu_activations[call->attr[0].i], .split = !tfu_given(&b->shape)};
  j.rows = j.split ? tfu_rows(y) : 1;
  j.cols = j.split ? tfu_cols(y) : tfu_count(y);
  j.across = divide_up(j.cols, TFU_TILE);
  j.down = j.cols < TFU_TILE ? TFU_TILE / j.cols : 1;
  const int64_t tiles = j.across * divide_up(j.rows, j.down);
  tfu_parallel_ranges(tiles, tfu_task_size(tiles * TFU_TILE, TFU_TILE) / TFU_TILE, range, &j);
  return TFU_OK;
}

tfu_code tfu_gated_cpu(tfu_call *call) {
  return run(call, &call->in[0], &call->in[1], &call->out[0].shape, TFU_OF_REAL(call, forward_range));
}
tfu_code tfu_gated_grad_cpu(tfu_call *call) {
  return run(call, &call->in[1], &call->in[2], &call->in[0].shape, TFU_OF_REAL(call, backward_range));
}

#else

typedef struct FN(buffers) {
  REAL a[TFU_TILE], b[TFU_TILE], pair[2 * TFU_TILE];
  REAL one[TFU_TILE], none[TFU_TILE]; /* the scale and bias that change nothing: x + -0 is x, even for x = -0 */
} FN(buffers);

static void FN(prepare)(FN(buffers) * s) {
  for (int i = 0; i < TFU_TILE; i++) s->one[i] = 1, s->none[i] = (REAL)-0.0;
}

/* The two factors of a tile. */
static void FN(fetch)(const job *j, const tile *t, FN(buffers) * s, const REAL **a, const REAL **b) {
  const tfu_tensor *second = j->split ? j->a : j->b;
  if (!t->gathered) {
    *a = FN(tfu_load)(j->a->data, j->a->dtype, t->a_at, t->n, s->a);
    *b = FN(tfu_load)(second->data, second->dtype, t->a_at + (j->split ? j->cols : 0), t->n, s->b);
    return;
  }
  const REAL *pair = FN(tfu_load)(j->a->data, j->a->dtype, t->a_at, 2 * t->n, s->pair);
  const int cols = (int)j->cols;
  for (int at = 0; at < t->n; at += cols, pair += 2 * cols)
    for (int i = 0; i < cols; i++) s->a[at + i] = pair[i], s->b[at + i] = pair[cols + i];
  *a = s->a;
  *b = s->b;
}

static void FN(multiply)(REAL *y, const REAL *a, const REAL *b, int n) {
  TFU_VECTORISED(i, n) y[i] = a[i] * b[i];
}

static void FN(forward_range)(void *arg, int64_t begin, int64_t end) {
  const job *j = arg;
  const tfu_tensor *out = &j->call->out[0];
  FN(buffers) s;
  const REAL *a, *b;
  REAL v[TFU_TILE], ys[TFU_TILE];
  FN(prepare)(&s);
  for (int64_t i = begin; i < end; i++) {
    const tile t = tile_of(j, i);
    REAL *y = FN(tfu_room)(out->data, out->dtype, t.at, ys);
    FN(fetch)(j, &t, &s, &a, &b);
    j->act->FN(value)(v, a, s.one, s.none, t.n);
    FN(multiply)(y, v, b, t.n);
    FN(tfu_store)(out->data, out->dtype, t.at, t.n, y);
  }
}

/* Puts the gradients of a tile where its factors came from. */
static void FN(deliver)(const job *j, const tile *t, FN(buffers) * s, const REAL *da, const REAL *db) {
  const tfu_tensor *out = j->call->out, *second = j->split ? &out[0] : &out[1];
  if (!t->gathered) {
    FN(tfu_store)(out[0].data, out[0].dtype, t->a_at, t->n, da);
    FN(tfu_store)(second->data, second->dtype, t->a_at + (j->split ? j->cols : 0), t->n, db);
    return;
  }
  REAL *pair = s->pair;
  const int cols = (int)j->cols;
  for (int at = 0; at < t->n; at += cols, pair += 2 * cols)
    for (int i = 0; i < cols; i++) pair[i] = da[at + i], pair[cols + i] = db[at + i];
  FN(tfu_store)(out[0].data, out[0].dtype, t->a_at, 2 * t->n, s->pair);
}

static void FN(backward_range)(void *arg, int64_t begin, int64_t end) {
  const job *j = arg;
  const tfu_tensor *dy = &j->call->in[0];
  FN(buffers) s;
  const REAL *a, *b;
  REAL gs[TFU_TILE], da[TFU_TILE], db[TFU_TILE];
  FN(prepare)(&s);
  for (int64_t i = begin; i < end; i++) {
    const tile t = tile_of(j, i);
    const REAL *g = FN(tfu_load)(dy->data, dy->dtype, t.at, t.n, gs);
    FN(fetch)(j, &t, &s, &a, &b);
    j->act->FN(grad)(da, a, s.one, s.none, t.n);
    FN(multiply)(da, da, b, t.n);
    FN(multiply)(da, da, g, t.n);
    j->act->FN(value)(db, a, s.one, s.none, t.n);
    FN(multiply)(db, db, g, t.n);
    FN(deliver)(j, &t, &s, da, db);
  }
}
#endif
