#include "kernels/sorting/bincount.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/tunable.h"
#include "kernels/core/gpu/walk.h"
#include "kernels/sorting/order.h"
#include "kernels/sorting/radix.h"

TFU_MODULE(bincount);
enum { IDS, VALUES, WHOLE };
static const char *const variants[] = {"ids", "values", "whole"};
static tfu_kernel bin_count = {.module = &module, .name = "bin_count", .variants = variants};
static tfu_kernel bin_keys = {.module = &module, .name = "bin_keys", .keys = tfu_any};
static tfu_kernel bin_sum = {.module = &module, .name = "bin_sum", .variants = variants, .keys = tfu_any};
static tfu_kernel bin_join = {.module = &module, .name = "bin_join", .keys = tfu_any};
static tfu_kernel bin_take = {.module = &module, .name = "bin_take", .keys = tfu_bits};

TFU_TUNABLE(bin_blocks, 8, 1, 32);    /* per multiprocessor at most                                      */
TFU_TUNABLE(take_blocks, 32, 1, 128); /* per multiprocessor, of the gradient                            */
TFU_TUNABLE(most_copies, 32, 1, 32);  /* of bins in shared memory: one that is asked for often waits     */

static tfu_code check_size(const tfu_call *call, int64_t size) {
  TFU_REQUIRE(call->err, size < INT32_MAX, "bins must be less than 2^31 - 1, got %lld", (long long)size);
  return TFU_OK;
}

tfu_code tfu_bins_gpu(tfu_call *call, bin_args *a) {
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  TFU_TRY(check_size(call, a->size));
  TFU_TRY(tfu_clear(call, a->counts, (size_t)(a->rows * a->size) * sizeof *a->counts));
  if (a->rows * a->cols == 0) return TFU_OK;
  if (a->size <= TFU_SHARED_BINS)
    for (a->copies = 1; 2 * a->copies <= most_copies() && 2 * a->copies * a->size <= TFU_SHARED_BINS;) a->copies *= 2;
  else a->copies = a->size * (int64_t)sizeof(uint32_t) <= tfu_dynamic_shared(&device);
  const int64_t shared = a->size * a->copies * (int64_t)sizeof(uint32_t);
  const int threads = a->copies && a->size > TFU_SHARED_BINS ? TFU_BIN_THREADS : TFU_THREADS;
  /* All blocks that there are run at one time; each has more to count than to write. */
  const int64_t fit = device.shared / (shared + 1024), at_once = least(fit ? fit : 1, bin_blocks());
  const int64_t share = divide_up(device.multiprocessors * at_once, a->rows);
  const int64_t wanted = divide_up(a->cols, threads * TFU_BIN_EACH + shared / 4);
  a->chunks = (unsigned)least(wanted, share);
  TFU_REQUIRE(call->err, a->rows * a->chunks <= INT32_MAX, "ids must have less than 2^31 rows, got %lld",
              (long long)a->rows);
  const tfu_grid grid = {
      .x = (unsigned)(a->rows * a->chunks), .threads = (unsigned)threads, .shared = (unsigned)shared};
  return tfu_launch(call, &bin_count, !a->range ? IDS : a->kind < TFU_FLOATS ? VALUES : WHOLE, a->kind, grid, a);
}

tfu_code tfu_bincount_gpu(tfu_call *call) {
  const tfu_tensor *ids = &call->in[0];
  bin_args a = {.of = ids->data,
                .counts = call->out[0].data,
                .rows = tfu_rows(&ids->shape),
                .cols = tfu_cols(&ids->shape),
                .size = tfu_cols(&call->out[0].shape),
                .kind = (int)ids->dtype,
                .binary = call->attr[0].b};
  return tfu_bins_gpu(call, &a);
}

/* Ids are sorted by as many digits as their bins have, and weights of 4 bytes, or else their indices, with them; then
 * each bin's weights lie in a row, in the order that they have. Long bins are summed in parts, as many for all. */
tfu_code tfu_weighted_bincount_gpu(tfu_call *call) {
  enum { PART = 8192, MOST_PARTS = 64, FEW = 1024 };
  const tfu_tensor *weights = &call->in[0], *ids = &call->in[1];
  const int variant = weights->dtype < TFU_FLOATS ? VALUES : WHOLE;
  const int64_t rows = tfu_rows(&ids->shape), cols = tfu_cols(&ids->shape), size = tfu_cols(&call->out[0].shape);
  if (rows * cols == 0)
    return tfu_clear(call, call->out[0].data, (size_t)(rows * size) * tfu_dtype_size(weights->dtype));
  TFU_TRY(check_size(call, size));
  bin_args a = {.of = ids->data, .rows = rows, .cols = cols, .size = size, .kind = (int)ids->dtype};
  void *keys, *sorted, *indices, *partial;
  TFU_TRY(tfu_scratch(call, (size_t)(rows * cols) * sizeof(uint32_t), &keys));
  TFU_TRY(tfu_scratch(call, (size_t)(rows * cols) * sizeof(uint32_t), &sorted));
  TFU_TRY(tfu_scratch(call, (size_t)(rows * cols) * sizeof(uint32_t), &indices));
  a.keys = keys;
  const tfu_grid grid = {.x = (unsigned)least(divide_up(rows * cols, TFU_THREADS * 4), 1 << 20),
                         .threads = TFU_THREADS};
  TFU_TRY(tfu_launch(call, &bin_keys, 0, 0, grid, &a));
  radix_job job = {.from = keys,
                   .dtype = TFU_I32,
                   .order = tfu_order_of_keys(sizeof(uint32_t)),
                   .rows = rows,
                   .cols = cols,
                   .sorted = sorted,
                   .keys = 1,
                   .indices = indices,
                   .carried = tfu_dtype_size(weights->dtype) == 4 ? weights->data : NULL};
  while (job.bits < 32 && size >> job.bits) job.bits++;
  TFU_TRY(tfu_radix_gpu(call, &job));
  const int64_t each = cols / size, parts = each / PART;
  bin_sum_args s = {.weights = job.carried ? indices : weights->data,
                    .keys = sorted,
                    .indices = job.carried ? NULL : indices,
                    .sums = call->out[0].data,
                    .rows = rows,
                    .cols = cols,
                    .size = size,
                    .kind = (int)weights->dtype,
                    .parts = (int)(parts < 1            ? 1
                                   : parts < MOST_PARTS ? parts
                                                        : MOST_PARTS)};
  TFU_REQUIRE(call->err, rows * size * s.parts <= INT32_MAX, "bins must be less than 2^31 in all rows, got %lld",
              (long long)(rows * size));
  TFU_TRY(tfu_scratch(call, (size_t)(rows * size * s.parts) * sizeof(double), &partial));
  s.partial = partial;
  const tfu_grid sums = {.x = (unsigned)(rows * size * s.parts), .threads = each < FEW ? 32 : TFU_THREADS};
  const tfu_grid join = {.x = (unsigned)divide_up(rows * size, TFU_THREADS), .threads = TFU_THREADS};
  TFU_TRY(tfu_launch(call, &bin_sum, variant, 0, sums, &s));
  return tfu_launch(call, &bin_join, 0, 0, join, &s);
}

tfu_code tfu_weighted_bincount_grad_gpu(tfu_call *call) {
  const tfu_tensor *sums = &call->in[0], *ids = &call->in[1];
  const size_t size = tfu_dtype_size(sums->dtype);
  bin_take_args a = {.sums = sums->data,
                     .ids = ids->data,
                     .weights = call->out[0].data,
                     .rows = tfu_rows(&ids->shape),
                     .cols = tfu_cols(&ids->shape),
                     .size = tfu_cols(&sums->shape),
                     .kind = (int)ids->dtype};
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  const int64_t most = (int64_t)device.multiprocessors * take_blocks();
  const tfu_grid grid = {.x = (unsigned)least(divide_up(a.rows * a.cols, TFU_THREADS), most), .threads = TFU_THREADS};
  return tfu_launch(call, &bin_take, 0, tfu_bits_of(size), grid, &a);
}
