/* attention's gradient on the CPU. With p the weights, recomputed from stats, and dp = doutput . value:
 *
 *   ds = p (dp - delta),  delta = doutput . output - dstats        of each query
 *   dquery = scale * ds key,  dkey = scale * ds^T query,  dvalue = p^T doutput,  dbias = ds
 *
 * summed over the heads that share a key; in dquery and dkey, ds is times the slope of the soft cap, 1 - tanh^2. A task
 * takes some keys of a sequence and a head of key over all rows: dkey and dvalue are its own; what it adds to dquery
 * goes to its chunk's own copy, and the copies are summed at the end. The number of chunks depends on the shapes alone,
 * and so results repeat for any number of threads.
 *
 * dbias has tasks of its own, one for each tile of it, which compute ds a second time and sum over what the bias is
 * stretched along: the order is fixed there too. */
#ifndef REAL
#include "kernels/attention/attention_cpu.h"
#include "kernels/core/arithmetic.h"
#include "ops/attention/attention.h"

/* Fewer heads than this over all sequences, and keys are taken in chunks: there is work for as many threads. Each chunk
 * has a dquery of its own, of which there are at most so many elements. */
enum { ENOUGH_TASKS = 32, MOST_CHUNKS = 16, MOST_COPIED = 64 << 20 };

typedef struct grad_plan {
  void *delta;   /* like stats                                        */
  void *dquery;  /* [chunks, like query]: the output itself, or copies */
  int64_t count; /* elements of query                                  */
  int chunks;
  int sizes[4];             /* of bias: 1 where it is stretched             */
  int row_tiles, key_tiles; /* of bias */
} grad_plan;

static int chunks_of(const attention_args *a) {
  const int64_t heads = (int64_t)a->batch * a->key_heads, wanted = heads ? divide_up(ENOUGH_TASKS, heads) : 1;
  const int64_t count = (int64_t)a->batch * a->queries * a->heads * a->head_dim, room = MOST_COPIED / (count + 1);
  const int64_t most = least(divide_up(a->keys, TFU_ATT_KEYS), MOST_CHUNKS);
  const int64_t chunks = least(least(wanted, most), room);
  return chunks < 1 ? 1 : (int)chunks;
}

static void plan_bias(const attention_args *a, grad_plan *p) {
  const int all[4] = {a->batch, a->heads, a->queries, a->keys};
  for (int i = 0; i < 4; i++) p->sizes[i] = a->bias_step[i] ? all[i] : 1;
  p->row_tiles = (int)divide_up(p->sizes[2], TFU_ATT_ROWS);
  p->key_tiles = (int)divide_up(p->sizes[3], TFU_ATT_KEYS);
}

#define TFU_SELF "kernels/attention/attention_grad_cpu.c"
#include "kernels/core/cpu/stamp.h"
TFU_BY_REAL(tfu_attention_grad_cpu)

#else

typedef struct FN(space) {
  FN(attention_tile) tile;
  REAL *doutput;      /* [rows, v_width]                                                        */
  REAL *ds, *dropped; /* [rows, keys]: gradients of the scores, and weights after dropout        */
  REAL *key, *key_t, *value_t;
  REAL *dkey, *dvalue, *dquery; /* sums of the tile's keys; one tile's part of dquery            */
  REAL *buffer;
} FN(space);

/* Deals out the memory of a task, or, from NULL, counts it. */
static size_t FN(deal)(const attention_job *job, REAL *memory, FN(space) * g) {
  FN(attention_tile) *t = &g->tile;
  size_t used = 0;
  t->job = job;
  const int64_t q = t->q_width = tfu_attention_width(job->a.head_dim, sizeof(REAL));
  const int64_t v = t->v_width = tfu_attention_width(job->a.value_dim, sizeof(REAL));
  const struct {
    REAL **to;
    int64_t columns, rows;
  } parts[] = {{&t->query, q, TFU_ATT_ROWS},
               {&g->doutput, v, TFU_ATT_ROWS},
               {&t->scores, TFU_ATT_KEYS, TFU_ATT_ROWS},
               {&t->slopes, job->a.soft_cap > 0 ? TFU_ATT_KEYS : 0, TFU_ATT_ROWS},
               {&g->ds, TFU_ATT_KEYS, TFU_ATT_ROWS},
               {&g->dropped, job->a.seed ? TFU_ATT_KEYS : 0, TFU_ATT_ROWS},
               {&g->dquery, q, TFU_ATT_ROWS},
               {&g->key, q, TFU_ATT_KEYS},
               {&g->key_t, q, TFU_ATT_KEYS},
               {&g->value_t, v, TFU_ATT_KEYS},
               {&g->dkey, q, TFU_ATT_KEYS},
               {&g->dvalue, v, TFU_ATT_KEYS},
               {&g->buffer, v, TFU_ATT_KEYS}};
  for (int i = 0; i < TFU_COUNT(parts); i++) {
    *parts[i].to = memory ? memory + used : NULL;
    used += (size_t)(parts[i].columns * parts[i].rows);
  }
  return used * sizeof(REAL);
}

/* Takes a tile's keys. */
static void FN(take_keys)(FN(space) * g, int key) {
  FN(attention_tile) *t = &g->tile;
  const attention_args *a = &t->job->a;
  t->key = key;
  t->keys = t->s.keys - key < TFU_ATT_KEYS ? t->s.keys - key : TFU_ATT_KEYS;
  FN(tfu_tile_keys)(t, a->key, a->head_dim, 1, g->key);
  FN(tfu_transpose)(g->key_t, TFU_ATT_KEYS, g->key, t->q_width, t->keys, a->head_dim);
  const FN(tfu_matrix) values = FN(tfu_tile_keys)(t, a->value, a->value_dim, 0, g->buffer);
  FN(tfu_transpose)(g->value_t, TFU_ATT_KEYS, values.at, values.row, t->keys, a->value_dim);
}

static void FN(score_gradient)(REAL *ds, const REAL *p, REAL delta, int n) {
  TFU_VECTORISED(i, n) ds[i] = p[i] * (ds[i] - delta);
}

static void FN(differentiate_row)(FN(space) * g, int r) {
  FN(attention_tile) *t = &g->tile;
  const attention_job *job = t->job;
  const int i = FN(tfu_tile_query)(t, r), h = FN(tfu_tile_head)(t, r), from = t->from[r];
  REAL *p = t->scores + r * TFU_ATT_KEYS, *ds = g->ds + r * TFU_ATT_KEYS, *dropped = p;
  const int64_t at = tfu_stats_at(&job->a, &t->s, t->b, h, i);
  const REAL stats = i < t->s.queries ? ((const REAL *)job->a.stats)[at] : 0;
  const int n = stats == -(REAL)INFINITY ? 0 : t->end[r] - from;
  const size_t line = (size_t)t->keys * sizeof *p;
  if (job->a.seed) dropped = g->dropped + r * TFU_ATT_KEYS;
  if (n <= 0) {
    memset(dropped, 0, line);
    memset(ds, 0, line);
    return;
  }
  FN(tfu_exp_line)(p + from, p + from, stats, 1, 0, n);
  if (job->a.seed) {
    const int64_t pair = tfu_pair(&job->a, t->b, h, i, t->key + from);
    FN(tfu_drop_tile)(&job->drop, dropped + from, p + from, pair, n);
    FN(tfu_drop_tile)(&job->drop, ds + from, ds + from, pair, n);
  }
  FN(score_gradient)(ds + from, p + from, ((const REAL *)((const grad_plan *)job->more)->delta)[at], n);
  REAL *const both[] = {dropped, ds};
  for (int k = 0; k < 2; k++) {
    memset(both[k], 0, (size_t)from * sizeof *p);
    memset(both[k] + from + n, 0, (size_t)(t->keys - from - n) * sizeof *p);
  }
}

/* ds and the weights after dropout, of the keys that were taken and a tile's rows, those before `end_row`. Returns
 * whether any of the rows may attend to one of the keys: nothing is done where not. */
static int FN(differentiate)(FN(space) * g, int64_t end_row) {
  FN(attention_tile) *t = &g->tile;
  const attention_args *a = &t->job->a;
  int first, end;
  t->rows = (int)least(end_row - t->first_row, TFU_ATT_ROWS);
  FN(tfu_tile_band)(t, &first, &end);
  if (end <= t->key || first >= t->key + t->keys) return 0;
  FN(tfu_tile_rows)(t, a->query, a->head_dim, (REAL)a->scale, t->query);
  FN(tfu_tile_rows)(t, a->doutput, a->value_dim, 1, g->doutput);
  const FN(tfu_matrix) ds = FN(tfu_rows_at)(g->ds, TFU_ATT_KEYS), doutput = FN(tfu_rows_at)(g->doutput, t->v_width);
  const FN(tfu_matrix) query = FN(tfu_rows_at)(t->query, t->q_width), key_t = FN(tfu_rows_at)(g->key_t, TFU_ATT_KEYS);
  const FN(tfu_matrix) value_t = FN(tfu_rows_at)(g->value_t, TFU_ATT_KEYS);
  if (t->rows > TFU_ATT_FEW)
    FN(tfu_product)(FN(tfu_rows_at)(t->scores, TFU_ATT_KEYS), query, key_t, t->rows, t->keys, a->head_dim, 0);
  FN(tfu_tile_scores)(t, FN(tfu_rows_at)(g->key, t->q_width));
  FN(tfu_product)(ds, doutput, value_t, t->rows, t->keys, a->value_dim, 0);
  for (int r = 0; r < t->rows; r++) FN(differentiate_row)(g, r);
  return 1;
}

/* ---- query, key and value ---- */

static void FN(add_scaled)(REAL *to, const REAL *from, REAL factor, int n) {
  TFU_VECTORISED(i, n) to[i] += factor * from[i];
}

static void FN(multiply)(REAL *to, const REAL *by, int n) {
  TFU_VECTORISED(i, n) to[i] *= by[i];
}

/* What the tile adds to the three gradients. */
static void FN(add_tile)(FN(space) * g, REAL *dquery) {
  FN(attention_tile) *t = &g->tile;
  const attention_args *a = &t->job->a;
  const int64_t q = t->q_width, v = t->v_width;
  const FN(tfu_matrix) p_t = FN(tfu_columns_at)(a->seed ? g->dropped : t->scores, TFU_ATT_KEYS);
  const FN(tfu_matrix) ds = FN(tfu_rows_at)(g->ds, TFU_ATT_KEYS), ds_t = FN(tfu_columns_at)(g->ds, TFU_ATT_KEYS);
  const FN(tfu_matrix) query = FN(tfu_rows_at)(t->query, q), key = FN(tfu_rows_at)(g->key, q);
  const FN(tfu_matrix) doutput = FN(tfu_rows_at)(g->doutput, v), dvalue = FN(tfu_rows_at)(g->dvalue, v);
  for (int r = 0; r < t->rows && a->soft_cap > 0; r++) {
    const int at = r * TFU_ATT_KEYS + t->from[r];
    FN(multiply)(g->ds + at, t->slopes + at, t->end[r] - t->from[r]);
  }
  FN(tfu_product)(dvalue, p_t, doutput, t->keys, a->value_dim, t->rows, 1);
  FN(tfu_product)(FN(tfu_rows_at)(g->dkey, q), ds_t, query, t->keys, a->head_dim, t->rows, 1);
  FN(tfu_product)(FN(tfu_rows_at)(g->dquery, q), ds, key, t->rows, a->head_dim, t->keys, 0);
  for (int r = 0; r < t->rows; r++) {
    const int64_t row = (t->s.first_query + FN(tfu_tile_query)(t, r)) * a->heads + FN(tfu_tile_head)(t, r);
    FN(add_scaled)(dquery + row * a->head_dim, g->dquery + r * t->q_width, (REAL)a->scale, a->head_dim);
  }
}

static void FN(store_keys)(const FN(space) * g, void *to, const REAL *from, int64_t step, int width) {
  const FN(attention_tile) *t = &g->tile;
  for (int j = 0; width && j < t->keys; j++) {
    const int64_t row = (t->s.first_key + t->key + j) * t->job->a.key_heads + t->key_head;
    FN(tfu_store)(to, t->job->dtype, row * width, width, from + j * step);
  }
}

static void FN(task)(const attention_job *job, int64_t task, void *space) {
  const attention_args *a = &job->a;
  const grad_plan *p = job->more;
  FN(space) g;
  FN(attention_tile) *t = &g.tile;
  FN(deal)(job, space, &g);
  const int chunk = (int)(task % p->chunks);
  t->key_head = (int)(task / p->chunks % a->key_heads);
  t->b = (int)(task / p->chunks / a->key_heads);
  t->head = t->key_head * job->group;
  t->heads = job->group;
  t->s = tfu_sequence_of(a, t->b);
  const int64_t rows = (int64_t)t->s.queries * job->group;
  const int64_t blocks = divide_up(t->s.keys, TFU_ATT_KEYS);
  for (int64_t block = blocks * chunk / p->chunks; block < blocks * (chunk + 1) / p->chunks; block++) {
    FN(take_keys)(&g, (int)block * TFU_ATT_KEYS);
    memset(g.dkey, 0, (size_t)(TFU_ATT_KEYS * t->q_width) * sizeof(REAL));
    memset(g.dvalue, 0, (size_t)(TFU_ATT_KEYS * t->v_width) * sizeof(REAL));
    for (t->first_row = 0; t->first_row < rows; t->first_row += TFU_ATT_ROWS)
      if (FN(differentiate)(&g, rows)) FN(add_tile)(&g, (REAL *)p->dquery + chunk * p->count);
    FN(store_keys)(&g, a->dkey, g.dkey, t->q_width, a->head_dim);
    FN(store_keys)(&g, a->dvalue, g.dvalue, t->v_width, a->value_dim);
  }
}

/* delta of one task's queries: all heads of one step in batch and time. */
static void FN(delta_task)(const attention_job *job, int64_t task, void *space) {
  const attention_args *a = &job->a;
  REAL *o = space, *d = o + a->value_dim;
  const int64_t step = task % a->queries, b = task / a->queries; /* ragged steps are one sequence here */
  for (int h = 0; h < a->heads; h++) {
    const int64_t row = task * a->heads + h, at = (b * a->heads + h) * a->queries + step;
    const REAL *output = FN(tfu_load)(a->output, job->dtype, row * a->value_dim, a->value_dim, o);
    const REAL *doutput = FN(tfu_load)(a->doutput, job->dtype, row * a->value_dim, a->value_dim, d);
    REAL sum;
    FN(tfu_dots)(&sum, output, doutput, 0, 1, a->value_dim);
    ((REAL *)((const grad_plan *)job->more)->delta)[at] = sum - (a->dstats ? ((const REAL *)a->dstats)[at] : 0);
  }
}

/* The chunks' copies of dquery become one. */
static void FN(sum_task)(const attention_job *job, int64_t task, void *space) {
  const grad_plan *p = job->more;
  const int64_t at = task * TFU_CHUNK, left = p->count - at, n = left < TFU_CHUNK ? left : TFU_CHUNK;
  REAL *sum = space;
  memcpy(sum, (REAL *)p->dquery + at, (size_t)n * sizeof *sum);
  for (int c = 1; c < p->chunks; c++) FN(add_scaled)(sum, (REAL *)p->dquery + c * p->count + at, 1, (int)n);
  FN(tfu_store)(job->a.dquery, job->dtype, at, (int)n, sum);
}

/* ---- bias ---- */

/* Adds what one head gives to a tile of dbias. */
static void FN(add_bias)(FN(space) * g, double *sum, int rows_apart, int keys_apart) {
  const FN(attention_tile) *t = &g->tile;
  for (int r = 0; r < t->rows; r++) {
    const REAL *ds = g->ds + r * TFU_ATT_KEYS;
    double *to = sum + (rows_apart ? r * TFU_ATT_KEYS : 0);
    if (keys_apart)
      for (int j = 0; j < t->keys; j++) to[j] += ds[j];
    else *to += TFU_SUM(t->keys, ds[i]);
  }
}

/* The tiles of one head that a tile of dbias, from (row, key) on, is made of: one, or all along a stretched axis. */
static void FN(bias_head)(FN(space) * g, double *sum, int row, int key) {
  FN(attention_tile) *t = &g->tile;
  const attention_job *job = t->job;
  const grad_plan *p = job->more;
  const int rows_apart = p->sizes[2] > 1, keys_apart = p->sizes[3] > 1;
  const int end_row = rows_apart && row + TFU_ATT_ROWS < t->s.queries ? row + TFU_ATT_ROWS : t->s.queries;
  const int end_key = keys_apart && key + TFU_ATT_KEYS < t->s.keys ? key + TFU_ATT_KEYS : t->s.keys;
  for (; key < end_key; key += TFU_ATT_KEYS) {
    FN(take_keys)(g, key);
    for (t->first_row = row; t->first_row < end_row; t->first_row += TFU_ATT_ROWS)
      if (FN(differentiate)(g, end_row)) FN(add_bias)(g, sum, rows_apart, keys_apart);
  }
}

static void FN(bias_task)(const attention_job *job, int64_t task, void *space) {
  const attention_args *a = &job->a;
  const grad_plan *p = job->more;
  FN(space) g;
  FN(attention_tile) *t = &g.tile;
  double sum[TFU_ATT_ROWS * TFU_ATT_KEYS] = {0};
  FN(deal)(job, space, &g);
  const int key = (int)(task % p->key_tiles) * TFU_ATT_KEYS;
  const int row = (int)(task / p->key_tiles % p->row_tiles) * TFU_ATT_ROWS;
  const int64_t place = task / p->key_tiles / p->row_tiles; /* in batch and heads of bias */
  const int own_b = (int)(place / p->sizes[1]), own_h = (int)(place % p->sizes[1]);
  const int all_b = !a->bias_step[0], all_h = !a->bias_step[1];
  t->heads = 1;
  for (t->b = all_b ? 0 : own_b; t->b < (all_b ? a->batch : own_b + 1); t->b++)
    for (t->head = all_h ? 0 : own_h; t->head < (all_h ? a->heads : own_h + 1); t->head++) {
      t->s = tfu_sequence_of(a, t->b);
      t->key_head = t->head / job->group;
      FN(bias_head)(&g, sum, row, key);
    }
  const int rows = p->sizes[2] - row < TFU_ATT_ROWS ? p->sizes[2] - row : TFU_ATT_ROWS;
  const int keys = p->sizes[3] - key < TFU_ATT_KEYS ? p->sizes[3] - key : TFU_ATT_KEYS;
  for (int r = 0; r < rows; r++) {
    REAL line[TFU_ATT_KEYS];
    for (int j = 0; j < keys; j++) line[j] = (REAL)sum[r * TFU_ATT_KEYS + j];
    FN(tfu_store)(a->dbias, job->dtype, (place * p->sizes[2] + row + r) * p->sizes[3] + key, keys, line);
  }
}

/* ---- all of it ---- */

static tfu_code FN(differentiate_all)(tfu_call *call, attention_job *job, grad_plan *p) {
  const attention_args *a = &job->a;
  FN(space) unused;
  const size_t bytes = FN(deal)(job, NULL, &unused);
  const int64_t steps = (int64_t)(a->ragged ? 1 : a->batch) * a->queries, pairs = (int64_t)a->batch * a->key_heads;
  TFU_TRY(tfu_attention_run(call, job, FN(delta_task), steps, 2 * (size_t)a->value_dim * sizeof(REAL)));
  TFU_TRY(tfu_attention_run(call, job, FN(task), pairs * p->chunks, bytes));
  if (p->dquery != a->dquery)
    TFU_TRY(tfu_attention_run(call, job, FN(sum_task), divide_up(p->count, TFU_CHUNK), TFU_CHUNK * sizeof(REAL)));
  if (!a->dbias) return TFU_OK;
  plan_bias(a, p);
  return tfu_attention_run(call, job, FN(bias_task), (int64_t)p->sizes[0] * p->sizes[1] * p->row_tiles * p->key_tiles,
                           bytes);
}

static tfu_code FN(tfu_attention_grad_cpu)(tfu_call *call) {
  attention_args a;
  attention_job job;
  TFU_TRY(tfu_attention_grad_read(call, &a));
  TFU_TRY(tfu_attention_job(call, &a, &job));
  grad_plan p = {.count = tfu_count(&call->out[0].shape), .chunks = chunks_of(&a), .dquery = a.dquery};
  job.more = &p;
  TFU_TRY(tfu_scratch(call, (size_t)(tfu_count(&call->in[1 + TFU_ATT_STATS].shape)) * sizeof(REAL), &p.delta));
  if (p.chunks > 1 || tfu_dtype_size(job.dtype) != sizeof(REAL))
    TFU_TRY(tfu_scratch(call, (size_t)(p.count * p.chunks) * sizeof(REAL), &p.dquery));
  if (p.count) memset(p.dquery, 0, (size_t)(p.count * p.chunks) * sizeof(REAL));
  for (int i = 1; i < 3; i++) /* keys beyond a length have no task */
    if (a.key_lengths && tfu_count(&call->out[i].shape))
      memset(call->out[i].data, 0, (size_t)tfu_count(&call->out[i].shape) * tfu_dtype_size(job.dtype));
  return FN(differentiate_all)(call, &job, &p);
}
#endif
