#include "kernels/core/gpu/channels.h"

#include <string.h>

#include "kernels/core/gpu/tunable.h"

/* Blocks per multiprocessor, by measurement on an H200 over all activations of scale_bias_act at [16384, 8192]. Without
 * sums, for each byte of an element: at 32, 64, 128 blocks float32 reaches at worst 93, 95, 97% of the copy speed,
 * while bfloat16 falls behind from 128 on. With sums: at 2, 3, 4 blocks at worst 94, 91, 92% for float32 and 92, 86,
 * 83% for bfloat16, for every block leaves partial sums behind. What only reads has as many as a multiprocessor holds
 * of its kernel for 16 bits, by the registers, so that all run at once. */
TFU_TUNABLE(blocks_per_byte, 32, 1, 128);
TFU_TUNABLE(sums_blocks, 2, 1, 64);
TFU_TUNABLE(reader_blocks, 6, 1, 64);

const char *const tfu_activation_variants[TFU_ACTS + 1] = {TFU_ACTIVATIONS(TFU_NAMED_) "any"};
_Static_assert((int)TFU_ACTS < (int)TFU_MAX_VARIANTS, "every activation is a variant of a kernel");

static int blocks_of(const tfu_channels *op, tfu_dtype dtype) {
  if (!op->sums) return blocks_per_byte() * (int)tfu_dtype_size(dtype);
  return op->results ? sums_blocks() : reader_blocks();
}

tfu_code tfu_channels_launch(tfu_call *call, tfu_kernel *kernel, int variant, const tfu_channels *op, tfu_dtype dtype,
                             int64_t n, int64_t cols, tfu_channels_args *a, const tfu_tensor *sums) {
  tfu_grid grid;
  int summing = op->sums && !sums;
  for (int q = 0; q < op->sums && sums; q++) summing |= tfu_count(&sums[q].shape) > 0;
  a->cols = cols < 1 ? 1 : cols;
  memcpy(a->absent, op->absent, sizeof a->absent);
  TFU_TRY(tfu_walk_plan_of(call, n, dtype, cols, a->blocks ? a->blocks : blocks_of(op, dtype), &a->walk, &grid));
  const int by_channel = a->cols * (int64_t)tfu_dtype_size(dtype) <= TFU_THREADS * 16;
  a->sum_blocks = by_channel ? (int64_t)grid.x * grid.y : grid.y;
  a->sum_width = by_channel ? a->cols : a->walk.width;
  const int64_t partials = a->sum_blocks * op->sums * a->sum_width;
  if (a->half) a->walk.aligned &= tfu_aligned(call, 2 * n) && a->half * (int64_t)tfu_dtype_size(dtype) % 16 == 0;
  if (summing) TFU_TRY(tfu_scratch(call, (size_t)partials * tfu_dtype_size(tfu_real(dtype)), &a->partial));
  a->activation = variant;
  if (kernel->variants && (dtype == TFU_F64 || a->any)) variant = TFU_ACTS;
  TFU_TRY(tfu_launch(call, kernel, variant, dtype, grid, a));
  if (!summing || !sums) return TFU_OK;
  return tfu_fold_gpu(call, a->partial, a->sum_blocks, a->sum_width, op->sums, sums);
}

tfu_code tfu_channels_gpu(tfu_call *call, tfu_kernel *kernel, int variant, const tfu_channels *op) {
  const tfu_tensor *x = call->in, *w = x + op->tensors, *y = call->out, *sums = y + op->results;
  tfu_channels_args a = {0};
  int64_t cols = 1; /* without a value per channel the tensors are one long row */
  for (int i = 0; i < op->tensors; i++) a.x[i] = x[i].data;
  for (int i = 0; i < op->results; i++) a.y[i] = y[i].data;
  for (int i = 0; i < op->weights; i++) {
    a.w[i] = w[i].data;
    a.count[i] = tfu_count(&w[i].shape);
    if (a.count[i] > 1) cols = tfu_cols(&x->shape);
  }
  for (int q = 0; q < op->sums; q++)
    if (tfu_count(&sums[q].shape) > 1) cols = tfu_cols(&x->shape);
  return tfu_channels_launch(call, kernel, variant, op, x->dtype, tfu_count(&x->shape), cols, &a, sums);
}
