/* quantized_linear on the GPU.
 *
 *   few rows, tiles           the kernels are streamed once (few_rows_tiled.cu), rows of x rounded on the way, or
 *                             divided before
 *   more rows, tiles          codes become numbers on their way into tensor cores (many_rows.cu)
 *   rounded rows, one group   a product of int8 by cuBLASLt, with passes before and after it
 *   anything else             w in the type of x, in scratch, and the product of Linear */
#include "kernels/products/quantized_linear.h"

#include <limits.h>

#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/tunable.h"
#include "kernels/products/few_rows.h"
#include "kernels/products/gemm_gpu.h"
#include "kernels/products/quantized_grid.h"
#include "ops/products/quantized_linear.h"

TFU_MODULE(quantized_linear);

/* Rows that the kernel for few rows is used for. */
TFU_TUNABLE(tiled_rows_most, 32, 0, 256);
/* And that for many, above those; beyond, the time that it takes to write w does not count. */
TFU_TUNABLE(many_rows_most, 1024, 0, 8192);

static tfu_code dequantize(tfu_call *call, const quantized_kernel *k, const tfu_tensor *w) {
  static tfu_kernel any = {.module = &module, .name = "dequantize"},
                    tiles = {.module = &module, .name = "dequantize_tiles"};
  dequantize_args a = {.kernel = *k, .w = w->data};
  if (k->order == QUANT_TILES && tfu_dtype_size(w->dtype) == 2 && k->outputs % 8 == 0 &&
      (k->group >= k->inputs || k->group % QUANT_TILE_ROWS == 0)) {
    const tfu_grid grid = {.x = (unsigned)divide_up(k->inputs / QUANT_TILE_ROWS, TFU_THREADS / 32 * QUANT_WARP_TILES),
                           .y = quantized_grid_y(divide_up(k->outputs, QUANT_TILE_COLUMNS)),
                           .threads = TFU_THREADS};
    return tfu_launch(call, &tiles, 0, w->dtype, grid, &a);
  }
  const tfu_grid grid = {
      .x = (unsigned)divide_up(k->outputs, TFU_THREADS), .y = quantized_grid_y(k->inputs), .threads = TFU_THREADS};
  return tfu_launch(call, &any, 0, w->dtype, grid, &a);
}

/* ---- rows of x ---- */

/* x rounded or divided, as `how` and the type of y say; one launch. */
static tfu_code quantize(tfu_call *call, const tfu_tensor *x, const void *input_scale, int how, tfu_tensor *y,
                         float **row_scale, float **row_sum) {
  static const char *const variants[] = {"same", "codes", "packs"};
  static tfu_kernel kernel = {.module = &module, .name = "quantize_rows", .variants = variants};
  const int64_t rows = tfu_rows(&x->shape);
  quantize_rows_args a = {.x = x->data, .input_scale = input_scale, .inputs = tfu_cols(&x->shape), .how = how};
  y->shape = x->shape;
  TFU_TRY(tfu_scratch(call, (size_t)tfu_count(&y->shape) * tfu_dtype_size(y->dtype), &y->data));
  if (row_scale) TFU_SCRATCH(call, rows, *row_scale);
  if (row_sum) TFU_SCRATCH(call, rows, *row_sum);
  a.y = y->data;
  a.row_scale = row_scale ? *row_scale : NULL;
  a.row_sum = row_sum ? *row_sum : NULL;
  const tfu_grid grid = {.x = (unsigned)rows, .threads = TFU_THREADS};
  const int packs = (uintptr_t)x->data % 16 == 0 && a.inputs * (int64_t)tfu_dtype_size(x->dtype) % 16 == 0;
  return tfu_launch(call, &kernel, y->dtype == x->dtype ? 0 : 1 + packs, x->dtype, grid, &a);
}

static tfu_code quantize_rows(tfu_call *call, int how, tfu_tensor *y, float **row_scale, float **row_sum) {
  return quantize(call, &call->in[TFU_QUANT_X], tfu_given_data(&call->in[TFU_QUANT_INPUT_SCALE]), how, y, row_scale,
                  row_sum);
}

/* ---- tiles ---- */

static tfu_code tiles(tfu_call *call, const quantized_kernel *k, int many, int *served) {
  tfu_tensor x = call->in[TFU_QUANT_X];
  const int rounded = call->attr[TFU_QUANT_ROWS].b;
  const int64_t rows = tfu_rows(&x.shape);
  float *row_scale = NULL;
  const unsigned read = 1u << TFU_QUANT_KERNEL | 1u << TFU_QUANT_SCALE;
  few_rows_args a = {.residual = tfu_given_data(&call->in[TFU_QUANT_RESIDUAL]),
                     .inputs = k->inputs,
                     .rows = (int)rows,
                     .activation = (int)call->attr[TFU_QUANT_ACTIVATION].i,
                     .wide = k->wide,
                     .rounds = rounded && !many};
  a.of[0] = (few_rows_product){.kernel = k->codes,
                               .scale = k->scale,
                               .bias = tfu_given_data(&call->in[TFU_QUANT_BIAS]),
                               .y = call->out[0].data,
                               .outputs = k->outputs};
  const int64_t most = many ? many_rows_most() : call->invariant ? INT_MAX : tiled_rows_most();
  *served = 0;
  if (k->order != QUANT_TILES || (rounded && k->input_scale) || tfu_dtype_size(x.dtype) != 2 || rows > most ||
      (many && call->invariant))
    return TFU_OK;
  if ((!rounded || !many) && !k->input_scale) a.x = x.data;
  TFU_TRY((many ? tfu_many_rows_serves : tfu_few_rows_tiled_serves)(call, a, k->group, x.dtype, served));
  if (!*served) return TFU_OK;
  if (rounded && many) TFU_TRY(quantize_rows(call, QUANT_WHOLE, &x, &row_scale, NULL));
  else if (k->input_scale) TFU_TRY(quantize_rows(call, QUANT_DIVIDED, &x, NULL, NULL));
  a.x = x.data;
  a.row_scale = row_scale;
  if (many) return tfu_many_rows_run(call, a, k->bits, k->group, x.dtype, served);
  return tfu_few_rows_tiled_run(call, a, k->bits, k->group, x.dtype, (call->constant & read) == read, served);
}

/* ---- rounded rows ---- */

/* The codes as cuBLASLt takes them: int8, [outputs, inputs]. Those of signed columns lie so. */
static tfu_code columns_of(tfu_call *call, const quantized_kernel *k, const void **columns) {
  static tfu_kernel kernel = {.module = &module, .name = "transpose_codes", .keys = tfu_any};
  dequantize_args a = {.kernel = *k};
  *columns = k->codes;
  if (k->order == QUANT_BY_COLUMNS && k->bits == 8 && k->is_signed) return TFU_OK;
  TFU_TRY(tfu_scratch(call, (size_t)(k->inputs * k->outputs), &a.w));
  *columns = a.w;
  const tfu_grid grid = {.x = (unsigned)divide_up(k->inputs, QUANT_TURNED_ROWS),
                         .y = quantized_grid_y(divide_up(k->outputs, QUANT_TILE_COLUMNS)),
                         .threads = TFU_THREADS};
  return tfu_launch(call, &kernel, 0, 0, grid, &a);
}

static tfu_code whole_numbers(tfu_call *call, const quantized_kernel *k, int *served) {
  static tfu_kernel finish = {.module = &module, .name = "quantized_finish"};
  const tfu_dtype dtype = call->in[TFU_QUANT_X].dtype;
  tfu_tensor x = {.dtype = TFU_I8};
  quantized_finish_args a = {.kernel = *k,
                             .bias = tfu_given_data(&call->in[TFU_QUANT_BIAS]),
                             .residual = tfu_given_data(&call->in[TFU_QUANT_RESIDUAL]),
                             .y = call->out[0].data,
                             .rows = tfu_rows(&call->in[TFU_QUANT_X].shape),
                             .activation = (int)call->attr[TFU_QUANT_ACTIVATION].i};
  float *row_scale, *row_sum;
  int32_t *sums;
  *served = 0;
  if (k->scales != 1 || k->groups || k->input_scale || dtype == TFU_F64 || k->inputs % 4 || k->outputs % 4 ||
      k->inputs == 0 || k->inputs > QUANT_WHOLE_INPUTS || call->invariant)
    return TFU_OK;
  tfu_gemm_gpu g = {.m = a.rows, .n = k->outputs, .k = k->inputs, .b_transposed = 1, .dtype = TFU_I8};
  TFU_SCRATCH(call, a.rows * k->outputs, sums);
  TFU_TRY(quantize_rows(call, QUANT_WHOLE, &x, &row_scale, &row_sum));
  TFU_TRY(columns_of(call, k, &g.b));
  g.a = x.data;
  g.d = sums;
  TFU_TRY(tfu_gemm_gpu_run(call, &g, served));
  if (!*served) return TFU_OK;
  a.sums = sums;
  a.row_scale = row_scale;
  a.row_sum = row_sum;
  const tfu_grid grid = {.x = (unsigned)divide_up(k->outputs, 4 * TFU_THREADS),
                         .y = quantized_grid_y(divide_up(a.rows, 8)),
                         .threads = TFU_THREADS};
  return tfu_launch(call, &finish, 0, dtype, grid, &a);
}

/* ---- the ops ---- */

tfu_code tfu_quantized_linear_gpu(tfu_call *call) {
  static const quantized_parts parts = {.dequantize = dequantize, .linear = tfu_linear_gpu};
  const quantized_kernel k = tfu_quantized_kernel(call);
  tfu_tensor x = call->in[TFU_QUANT_X];
  const int rounded = call->attr[TFU_QUANT_ROWS].b;
  int served = 0;
  if (k.inputs > 0) TFU_TRY(tiles(call, &k, 0, &served));
  if (!served && rounded) TFU_TRY(whole_numbers(call, &k, &served));
  if (!served && k.inputs > 0) TFU_TRY(tiles(call, &k, 1, &served));
  if (!served && rounded && k.inputs > 0) TFU_TRY(quantize_rows(call, QUANT_ROUNDED, &x, NULL, NULL));
  return served ? TFU_OK : tfu_quantized_linear_by_parts(call, &x, &parts);
}

tfu_code tfu_quantized_linear_grad_gpu(tfu_call *call) {
  static const quantized_parts parts = {.dequantize = dequantize, .linear_grad = tfu_linear_grad_gpu};
  return tfu_quantized_linear_grad_by_parts(call, &parts);
}
