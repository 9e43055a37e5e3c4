/* recurrence on the CPU: a task has some sequences from their first step to their last, so that threads never wait for
 * each other. A step is the product of its sequences' h with the recurrent kernel, which is packed once for all steps,
 * and the gates' formulas on what is in the cache of it, LINE units of a sequence at a time.
 *
 * The gradient goes over the steps backwards: dh . of a step is dy, what comes from the gates of the step after by the
 * transposed kernel, and what passes it directly. */
#ifndef REAL
#include "kernels/recurrent/recurrence.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/cpu/product_cpu.h"

/* Sequences of a task at most, units that formulas take at a time, gates of a cell at most. */
enum { MOST_ROWS = 32, LINE = 128, GATES = 4 };

typedef struct job {
  tfu_call *call;
  recurrence_sizes size;
  const tfu_activation *act, *gate;
  int backward;
  int64_t inner, outer; /* the packed matrix is [inner, outer], its columns in strips of one register block each */
  int64_t padded;       /* units in whole register blocks */
  int scaled;           /* each gate has an h of its own; where reset_before, the candidate has in any case */
  void *packed;
  int rows; /* of a task */
  int64_t tasks, next;
  char *space;
  size_t bytes; /* of a worker */
} job;

#define TFU_SELF "kernels/recurrent/recurrence_cpu.c"
#include "kernels/core/cpu/stamp.h"
TFU_BY_REAL(tfu_recurrence_cpu)
TFU_BY_REAL(tfu_recurrence_grad_cpu)

#else

/* What a line of units has at hand. */
typedef struct FN(line) {
  REAL ones[LINE], zeros[LINE], buffer[LINE];
  REAL pre[GATES][LINE], value[GATES][LINE], slope[GATES][LINE];
} FN(line);

static void FN(begin_line)(FN(line) * l) {
  for (int i = 0; i < LINE; i++) l->ones[i] = 1, l->zeros[i] = (REAL)-0.0; /* x + -0 is x */
}
static void FN(apply)(const tfu_activation *act, const FN(line) * l, REAL *v, const REAL *x, int n) {
  act->FN(value)(v, x, l->ones, l->zeros, n);
}
static void FN(slope_of)(const tfu_activation *act, const FN(line) * l, REAL *v, const REAL *x, int n) {
  act->FN(grad)(v, x, l->ones, l->zeros, n);
}

/* n elements of a tensor from `at` on, to memory of the arithmetic type; zeros where it is not given. */
static void FN(copy)(REAL *to, const tfu_tensor *t, int64_t at, int n) {
  const REAL *from = tfu_given(&t->shape) ? FN(tfu_load)(t->data, t->dtype, at, n, to) : NULL;
  if (!from) memset(to, 0, (size_t)n * sizeof *to);
  else if (from != to) memcpy(to, from, (size_t)n * sizeof *to);
}
static void FN(put)(const tfu_tensor *t, int64_t at, int n, const REAL *values) {
  if (t->dtype == TFU_F32 || t->dtype == TFU_F64) memcpy((REAL *)t->data + at, values, (size_t)n * sizeof *values);
  else FN(tfu_store)(t->data, t->dtype, at, n, values);
}

/* ---- the packed kernel ---- */

/* Strip `i` of [inner, outer] in columns: of the recurrent kernel, gate by gate, each with padded units; or of its
 * transposed, [gates * units, padded units]. */
static void FN(pack)(void *arg, int64_t i) {
  enum { COLS = TFU_PRODUCT_COLS(REAL) };
  const job *j = arg;
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

/* ---- what each gate's h is scaled by ---- */

/* Of rows first .. first + m, gate by gate, each with padded units, of which those that are none stay 0. */
static void FN(load_scale)(const job *j, REAL *to, int64_t first, int m) {
  const tfu_tensor *scale = &j->call->in[j->backward ? TFU_RECGRAD_SCALE : TFU_RECUR_SCALE];
  const int64_t units = j->size.units;
  for (int64_t r = 0; r < m; r++)
    for (int g = 0; g < j->size.gates; g++)
      FN(copy)(to + (r * j->size.gates + g) * j->padded, scale, ((first + r) * j->size.gates + g) * units, (int)units);
}

/* ---- forward ---- */

/* Of a worker: h before and after the step, c, and the products of a step, gate by gate. Rows are `padded` apart. Where
 * gates have an h of their own, these, [gates, rows], and what they are scaled by, [rows, gates]. */
typedef struct FN(forward_space) {
  REAL *h[2], *c, *product, *own, *scale;
} FN(forward_space);

/* The matrix that strip i of the packed kernel is multiplied with. */
static FN(tfu_matrix) FN(operand)(const job *j, FN(forward_space) s, int64_t i) {
  const int64_t gate = i * TFU_PRODUCT_COLS(REAL) / j->padded;
  const int own = j->scaled || (j->size.reset_before && gate == 2);
  return FN(tfu_rows_at)(own ? s.own + gate * MOST_ROWS * j->padded : s.h[0], j->padded);
}
/* Products of strips first .. end. */
static void FN(multiply_strips)(const job *j, FN(forward_space) s, int64_t first, int64_t end, int m) {
  enum { COLS = TFU_PRODUCT_COLS(REAL) };
  for (int64_t i = first; i < end; i++) {
    REAL *strip = (REAL *)j->packed + i * j->inner * COLS;
    const FN(tfu_matrix) product = FN(tfu_rows_at)(s.product + i * COLS, j->outer);
    FN(tfu_product)(product, FN(operand)(j, s, i), FN(tfu_rows_at)(strip, COLS), m, COLS, (int)j->inner, 0);
  }
}
static void FN(scale_rows)(const job *j, FN(forward_space) s, int m) {
  for (int64_t g = 0; g < j->size.gates; g++)
    for (int64_t r = 0; r < m; r++) {
      const REAL *h = s.h[0] + r * j->padded, *scale = s.scale + (r * j->size.gates + g) * j->padded;
      REAL *own = s.own + (g * MOST_ROWS + r) * j->padded;
      for (int64_t u = 0; u < j->size.units; u++) own[u] = h[u] * scale[u];
    }
}

/* A gate's sum, that the activation is taken of, of units unit .. unit + n of row r, whose sequence is b, at step t. */
static void FN(sum_gate)(const job *j, FN(line) * l, FN(forward_space) s, int g, int r, int64_t b, int64_t t,
                         int64_t unit, int n) {
  const tfu_tensor *in = j->call->in;
  const int64_t units = j->size.units, row = b * j->size.steps + t;
  const REAL *product = s.product + (r * j->size.gates + g) * j->padded + unit;
  FN(copy)(l->pre[g], &in[TFU_RECUR_GATES], (row * j->size.gates + g) * units + unit, n);
  FN(copy)(l->buffer, &in[TFU_RECUR_BIAS], g * units + unit, n);
  for (int i = 0; i < n; i++) l->pre[g][i] += product[i] + l->buffer[i];
}

/* The candidate's own h, which is reset. */
static void FN(reset_line)(const job *j, FN(line) * l, FN(forward_space) s, int r, int64_t b, int64_t t, int64_t unit,
                           int n) {
  REAL *own = s.own + (2 * MOST_ROWS + r) * j->padded + unit, *reset = l->value[1];
  const REAL *h = j->scaled ? own : s.h[0] + r * j->padded + unit;
  FN(sum_gate)(j, l, s, 1, r, b, t, unit, n);
  FN(apply)(j->gate, l, reset, l->pre[1], n);
  TFU_VECTORISED(i, n) own[i] = reset[i] * h[i];
}

/* The same units at the end of the step. */
static void FN(forward_line)(const job *j, FN(line) * l, FN(forward_space) s, int r, int64_t b, int64_t t, int64_t unit,
                             int n) {
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

static void FN(forward_rows)(const job *j, void *space, int64_t first, int m) {
  const tfu_tensor *in = j->call->in, *last = &j->call->out[TFU_RECUR_LAST];
  const int64_t units = j->size.units, size = MOST_ROWS * j->padded;
  REAL *memory = space;
  FN(forward_space) s = {.h = {memory, memory + size}, .c = memory + 2 * size, .product = memory + 3 * size};
  s.own = s.product + MOST_ROWS * j->outer;
  s.scale = s.own + MOST_ROWS * j->outer;
  if (j->scaled) FN(load_scale)(j, s.scale, first, m);
  FN(line) line;
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
    FN(multiply_strips)(j, s, 0, before, m);
    for (int r = 0; j->size.reset_before && r < m; r++)
      for (int64_t u = 0; u < units; u += LINE)
        FN(reset_line)(j, &line, s, r, first + r, t, u, (int)least(LINE, units - u));
    FN(multiply_strips)(j, s, before, strips, m);
    for (int r = 0; r < m; r++)
      for (int64_t u = 0; u < units; u += LINE)
        FN(forward_line)(j, &line, s, r, first + r, t, u, (int)least(LINE, units - u));
    REAL *const other = s.h[0];
    s.h[0] = s.h[1], s.h[1] = other;
  }
  if (tfu_count(&last->shape) == 0) return;
  for (int r = 0; r < m; r++) FN(put)(last, (first + r) * units, (int)units, s.c + r * j->padded);
}

/* ---- backward ---- */

/* Of a worker: dh and dc, rows `padded` apart, and dp, gate by gate; and what gates' h are scaled by. Where h is reset
 * before the candidate's product, dc is the gradient of what it is then. */
typedef struct FN(backward_space) {
  REAL *dh, *dc, *dp, *scale;
} FN(backward_space);

/* What dp of the candidate gives to columns of its own h, strip i. */
static void FN(reset_strip)(const job *j, FN(backward_space) s, int64_t i, int m) {
  enum { COLS = TFU_PRODUCT_COLS(REAL) };
  const int64_t units = j->size.units;
  REAL *strip = (REAL *)j->packed + (i * j->inner + 2 * units) * COLS;
  FN(tfu_product)
  (FN(tfu_rows_at)(s.dc + i * COLS, j->padded), FN(tfu_rows_at)(s.dp + 2 * units, j->inner),
   FN(tfu_rows_at)(strip, COLS), m, COLS, (int)units, 0);
}

/* Adds what dp gives to columns of dh, strip i: through all gates at once, or gate by gate where each has its scale;
 * but for a candidate whose h is reset. */
static void FN(add_strip)(const job *j, FN(backward_space) s, int64_t i, int m) {
  enum { COLS = TFU_PRODUCT_COLS(REAL) };
  const int64_t units = j->size.units, gates = j->size.reset_before ? 2 : j->size.gates;
  REAL *strip = (REAL *)j->packed + i * j->inner * COLS, part[MOST_ROWS * COLS];
  const FN(tfu_matrix) dh = FN(tfu_rows_at)(s.dh + i * COLS, j->padded);
  if (!j->scaled) {
    FN(tfu_product)
    (dh, FN(tfu_rows_at)(s.dp, j->inner), FN(tfu_rows_at)(strip, COLS), m, COLS, (int)(gates * units), 1);
    return;
  }
  for (int64_t g = 0; g < gates; g++) {
    FN(tfu_product)
    (FN(tfu_rows_at)(part, COLS), FN(tfu_rows_at)(s.dp + g * units, j->inner),
     FN(tfu_rows_at)(strip + g * units * COLS, COLS), m, COLS, (int)units, 0);
    for (int64_t r = 0; r < m; r++) {
      const REAL *scale = s.scale + (r * j->size.gates + g) * j->padded + i * COLS;
      for (int c = 0; c < COLS; c++) dh.at[r * j->padded + c] += scale[c] * part[r * COLS + c];
    }
  }
}

/* State of the step before: of a sequence of states, or the first one. */
static void FN(copy_before)(REAL *to, const job *j, const tfu_tensor *states, int64_t width, int64_t skip,
                            const tfu_tensor *first, int64_t b, int64_t t, int64_t unit, int n) {
  if (t > 0) FN(copy)(to, states, (b * j->size.steps + t - 1) * width + skip + unit, n);
  else FN(copy)(to, first, b * j->size.units + unit, n);
}

/* Whether a step counts. */
static int FN(counts)(const job *j, int64_t row) {
  const tfu_tensor *mask = &j->call->in[TFU_RECGRAD_MASK];
  return !tfu_given(&mask->shape) || ((const uint8_t *)mask->data)[row];
}

/* What follows from the gradient of the reset h: that of the gate, and of h. */
static void FN(reset_back_line)(const job *j, FN(line) * l, FN(backward_space) s, int r, int64_t b, int64_t t,
                                int64_t unit, int n) {
  const tfu_tensor *in = j->call->in;
  const int64_t units = j->size.units, row = b * j->size.steps + t;
  REAL *dh = s.dh + r * j->padded + unit, *d = s.dc + r * j->padded + unit;
  REAL *dp = s.dp + (r * 3 + 1) * units + unit, *reset = l->value[1], *before = l->buffer;
  if (!FN(counts)(j, row)) return;
  const REAL *scale = s.scale + (r * 3 + 2) * j->padded + unit;
  for (int i = 0; j->scaled && i < n; i++) d[i] *= scale[i];
  FN(copy)(l->pre[1], &in[TFU_RECGRAD_KEPT], (row * 3 + 1) * units + unit, n);
  FN(apply)(j->gate, l, reset, l->pre[1], n);
  FN(slope_of)(j->gate, l, l->slope[1], l->pre[1], n);
  FN(copy_before)(before, j, &in[TFU_RECGRAD_Y], units, 0, &in[TFU_RECGRAD_H], b, t, unit, n);
  for (int i = 0; i < n; i++) {
    dp[i] = d[i] * before[i] * l->slope[1][i];
    dh[i] += d[i] * reset[i];
  }
  FN(put)(&j->call->out[TFU_RECGRAD_DGATES], (row * 3 + 1) * units + unit, n, dp);
}

static void FN(backward_line)(const job *j, FN(line) * l, FN(backward_space) s, int r, int64_t b, int64_t t,
                              int64_t unit, int n) {
  const tfu_tensor *in = j->call->in, *out = j->call->out, *kept = &in[TFU_RECGRAD_KEPT];
  const int64_t units = j->size.units, row = b * j->size.steps + t;
  const int lstm = j->size.lstm, gates = j->size.gates, width = j->size.kept, reset_before = j->size.reset_before;
  REAL *dh = s.dh + r * j->padded + unit, *dc = s.dc + r * j->padded + unit, *dp = s.dp + r * gates * units + unit;
  REAL *dgate = l->buffer, before[LINE], more[LINE], state[LINE];
  FN(copy)(l->buffer, &in[TFU_RECGRAD_DY], row * units + unit, n);
  for (int i = 0; i < n; i++) dh[i] += l->buffer[i];
  if (!FN(counts)(j, row)) {
    for (int g = 0; g < gates; g++) {
      memset(dp + g * units, 0, (size_t)n * sizeof *dp);
      FN(put)(&out[TFU_RECGRAD_DGATES], (row * gates + g) * units + unit, n, dp + g * units);
      if (!lstm && !reset_before)
        FN(put)(&out[TFU_RECGRAD_DPRODUCT], (row * gates + g) * units + unit, n, dp + g * units);
    }
    return;
  }
  for (int g = 0; g < gates; g++) {
    const tfu_activation *act = g == 2 ? j->act : j->gate;
    FN(copy)(l->pre[g], kept, (row * width + g) * units + unit, n);
    FN(apply)(act, l, l->value[g], l->pre[g], n);
    FN(slope_of)(act, l, l->slope[g], l->pre[g], n);
  }
  if (!reset_before)
    FN(copy)(state, kept, (row * width + gates) * units + unit, n); /* c after the step, or the GRU's inner product */
  if (lstm) {
    const REAL *in_gate = l->value[0], *forget = l->value[1], *candidate = l->value[2], *out_gate = l->value[3];
    FN(copy_before)(before, j, kept, width * units, gates * units, &in[TFU_RECGRAD_C], b, t, unit, n);
    FN(apply)(j->act, l, more, state, n);
    FN(slope_of)(j->act, l, dgate, state, n);
    for (int i = 0; i < n; i++) {
      const REAL d = dc[i] + dh[i] * out_gate[i] * dgate[i];
      dp[3 * units + i] = dh[i] * more[i] * l->slope[3][i];
      dp[2 * units + i] = d * in_gate[i] * l->slope[2][i];
      dp[units + i] = d * before[i] * l->slope[1][i];
      dp[i] = d * candidate[i] * l->slope[0][i];
      dc[i] = d * forget[i];
      dh[i] = 0;
    }
  } else {
    const REAL *update = l->value[0], *reset = l->value[1], *candidate = l->value[2];
    FN(copy_before)(before, j, &in[TFU_RECGRAD_Y], units, 0, &in[TFU_RECGRAD_H], b, t, unit, n);
    for (int i = 0; i < n; i++) {
      dgate[i] = dh[i] * (1 - update[i]) * l->slope[2][i];
      dp[i] = dh[i] * (before[i] - candidate[i]) * l->slope[0][i];
      dp[units + i] = reset_before ? 0 : dgate[i] * state[i] * l->slope[1][i]; /* reset_back_line has it */
      dp[2 * units + i] = reset_before ? dgate[i] : dgate[i] * reset[i];
      dh[i] *= update[i];
    }
  }
  for (int g = 0; g < gates; g++) {
    const REAL *gate = dp + g * units;
    if (!lstm && !reset_before) FN(put)(&out[TFU_RECGRAD_DPRODUCT], (row * gates + g) * units + unit, n, gate);
    FN(put)(&out[TFU_RECGRAD_DGATES], (row * gates + g) * units + unit, n, !lstm && g == 2 ? dgate : gate);
  }
}

static void FN(backward_rows)(const job *j, void *space, int64_t first, int m) {
  enum { COLS = TFU_PRODUCT_COLS(REAL) };
  const tfu_tensor *in = j->call->in, *out = j->call->out;
  const int64_t units = j->size.units, size = MOST_ROWS * j->padded;
  REAL *memory = space;
  const FN(backward_space) s = {memory, memory + size, memory + 2 * size, memory + 2 * size + MOST_ROWS * j->inner};
  if (j->scaled) FN(load_scale)(j, s.scale, first, m);
  FN(line) line;
  FN(begin_line)(&line);
  for (int r = 0; r < m; r++) {
    memset(s.dh + r * j->padded, 0, (size_t)units * sizeof *s.dh);
    for (int64_t u = 0; u < units; u += LINE)
      FN(copy)(s.dc + r * j->padded + u, &in[TFU_RECGRAD_DLAST], (first + r) * units + u, (int)least(LINE, units - u));
  }
  for (int64_t t = j->size.steps - 1; t >= 0; t--) {
    for (int r = 0; r < m; r++)
      for (int64_t u = 0; u < units; u += LINE)
        FN(backward_line)(j, &line, s, r, first + r, t, u, (int)least(LINE, units - u));
    if (j->size.reset_before) {
      for (int64_t i = 0; i < j->outer / COLS; i++) FN(reset_strip)(j, s, i, m);
      for (int r = 0; r < m; r++)
        for (int64_t u = 0; u < units; u += LINE)
          FN(reset_back_line)(j, &line, s, r, first + r, t, u, (int)least(LINE, units - u));
    }
    for (int64_t i = 0; i < j->outer / COLS; i++) FN(add_strip)(j, s, i, m);
  }
  for (int r = 0; r < m; r++) {
    FN(put)(&out[TFU_RECGRAD_DH], (first + r) * units, (int)units, s.dh + r * j->padded);
    if (tfu_count(&out[TFU_RECGRAD_DC].shape))
      FN(put)(&out[TFU_RECGRAD_DC], (first + r) * units, (int)units, s.dc + r * j->padded);
  }
}

/* ---- both ---- */

/* As many workers as threads take tasks in turn, so that memory is needed once per thread. */
static void FN(work)(void *arg, int64_t worker) {
  job *j = arg;
  for (int64_t task; (task = __atomic_fetch_add(&j->next, 1, __ATOMIC_RELAXED)) < j->tasks;) {
    const int64_t first = task * j->rows;
    void *space = j->space + (size_t)worker * j->bytes;
    (j->backward ? FN(backward_rows) : FN(forward_rows))(j, space, first, (int)least(j->rows, j->size.batch - first));
  }
}

static tfu_code FN(run)(tfu_call *call, int backward) {
  enum { COLS = TFU_PRODUCT_COLS(REAL), ROWS = TFU_PRODUCT_ROWS };
  const recurrence_sizes size =
      backward ? recurrence_sizes_of(call, &call->in[TFU_RECGRAD_DY], &call->in[TFU_RECGRAD_KERNEL])
               : recurrence_sizes_of(call, &call->out[TFU_RECUR_Y], &call->in[TFU_RECUR_KERNEL]);
  const int64_t padded = TFU_PRODUCT_ROUND(size.units, COLS), threads = tfu_threads();
  job j = {.call = call,
           .size = size,
           .act = &tfu_activations[size.activation],
           .gate = &tfu_activations[size.recurrent_activation],
           .backward = backward,
           .inner = backward ? size.gates * size.units : size.units,
           .outer = backward ? padded : size.gates * padded,
           .padded = padded,
           .scaled = tfu_given(&call->in[backward ? TFU_RECGRAD_SCALE : TFU_RECUR_SCALE].shape)};
  const int64_t each = TFU_PRODUCT_ROUND(divide_up(size.batch, threads), ROWS);
  j.rows = (int)least(MOST_ROWS, each);
  j.tasks = divide_up(size.batch, j.rows);
  const int64_t workers = least(j.tasks, threads);
  /* h twice, c and products; or dh, dc and dp; and what scales take. */
  const int64_t own = backward ? 2 * padded + j.inner : 3 * padded + j.outer;
  const int64_t scales = !j.scaled && !size.reset_before ? 0 : (backward ? 1 : 2) * size.gates * padded;
  j.bytes = (size_t)(MOST_ROWS * (own + scales)) * sizeof(REAL);
  void *packed, *space;
  TFU_TRY(tfu_scratch(call, (size_t)(j.inner * j.outer) * sizeof(REAL), &packed));
  TFU_TRY(tfu_scratch(call, j.bytes * (size_t)workers, &space));
  memset(space, 0, j.bytes * (size_t)workers); /* what rounds a block up is computed with, if never used */
  j.packed = packed;
  j.space = space;
  tfu_parallel(j.outer / COLS, FN(pack), &j);
  tfu_parallel(workers, FN(work), &j);
  return TFU_OK;
}

static tfu_code FN(tfu_recurrence_cpu)(tfu_call *call) { return FN(run)(call, 0); }
static tfu_code FN(tfu_recurrence_grad_cpu)(tfu_call *call) { return FN(run)(call, 1); }
#endif
