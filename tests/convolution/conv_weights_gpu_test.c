/* conv_weights_gpu_test.c - a kernel in float32 beside data of 16 bits, without a GPU: against a driver of our own that
 * turns kernels on the CPU as its arguments say, and notes the names of all else. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "kernels/convolution/conv_weights.h"
#include "kernels/core/cpu/cpu.h"
#include "ops/convolution/conv.h"
#include "tests/stand_in_driver.h"

enum { MOST = 1 << 14 };

/* ---- the driver ---- */

static char queued[256]; /* what is queued, in words */

static tfu_dtype dtype_of(const char *name) { return strstr(name, "_bf16") ? TFU_BF16 : TFU_F16; }

static void transpose(const conv_weights_args *a, tfu_dtype from, tfu_dtype to) {
  for (int64_t i = 0; i < a->rows; i++)
    for (int64_t k = 0; k < a->cols; k++) {
      float buffer;
      tfu_store_f32(a->to, to, k * a->rows + i, 1, tfu_load_f32(a->from, from, i * a->cols + k, 1, &buffer));
    }
}

static CUresult launch(const CUlaunchConfig *c, CUfunction f, void **args, void **extra) {
  const char *name = (const char *)f;
  (void)extra;
  strncat(queued, queued[0] ? ", " : "", sizeof queued - strlen(queued) - 1);
  strncat(queued, name, sizeof queued - strlen(queued) - 1);
  if (strncmp(name, "conv_weights_", 13)) return CUDA_SUCCESS;
  const conv_weights_args *a = args[0];
  const int64_t tiles = (a->rows + CONV_WEIGHTS_TILE - 1) / CONV_WEIGHTS_TILE;
  CHECK(c->gridDimX == tiles * ((a->cols + CONV_WEIGHTS_TILE - 1) / CONV_WEIGHTS_TILE) && c->blockDimX == 256);
  if (strstr(name, "narrow")) transpose(a, TFU_F32, dtype_of(name));
  else transpose(a, dtype_of(name), TFU_F32);
  return CUDA_SUCCESS;
}

tfu_code tfu_driver_get(const tfu_driver **driver, tfu_error *err) {
  static const tfu_driver stand_in = {STAND_INS, .cuLibraryGetKernel = get_named_kernel, .cuLaunchKernelEx = launch};
  (void)err;
  *driver = &stand_in;
  return TFU_OK;
}

/* ---- calls ---- */

static void check_turns(void) {
  static const int64_t shapes[][2] = {{1, 1}, {1, 70}, {70, 1}, {32, 32}, {31, 33}, {64, 65}, {147, 64}};
  static float wide[MOST], back[MOST];
  static uint16_t narrow[MOST];
  tfu_error err = {""};
  tfu_call call = {.op = &tfu_conv, .err = &err};
  for (int i = 0; i < MOST; i++) wide[i] = (float)(i % 251) - 100; /* which 16 bits hold */
  for (int s = 0; s < TFU_COUNT(shapes); s++)
    for (tfu_dtype dtype = TFU_F16; dtype <= TFU_BF16; dtype++) {
      const int64_t rows = shapes[s][0], outputs = shapes[s][1];
      float buffer;
      CHECK(tfu_conv_weights_transpose(&call, dtype, 0, rows, outputs, wide, narrow) == TFU_OK);
      for (int64_t i = 0; i < rows * outputs; i++)
        CHECK(*tfu_load_f32(narrow, dtype, i % outputs * rows + i / outputs, 1, &buffer) == wide[i]);
      CHECK(tfu_conv_weights_transpose(&call, dtype, 1, rows, outputs, back, narrow) == TFU_OK);
      CHECK(!memcmp(wide, back, (size_t)(rows * outputs) * sizeof *wide));
    }
  queued[0] = 0;
  CHECK(tfu_conv_weights_transpose(&call, TFU_F16, 0, 0, 7, NULL, NULL) == TFU_OK && !queued[0]);
  CHECK(tfu_conv_weights_transpose(&call, TFU_F16, 0, INT64_C(1) << 40, 64, NULL, NULL) == TFU_INVALID);
  CHECK_TEXT(err.text, "the kernel is too large: 68719476736 blocks");
}

/* By tfuse's own kernels, which take 16 bits alone: a copy is made of the kernel, or its gradient is widened. */
static void check_call(const tfu_op *op, tfu_dtype dtype, const char *wanted) {
  static _Alignas(16) char x[MOST], y[MOST], kernel[MOST];
  const tfu_shape image = SHAPE(2, 5, 5, 8), window = SHAPE(3, 3, 8, 16), result = SHAPE(2, 5, 5, 16);
  run *const r = start(op);
  tfu_call *const call = &r->call;
  const tfu_tensor nothing = {NULL, dtype, SHAPE(0)};
  const tfu_tensor xs = {x, dtype, image}, ys = {y, dtype, result}, kernels = {kernel, TFU_F32, window};
  call->attr[TFU_CONV_PADDING].i = TFU_CONV_PAD_SAME;
  call->attr[TFU_CONV_STRIDES].i = call->attr[TFU_CONV_DILATION].i = 1 << TFU_AXIS_BITS | 1;
  call->in[0] = op == &tfu_conv_data ? ys : xs;
  call->in[1] = op == &tfu_conv_filter ? ys : kernels;
  call->in[2] = op == &tfu_conv ? nothing : (tfu_tensor){NULL, TFU_BOOL, SHAPE(0)};
  call->in[TFU_CONV_RESIDUAL] = nothing;
  call->out[0] = op == &tfu_conv ? ys : op == &tfu_conv_data ? xs : kernels;
  queued[0] = 0;
  CHECK_FOR(tfu_execute(call, "test", 1) == TFU_OK, "%s", r->err.text);
  CHECK_TEXT(queued, wanted);
  CHECK(!strstr(call->kernel, "conv_weights"));
  while (r->n > 0) free(r->held[--r->n]);
  free(r);
}

/* K is the type of all else, or that of arithmetic. */
static void check_dtypes(void) {
  tfu_error err = {""};
  tfu_call call = {.op = &tfu_conv, .err = &err};
  call.in[TFU_CONV_X].dtype = TFU_F32;
  call.in[TFU_CONV_KERNEL].dtype = TFU_F16;
  CHECK(tfu_execute(&call, "test", 1) == TFU_INVALID);
  CHECK_TEXT(err.text, "kernel must be float32 or the same where x is float32, got float16");
}

int main(void) {
  setenv("TFUSE_CUDNN", "0", 1);
  check_turns();
  check_call(&tfu_conv, TFU_BF16, "conv_weights_narrow_bf16, conv_tensor_bf16");
  check_call(&tfu_conv, TFU_F16, "conv_weights_narrow_f16, conv_tensor_f16");
  check_call(&tfu_conv_data, TFU_BF16, "conv_weights_narrow_bf16, conv_data_direct_bf16");
  check_call(&tfu_conv_filter, TFU_BF16, "conv_filter_direct_bf16, fold_bf16, conv_weights_widen_bf16");
  check_dtypes();
  return verdict();
}
