/* recurrence on the CPU: a task has some sequences from their first step to their last, so that threads never wait for
 * each other. A step is the product of its sequences' h with the recurrent kernel, which is packed once for all steps,
 * and the gates' formulas on what is in the cache of it, LINE units of a sequence at a time. Where there are fewer
 * tasks than threads, the threads that are left take strips of each step's product. */
#ifndef REAL
#include "kernels/recurrent/recurrence_cpu.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/cpu/workers.h"

/* Multiplications that a thread is worth waking for: some ten microseconds. And how many sequences a task has at least:
 * in every step, each task reads the whole recurrent kernel, while threads that share a task read a part of it, which
 * stays in their caches. */
enum { WORTH_A_THREAD = 1 << 18, FEWEST_ROWS = 8 };

typedef struct strips_of_step {
  const recurrence_job *j;
  recurrence_strip *strip;
  const void *space;
  int64_t first;
  int m;
} strips_of_step;

static void range(void *arg, int64_t begin, int64_t end) {
  const strips_of_step *w = arg;
  for (int64_t i = begin; i < end; i++) w->strip(w->j, w->space, w->first + i, w->m);
}

void tfu_recurrence_strips(const recurrence_job *j, recurrence_strip *strip, const void *space, int64_t first,
                           int64_t end, int m) {
  tfu_parallel_ranges(end - first, j->strips_each, range, &(strips_of_step){j, strip, space, first, m});
}

/* Strips of a range, so that all threads have some where tasks leave them free. */
static int64_t strips_each(const recurrence_job *j, int64_t strips, int64_t of_strip, int64_t threads) {
  const int64_t ranges = j->tasks && j->tasks < threads ? threads / j->tasks : 1;
  const int64_t fair = divide_up(strips, ranges), worth = divide_up(WORTH_A_THREAD, of_strip + 1);
  return fair > worth ? fair : worth;
}

#define TFU_SELF "kernels/recurrent/recurrence_cpu.c"
#include "kernels/core/cpu/stamp.h"
TFU_BY_REAL(tfu_recurrence_cpu)

#else

/* ---- the packed kernel ---- */

/* Strip `i` of [inner, outer] in columns: of the recurrent kernel, gate by gate, each with padded units; or of its
 * transposed, [gates * units, padded units]. */
static void FN(pack)(void *arg, int64_t i) {
  enum { COLS = TFU_PRODUCT_COLS(REAL) };
  const recurrence_job *j = arg;
  const tfu_tensor *kernel = &j->call->in[j->backward ? TFU_RECGRAD_KERNEL : TFU_RECUR_KERNEL];
  const int64_t units = j->size.units, width = j->size.gates * units;
  REAL *strip = (REAL *)j->packed + i * j->inner * COLS;
  const int64_t gate = i * COLS / j->padded, unit = i * COLS % j->padded;
  const int n = (int)least(COLS, units - unit); /* more than 0: padding is less than a strip */
  memset(strip, 0, (size_t)(j->inner * COLS) * sizeof *strip);
  if (!j->backward) {
    for (int64_t k = 0; k < j->inner; k++) FN(copy)(strip + k * COLS, kernel, k * width + gate * units + unit, n);
    return;
  }
  for (int c = 0; c < n; c++) {
    REAL line[LINE];
    for (int64_t at = 0; at < width; at += LINE) {
      const int some = (int)least(LINE, width - at);
      FN(copy)(line, kernel, (unit + c) * width + at, some);
      for (int k = 0; k < some; k++) strip[(at + k) * COLS + c] = line[k];
    }
  }
}

void FN(tfu_recurrence_scales)(const recurrence_job *j, REAL *to, int64_t first, int m) {
  const tfu_tensor *scale = &j->call->in[j->backward ? TFU_RECGRAD_SCALE : TFU_RECUR_SCALE];
  const int64_t units = j->size.units;
  for (int64_t r = 0; r < m; r++)
    for (int g = 0; g < j->size.gates; g++)
      FN(copy)(to + (r * j->size.gates + g) * j->padded, scale, ((first + r) * j->size.gates + g) * units, (int)units);
}

/* ---- who computes which ---- */

static void FN(work)(void *arg, int64_t task, void *space) {
  const recurrence_job *j = arg;
  const int64_t first = task * j->rows;
  memset(space, 0, j->bytes); /* what rounds a block up is computed with, if never used */
  j->task(j, space, first, (int)least(j->rows, j->size.batch - first));
}

tfu_code FN(tfu_recurrence_run)(tfu_call *call, int backward, recurrence_rows *task) {
  enum { COLS = TFU_PRODUCT_COLS(REAL), ROWS = TFU_PRODUCT_ROWS };
  const recurrence_sizes size =
      backward ? recurrence_sizes_of(call, &call->in[TFU_RECGRAD_DY], &call->in[TFU_RECGRAD_KERNEL])
               : recurrence_sizes_of(call, &call->out[TFU_RECUR_Y], &call->in[TFU_RECUR_KERNEL]);
  const int64_t padded = TFU_PRODUCT_ROUND(size.units, COLS), threads = tfu_threads();
  recurrence_job j = {.call = call,
                      .size = size,
                      .act = &tfu_activations[size.activation],
                      .gate = &tfu_activations[size.recurrent_activation],
                      .backward = backward,
                      .inner = backward ? size.gates * size.units : size.units,
                      .outer = backward ? padded : size.gates * padded,
                      .padded = padded,
                      .task = task,
                      .scaled = tfu_given(&call->in[backward ? TFU_RECGRAD_SCALE : TFU_RECUR_SCALE].shape)};
  const int64_t fair = TFU_PRODUCT_ROUND(divide_up(size.batch, threads), ROWS),
                each = fair > FEWEST_ROWS ? fair : FEWEST_ROWS;
  j.rows = (int)least(MOST_ROWS, each);
  j.tasks = divide_up(size.batch, j.rows);
  j.strips_each = strips_each(&j, j.outer / COLS, j.inner * COLS * ROWS, threads);
  /* h twice, c and products; or dh, dc and dp; and what scales take. */
  const int64_t own = backward ? 2 * padded + j.inner : 3 * padded + j.outer;
  const int64_t scales = !j.scaled && !size.reset_before ? 0 : (backward ? 1 : 2) * size.gates * padded;
  j.bytes = (size_t)(MOST_ROWS * (own + scales)) * sizeof(REAL);
  TFU_TRY(tfu_scratch(call, (size_t)(j.inner * j.outer) * sizeof(REAL), &j.packed));
  tfu_parallel(j.outer / COLS, FN(pack), &j);
  return tfu_parallel_with(call, j.tasks, j.bytes, FN(work), &j);
}

/* ---- forward ---- */

/* Of a worker: h before and after the step, c, and the products of a step, gate by gate. Rows are `padded` apart. Where
 * gates have an h of their own, these, [gates, rows], and what they are scaled by, [rows, gates]. */
typedef struct FN(forward_space) {
  REAL *h[2], *c, *product, *own, *scale;
} FN(forward_space);

/* The matrix that strip i of the packed kernel is multiplied with. */
static FN(tfu_matrix) FN(operand)(const recurrence_job *j, FN(forward_space) s, int64_t i) {
  const int64_t gate = i * TFU_PRODUCT_COLS(REAL) / j->padded;
  const int own = j->scaled || (j->size.reset_before && gate == 2);
  return FN(tfu_rows_at)(own ? s.own + gate * MOST_ROWS * j->padded : s.h[0], j->padded);
}

static void FN(multiply_strip)(const recurrence_job *j, const void *space, int64_t i, int m) {
  enum { COLS = TFU_PRODUCT_COLS(REAL) };
  const FN(forward_space) *s = space;
  REAL *strip = (REAL *)j->packed + i * j->inner * COLS;
  const FN(tfu_matrix) product = FN(tfu_rows_at)(s->product + i * COLS, j->outer);
  FN(tfu_product)(product, FN(operand)(j, *s, i), FN(tfu_rows_at)(strip, COLS), m, COLS, (int)j->inner, 0);
}

static void FN(scale_rows)(const recurrence_job *j, FN(forward_space) s, int m) {
  for (int64_t g = 0; g < j->size.gates; g++)
    for (int64_t r = 0; r < m; r++) {
      const REAL *h = s.h[0] + r * j->padded, *scale = s.scale + (r * j->size.gates + g) * j->padded;
      REAL *own = s.own + (g * MOST_ROWS + r) * j->padded;
      for (int64_t u = 0; u < j->size.units; u++) own[u] = h[u] * scale[u];
    }
}

/* A gate's sum, that the activation is taken of, of units unit .. unit + n of row r, whose sequence is b, at step t. */
static void FN(sum_gate)(const recurrence_job *j, FN(recurrence_line) * l, FN(forward_space) s, int g, int r, int64_t b,
                         int64_t t, int64_t unit, int n) {
  const tfu_tensor *in = j->call->in;
  const int64_t units = j->size.units, row = b * j->size.steps + t;
  const REAL *product = s.product + (r * j->size.gates + g) * j->padded + unit;
  FN(copy)(l->pre[g], &in[TFU_RECUR_GATES], (row * j->size.gates + g) * units + unit, n);
  FN(copy)(l->buffer, &in[TFU_RECUR_BIAS], g * units + unit, n);
  for (int i = 0; i < n; i++) l->pre[g][i] += product[i] + l->buffer[i];
}

/* The candidate's own h, which is reset. */
static void FN(reset_line)(const recurrence_job *j, FN(recurrence_line) * l, FN(forward_space) s, int r, int64_t b,
                           int64_t t, int64_t unit, int n) {
  REAL *own = s.own + (2 * MOST_ROWS + r) * j->padded + unit, *reset = l->value[1];
  const REAL *h = j->scaled ? own : s.h[0] + r * j->padded + unit;
  FN(sum_gate)(j, l, s, 1, r, b, t, unit, n);
  FN(apply)(j->gate, l, reset, l->pre[1], n);
  TFU_VECTORISED(i, n) own[i] = reset[i] * h[i];
}

/* The same units at the end of the step. */
static void FN(forward_line)(const recurrence_job *j, FN(recurrence_line) * l, FN(forward_space) s, int r, int64_t b,
                             int64_t t, int64_t unit, int n) {
  const tfu_tensor *in = j->call->in, *out = j->call->out, *kept = &out[TFU_RECUR_KEPT];
  const int64_t units = j->size.units, row = b * j->size.steps + t, padded = j->padded;
  const int lstm = j->size.lstm, gates = j->size.gates, reset_after = !lstm && !j->size.reset_before;
  const int64_t kept_at = row * j->size.kept * units + unit;
  const int counts = !tfu_given(&in[TFU_RECUR_MASK].shape) || ((const uint8_t *)in[TFU_RECUR_MASK].data)[row];
  const REAL *before = s.h[0] + r * padded + unit;
  REAL *after = s.h[1] + r * padded + unit, *c = s.c + r * padded + unit, *inner = l->value[GATES - 1];
  for (int g = 0; g < gates; g++) {
    if (reset_after && g == 2) {
      const REAL *product = s.product + (r * gates + g) * padded + unit;
      FN(copy)(l->pre[g], &in[TFU_RECUR_GATES], (row * gates + g) * units + unit, n);
      FN(copy)(l->buffer, &in[TFU_RECUR_BIAS], g * units + unit, n);
      for (int i = 0; i < n; i++) inner[i] = product[i] + l->buffer[i], l->pre[g][i] += l->value[1][i] * inner[i];
    } else {
      FN(sum_gate)(j, l, s, g, r, b, t, unit, n);
    }
    FN(apply)(g == 2 ? j->act : j->gate, l, l->value[g], l->pre[g], n);
  }
  if (lstm) {
    REAL *active = l->buffer;
    const REAL *in_gate = l->value[0], *forget = l->value[1], *candidate = l->value[2], *out_gate = l->value[3];
    if (counts)
      TFU_VECTORISED(i, n) c[i] = forget[i] * c[i] + in_gate[i] * candidate[i];
    FN(apply)(j->act, l, active, c, n);
    TFU_VECTORISED(i, n) after[i] = counts ? out_gate[i] * active[i] : before[i];
  } else {
    const REAL *update = l->value[0], *candidate = l->value[2];
    TFU_VECTORISED(i, n) after[i] = counts ? update[i] * before[i] + (1 - update[i]) * candidate[i] : before[i];
  }
  FN(put)(&out[TFU_RECUR_Y], row * units + unit, n, after);
  if (tfu_count(&kept->shape) == 0) return;
  for (int g = 0; g < gates; g++) FN(put)(kept, kept_at + g * units, n, l->pre[g]);
  if (!j->size.reset_before) FN(put)(kept, kept_at + gates * units, n, lstm ? c : inner);
}

static void FN(forward_rows)(const recurrence_job *j, void *space, int64_t first, int m) {
  const tfu_tensor *in = j->call->in, *last = &j->call->out[TFU_RECUR_LAST];
  const int64_t units = j->size.units, size = MOST_ROWS * j->padded;
  REAL *memory = space;
  FN(forward_space) s = {.h = {memory, memory + size}, .c = memory + 2 * size, .product = memory + 3 * size};
  s.own = s.product + MOST_ROWS * j->outer;
  s.scale = s.own + MOST_ROWS * j->outer;
  if (j->scaled) FN(tfu_recurrence_scales)(j, s.scale, first, m);
  FN(recurrence_line) line;
  FN(begin_line)(&line);
  for (int r = 0; r < m; r++)
    for (int64_t u = 0; u < units; u += LINE) {
      const int n = (int)least(LINE, units - u);
      FN(copy)(s.h[0] + r * j->padded + u, &in[TFU_RECUR_H], (first + r) * units + u, n);
      FN(copy)(s.c + r * j->padded + u, &in[TFU_RECUR_C], (first + r) * units + u, n);
    }
  for (int64_t t = 0; t < j->size.steps; t++) {
    if (j->scaled) FN(scale_rows)(j, s, m);
    const int64_t strips = j->outer / TFU_PRODUCT_COLS(REAL), before = j->size.reset_before ? strips / 3 * 2 : 0;
    tfu_recurrence_strips(j, FN(multiply_strip), &s, 0, before, m);
    for (int r = 0; j->size.reset_before && r < m; r++)
      for (int64_t u = 0; u < units; u += LINE)
        FN(reset_line)(j, &line, s, r, first + r, t, u, (int)least(LINE, units - u));
    tfu_recurrence_strips(j, FN(multiply_strip), &s, before, strips, m);
    for (int r = 0; r < m; r++)
      for (int64_t u = 0; u < units; u += LINE)
        FN(forward_line)(j, &line, s, r, first + r, t, u, (int)least(LINE, units - u));
    REAL *const other = s.h[0];
    s.h[0] = s.h[1], s.h[1] = other;
  }
  if (tfu_count(&last->shape) == 0) return;
  for (int r = 0; r < m; r++) FN(put)(last, (first + r) * units, (int)units, s.c + r * j->padded);
}

static tfu_code FN(tfu_recurrence_cpu)(tfu_call *call) { return FN(tfu_recurrence_run)(call, 0, FN(forward_rows)); }
#endif
