/* Convolution on the CPU: products of matrices, by im2col. A row of the left one is what a window sees, [window,
 * channels of a group], copied together for some thousand positions at a time; the right one is the kernel as it lies.
 * In ConvData the positions are those of x, what a window sees of y are the elements that reach them, and the kernel is
 * transposed. ConvFilter multiplies the windows, transposed, with y, and adds the sums of each part to those before. */
#ifndef REAL
#include "ops/convolution/conv.h"

#include "activations.h"
#include "kernels/convolution/conv_windows.h"
#include "kernels/core/arithmetic.h"
#include "kernels/core/recycle.h"
#include "kernels/products/gemm_cpu.h"

/* ---- kernels ---- */

/* [window, outputs of a group, channels] of a group of the kernel. */
static void transpose_kernel(const conv_shape *s, const char *kernel, int64_t group, size_t size, char *to) {
  const int64_t taps = conv_volume(s->window);
  for (int64_t t = 0; t < taps; t++)
    for (int64_t k = 0; k < s->k; k++)
      for (int64_t c = 0; c < s->c; c++, to += size)
        memcpy(to, kernel + (size_t)(((t * s->c + c) * s->groups + group) * s->k + k) * size, size);
}

/* The kernel in the type of all else: as it is, or a copy that is rounded. */
static tfu_code alike(tfu_call *call, const tfu_tensor *kernel, tfu_dtype dtype, const void **data) {
  const int64_t count = tfu_count(&kernel->shape);
  float buffer[TFU_TILE];
  char *copy;
  *data = kernel->data;
  if (kernel->dtype == dtype) return TFU_OK;
  TFU_SCRATCH(call, (size_t)count * tfu_dtype_size(dtype) + 1, copy);
  *data = copy;
  for (TFU_EACH_TILE(at, n, 0, count))
    tfu_store_f32(copy, dtype, at, (int)n, tfu_load_f32(kernel->data, kernel->dtype, at, (int)n, buffer));
  return TFU_OK;
}

/* Where the results of a product go. */
typedef struct target {
  const tfu_tensor *y, *bias, *residual; /* bias and residual may be empty */
  int relu;
  int64_t first, width, col; /* of the rows; between them; the group's first column */
} target;

#define TFU_SELF "kernels/convolution/conv_cpu.c"
#include "kernels/core/cpu/stamp.h"

TFU_BY_REAL(tfu_conv_cpu)
TFU_BY_REAL(tfu_conv_bare_cpu)
TFU_BY_REAL(tfu_conv_data_cpu)
TFU_BY_REAL(tfu_conv_filter_cpu)
#else

static void FN(add_to)(REAL *line, const tfu_tensor *t, int64_t at, int n) {
  REAL buffer[TFU_GEMM_COLS];
  const REAL *more = FN(tfu_load)(t->data, t->dtype, at, n, buffer);
  for (int i = 0; i < n; i++) line[i] += more[i];
}

/* relu keeps NaN. */
static void FN(finish)(void *target_, int64_t row, int64_t col, int n, REAL *line) {
  const target *t = target_;
  const int64_t at = (t->first + row) * t->width + t->col + col;
  if (t->residual && tfu_count(&t->residual->shape)) FN(add_to)(line, t->residual, at, n);
  if (t->bias && tfu_count(&t->bias->shape)) FN(add_to)(line, t->bias, t->col + col, n);
  for (int i = 0; t->relu && i < n; i++) line[i] = line[i] < 0 ? 0 : line[i];
  FN(tfu_store)(t->y->data, t->y->dtype, at, n, line);
}

/* The product of all windows of a group with `right`, [window elements, columns]. */
static tfu_code FN(multiply)(tfu_recycled *space, conv_windows w, tfu_operand right, int64_t columns, target t) {
  const int64_t depth = conv_volume(w.s->window) * (w.spread ? w.s->k : w.s->c);
  while (tfu_conv_windows_next(&w)) {
    t.first = w.first;
    const tfu_operand left = {.data = w.to, .dtype = right.dtype, .row = depth};
    TFU_TRY(FN(tfu_gemm)(tfu_recycle(space), left, right, w.rows, columns, depth, FN(finish), &t));
  }
  return TFU_OK;
}

/* y of x or, spread, x of y: for each group its windows times the kernel as it lies, or transposed. */
static tfu_code FN(convolve)(tfu_call *call, const conv_shape *s, int spread, const tfu_tensor *from,
                             const tfu_tensor *kernel, target t) {
  const size_t size = tfu_dtype_size(from->dtype);
  const int64_t columns = spread ? s->c : s->k;
  const void *data;
  char *transposed = NULL;
  conv_windows w;
  tfu_recycled space;
  t.y = &call->out[0], t.width = s->groups * columns;
  TFU_TRY(alike(call, kernel, from->dtype, &data));
  TFU_TRY(tfu_conv_windows_open(call, s, spread, from, &w));
  if (spread) TFU_SCRATCH(call, (size_t)(conv_volume(s->window) * s->k * s->c) * size + 1, transposed);
  tfu_recycled_open(&space, call);
  for (int64_t g = 0; g < s->groups; g++) {
    tfu_operand right = {.data = (const char *)data + (size_t)(g * s->k) * size, .dtype = from->dtype, .row = t.width};
    if (spread) transpose_kernel(s, data, g, size, transposed), right.data = transposed, right.row = s->c;
    t.col = g * columns;
    TFU_TRY(FN(multiply)(&space, conv_windows_of_group(w, g), right, columns, t));
  }
  return TFU_OK;
}

static tfu_code FN(forward)(tfu_call *call, target t) {
  const conv_shape s = tfu_conv_forward_read(call);
  return FN(convolve)(call, &s, 0, &call->in[TFU_CONV_X], &call->in[TFU_CONV_KERNEL], t);
}

static tfu_code FN(tfu_conv_cpu)(tfu_call *call) {
  return FN(forward)(call, (target){.bias = &call->in[TFU_CONV_BIAS],
                                    .residual = &call->in[TFU_CONV_RESIDUAL],
                                    .relu = call->attr[TFU_CONV_RELU].b});
}

static tfu_code FN(tfu_conv_bare_cpu)(tfu_call *call) { return FN(forward)(call, (target){.relu = 0}); }

static tfu_code FN(tfu_conv_data_cpu)(tfu_call *call) {
  const conv_shape s = tfu_conv_data_read(call);
  return FN(convolve)(call, &s, 1, &call->in[TFU_CONV_DATA_Y], &call->in[TFU_CONV_DATA_KERNEL], (target){.relu = 0});
}

/* Sums of a part of the windows, added to those before. */
typedef struct FN(sums) {
  REAL *at; /* [window elements, columns] */
  int64_t columns;
} FN(sums);

static void FN(add_sums)(void *sums_, int64_t row, int64_t col, int n, REAL *line) {
  const FN(sums) *s = sums_;
  REAL *to = s->at + row * s->columns + col;
  for (int i = 0; i < n; i++) to[i] += line[i];
}

static tfu_code FN(sum_group)(tfu_recycled *space, conv_windows w, tfu_operand y, FN(sums) sums) {
  const int64_t rows = conv_volume(w.s->window) * w.s->c;
  const char *const begin = y.data;
  memset(sums.at, 0, (size_t)(rows * sums.columns) * sizeof(REAL));
  while (tfu_conv_windows_next(&w)) {
    y.data = begin + (size_t)(w.first * y.row) * tfu_dtype_size(y.dtype);
    const tfu_operand left = {.data = w.to, .dtype = y.dtype, .row = rows, .transposed = 1};
    TFU_TRY(FN(tfu_gemm)(tfu_recycle(space), left, y, rows, sums.columns, w.rows, FN(add_sums), &sums));
  }
  return TFU_OK;
}

static tfu_code FN(tfu_conv_filter_cpu)(tfu_call *call) {
  const conv_shape s = tfu_conv_filter_read(call);
  const tfu_tensor *x = &call->in[TFU_CONV_FILTER_X], *y = &call->in[TFU_CONV_FILTER_Y], *kernel = &call->out[0];
  const size_t size = tfu_dtype_size(x->dtype);
  const int64_t rows = conv_volume(s.window) * s.c;
  conv_windows w;
  tfu_recycled space;
  REAL *sums;
  TFU_TRY(tfu_conv_windows_open(call, &s, 0, x, &w));
  TFU_SCRATCH(call, rows * s.k, sums);
  tfu_recycled_open(&space, call);
  for (int64_t g = 0; g < s.groups; g++) {
    const tfu_operand right = {
        .data = (const char *)y->data + (size_t)(g * s.k) * size, .dtype = y->dtype, .row = s.groups * s.k};
    TFU_TRY(FN(sum_group)(&space, conv_windows_of_group(w, g), right, (FN(sums)){sums, s.k}));
    for (int64_t r = 0; r < rows; r++)
      for (TFU_EACH_TILE(at, n, 0, s.k))
        FN(tfu_store)(kernel->data, kernel->dtype, (r * s.groups + g) * s.k + at, (int)n, sums + r * s.k + at);
  }
  return TFU_OK;
}
#endif
