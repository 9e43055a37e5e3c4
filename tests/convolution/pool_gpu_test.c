/* pool_gpu_test.c - what pooling asks of a GPU, without one: against a driver of our own that notes the kernel and its
 * units, and runs nothing. */
#include "kernels/convolution/pool.h"
#include "ops/convolution/pool.h"
#include "tests/stand_in_driver.h"

static const char *ran;
static pool_args seen;

static CUresult launch(const CUlaunchConfig *c, CUfunction f, void **args, void **extra) {
  (void)extra;
  seen = *(const pool_args *)args[0];
  ran = (const char *)f;
  const int64_t blocks = (seen.units + 255) / 256;
  CHECK(c->blockDimX == 256 && c->gridDimX == (blocks < 132 * 32 ? blocks : 132 * 32));
  return CUDA_SUCCESS;
}

tfu_code tfu_driver_get(const tfu_driver **driver, tfu_error *err) {
  static const tfu_driver stand_in = {STAND_INS, .cuLibraryGetKernel = get_named_kernel, .cuLaunchKernelEx = launch};
  (void)err;
  *driver = &stand_in;
  return TFU_OK;
}

/* Windows over images, or films where depth is more than 1; `odd` bytes after an aligned address. */
typedef struct sample {
  tfu_dtype dtype;
  int64_t batch, depth, high, wide, channels, size, stride, before, odd;
  const char *forward, *backward; /* the kernels that are wanted */
  int64_t units;                  /* of dx */
} sample;

static void check_sample(const sample *s) {
  const int64_t deep = s->depth, out_high = (s->high + 2 * s->before - s->size) / s->stride + 1;
  const int64_t out_wide = (s->wide + 2 * s->before - s->size) / s->stride + 1;
  const tfu_shape x = SHAPE(s->batch, deep, s->high, s->wide, s->channels);
  const tfu_shape y = SHAPE(s->batch, deep, out_high, out_wide, s->channels);
  char *const memory = (char *)NULL + (1 << 20);
  for (int back = 0; back < 2; back++) {
    tfu_error err = {""};
    tfu_call call = {.op = back ? &tfu_max_pool_grad : &tfu_max_pool, .err = &err};
    call.attr[TFU_POOL_PADDING].i = TFU_PAD_PAIRS;
    for (int i = 0; i < TFU_POOL_AXES; i++) {
      call.attr[TFU_POOL_WINDOW + i].i = i ? s->size : 1;
      call.attr[TFU_POOL_STRIDE + i].i = i ? s->stride : 1;
    }
    call.attr[TFU_POOL_BEFORE].i = call.attr[TFU_POOL_AFTER].i = s->before << TFU_AXIS_BITS | s->before
                                                                                                  << 2 * TFU_AXIS_BITS;
    call.in[0] = (tfu_tensor){memory + s->odd, s->dtype, back ? y : x};
    call.in[TFU_MAXGRAD_POSITIONS] = (tfu_tensor){memory, TFU_I64, SHAPE(1)};
    call.out[0] = (tfu_tensor){memory, s->dtype, back ? x : y};
    call.out[TFU_POOL_POSITIONS] = (tfu_tensor){memory, TFU_I64, SHAPE(1)};
    CHECK_FOR(tfu_execute(&call, "test", 1) == TFU_OK, "%s", err.text);
    CHECK_TEXT(ran, back ? s->backward : s->forward);
    CHECK_FOR(!back || seen.units == s->units, "%s: %lld units", ran, (long long)seen.units);
    CHECK(seen.axis[1].out == out_high && seen.axis[2].before == s->before);
  }
}

int main(void) {
  static const sample samples[] = {
      {TFU_BF16, 256, 1, 112, 112, 64, 3, 2, 1, 0, "max_by_two_3_bf16", "max_grad_by_two_3_bf16", 256 * 57 * 57 * 8},
      {TFU_F32, 2, 1, 8, 7, 16, 2, 2, 0, 0, "max_by_two_2_f32", "max_grad_by_two_2_f32", 2 * 4 * 4 * 2},
      {TFU_F16, 2, 1, 7, 1 << 10, 8, 3, 2, 0, 0, "max_by_two_3_f16", "max_grad_by_two_3_f16", 2 * 4 * 512},
      /* Not of float64, nor in parts of packs, other windows, films, and images that 32 bits do not count. */
      {TFU_F64, 2, 1, 8, 8, 16, 2, 2, 0, 0, "max_pool_f64", "max_pool_grad_f64", 2 * 64 * 2},
      {TFU_BF16, 2, 1, 8, 8, 12, 2, 2, 0, 0, "max_pool_bf16", "max_pool_grad_bf16", 2 * 64 * 2},
      {TFU_BF16, 2, 1, 8, 8, 16, 2, 2, 0, 2, "max_pool_bf16", "max_pool_grad_bf16", 2 * 64 * 2},
      {TFU_BF16, 2, 1, 8, 8, 16, 4, 2, 0, 0, "max_pool_bf16", "max_pool_grad_bf16", 2 * 64 * 2},
      {TFU_BF16, 2, 1, 8, 8, 16, 3, 1, 0, 0, "max_pool_bf16", "max_pool_grad_bf16", 2 * 64 * 2},
      {TFU_BF16, 2, 3, 8, 8, 16, 2, 2, 0, 0, "max_pool_bf16", "max_pool_grad_bf16", 2 * 3 * 64 * 2},
      {TFU_BF16, 1, 1, 1 << 14, 1 << 14, 8, 2, 2, 0, 0, "max_pool_bf16", "max_pool_grad_bf16", 1 << 28},
  };
  for (int i = 0; i < TFU_COUNT(samples); i++) check_sample(&samples[i]);
  return verdict();
}
