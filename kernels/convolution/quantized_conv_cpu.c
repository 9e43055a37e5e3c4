/* QuantizedConv on the CPU: products of int8 with windows that are copied together, and the epilogue. */
#include "ops/convolution/quantized_conv.h"

#include <math.h>

#include "kernels/convolution/conv_windows.h"
#include "kernels/core/arithmetic.h"
#include "kernels/core/cpu/cpu.h"
#include "kernels/core/cpu/quads.h"

enum { ROWS = 64, COLUMNS = TFU_QUAD_COLUMNS, TERMS = 256 }; /* results of a task, and terms of a panel */

typedef struct quantized_job {
  conv_windows w;
  const int8_t *kernel; /* of the group */
  const float *scale, *bias;
  const tfu_tensor *residual, *y;
  int64_t terms, outputs, all, col; /* outputs of a group, and of all; the group's first */
  float residual_scale, y_scale;
  int relu;
  tfu_quads *multiply;
} quantized_job;

static void add_residual(const quantized_job *j, int64_t at, int n, float *line) {
  float buffer[COLUMNS];
  if (j->residual->dtype == TFU_I8)
    for (int i = 0; i < n; i++) buffer[i] = (float)((const int8_t *)j->residual->data)[at + i] * j->residual_scale;
  const float *more =
      j->residual->dtype == TFU_I8 ? buffer : tfu_load_f32(j->residual->data, j->residual->dtype, at, n, buffer);
  for (int i = 0; i < n; i++) line[i] += more[i];
}

/* relu keeps NaN, of which int8 makes 0. */
static void finish(const quantized_job *j, int64_t row, int64_t col, int n, float *line) {
  const int64_t at = row * j->all + col;
  for (int i = 0; i < n; i++) line[i] = line[i] * j->scale[col + i] + (j->bias ? j->bias[col + i] : 0);
  if (j->residual) add_residual(j, at, n, line);
  for (int i = 0; j->relu && i < n; i++) line[i] = line[i] < 0 ? 0 : line[i];
  if (j->y->dtype != TFU_I8) {
    tfu_store_f32(j->y->data, j->y->dtype, at, n, line);
    return;
  }
  int8_t *to = (int8_t *)j->y->data + at;
  for (int i = 0; i < n; i++) {
    const float v = rintf(line[i] * j->y_scale);
    to[i] = (int8_t)(v != v ? 0 : v < -127 ? -127 : v > 127 ? 127 : v);
  }
}

static void block(void *arg, int64_t task) {
  const quantized_job *j = arg;
  const int64_t across = divide_up(j->outputs, COLUMNS), row = task / across * ROWS, col = task % across * COLUMNS;
  const int rows = (int)least(ROWS, j->w.rows - row), n = (int)least(COLUMNS, j->outputs - col);
  const int8_t *windows = (const int8_t *)j->w.to + row * j->terms, *kernel = j->kernel + col * j->terms;
  int32_t sums[ROWS][COLUMNS] = {0};
  for (int64_t at = 0; at < j->terms; at += TERMS) {
    const int terms = (int)least(TERMS, j->terms - at);
    int8_t panel[TERMS * COLUMNS];
    tfu_quads_of_columns(panel, kernel + at, j->terms, terms, n);
    j->multiply(sums[0], COLUMNS, windows + at, j->terms, rows, panel, terms, 1);
  }
  for (int r = 0; r < rows; r++) {
    float line[COLUMNS];
    for (int c = 0; c < n; c++) line[c] = (float)sums[r][c];
    finish(j, j->w.first + row + r, j->col + col, n, line);
  }
}

tfu_code tfu_quantized_conv_cpu(tfu_call *call) {
  const tfu_tensor *x = &call->in[TFU_QCONV_X], *residual = &call->in[TFU_QCONV_RESIDUAL];
  const tfu_shape kernel = tfu_qconv_kernel(&call->in[TFU_QCONV_KERNEL].shape);
  const conv_shape s = tfu_conv_read(call, &x->shape, &kernel, &call->out[0].shape);
  quantized_job j = {.scale = call->in[TFU_QCONV_SCALE].data,
                     .bias = tfu_given_data(&call->in[TFU_QCONV_BIAS]),
                     .residual = tfu_given(&residual->shape) ? residual : NULL,
                     .y = &call->out[0],
                     .terms = conv_volume(s.window) * s.c,
                     .outputs = s.k,
                     .all = s.groups * s.k,
                     .residual_scale = tfu_qconv_residual_scale(call),
                     .y_scale = call->attr[TFU_QCONV_Y_SCALE].f,
                     .relu = call->attr[TFU_QCONV_RELU].b,
                     .multiply = tfu_best_quads()};
  conv_windows w;
  TFU_TRY(tfu_qconv_check(call));
  TFU_TRY(tfu_conv_windows_open(call, &s, 0, x, &w));
  for (int64_t g = 0; g < s.groups; g++) {
    j.w = conv_windows_of_group(w, g);
    j.kernel = (const int8_t *)call->in[TFU_QCONV_KERNEL].data + g * s.k * j.terms;
    j.col = g * s.k;
    while (tfu_conv_windows_next(&j.w)) tfu_parallel(divide_up(j.w.rows, ROWS) * divide_up(s.k, COLUMNS), block, &j);
  }
  return TFU_OK;
}
