/* attention_tile_cpu.c - what attention_cpu.h declares: checks of lengths and pages, tasks, and tiles of scores. */
#ifndef REAL
#include <inttypes.h>

#include "kernels/attention/attention_cpu.h"
#include "kernels/core/cpu/workers.h"
#include "kernels/core/philox.h"

/* ---- arguments ---- */

static tfu_code check_lengths(tfu_call *call, const char *name, const int64_t *lengths, int batch, int most) {
  for (int b = 0; lengths && b < batch; b++)
    TFU_REQUIRE(call->err, lengths[b] >= 0 && lengths[b] <= most, "%s[%d] must be from 0 to %d, got %" PRId64, name, b,
                most, lengths[b]);
  return TFU_OK;
}

static tfu_code check_splits(tfu_call *call, const char *name, const int64_t *splits, int batch, int steps) {
  for (int b = 0; b <= batch; b++) {
    const int64_t least = b ? splits[b - 1] : 0, most = b ? steps : 0;
    TFU_REQUIRE(call->err, splits[b] >= least && splits[b] <= most,
                "%s[%d] must be from %" PRId64 " to %" PRId64 ", got %" PRId64, name, b, least, most, splits[b]);
  }
  return TFU_OK;
}

static tfu_code check_pages(tfu_call *call, const attention_args *a) {
  for (int b = 0; b < a->batch; b++)
    for (int64_t i = 0; i * a->page < a->key_lengths[b]; i++) {
      const int64_t page = a->table[(int64_t)b * a->table_width + i];
      TFU_REQUIRE(call->err, page >= 0 && page < a->pages, "table[%d, %" PRId64 "] must be from 0 to %d, got %" PRId64,
                  b, i, a->pages - 1, page);
    }
  return TFU_OK;
}

tfu_code tfu_attention_job(tfu_call *call, const attention_args *a, attention_job *job) {
  *job = (attention_job){.a = *a, .dtype = call->in[0].dtype, .group = a->key_heads ? a->heads / a->key_heads : 0};
  if (a->seed)
    job->drop = (tfu_drop){.seed = *a->seed, .below = tfu_drop_below(a->rate), .factor = 1 / (1 - (double)a->rate)};
  if (a->ragged) {
    TFU_TRY(check_splits(call, "query_lengths", a->query_lengths, a->batch, a->queries));
    return check_splits(call, "key_lengths", a->key_lengths, a->batch, a->keys);
  }
  TFU_TRY(check_lengths(call, "query_lengths", a->query_lengths, a->batch, a->queries));
  TFU_TRY(check_lengths(call, "key_lengths", a->key_lengths, a->batch, a->keys));
  return a->table ? check_pages(call, a) : TFU_OK;
}

/* ---- tasks ---- */

typedef struct job_and_task {
  const attention_job *job;
  attention_task *task;
} job_and_task;

static void run(void *arg, int64_t i, void *space) {
  const job_and_task *with = arg;
  with->task(with->job, i, space);
}

tfu_code tfu_attention_run(tfu_call *call, const attention_job *job, attention_task *task, int64_t tasks,
                           size_t bytes) {
  return tfu_parallel_with(call, tasks, bytes, run, &(job_and_task){job, task});
}

#define TFU_SELF "kernels/attention/attention_tile_cpu.c"
#include "kernels/core/cpu/stamp.h"

#else

void FN(tfu_tile_band)(const FN(attention_tile) * t, int *first, int *end) {
  const attention_args *a = &t->job->a;
  const int low = FN(tfu_tile_query)(t, 0), high = FN(tfu_tile_query)(t, t->rows - 1);
  int unused;
  *first = *end = 0;
  if (low >= t->s.queries) return;
  tfu_band(a, &t->s, low, first, &unused);
  tfu_band(a, &t->s, high < t->s.queries ? high : t->s.queries - 1, &unused, end);
}

static void FN(scale)(REAL *to, const REAL *from, REAL factor, int n) {
  TFU_VECTORISED(i, n) to[i] = from[i] * factor;
}

void FN(tfu_tile_rows)(const FN(attention_tile) * t, const void *data, int width, REAL factor, REAL *to) {
  const attention_args *a = &t->job->a;
  const int64_t step = tfu_attention_width(width, sizeof(REAL));
  for (int r = 0; r < t->rows; r++, to += step) {
    const int i = FN(tfu_tile_query)(t, r);
    const int64_t at = ((t->s.first_query + i) * a->heads + FN(tfu_tile_head)(t, r)) * width;
    if (i < t->s.queries) FN(scale)(to, FN(tfu_load)(data, t->job->dtype, at, width, to), factor, width);
    else memset(to, 0, (size_t)width * sizeof *to);
  }
}

FN(tfu_matrix) FN(tfu_tile_keys)(const FN(attention_tile) * t, const void *data, int width, int copy, REAL *buffer) {
  const attention_args *a = &t->job->a;
  const int64_t step = tfu_attention_width(width, sizeof(REAL)), row = (int64_t)a->key_heads * width;
  const int direct = tfu_dtype_size(t->job->dtype) == sizeof(REAL) && !a->table;
  if (direct && !copy) {
    REAL *first = (REAL *)data + ((t->s.first_key + t->key) * a->key_heads + t->key_head) * width;
    return FN(tfu_rows_at)(first, row);
  }
  for (int j = 0; j < t->keys; j++) {
    const int64_t at = tfu_key_row(a, &t->s, t->b, t->key + j) * row + (int64_t)t->key_head * width;
    REAL *to = buffer + j * step;
    const REAL *from = FN(tfu_load)(data, t->job->dtype, at, width, to);
    if (from != to && width) memcpy(to, from, (size_t)width * sizeof *to);
  }
  return FN(tfu_rows_at)(buffer, step);
}

/* ---- scores ---- */

/* cap(s) = soft_cap * tanh(s / soft_cap) of n scores, and its derivative if slopes are wanted. */
static void FN(cap)(REAL *s, REAL *slopes, REAL soft_cap, int n) {
  static const REAL zeros[TFU_ATT_KEYS], ones[TFU_ATT_KEYS] = {[0 ... TFU_ATT_KEYS - 1] = 1};
  for (int i = 0; i < n; i++) s[i] /= soft_cap;
  tfu_activations[TFU_ACT_tanh].FN(value)(s, s, ones, zeros, n);
  for (int i = 0; slopes && i < n; i++) slopes[i] = 1 - s[i] * s[i];
  FN(scale)(s, s, soft_cap, n);
}
static void FN(add)(REAL *s, const REAL *bias, int n) {
  TFU_VECTORISED(i, n) s[i] += bias[i];
}
static void FN(keep)(REAL *s, const uint8_t *kept, int n) {
  TFU_VECTORISED(i, n) s[i] = kept[i] ? s[i] : -(REAL)INFINITY;
}

/* Caps n scores of a row, from key j on, adds the bias and takes out what is masked. Returns whether anything is left.
 */
static int FN(adjust)(const FN(attention_tile) * t, REAL *s, int h, int i, int j, int n) {
  const attention_args *a = &t->job->a;
  if (a->soft_cap > 0) FN(cap)(s, t->slopes ? t->slopes + (s - t->scores) : NULL, (REAL)a->soft_cap, n);
  if (a->bias) {
    REAL buffer[TFU_ATT_KEYS];
    const int64_t *step = a->bias_step, at = t->b * step[0] + h * step[1] + i * step[2] + j * step[3];
    const REAL *bias = FN(tfu_load)(a->bias, t->job->dtype, at, step[3] ? n : 1, buffer);
    if (!step[3]) {
      const REAL all = *bias;
      for (int k = 0; k < n; k++) buffer[k] = all;
      bias = buffer;
    }
    FN(add)(s, bias, n);
  }
  if (a->mask) {
    const int64_t *step = a->mask_step, at = t->b * step[0] + h * step[1] + i * step[2] + j * step[3];
    if (!step[3]) return a->mask[at];
    FN(keep)(s, a->mask + at, n);
  }
  return 1;
}

void FN(tfu_tile_scores)(FN(attention_tile) * t, FN(tfu_matrix) keys) {
  const attention_args *a = &t->job->a;
  const int few = t->rows <= TFU_ATT_FEW;
  for (int r = 0; r < t->rows; r++) {
    const int i = FN(tfu_tile_query)(t, r), h = FN(tfu_tile_head)(t, r);
    int first, end;
    tfu_band(a, &t->s, i, &first, &end);
    first = first < t->key ? 0 : first - t->key;
    end = end - t->key < t->keys ? end - t->key : t->keys;
    const int n = end - first;
    REAL *s = t->scores + r * TFU_ATT_KEYS + first;
    if (few && n > 0) FN(tfu_dots)(s, t->query + r * t->q_width, keys.at + first * keys.row, keys.row, n, a->head_dim);
    t->from[r] = first;
    t->end[r] = n > 0 && FN(adjust)(t, s, h, i, t->key + first, n) ? end : first;
  }
}
#endif
