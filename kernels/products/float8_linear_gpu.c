/* float8_linear on the GPU: x and kernel are rounded to codes on the way to cuBLASLt's product of float8, whose
 * epilogues are Linear's. Its factors have the axis that is summed over as their last: kernel is transposed in the
 * forward product, and x and dpre in that of dkernel, by the pass that rounds them. Scales per row and per output are
 * its outer vectors.
 *
 * Where cuBLASLt has no such product (before compute capability 8.9, sizes that are no multiples of 16, exact float32,
 * float64), factors become what their codes stand for, in their own type, and the products are those of Linear. */
#include "kernels/products/float8_linear.h"

#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/tunable.h"
#include "kernels/elementwise/scale_bias_act.h"
#include "kernels/products/quantized_grid.h"
#include "ops/products/float8_linear.h"

TFU_MODULE(float8_linear);

enum { ROUND_ROWS = 8 /* that a block of float8_round has, at least */ };

static int on_16(const tfu_tensor *t) { return (uintptr_t)t->data % 16 == 0; }

/* Where the largest numbers of a tensor's blocks are, for what comes next. */
typedef struct found {
  float *tops;
  int64_t count;
} found;

/* ---- codes ---- */

/* x as codes: as it lies, where `straight` is not NULL, and transposed, with columns that are `*apart` long, a multiple
 * of 16. scale is NULL where x has codes already. */
static tfu_code make_codes(tfu_call *call, const tfu_tensor *x, const float *scale, int e5m2, const void **straight,
                           const void **transposed, found *top) {
  static tfu_kernel kernel = {.module = &module, .name = "float8_codes"};
  float8_codes_args a = {
      .x = x->data, .scale = scale, .rows = tfu_rows(&x->shape), .cols = tfu_cols(&x->shape), .e5m2 = e5m2};
  const tfu_grid grid = {.x = (unsigned)divide_up(a.cols, FLOAT8_SIDE),
                         .y = quantized_grid_y(divide_up(a.rows, FLOAT8_SIDE)),
                         .threads = TFU_THREADS};
  a.apart = divide_up(a.rows, 16) * 16;
  if (straight) TFU_SCRATCH(call, a.rows * a.cols, a.straight);
  if (transposed) TFU_SCRATCH(call, a.cols * a.apart, a.transposed);
  if (straight) *straight = a.straight;
  if (transposed) *transposed = a.transposed;
  if (top) {
    top->count = (int64_t)grid.x * grid.y;
    TFU_SCRATCH(call, top->count, a.tops);
    top->tops = a.tops;
  }
  return tfu_launch(call, &kernel, 0, scale ? x->dtype : TFU_U8, grid, &a);
}

/* The longest row that a warp has to itself. On an H200, 16384 rows of 2048 in bfloat16 take 29 us by warps and 49 by
 * blocks, of 4096 as long by both. */
TFU_TUNABLE(row_of_warp, 2048, 0, 8192);

static tfu_code make_row_codes(tfu_call *call, const tfu_tensor *x, const void **codes, const float **scale) {
  static tfu_kernel kernel = {.module = &module, .name = "float8_row_codes"};
  const int64_t rows = tfu_rows(&x->shape);
  float8_rows_args a = {.x = x->data, .rows = rows, .cols = tfu_cols(&x->shape)};
  TFU_TRY(tfu_scratch(call, (size_t)(rows * a.cols), &a.y));
  TFU_SCRATCH(call, rows, a.scale);
  *codes = a.y;
  *scale = a.scale;
  a.by_warps = a.cols <= row_of_warp();
  const tfu_grid grid = {.x = (unsigned)(a.by_warps ? divide_up(rows, TFU_THREADS / 32) : rows),
                         .threads = TFU_THREADS};
  return tfu_launch(call, &kernel, 0, x->dtype, grid, &a);
}

/* One number as a vector. */
static tfu_code spread(tfu_call *call, int64_t count, const float **scale) {
  static tfu_kernel kernel = {.module = &module, .name = "float8_spread", .keys = tfu_any};
  float8_spread_args a = {.from = *scale, .count = count};
  TFU_SCRATCH(call, count, a.to);
  *scale = a.to;
  return tfu_launch(call, &kernel, 0, 0,
                    (tfu_grid){.x = (unsigned)divide_up(count, TFU_THREADS), .threads = TFU_THREADS}, &a);
}

/* ---- what codes stand for ---- */

/* x in its own type, rounded by the scale; of codes in that of the call, in the order of rows. */
static tfu_code round_matrix(tfu_call *call, const tfu_tensor *x, const tfu_tensor *scale, int e5m2, int columns,
                             found *top, tfu_tensor *y) {
  static tfu_kernel kernel = {.module = &module, .name = "float8_round"};
  const int many = scale && scale->shape.rank == 1;
  float8_round_args a = {.x = x->data,
                         .scale = scale ? scale->data : NULL,
                         .rows = tfu_rows(&x->shape),
                         .cols = tfu_cols(&x->shape),
                         .scale_row = many && columns,
                         .scale_col = many && !columns,
                         .transposed = columns,
                         .codes = tfu_float8_kept(x),
                         .e5m2 = e5m2};
  const tfu_grid grid = {.x = (unsigned)divide_up(a.cols, TFU_THREADS),
                         .y = quantized_grid_y(divide_up(a.rows, ROUND_ROWS)),
                         .threads = TFU_THREADS};
  *y = *x;
  y->dtype = call->in[0].dtype;
  if (columns) y->shape = (tfu_shape){.rank = 2, .dim = {a.cols, a.rows}};
  TFU_TRY(tfu_scratch_like(call, *y, y));
  if (top) {
    top->count = (int64_t)grid.x * grid.y;
    TFU_SCRATCH(call, top->count, a.tops);
    top->tops = a.tops;
  }
  a.y = y->data;
  if (tfu_count(&x->shape) == 0) {
    if (top) top->count = 0;
    return TFU_OK;
  }
  return tfu_launch(call, &kernel, 0, y->dtype, grid, &a);
}

static tfu_code round_rows(tfu_call *call, const tfu_tensor *x, tfu_tensor *y) {
  static tfu_kernel kernel = {.module = &module, .name = "float8_rows"};
  float8_rows_args a = {.x = x->data, .cols = tfu_cols(&x->shape)};
  TFU_TRY(tfu_scratch_like(call, *x, y));
  a.y = y->data;
  if (tfu_count(&x->shape) == 0) return TFU_OK;
  const tfu_grid grid = {.x = (unsigned)tfu_rows(&x->shape), .threads = TFU_THREADS};
  return tfu_launch(call, &kernel, 0, x->dtype, grid, &a);
}

static int by_columns(const tfu_call *call) { return call->attr[TFU_FLOAT8_ORDER].i == TFU_FLOAT8_BY_COLUMNS; }

/* ---- forward ---- */

/* Whether factors may be codes: digits do not count more than time, and rows are packs. */
static int may_be_codes(const tfu_call *call, const tfu_tensor *x, const tfu_tensor *kernel) {
  const tfu_dtype dtype = x->dtype;
  return dtype != TFU_F64 && !tfu_gemm_exact(dtype, call->attr[TFU_FLOAT8_TF32].b) && !call->invariant &&
         tfu_count(&x->shape) && tfu_count(&kernel->shape) && kernel->shape.dim[0] % 16 == 0 &&
         kernel->shape.dim[1] % 16 == 0 && on_16(x) && on_16(kernel);
}

static tfu_code by_codes(tfu_call *call, int *served) {
  const tfu_tensor *x = &call->in[TFU_FLOAT8_X], *kernel = &call->in[TFU_FLOAT8_KERNEL];
  const tfu_tensor *scale = &call->in[TFU_FLOAT8_KERNEL_SCALE];
  const int kept = tfu_float8_kept(kernel), columns = by_columns(call);
  tfu_tensor x_codes = *x,
             w_codes = {.shape = {.rank = 2, .dim = {tfu_cols(&x->shape), tfu_cols(&call->out[0].shape)}}};
  tfu_gemm_float8 f = {
      .a = TFU_E4M3, .b = TFU_E4M3, .a_scale = tfu_given_data(&call->in[TFU_FLOAT8_X_SCALE]), .b_scale = scale->data};
  const void *codes;
  tfu_recycled space;
  int has;
  *served = 0;
  if (!may_be_codes(call, x, kernel) || (!kept && (columns || scale->shape.rank == 1))) return TFU_OK;
  f.outer = !f.a_scale || scale->shape.rank == 1;
  TFU_TRY(tfu_gemm_gpu_has_float8(call, f.outer, &has));
  if (!has) return TFU_OK;
  if (!f.a_scale) TFU_TRY(make_row_codes(call, x, &codes, &f.a_scale));
  else TFU_TRY(make_codes(call, x, f.a_scale, 0, &codes, NULL, NULL));
  x_codes.data = (void *)codes;
  codes = kernel->data;
  if (!kept || !columns) TFU_TRY(make_codes(call, kernel, kept ? NULL : f.b_scale, 0, NULL, &codes, NULL));
  w_codes.data = (void *)codes;
  if (f.outer && tfu_given(&call->in[TFU_FLOAT8_X_SCALE].shape)) TFU_TRY(spread(call, tfu_rows(&x->shape), &f.a_scale));
  if (f.outer && scale->shape.rank == 0) TFU_TRY(spread(call, w_codes.shape.dim[1], &f.b_scale));
  tfu_recycled_open(&space, call);
  TFU_TRY(tfu_linear_of_float8_gpu(tfu_float8_as_linear(&space, &x_codes, &w_codes), &f, served));
  if (*served) call->kernel = space.call.kernel;
  return TFU_OK;
}

tfu_code tfu_float8_linear_gpu(tfu_call *call) {
  const tfu_tensor *scale = &call->in[TFU_FLOAT8_X_SCALE];
  tfu_recycled space;
  tfu_tensor x, w;
  int served;
  TFU_TRY(by_codes(call, &served));
  if (served) return TFU_OK;
  if (tfu_given(&scale->shape)) TFU_TRY(round_matrix(call, &call->in[TFU_FLOAT8_X], scale, 0, 0, NULL, &x));
  else TFU_TRY(round_rows(call, &call->in[TFU_FLOAT8_X], &x));
  TFU_TRY(round_matrix(call, &call->in[TFU_FLOAT8_KERNEL], &call->in[TFU_FLOAT8_KERNEL_SCALE], 0, by_columns(call),
                       NULL, &w));
  tfu_recycled_open(&space, call);
  TFU_TRY(tfu_linear_gpu(tfu_float8_as_linear(&space, &x, &w)));
  call->kernel = space.call.kernel;
  return TFU_OK;
}

/* ---- backward ---- */

/* dpre, and dbias where it is wanted. */
static tfu_code slope(tfu_call *call, tfu_tensor *g) {
  const tfu_tensor *dy = &call->in[TFU_F8GRAD_DY], *dbias = &call->out[TFU_F8GRAD_DBIAS];
  const int act = (int)call->attr[TFU_FLOAT8_ACTIVATION].i;
  tfu_recycled space;
  *g = *dy;
  if (act != TFU_ACT_linear && tfu_count(&dy->shape)) {
    TFU_TRY(tfu_scratch_like(call, *dy, g));
    return tfu_act_grad_launch(call, act, dy->dtype, tfu_count(&dy->shape), tfu_cols(&dy->shape), g->data, dy->data,
                               call->in[TFU_F8GRAD_PRE].data, dbias);
  }
  if (tfu_count(&dbias->shape) == 0) return TFU_OK;
  tfu_recycled_open(&space, call);
  tfu_call *sums = tfu_part(&space, &tfu_linear_grad);
  sums->in[TFU_LINGRAD_DY] = *dy;
  sums->in[TFU_LINGRAD_BIAS] = call->in[TFU_F8GRAD_BIAS];
  sums->out[TFU_LINGRAD_DBIAS] = *dbias;
  return tfu_linear_grad_gpu(sums);
}

/* dx and dkernel, the latter where x is given, by products of codes. */
static tfu_code grad_by_codes(tfu_call *call, const tfu_tensor *g, found *top, int *served) {
  const tfu_tensor *x = &call->in[TFU_F8GRAD_X], *kernel = &call->in[TFU_F8GRAD_KERNEL];
  const tfu_tensor *scale = &call->in[TFU_F8GRAD_SCALE];
  const int64_t rows = tfu_rows(&g->shape), outputs = tfu_cols(&g->shape), inputs = kernel->shape.dim[0];
  const tfu_gemm_float8 f_dx = {.a = TFU_E5M2,
                                .b = TFU_E4M3,
                                .a_scale = scale[TFU_FLOAT8_OF_DY].data,
                                .b_scale = scale[TFU_FLOAT8_OF_KERNEL].data};
  const tfu_gemm_float8 f_dkernel = {
      .a = TFU_E4M3, .b = TFU_E5M2, .a_scale = scale[TFU_FLOAT8_OF_X].data, .b_scale = f_dx.a_scale};
  tfu_gemm_gpu for_dx = {.d = call->out[TFU_F8GRAD_DX].data,
                         .m = rows,
                         .n = inputs,
                         .k = outputs,
                         .b_transposed = 1,
                         .dtype = g->dtype,
                         .float8 = &f_dx,
                         .tf32 = 1};
  tfu_gemm_gpu for_dkernel = {.d = call->out[TFU_F8GRAD_DKERNEL].data,
                              .m = inputs,
                              .n = outputs,
                              .k = divide_up(rows, 16) * 16,
                              .b_transposed = 1,
                              .dtype = g->dtype,
                              .float8 = &f_dkernel,
                              .tf32 = 1};
  int has;
  *served = 0;
  if (!tfu_given(&x->shape) || !tfu_given(&kernel->shape) || tfu_float8_kept(kernel) || !on_16(g) || !on_16(x))
    return TFU_OK;
  for (int i = 0; i < TFU_FLOAT8_TENSORS; i++)
    if (scale[i].shape.rank != 0) return TFU_OK;
  if (!may_be_codes(call, g, kernel)) return TFU_OK;
  TFU_TRY(tfu_gemm_gpu_has_float8(call, 0, &has));
  if (!has) return TFU_OK;
  TFU_TRY(make_codes(call, g, f_dx.a_scale, 1, &for_dx.a, &for_dkernel.b, &top[TFU_FLOAT8_OF_DY]));
  TFU_TRY(make_codes(call, kernel, f_dx.b_scale, 0, &for_dx.b, NULL, &top[TFU_FLOAT8_OF_KERNEL]));
  TFU_TRY(make_codes(call, x, f_dkernel.a_scale, 0, NULL, &for_dkernel.a, &top[TFU_FLOAT8_OF_X]));
  TFU_TRY(tfu_gemm_gpu_run(call, &for_dx, served));
  if (*served) TFU_TRY(tfu_gemm_gpu_run(call, &for_dkernel, served));
  return TFU_OK;
}

static tfu_code grad_by_parts(tfu_call *call, const tfu_tensor *g, found *top) {
  const tfu_tensor *x = &call->in[TFU_F8GRAD_X], *kernel = &call->in[TFU_F8GRAD_KERNEL];
  const tfu_tensor *scale = &call->in[TFU_F8GRAD_SCALE];
  tfu_tensor rounded = *g, left = {.dtype = g->dtype, .shape = {.rank = 1}}, w = left; /* empty vectors */
  tfu_recycled space;
  if (tfu_given(&scale[TFU_FLOAT8_OF_DY].shape))
    TFU_TRY(round_matrix(call, g, &scale[TFU_FLOAT8_OF_DY], 1, 0, &top[TFU_FLOAT8_OF_DY], &rounded));
  if (tfu_given(&x->shape) && tfu_given(&scale[TFU_FLOAT8_OF_X].shape))
    TFU_TRY(round_matrix(call, x, &scale[TFU_FLOAT8_OF_X], 0, 0, &top[TFU_FLOAT8_OF_X], &left));
  else if (tfu_given(&x->shape)) TFU_TRY(round_rows(call, x, &left));
  if (tfu_given(&kernel->shape))
    TFU_TRY(
        round_matrix(call, kernel, &scale[TFU_FLOAT8_OF_KERNEL], 0, by_columns(call), &top[TFU_FLOAT8_OF_KERNEL], &w));
  tfu_recycled_open(&space, call);
  TFU_TRY(tfu_linear_grad_gpu(tfu_float8_as_linear_grad(&space, &rounded, &left, &w)));
  if (space.call.kernel) call->kernel = space.call.kernel;
  return TFU_OK;
}

/* The scales and histories that come next; one launch. */
static tfu_code update(tfu_call *call, const found *top) {
  static tfu_kernel kernel = {.module = &module, .name = "float8_update", .keys = tfu_any};
  float8_update_args a;
  unsigned n = 0;
  for (int i = 0; i < TFU_FLOAT8_TENSORS; i++) {
    const tfu_tensor *history = &call->in[TFU_F8GRAD_HISTORY + i];
    if (history->shape.dim[0] == 0) continue;
    a.of[n].tops = top[i].tops;
    a.of[n].tops_count = top[i].count;
    a.of[n].history = history->data;
    a.of[n].count = history->shape.dim[0];
    a.of[n].scale = call->in[TFU_F8GRAD_SCALE + i].data;
    a.of[n].new_history = call->out[TFU_F8GRAD_NEW_HISTORY + i].data;
    a.of[n].new_scale = call->out[TFU_F8GRAD_NEW_SCALE + i].data;
    a.of[n++].largest = float8_of(i == TFU_FLOAT8_OF_DY).largest;
  }
  return n ? tfu_launch(call, &kernel, 0, 0, (tfu_grid){.x = n, .threads = TFU_THREADS}, &a) : TFU_OK;
}

tfu_code tfu_float8_linear_grad_gpu(tfu_call *call) {
  found top[TFU_FLOAT8_TENSORS] = {{.count = 0}};
  tfu_tensor g;
  int served;
  TFU_TRY(tfu_float8_check(call));
  TFU_TRY(slope(call, &g));
  TFU_TRY(grad_by_codes(call, &g, top, &served));
  if (!served) TFU_TRY(grad_by_parts(call, &g, top));
  return update(call, top);
}
