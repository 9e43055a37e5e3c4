/* quantized_linear on the CPU: w in the arithmetic type is made line by line for a few rows of x, and written once for
 * many; rows of x that are rounded become whole numbers. Sums are scaled at the end by what a column has one of, and a
 * row. Where rounded rows can be int8, quantized_whole_cpu.c serves. */
#ifndef REAL
#include "ops/products/quantized_linear.h"

#include <tgmath.h>

#include "kernels/core/cpu/cpu.h"
#include "kernels/products/gemm_cpu.h"
#include "kernels/products/quantized_kernel.h"

typedef struct quant_job {
  quantized_kernel k;
  tfu_dtype dtype; /* of x */
  tfu_tensor w, x, y, residual;
  void *by, *zero;          /* [groups, outputs]: what codes are multiplied with; what is subtracted before, or NULL */
  void *rounded;            /* x in whole numbers, or NULL */
  void *row_by;             /* what the sums of each row are multiplied with, or NULL */
  int apart;                /* sums are scaled, and not w: a column has one scale */
  const void *scale, *bias; /* of the arithmetic type, one value per output; scale is 1 where w has it */
  const tfu_activation *act;
} quant_job;

#define TFU_SELF "kernels/products/quantized_linear_cpu.c"
#include "kernels/core/cpu/stamp.h"
TFU_BY_REAL(tfu_quantized_linear_cpu)
TFU_BY_REAL(tfu_quantized_linear_grad_cpu)

#else

/* n numbers of group g's table from column `first` on. */
static void FN(read_scales)(const quant_job *j, int64_t g, int64_t first, int n, REAL *to) {
  const quantized_kernel *k = &j->k;
  const tfu_dtype dtype = k->wide ? tfu_real(j->dtype) : j->dtype;
  if (k->order != QUANT_BY_COLUMNS || k->scales == 1) {
    FN(tfu_copy)(to, k->scale, dtype, quant_scale_at(k, g, first), n);
    return;
  }
  for (int c = 0; c < n; c++) FN(tfu_copy)(to + c, k->scale, dtype, quant_scale_at(k, g, first + c), 1);
}

/* What the columns of groups begin .. end are multiplied with, and what is subtracted before. */
static void FN(read_tables)(void *arg, int64_t begin, int64_t end) {
  const quant_job *j = arg;
  const quantized_kernel *k = &j->k;
  const int tiles = k->order == QUANT_TILES;
  for (int64_t g = begin; g < end; g++)
    for (TFU_EACH_TILE(first, n, 0, k->outputs)) {
      const int64_t at = g * k->outputs + first;
      REAL *by = (REAL *)j->by + at, *zero = j->zero ? (REAL *)j->zero + at : NULL;
      FN(read_scales)(j, tiles ? 2 * g : g, first, (int)n, by);
      for (int c = 0; k->divide && c < n; c++) by[c] = 1 / by[c];
      if (tiles) FN(read_scales)(j, 2 * g + 1, first, (int)n, zero);
      for (int c = 0; k->zero && c < n; c++)
        zero[c] = (REAL)quant_value(k->zero[quant_scale_at(k, g, first + c)], 8, k->is_signed);
    }
}

static tfu_code FN(open_tables)(tfu_call *call, quant_job *j) {
  const int64_t count = j->k.scales * j->k.outputs;
  TFU_TRY(tfu_scratch(call, (size_t)count * sizeof(REAL), &j->by));
  if (j->k.zero || j->k.order == QUANT_TILES) TFU_TRY(tfu_scratch(call, (size_t)count * sizeof(REAL), &j->zero));
  tfu_parallel_ranges(j->k.scales, 1, FN(read_tables), j);
  return TFU_OK;
}

/* w[i][first] .., n of them. */
static void FN(weights)(const void *job, int64_t i, int64_t first, int n, void *to) {
  const quant_job *j = job;
  const quantized_kernel *k = &j->k;
  const int64_t at = quant_group(k, i) * k->outputs + first;
  REAL *line = to, one;
  int16_t codes[TFU_TILE];
  tfu_quant_line(k, i, first, n, codes);
  for (int c = 0; c < n; c++) line[c] = (REAL)codes[c];
  if (j->zero)
    for (int c = 0; c < n; c++) line[c] -= ((const REAL *)j->zero)[at + c];
  if (!j->apart)
    for (int c = 0; c < n; c++) line[c] *= ((const REAL *)j->by)[at + c];
  if (!k->input_scale) return;
  const REAL by = 1 / *FN(tfu_load)(k->input_scale, j->dtype, i, 1, &one);
  for (int c = 0; c < n; c++) line[c] *= by;
}

/* Rows begin .. end of w. */
static void FN(widen_rows)(void *arg, int64_t begin, int64_t end) {
  const quant_job *j = arg;
  for (int64_t i = begin; i < end; i++)
    for (TFU_EACH_TILE(first, n, 0, j->k.outputs)) {
      REAL line[TFU_TILE];
      FN(weights)(j, i, first, (int)n, line);
      FN(tfu_store)(j->w.data, j->w.dtype, i * j->k.outputs + first, (int)n, line);
    }
}

/* Whole numbers of rows begin .. end of x, and what their sums are multiplied with. */
static void FN(round_rows)(void *arg, int64_t begin, int64_t end) {
  const quant_job *j = arg;
  const int64_t inputs = j->k.inputs;
  for (int64_t row = begin; row < end; row++) {
    REAL buffer[TFU_TILE], largest = 0, *to = (REAL *)j->rounded + row * inputs;
    for (TFU_EACH_TILE(at, n, 0, inputs)) {
      const REAL *x = FN(tfu_load)(j->x.data, j->x.dtype, row * inputs + at, (int)n, buffer);
      for (int64_t i = 0; i < n; i++) largest = !(fabs(x[i]) <= largest) ? fabs(x[i]) : largest;
    }
    const REAL by = (REAL)127 / (largest + (REAL)1e-7);
    ((REAL *)j->row_by)[row] = 1 / by;
    for (TFU_EACH_TILE(at, n, 0, inputs)) {
      const REAL *x = FN(tfu_load)(j->x.data, j->x.dtype, row * inputs + at, (int)n, buffer);
      for (int64_t i = 0; i < n; i++) to[at + i] = rint(x[i] * by);
    }
  }
}

static void FN(finish)(void *arg, int64_t row, int64_t col, int n, REAL *line) {
  const quant_job *j = arg;
  const int64_t at = row * j->k.outputs + col;
  if (j->row_by)
    for (int i = 0; i < n; i++) line[i] *= ((const REAL *)j->row_by)[row];
  j->act->FN(value)(line, line, (const REAL *)j->scale + col, (const REAL *)j->bias + col, n);
  if (tfu_count(&j->residual.shape)) {
    REAL buffer[TFU_GEMM_COLS];
    const REAL *residual = FN(tfu_load)(j->residual.data, j->residual.dtype, at, n, buffer);
    for (int i = 0; i < n; i++) line[i] += residual[i];
  }
  FN(tfu_store)(j->y.data, j->y.dtype, at, n, line);
}

/* What sums are multiplied with, and bias, which is -0 where there is none: x + -0 is x, even for x = -0. */
static tfu_code FN(spread)(tfu_call *call, quant_job *j) {
  const tfu_tensor *bias = &call->in[TFU_QUANT_BIAS];
  REAL *ones, *wide, one;
  TFU_SCRATCH(call, j->apart ? 0 : j->k.outputs, ones);
  TFU_SCRATCH(call, j->k.outputs, wide);
  const int given = tfu_count(&bias->shape) > 0;
  for (int64_t i = 0; !j->apart && i < j->k.outputs; i++) ones[i] = 1;
  for (int64_t i = 0; i < j->k.outputs; i++)
    wide[i] = given ? *FN(tfu_load)(bias->data, bias->dtype, i, 1, &one) : (REAL)-0.0;
  j->scale = j->apart ? j->by : ones;
  j->bias = wide;
  return TFU_OK;
}

static tfu_code FN(tfu_quantized_linear_cpu)(tfu_call *call) {
  const tfu_dtype real = tfu_real(call->in[0].dtype);
  const int64_t rows = tfu_rows(&call->in[TFU_QUANT_X].shape);
  quant_job j = {.k = tfu_quantized_kernel(call),
                 .dtype = call->in[0].dtype,
                 .x = call->in[TFU_QUANT_X],
                 .y = call->out[0],
                 .residual = call->in[TFU_QUANT_RESIDUAL],
                 .act = &tfu_activations[call->attr[TFU_QUANT_ACTIVATION].i]};
  tfu_operand left = tfu_operand_of(&j.x, 0), right = {.data = &j, .dtype = real, .read = FN(weights)};
  int served = 0;
  TFU_TRY(FN(open_tables)(call, &j));
  if (call->attr[TFU_QUANT_ROWS].b) TFU_TRY(tfu_quantized_whole_cpu(call, &j.k, j.by, j.zero, &served));
  if (served) return TFU_OK;
  j.apart = j.k.scales == 1;
  TFU_TRY(FN(spread)(call, &j));
  if (rows > TFU_GEMM_FEW_ROWS) {
    j.w = (tfu_tensor){.dtype = real, .shape = {.rank = 2, .dim = {j.k.inputs, j.k.outputs}}};
    TFU_TRY(tfu_scratch(call, (size_t)tfu_count(&j.w.shape) * sizeof(REAL), &j.w.data));
    tfu_parallel_ranges(j.k.inputs, 16, FN(widen_rows), &j);
    right = tfu_operand_of(&j.w, 0);
  }
  if (call->attr[TFU_QUANT_ROWS].b) {
    TFU_TRY(tfu_scratch(call, (size_t)rows * sizeof(REAL), &j.row_by));
    TFU_TRY(tfu_scratch(call, (size_t)(rows * j.k.inputs) * sizeof(REAL), &j.rounded));
    tfu_parallel_ranges(rows, 1, FN(round_rows), &j);
    left = (tfu_operand){.data = j.rounded, .dtype = real, .row = j.k.inputs};
  }
  return FN(tfu_gemm)(call, left, right, rows, j.k.outputs, j.k.inputs, FN(finish), &j);
}

static tfu_code FN(dequantize)(tfu_call *call, const quantized_kernel *k, const tfu_tensor *w) {
  quant_job j = {.k = *k, .w = *w, .dtype = call->in[0].dtype};
  TFU_TRY(FN(open_tables)(call, &j));
  tfu_parallel_ranges(k->inputs, 16, FN(widen_rows), &j);
  return TFU_OK;
}

static tfu_code FN(tfu_quantized_linear_grad_cpu)(tfu_call *call) {
  static const quantized_parts parts = {.dequantize = FN(dequantize), .linear_grad = tfu_linear_grad_cpu};
  return tfu_quantized_linear_grad_by_parts(call, &parts);
}
#endif
