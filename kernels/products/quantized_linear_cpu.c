/* quantized_linear on the CPU: w is written once, in the arithmetic type, for a blocked product; rows of x that are
 * rounded become whole numbers, whose sums are scaled at the end. Where these can be int8, quantized_whole_cpu.c
 * serves. */
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
  void *rounded;           /* x in whole numbers, or NULL */
  void *by;                /* what the sums of each row are multiplied with, or NULL */
  const void *ones, *bias; /* of the arithmetic type, one value per output */
  const tfu_activation *act;
} quant_job;

#define TFU_SELF "kernels/products/quantized_linear_cpu.c"
#include "kernels/core/cpu/stamp.h"
TFU_BY_REAL(tfu_quantized_linear_cpu)
TFU_BY_REAL(tfu_quantized_linear_grad_cpu)

#else

/* n numbers of a group from column `first` on, of scale or, in tiles, of what it subtracts. */
static const REAL *FN(scales)(const quant_job *j, int64_t g, int64_t first, int n, REAL *buffer) {
  const quantized_kernel *k = &j->k;
  const tfu_dtype dtype = k->wide ? tfu_real(j->dtype) : j->dtype;
  const int64_t at = quant_scale_at(k, g, first);
  if (k->order != QUANT_BY_COLUMNS || k->scales == 1) return FN(tfu_load)(k->scale, dtype, at, n, buffer);
  for (int c = 0; c < n; c++) {
    REAL one;
    buffer[c] = *FN(tfu_load)(k->scale, dtype, at + c * k->scales, 1, &one);
  }
  return buffer;
}

/* kernel[i][first] .. less what is subtracted, n of them. */
static void FN(numbers)(const quant_job *j, int64_t i, int64_t g, int64_t first, int n, REAL *line) {
  const quantized_kernel *k = &j->k;
  if (k->order == QUANT_BY_ROWS && k->bits == 8) {
    const uint8_t *codes = k->codes + i * k->outputs + first;
    if (k->is_signed)
      for (int c = 0; c < n; c++) line[c] = (REAL)(int8_t)codes[c];
    else
      for (int c = 0; c < n; c++) line[c] = (REAL)codes[c];
  } else if (k->order == QUANT_BY_ROWS) { /* first is even */
    const uint8_t *codes = k->codes + i * ((k->outputs + 1) / 2) + first / 2;
    const int sign = k->is_signed << 3;
    for (int c = 0; c < n; c++) line[c] = (REAL)(((codes[c / 2] >> c % 2 * 4 & 15) ^ sign) - sign);
  } else if (k->order == QUANT_TILES) { /* first is a multiple of a tile's columns */
    for (int at = 0; at < n; at += QUANT_TILE_COLUMNS) {
      int8_t codes[QUANT_TILE_COLUMNS];
      quant_tile_line(k, i, (first + at) / QUANT_TILE_COLUMNS, codes);
      for (int c = 0; c < QUANT_TILE_COLUMNS && at + c < n; c++) line[at + c] = (REAL)codes[c];
    }
  } else {
    for (int c = 0; c < n; c++) line[c] = (REAL)quant_at(k, i, first + c);
  }
  if (k->order == QUANT_TILES) {
    REAL buffer[TFU_TILE];
    const REAL *zero = FN(scales)(j, 2 * g + 1, first, n, buffer);
    for (int c = 0; c < n; c++) line[c] -= zero[c];
  } else if (k->zero) {
    for (int c = 0; c < n; c++) line[c] -= (REAL)quant_value(k->zero[quant_scale_at(k, g, first + c)], 8, k->is_signed);
  }
}

/* Rows begin .. end of w. */
static void FN(widen_rows)(void *arg, int64_t begin, int64_t end) {
  const quant_job *j = arg;
  const quantized_kernel *k = &j->k;
  for (int64_t i = begin; i < end; i++) {
    const int64_t g = quant_group(k, i);
    REAL one;
    const REAL divisor = k->input_scale ? *FN(tfu_load)(k->input_scale, j->dtype, i, 1, &one) : 1;
    for (TFU_EACH_TILE(first, n, 0, k->outputs)) {
      REAL line[TFU_TILE], buffer[TFU_TILE];
      const REAL *by = FN(scales)(j, k->order == QUANT_TILES ? 2 * g : g, first, (int)n, buffer);
      FN(numbers)(j, i, g, first, (int)n, line);
      if (k->divide)
        for (int c = 0; c < n; c++) line[c] = line[c] / by[c] / divisor;
      else
        for (int c = 0; c < n; c++) line[c] = line[c] * by[c] / divisor;
      FN(tfu_store)(j->w.data, j->w.dtype, i * k->outputs + first, (int)n, line);
    }
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
    ((REAL *)j->by)[row] = 1 / by;
    for (TFU_EACH_TILE(at, n, 0, inputs)) {
      const REAL *x = FN(tfu_load)(j->x.data, j->x.dtype, row * inputs + at, (int)n, buffer);
      for (int64_t i = 0; i < n; i++) to[at + i] = rint(x[i] * by);
    }
  }
}

static void FN(finish)(void *arg, int64_t row, int64_t col, int n, REAL *line) {
  const quant_job *j = arg;
  const int64_t at = row * j->k.outputs + col;
  if (j->by)
    for (int i = 0; i < n; i++) line[i] *= ((const REAL *)j->by)[row];
  j->act->FN(value)(line, line, j->ones, (const REAL *)j->bias + col, n);
  if (tfu_count(&j->residual.shape)) {
    REAL buffer[TFU_GEMM_COLS];
    const REAL *residual = FN(tfu_load)(j->residual.data, j->residual.dtype, at, n, buffer);
    for (int i = 0; i < n; i++) line[i] += residual[i];
  }
  FN(tfu_store)(j->y.data, j->y.dtype, at, n, line);
}

/* Ones, and bias, which is -0 where there is none: x + -0 is x, even for x = -0. */
static tfu_code FN(spread)(tfu_call *call, quant_job *j) {
  const tfu_tensor *bias = &call->in[TFU_QUANT_BIAS];
  REAL *ones, *wide, one;
  TFU_SCRATCH(call, TFU_GEMM_COLS, ones);
  TFU_SCRATCH(call, j->k.outputs, wide);
  const int given = tfu_count(&bias->shape) > 0;
  for (int i = 0; i < TFU_GEMM_COLS; i++) ones[i] = 1;
  for (int64_t i = 0; i < j->k.outputs; i++)
    wide[i] = given ? *FN(tfu_load)(bias->data, bias->dtype, i, 1, &one) : (REAL)-0.0;
  j->ones = ones;
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
  tfu_operand left = tfu_operand_of(&j.x, 0);
  int served = 0;
  if (call->attr[TFU_QUANT_ROWS].b) TFU_TRY(tfu_quantized_whole_cpu(call, &j.k, &served));
  if (served) return TFU_OK;
  j.w = (tfu_tensor){.dtype = real, .shape = {.rank = 2, .dim = {j.k.inputs, j.k.outputs}}};
  TFU_TRY(tfu_scratch(call, (size_t)tfu_count(&j.w.shape) * sizeof(REAL), &j.w.data));
  TFU_TRY(FN(spread)(call, &j));
  tfu_parallel_ranges(j.k.inputs, 16, FN(widen_rows), &j);
  if (call->attr[TFU_QUANT_ROWS].b) {
    TFU_TRY(tfu_scratch(call, (size_t)rows * sizeof(REAL), &j.by));
    TFU_TRY(tfu_scratch(call, (size_t)(rows * j.k.inputs) * sizeof(REAL), &j.rounded));
    tfu_parallel_ranges(rows, 1, FN(round_rows), &j);
    left = (tfu_operand){.data = j.rounded, .dtype = real, .row = j.k.inputs};
  }
  return FN(tfu_gemm)(call, left, tfu_operand_of(&j.w, 0), rows, j.k.outputs, j.k.inputs, FN(finish), &j);
}

static tfu_code FN(dequantize)(tfu_call *call, const quantized_kernel *k, const tfu_tensor *w) {
  quant_job j = {.k = *k, .w = *w, .dtype = call->in[0].dtype};
  tfu_parallel_ranges(k->inputs, 16, FN(widen_rows), &j);
  return TFU_OK;
}

static tfu_code FN(tfu_quantized_linear_grad_cpu)(tfu_call *call) {
  static const quantized_parts parts = {.dequantize = FN(dequantize), .linear_grad = tfu_linear_grad_cpu};
  return tfu_quantized_linear_grad_by_parts(call, &parts);
}
#endif
