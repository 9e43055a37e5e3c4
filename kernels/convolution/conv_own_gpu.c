/* Launches the kernels of conv_own.cu. */
#include "kernels/convolution/conv_own.h"

#include <limits.h>

#include "kernels/core/gpu/walk.h"

TFU_MODULE(conv_own);

static tfu_kernel kernels[CONV_PRODUCTS] = {[CONV_FORWARD] = {.module = &module, .name = "conv_direct"},
                                            [CONV_DATA] = {.module = &module, .name = "conv_data_direct"},
                                            [CONV_FILTER] = {.module = &module, .name = "conv_filter_direct"}};

static int64_t ceil_divide(int64_t n, int64_t by) { return (n + by - 1) / by; }

/* A thread per result, as far as blocks go: the kernels go round. */
static tfu_code run_results(tfu_call *call, tfu_kernel *kernel, tfu_dtype dtype, int64_t results, conv_args *a) {
  const int64_t blocks = ceil_divide(results, TFU_THREADS);
  const tfu_grid grid = {.x = (unsigned)(blocks < INT_MAX ? blocks : INT_MAX), .threads = TFU_THREADS};
  return results ? tfu_launch(call, kernel, 0, dtype, grid, a) : TFU_OK;
}

/* Positions are cut into slices where the results alone do not fill the GPU, and where scratch allows it. */
static int64_t slices_of(const tfu_call *call, int64_t blocks, int64_t positions, size_t bytes, int processors) {
  enum { LEAST = 64 * CONV_FILTER_SHARE /* positions that are worth a slice */, WAVES = 8, MOST = 65535 };
  int64_t slices = ceil_divide((int64_t)processors * WAVES, blocks);
  if (slices > positions / LEAST) slices = positions / LEAST;
  if (slices > MOST) slices = MOST;
  while (slices > 1 && !tfu_has_scratch(call, (size_t)slices * bytes)) slices /= 2;
  return slices < 1 ? 1 : slices;
}

static tfu_code run_filter(tfu_call *call, tfu_dtype dtype, conv_args *a) {
  const conv_shape *s = &a->s;
  const int64_t rows = conv_volume(s->window) * s->c, outputs = s->groups * s->k,
                positions = s->batch * conv_volume(s->out);
  const tfu_tensor out = {.data = a->kernel, .dtype = dtype, .shape = {.rank = 1, .dim = {rows * outputs}}};
  const size_t bytes = (size_t)(rows * outputs) * tfu_dtype_size(tfu_real(dtype));
  const int64_t blocks = rows * ceil_divide(outputs, CONV_FILTER_OUTPUTS);
  tfu_device device;
  if (rows * outputs == 0) return TFU_OK;
  TFU_REQUIRE(call->err, blocks <= INT_MAX, "the kernel is too large: %lld blocks", (long long)blocks);
  TFU_TRY(tfu_device_now(&device, call->err));
  a->slice = ceil_divide(positions, slices_of(call, blocks, positions, bytes, device.multiprocessors));
  const int64_t slices = a->slice ? ceil_divide(positions, a->slice) : 1;
  TFU_TRY(tfu_scratch(call, (size_t)slices * bytes, &a->partial));
  const tfu_grid grid = {.x = (unsigned)blocks, .y = (unsigned)slices, .threads = TFU_THREADS};
  TFU_TRY(tfu_launch(call, &kernels[CONV_FILTER], 0, dtype, grid, a));
  return tfu_fold_gpu(call, a->partial, slices, rows * outputs, 1, &out);
}

tfu_code tfu_conv_own_run(tfu_call *call, conv_product product, tfu_dtype dtype, conv_args a) {
  const conv_shape *s = &a.s;
  if (product == CONV_FILTER) return run_filter(call, dtype, &a);
  const int forward = product == CONV_FORWARD;
  const int64_t results = forward ? conv_volume(s->out) * s->k : conv_volume(s->in) * s->c;
  return run_results(call, &kernels[product], dtype, s->batch * s->groups * results, &a);
}
