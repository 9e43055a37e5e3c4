#include "kernels/products/quantized_kernel.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/cpu/cpu.h" /* what processors have, for the loops over lines */
#include "kernels/core/recycle.h"
#include "ops/products/quantized_linear.h"

_Static_assert((int)QUANT_BY_ROWS == (int)TFU_QUANT_BY_ROWS && (int)QUANT_BY_COLUMNS == (int)TFU_QUANT_BY_COLUMNS &&
                   (int)QUANT_TILES == (int)TFU_QUANT_TILES && (int)QUANT_TILE_ROWS == (int)TFU_QUANT_TILE_ROWS &&
                   (int)QUANT_TILE_COLUMNS == (int)TFU_QUANT_TILE_COLUMNS,
               "the device has the row's numbers");

static void line_of_rows(const quantized_kernel *k, int64_t i, int64_t first, int n, int16_t *line) {
  const int sign = k->is_signed << (k->bits - 1);
  if (k->bits == 8) {
    const uint8_t *codes = k->codes + i * k->outputs + first;
    for (int c = 0; c < n; c++) line[c] = (int16_t)((codes[c] ^ sign) - sign);
    return;
  }
  const uint8_t *codes = k->codes + i * ((k->outputs + 1) / 2) + first / 2;
  for (int c = 0; c < n / 2; c++) {
    line[2 * c] = (int16_t)(((codes[c] & 15) ^ sign) - sign);
    line[2 * c + 1] = (int16_t)(((codes[c] >> 4) ^ sign) - sign);
  }
  if (n % 2) line[n - 1] = (int16_t)(((codes[n / 2] & 15) ^ sign) - sign);
}

static void line_of_columns(const quantized_kernel *k, int64_t i, int64_t first, int n, int16_t *line) {
  const int sign = k->is_signed << (k->bits - 1);
  if (k->bits == 8) {
    const uint8_t *codes = k->codes + first * k->inputs + i;
    for (int c = 0; c < n; c++) line[c] = (int16_t)((codes[c * k->inputs] ^ sign) - sign);
    return;
  }
  const uint8_t *codes = k->codes + first / 2 * k->inputs + i;
  for (int c = 0; c < n; c++) line[c] = (int16_t)(((codes[c / 2 * k->inputs] >> c % 2 * 4 & 15) ^ sign) - sign);
}

/* quant_place, with what the row has in common done once: its numbers are bytes, or the same halves of bytes. */
static void line_of_tiles(const quantized_kernel *k, int64_t i, int64_t first, int n, int16_t *line) {
  const int narrow = k->bits == 4, place = quant_place((int)(i % QUANT_TILE_ROWS), 0, k->bits), half = place % 2 * 4;
  const int64_t tiles_down = k->inputs / QUANT_TILE_ROWS, tile = QUANT_TILE_ROWS * QUANT_TILE_COLUMNS;
  for (int at = 0; at < n; at += QUANT_TILE_COLUMNS) {
    const int64_t begin = ((first + at) / QUANT_TILE_COLUMNS * tiles_down + i / QUANT_TILE_ROWS) * tile;
    const uint8_t *codes = k->codes + ((begin + place) >> narrow);
    uint8_t found[QUANT_TILE_COLUMNS];
    for (int block = 0; block < 8; block++) {
      const uint8_t *from = codes + (narrow ? block / 2 * 4 + block % 2 : block / 4 * 512 + block % 4 * 4);
      for (int g = 0; g < 8; g++) found[8 * block + g] = from[g * 64];
    }
    const int some = least(n - at, QUANT_TILE_COLUMNS);
    for (int c = 0; c < some; c++) line[at + c] = narrow ? (int16_t)(found[c] >> half & 15) : (int16_t)(int8_t)found[c];
  }
}

void tfu_quant_line(const quantized_kernel *k, int64_t i, int64_t first, int n, int16_t *line) {
  static void (*const readers[])(const quantized_kernel *, int64_t, int64_t, int, int16_t *) = {
      [QUANT_BY_ROWS] = line_of_rows, [QUANT_BY_COLUMNS] = line_of_columns, [QUANT_TILES] = line_of_tiles};
  readers[k->order](k, i, first, n, line);
}

quantized_kernel tfu_quantized_kernel(const tfu_call *call) {
  const tfu_tensor *kernel = &call->in[TFU_QUANT_KERNEL], *scale = &call->in[TFU_QUANT_SCALE];
  const int order = (int)call->attr[TFU_QUANT_ORDER].i, by_columns = order == TFU_QUANT_BY_COLUMNS;
  const int64_t group = call->attr[TFU_QUANT_GROUP].i;
  quantized_kernel k = {.codes = kernel->data,
                        .zero = tfu_given_data(&call->in[TFU_QUANT_ZERO]),
                        .scale = scale->data,
                        .input_scale = tfu_given_data(&call->in[TFU_QUANT_INPUT_SCALE]),
                        .groups = tfu_given_data(&call->in[TFU_QUANT_GROUPS]),
                        .inputs = kernel->shape.dim[by_columns],
                        .outputs = by_columns ? scale->shape.dim[0] : tfu_cols(&scale->shape),
                        .scales = scale->shape.rank == 1 ? 1 : scale->shape.dim[by_columns],
                        .bits = (int)call->attr[TFU_QUANT_BITS].i,
                        .order = order,
                        .divide = call->attr[TFU_QUANT_DIVIDE].b,
                        .is_signed = kernel->dtype == TFU_I8,
                        .wide = scale->dtype == tfu_real(call->in[0].dtype)};
  if (order == TFU_QUANT_TILES) k.inputs = kernel->shape.dim[1] * TFU_QUANT_TILE_ROWS;
  k.group = group ? group : k.inputs ? k.inputs : 1;
  return k;
}

/* w in scratch. */
static tfu_code widened(tfu_call *call, const quantized_parts *parts, tfu_tensor *w) {
  const quantized_kernel k = tfu_quantized_kernel(call);
  const tfu_tensor like = {.dtype = call->in[0].dtype, .shape = {.rank = 2, .dim = {k.inputs, k.outputs}}};
  TFU_TRY(tfu_scratch_like(call, like, w));
  return tfu_count(&w->shape) ? parts->dequantize(call, &k, w) : TFU_OK;
}

tfu_code tfu_quantized_linear_by_parts(tfu_call *call, const tfu_tensor *x, const quantized_parts *parts) {
  tfu_recycled space;
  tfu_tensor w;
  TFU_TRY(widened(call, parts, &w));
  tfu_recycled_open(&space, call);
  tfu_call *linear = tfu_part(&space, &tfu_linear);
  linear->attr[TFU_LINEAR_ACTIVATION] = call->attr[TFU_QUANT_ACTIVATION];
  linear->attr[TFU_LINEAR_TF32] = call->attr[TFU_QUANT_TF32];
  linear->in[TFU_LINEAR_X] = *x;
  linear->in[TFU_LINEAR_KERNEL] = w;
  linear->in[TFU_LINEAR_BIAS] = call->in[TFU_QUANT_BIAS];
  linear->in[TFU_LINEAR_RESIDUAL] = call->in[TFU_QUANT_RESIDUAL];
  linear->out[TFU_LINEAR_Y] = call->out[0];
  return parts->linear(linear);
}

tfu_code tfu_quantized_linear_grad_by_parts(tfu_call *call, const quantized_parts *parts) {
  tfu_recycled space;
  tfu_tensor w;
  TFU_TRY(widened(call, parts, &w));
  tfu_recycled_open(&space, call);
  tfu_call *grad = tfu_part(&space, &tfu_linear_grad);
  grad->attr[TFU_LINEAR_ACTIVATION] = call->attr[TFU_QUANT_ACTIVATION];
  grad->attr[TFU_LINEAR_TF32] = call->attr[TFU_QUANT_TF32];
  grad->in[TFU_LINGRAD_DY] = call->in[TFU_QUANT_DY];
  grad->in[TFU_LINGRAD_KERNEL] = w;
  grad->in[TFU_LINGRAD_BIAS] = call->in[TFU_QUANT_BIAS];
  grad->in[TFU_LINGRAD_PRE] = call->in[TFU_QUANT_PRE];
  grad->out[TFU_LINGRAD_DX] = call->out[TFU_QUANT_DX];
  grad->out[TFU_LINGRAD_DBIAS] = call->out[TFU_QUANT_DBIAS];
  return parts->linear_grad(grad);
}
