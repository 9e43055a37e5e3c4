/* A recurrence's gradient on the CPU: over the steps backwards. dh of a step is dy, what comes from the gates of the
 * step after by the transposed kernel, and what passes it directly. */
#ifndef REAL
#include "kernels/core/arithmetic.h"
#include "kernels/recurrent/recurrence_cpu.h"

#define TFU_SELF "kernels/recurrent/recurrence_grad_cpu.c"
#include "kernels/core/cpu/stamp.h"
TFU_BY_REAL(tfu_recurrence_grad_cpu)

#else

/* Of a worker: dh and dc, rows `padded` apart, and dp, gate by gate; and what gates' h are scaled by. Where h is reset
 * before the candidate's product, dc is the gradient of what it is then. */
typedef struct FN(backward_space) {
  REAL *dh, *dc, *dp, *scale;
} FN(backward_space);

/* What dp of the candidate gives to columns of its own h, strip i. */
static void FN(reset_strip)(const recurrence_job *j, const void *space, int64_t i, int m) {
  enum { COLS = TFU_PRODUCT_COLS(REAL) };
  const FN(backward_space) s = *(const FN(backward_space) *)space;
  const int64_t units = j->size.units;
  REAL *strip = (REAL *)j->packed + (i * j->inner + 2 * units) * COLS;
  FN(tfu_product)
  (FN(tfu_rows_at)(s.dc + i * COLS, j->padded), FN(tfu_rows_at)(s.dp + 2 * units, j->inner),
   FN(tfu_rows_at)(strip, COLS), m, COLS, (int)units, 0);
}

/* Adds what dp gives to columns of dh, strip i: through all gates at once, or gate by gate where each has its scale;
 * but for a candidate whose h is reset. */
static void FN(add_strip)(const recurrence_job *j, const void *space, int64_t i, int m) {
  enum { COLS = TFU_PRODUCT_COLS(REAL) };
  const FN(backward_space) s = *(const FN(backward_space) *)space;
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
static void FN(copy_before)(REAL *to, const recurrence_job *j, const tfu_tensor *states, int64_t width, int64_t skip,
                            const tfu_tensor *first, int64_t b, int64_t t, int64_t unit, int n) {
  if (t > 0) FN(copy)(to, states, (b * j->size.steps + t - 1) * width + skip + unit, n);
  else FN(copy)(to, first, b * j->size.units + unit, n);
}

/* Whether a step counts. */
static int FN(counts)(const recurrence_job *j, int64_t row) {
  const tfu_tensor *mask = &j->call->in[TFU_RECGRAD_MASK];
  return !tfu_given(&mask->shape) || ((const uint8_t *)mask->data)[row];
}

/* What follows from the gradient of the reset h: that of the gate, and of h. */
static void FN(reset_back_line)(const recurrence_job *j, FN(recurrence_line) * l, FN(backward_space) s, int r,
                                int64_t b, int64_t t, int64_t unit, int n) {
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

static void FN(backward_line)(const recurrence_job *j, FN(recurrence_line) * l, FN(backward_space) s, int r, int64_t b,
                              int64_t t, int64_t unit, int n) {
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

static void FN(backward_rows)(const recurrence_job *j, void *space, int64_t first, int m) {
  const tfu_tensor *in = j->call->in, *out = j->call->out;
  const int64_t units = j->size.units, size = MOST_ROWS * j->padded, strips = j->outer / TFU_PRODUCT_COLS(REAL);
  REAL *memory = space;
  const FN(backward_space) s = {memory, memory + size, memory + 2 * size, memory + 2 * size + MOST_ROWS * j->inner};
  if (j->scaled) FN(tfu_recurrence_scales)(j, s.scale, first, m);
  FN(recurrence_line) line;
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
      tfu_recurrence_strips(j, FN(reset_strip), &s, 0, strips, m);
      for (int r = 0; r < m; r++)
        for (int64_t u = 0; u < units; u += LINE)
          FN(reset_back_line)(j, &line, s, r, first + r, t, u, (int)least(LINE, units - u));
    }
    tfu_recurrence_strips(j, FN(add_strip), &s, 0, strips, m);
  }
  for (int r = 0; r < m; r++) {
    FN(put)(&out[TFU_RECGRAD_DH], (first + r) * units, (int)units, s.dh + r * j->padded);
    if (tfu_count(&out[TFU_RECGRAD_DC].shape))
      FN(put)(&out[TFU_RECGRAD_DC], (first + r) * units, (int)units, s.dc + r * j->padded);
  }
}

static tfu_code FN(tfu_recurrence_grad_cpu)(tfu_call *call) {
  return FN(tfu_recurrence_run)(call, 1, FN(backward_rows));
}
#endif
