/* attention on the CPU: blocked online softmax, memory linear in the lengths.
 *
 * A task takes a tile's rows over all of their keys, a tile at a time, and keeps for each row the greatest score so
 * far, m; the sum of exp(score - m), l; and the same sum with the values, o. Where a tile raises m, l and o are first
 * scaled by exp(old m - new m). At the end the output is o / l, and stats is m + log(l). */
#ifndef REAL
#include "kernels/attention/attention_cpu.h"

#include "kernels/attention/float8_pages.h"
#include "kernels/core/arithmetic.h"
#include "kv_cache.h"
#include "ops/attention/attention.h"

/* Task -> sequence, head of key, rows. Sequences may differ in length, so their first tasks are counted up. */
typedef struct plan {
  int64_t *first_task; /* of each sequence, and the end */
} plan;

static int64_t row_tasks(const attention_job *job, int b) {
  const int64_t queries = job->a.ragged ? tfu_sequence_of(&job->a, b).queries : job->a.queries;
  return divide_up(queries * job->group, TFU_ATT_ROWS);
}

static tfu_code prepare(tfu_call *call, attention_job *job, plan *p) {
  TFU_SCRATCH(call, job->a.batch + 1, p->first_task);
  p->first_task[0] = 0;
  for (int b = 0; b < job->a.batch; b++) p->first_task[b + 1] = p->first_task[b] + row_tasks(job, b) * job->a.key_heads;
  job->more = p;
  return TFU_OK;
}

static int sequence_of_task(const attention_job *job, int64_t task) {
  const int64_t *first = ((const plan *)job->more)->first_task;
  int low = 0, high = job->a.batch;
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    if (first[middle] <= task) low = middle;
    else high = middle;
  }
  return low;
}

#define TFU_SELF "kernels/attention/attention_cpu.c"
#include "kernels/core/cpu/stamp.h"
TFU_BY_REAL(tfu_attention_cpu)
TFU_BY_REAL(tfu_paged_attention_cpu)

#else

typedef struct FN(state) {
  FN(attention_tile) tile;
  REAL max[TFU_ATT_ROWS];
  double sum[TFU_ATT_ROWS];
  REAL *query_t, *scores_t; /* [head_dim, rows], [keys, rows]         */
  REAL *output;             /* [rows, v_width]                        */
  REAL *buffer;             /* [keys, the wider of q_width, v_width]  */
} FN(state);

static size_t FN(space)(const attention_args *a) {
  const int64_t q = tfu_attention_width(a->head_dim, sizeof(REAL)), v = tfu_attention_width(a->value_dim, sizeof(REAL));
  const int64_t rows = 2 * q + v + 2 * TFU_ATT_KEYS, keys = q > v ? q : v;
  return (size_t)(rows * TFU_ATT_ROWS + keys * TFU_ATT_KEYS) * sizeof(REAL);
}

static void FN(begin)(const attention_job *job, int64_t task, void *space, FN(state) * f) {
  const attention_args *a = &job->a;
  const int b = sequence_of_task(job, task);
  const int64_t in_sequence = task - ((const plan *)job->more)->first_task[b], tasks = row_tasks(job, b);
  FN(attention_tile) *t = &f->tile;
  t->job = job;
  t->s = tfu_sequence_of(a, b);
  t->b = b;
  t->key_head = (int)(in_sequence / tasks);
  t->head = t->key_head * job->group;
  t->heads = job->group;
  t->first_row = in_sequence % tasks * TFU_ATT_ROWS;
  const int64_t left = (int64_t)(a->ragged ? t->s.queries : a->queries) * job->group - t->first_row;
  t->rows = left < TFU_ATT_ROWS ? (int)left : TFU_ATT_ROWS;
  t->q_width = tfu_attention_width(a->head_dim, sizeof(REAL));
  t->v_width = tfu_attention_width(a->value_dim, sizeof(REAL));
  t->query = space;
  f->output = t->query + TFU_ATT_ROWS * t->q_width;
  t->scores = f->output + TFU_ATT_ROWS * t->v_width;
  t->slopes = NULL;
  f->scores_t = t->scores + TFU_ATT_ROWS * TFU_ATT_KEYS;
  f->query_t = f->scores_t + TFU_ATT_ROWS * TFU_ATT_KEYS;
  f->buffer = f->query_t + TFU_ATT_ROWS * t->q_width;
  memset(f->output, 0, (size_t)(TFU_ATT_ROWS * t->v_width) * sizeof(REAL));
  for (int r = 0; r < t->rows; r++) f->max[r] = -(REAL)INFINITY, f->sum[r] = 0;
}

static void FN(multiply)(REAL *o, REAL factor, int64_t n) {
  TFU_VECTORISE
  for (int64_t i = 0; i < n; i++) o[i] *= factor;
}

/* Brings what row r has so far to a new greatest score. */
static void FN(raise)(FN(state) * f, int r, REAL most) {
  const REAL before = f->max[r];
  if (most <= before) return;
  f->max[r] = most;
  if (before == -(REAL)INFINITY) return;
  const REAL less = (REAL)exp((double)before - (double)most);
  f->sum[r] *= less;
  FN(multiply)(f->output + r * f->tile.v_width, less, f->tile.v_width);
}

/* Scores of a row become exp(score - m), 0 where there are none, with what dropout does to them. */
static void FN(weigh)(FN(state) * f, int r) {
  FN(attention_tile) *t = &f->tile;
  const attention_job *job = t->job;
  const int from = t->from[r], n = t->end[r] - from;
  REAL *line = t->scores + r * TFU_ATT_KEYS, *s = line + from;
  if (n <= 0) {
    memset(line, 0, (size_t)t->keys * sizeof *line);
    return;
  }
  FN(raise)(f, r, FN(tfu_greatest)(s, n));
  if (f->max[r] != -(REAL)INFINITY) FN(tfu_exp_line)(s, s, f->max[r], 1, 0, n);
  else
    for (int i = 0; i < n; i++) s[i] = s[i] < 0 ? 0 : s[i]; /* all masked: 0, but NaN stays */
  f->sum[r] += TFU_SUM(n, s[i]);
  if (job->a.seed) {
    const int h = FN(tfu_tile_head)(t, r), q = FN(tfu_tile_query)(t, r);
    FN(tfu_drop_tile)(&job->drop, s, s, tfu_pair(&job->a, t->b, h, q, t->key + from), n);
  }
  memset(line, 0, (size_t)from * sizeof *line);
  memset(s + n, 0, (size_t)(t->keys - from - n) * sizeof *line);
}

static void FN(finish)(FN(state) * f) {
  const FN(attention_tile) *t = &f->tile;
  const attention_args *a = &t->job->a;
  for (int r = 0; r < t->rows; r++) {
    const int i = FN(tfu_tile_query)(t, r), h = FN(tfu_tile_head)(t, r);
    const int64_t row = (t->s.first_query + i) * a->heads + h;
    REAL *o = f->output + r * t->v_width;
    FN(multiply)(o, f->sum[r] == 0 ? 0 : (REAL)(1 / f->sum[r]), a->value_dim);
    if (a->value_dim) FN(tfu_store)(a->output, t->job->dtype, row * a->value_dim, a->value_dim, o);
    if (a->stats)
      ((REAL *)a->stats)[tfu_stats_at(a, &t->s, t->b, h, i)] =
          f->sum[r] == 0 ? -(REAL)INFINITY : (REAL)((double)f->max[r] + log(f->sum[r]));
  }
}

/* The products of rows and keys. Rows are transposed once for all keys, and scores instead of keys: they are smaller.
 */
static void FN(multiply_keys)(FN(state) * f, FN(tfu_matrix) keys) {
  FN(attention_tile) *t = &f->tile;
  const FN(tfu_matrix) scores_t = FN(tfu_rows_at)(f->scores_t, TFU_ATT_ROWS);
  const FN(tfu_matrix) query_t = FN(tfu_rows_at)(f->query_t, TFU_ATT_ROWS);
  FN(tfu_product)(scores_t, keys, query_t, t->keys, t->rows, t->job->a.head_dim, 0);
  FN(tfu_transpose)(t->scores, TFU_ATT_KEYS, f->scores_t, TFU_ATT_ROWS, t->keys, t->rows);
}

static void FN(task)(const attention_job *job, int64_t task, void *space) {
  const attention_args *a = &job->a;
  FN(state) f;
  FN(begin)(job, task, space, &f);
  FN(attention_tile) *t = &f.tile;
  const int few = t->rows <= TFU_ATT_FEW, copy = !few || a->value_dim % TFU_PRODUCT_COLS(REAL);
  int first, end;
  FN(tfu_tile_rows)(t, a->query, a->head_dim, (REAL)a->scale, t->query);
  if (!few) FN(tfu_transpose)(f.query_t, TFU_ATT_ROWS, t->query, t->q_width, t->rows, a->head_dim);
  FN(tfu_tile_band)(t, &first, &end);
  for (t->key = first - first % TFU_ATT_KEYS; t->key < end; t->key += TFU_ATT_KEYS) {
    t->keys = t->s.keys - t->key < TFU_ATT_KEYS ? t->s.keys - t->key : TFU_ATT_KEYS;
    const int whole = few || t->keys % TFU_PRODUCT_ROWS == 0;
    const FN(tfu_matrix) keys = FN(tfu_tile_keys)(t, a->key, a->head_dim, !whole, f.buffer);
    if (!few) FN(multiply_keys)(&f, keys);
    FN(tfu_tile_scores)(t, keys);
    for (int r = 0; r < t->rows; r++) FN(weigh)(&f, r);
    const FN(tfu_matrix) p = FN(tfu_rows_at)(t->scores, TFU_ATT_KEYS), output = FN(tfu_rows_at)(f.output, t->v_width);
    const FN(tfu_matrix) values = FN(tfu_tile_keys)(t, a->value, a->value_dim, copy, f.buffer);
    FN(tfu_product)(output, p, values, t->rows, a->value_dim, t->keys, 1);
  }
  FN(finish)(&f);
}

/* Steps of a ragged tensor that no sequence has are nobody's task. */
static void FN(clear)(tfu_call *call, const attention_args *a) {
  const size_t bytes = (size_t)tfu_count(&call->out[0].shape) * tfu_dtype_size(call->out[0].dtype);
  if (bytes) memset(a->output, 0, bytes);
  const int64_t n = (int64_t)a->heads * a->queries;
  for (int64_t i = 0; i < n; i++) ((REAL *)a->stats)[i] = -(REAL)INFINITY;
}

static tfu_code FN(run)(tfu_call *call, const attention_args *a) {
  attention_job job;
  plan p;
  TFU_TRY(tfu_attention_job(call, a, &job));
  TFU_TRY(prepare(call, &job, &p));
  if (a->ragged) FN(clear)(call, a);
  return tfu_attention_run(call, &job, FN(task), p.first_task[a->batch], FN(space)(a));
}

static tfu_code FN(tfu_attention_cpu)(tfu_call *call) {
  attention_args a;
  TFU_TRY(tfu_attention_read(call, &a));
  return FN(run)(call, &a);
}

static tfu_code FN(tfu_paged_attention_cpu)(tfu_call *call) {
  static const float8_pages_parts parts = {.widen = tfu_widen_pages_cpu, .attention = tfu_paged_attention_cpu};
  attention_args a;
  int is_float8;
  TFU_TRY(tfu_is_float8_cache(call, call->in[TFU_PAGED_KEY].dtype, call->in[0].dtype, &is_float8));
  if (is_float8) return tfu_float8_paged_attention(call, &parts);
  TFU_TRY(tfu_paged_attention_read(call, &a));
  return FN(run)(call, &a);
}
#endif
