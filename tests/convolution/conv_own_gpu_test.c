/* conv_own_gpu_test.c - what the ladder of conv_own asks of a GPU, without one: against a driver of our own that notes
 * what is queued and runs nothing. Which rung serves which shape, with how many blocks; and that whoever fills constant
 * memory waits until the one before has read it. */
#include "kernels/convolution/conv_own.h"
#include "tests/stand_in_driver.h"

/* ---- the driver ---- */

static char queued[256]; /* what is queued, in words */
static CUlaunchConfig last;

static CUresult get_global(CUdeviceptr *at, size_t *bytes, CUlibrary library, const char *name) {
  (void)library;
  CHECK_TEXT(name, "conv_constant_kernel");
  *at = 4096;
  *bytes = CONV_CONSTANT_BYTES;
  return CUDA_SUCCESS;
}

static void note(const char *text) { strncat(queued, text, sizeof queued - strlen(queued) - 1); }

static CUresult create_event(CUevent *event, unsigned flags) {
  CHECK(flags == CU_EVENT_DISABLE_TIMING);
  *event = (CUevent)&last;
  return CUDA_SUCCESS;
}

static CUresult wait_event(CUstream stream, CUevent event, unsigned flags) {
  CHECK(stream == (CUstream)names && event == (CUevent)&last && flags == 0);
  note("wait, ");
  return CUDA_SUCCESS;
}

static CUresult record_event(CUevent event, CUstream stream) {
  CHECK(stream == (CUstream)names && event == (CUevent)&last);
  note(", record");
  return CUDA_SUCCESS;
}

static CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  char text[64];
  CHECK(to == 4096 && from == 1 << 20 && stream == (CUstream)names);
  snprintf(text, sizeof text, "copy %zu, ", bytes);
  note(text);
  return CUDA_SUCCESS;
}

static CUresult launch(const CUlaunchConfig *c, CUfunction f, void **args, void **extra) {
  (void)extra;
  CHECK(c->hStream == (CUstream)names && args[0]);
  CHECK(c->sharedMemBytes <= 223 * 1024 && c->blockDimX == 256);
  last = *c;
  note((const char *)f);
  return CUDA_SUCCESS;
}

tfu_code tfu_driver_get(const tfu_driver **driver, tfu_error *err) {
  static const tfu_driver stand_in = {STAND_INS,
                                      .cuLibraryGetKernel = get_named_kernel,
                                      .cuLibraryGetGlobal = get_global,
                                      .cuEventCreate = create_event,
                                      .cuStreamWaitEvent = wait_event,
                                      .cuEventRecord = record_event,
                                      .cuMemcpyDtoDAsync_v2 = copy,
                                      .cuLaunchKernelEx = launch};
  (void)err;
  *driver = &stand_in;
  return TFU_OK;
}

/* ---- calls ---- */

enum { TIGHT = 1 << TFU_AXIS_BITS | 1 }; /* 1 along two axes */

/* A call of ConvOwn with two spatial axes; `odd` bytes after an aligned address. */
typedef struct sample {
  conv_rung rung;
  tfu_dtype dtype;
  int tf32, odd;
  int64_t n, high, wide, c, k, size, groups, stride, dilation;
  const char *queued, *why; /* what is wanted of it */
  unsigned x, y, shared;
} sample;

static void check_sample(const sample *s) {
  tfu_error err = {""};
  tfu_call call = {.op = &tfu_conv_own, .err = &err, .stream = names};
  const int64_t reach = (s->size - 1) * s->dilation + 1, words = TIGHT;
  const int64_t out_high = (s->high - reach) / s->stride + 1, out_wide = (s->wide - reach) / s->stride + 1;
  call.attr[TFU_CONV_TF32].b = s->tf32 != 0;
  call.attr[TFU_CONV_PADDING].i = TFU_CONV_PAD_BEFORE;
  call.attr[TFU_CONV_STRIDES].i = words * s->stride;
  call.attr[TFU_CONV_DILATION].i = words * s->dilation;
  call.attr[TFU_CONV_OWN_RUNG].i = s->rung;
  char *const memory = (char *)NULL + (1 << 20), *const x = memory + s->odd;
  call.in[TFU_CONV_X] = (tfu_tensor){x, s->dtype, SHAPE(s->n, s->high, s->wide, s->c * s->groups)};
  call.in[TFU_CONV_KERNEL] = (tfu_tensor){memory, s->dtype, SHAPE(s->size, s->size, s->c, s->k * s->groups)};
  call.in[TFU_CONV_OWN_SIZES] = (tfu_tensor){NULL, TFU_BOOL, SHAPE(out_high, out_wide, 0)};
  call.out[0] = (tfu_tensor){memory, s->dtype, SHAPE(s->n, out_high, out_wide, s->k * s->groups)};
  queued[0] = 0;
  CHECK_FOR(tfu_execute(&call, "test", 1) == TFU_OK, "%s", err.text);
  CHECK_TEXT(queued, s->queued);
  CHECK_TEXT(call.why ? call.why : "", s->why);
  CHECK_FOR(last.gridDimX == s->x && last.gridDimY == s->y && last.sharedMemBytes == s->shared,
            "%s: %u by %u blocks, %u bytes", s->queued, last.gridDimX, last.gridDimY, last.sharedMemBytes);
}

int main(void) {
  static const char packs[] = "tensor takes channels and outputs of a group in multiples of 16 bytes";
  static const char bits[] = "tensor takes 16 bits, and float32 where TF32 is allowed";
  static const sample samples[] = {
      /* 64 x 54 x 54 positions are 1458 tiles of 128, or 64 x 7 x 4 of 8 x 16; 256 outputs, one of 256 or 4 of 64. */
      {CONV_TENSOR, TFU_F16, 0, 0, 64, 56, 56, 256, 256, 3, 1, 1, 1, "conv_tensor_f16", "", 1458, 1, 144 << 10},
      {CONV_TENSOR, TFU_F32, 1, 0, 64, 56, 56, 256, 256, 3, 1, 1, 1, "conv_tensor_f32", "", 2916, 1, 96 << 10},
      {CONV_TENSOR, TFU_BF16, 0, 0, 1, 9, 9, 8, 264, 3, 2, 1, 1, "conv_tensor_bf16", "", 4, 1, 144 << 10},
      {CONV_TENSOR, TFU_F32, 0, 0, 64, 56, 56, 256, 256, 3, 1, 1, 1, "conv_shared_f32", bits, 7168, 1, 9856},
      {CONV_TENSOR, TFU_F64, 1, 0, 64, 56, 56, 256, 256, 3, 1, 1, 1, "conv_shared_f64", bits, 7168, 1, 19712},
      {CONV_TENSOR, TFU_F16, 0, 0, 1, 9, 9, 7, 8, 3, 1, 1, 1, "conv_shared_f16", packs, 1, 1, 9856},
      {CONV_TENSOR, TFU_F16, 0, 0, 1, 9, 9, 8, 7, 3, 1, 1, 1, "conv_shared_f16", packs, 1, 1, 9856},
      {CONV_TENSOR, TFU_F16, 0, 2, 1, 9, 9, 8, 8, 3, 1, 1, 1, "conv_shared_f16", packs, 1, 1, 9856},
      {CONV_SHARED, TFU_F16, 0, 2, 1, 37, 37, 3, 64, 7, 1, 2, 1, "conv_shared_f16", "", 2, 1, (21 * 37 + 128) * 32},
      /* 208 x 216 positions of x, eight channels of each, are more than a block has. */
      {CONV_SHARED, TFU_F16, 0, 0, 1, 300, 300, 8, 8, 3, 1, 1, 100, "conv_direct_f16",
       "shared takes what windows see in shared memory", 313, 1, 0},
      {CONV_TENSOR, TFU_F16, 0, 0, 1, 300, 300, 8, 8, 3, 1, 1, 100, "conv_tensor_f16", "", 79, 1, 144 << 10},
      {CONV_CONSTANT, TFU_F16, 0, 2, 2, 34, 34, 3, 64, 3, 1, 1, 1, "wait, copy 3456, conv_constant_f16, record", "", 8,
       8, 0},
      {CONV_CONSTANT, TFU_F64, 0, 0, 2, 34, 34, 3, 64, 3, 1, 1, 1, "wait, copy 13824, conv_constant_f64, record", "", 8,
       32, 0},
      {CONV_CONSTANT, TFU_F16, 0, 0, 1, 34, 34, 64, 64, 3, 1, 1, 1, "conv_direct_f16",
       "constant takes kernels of at most 64 KiB", 256, 1, 0},
      {CONV_CONSTANT, TFU_F16, 0, 0, 1, 34, 34, 3, 9, 3, 1, 1, 1, "conv_direct_f16",
       "constant takes outputs of a group in multiples of 16 bytes", 36, 1, 0},
      {CONV_DIRECT, TFU_BF16, 0, 0, 1, 34, 34, 8, 8, 3, 1, 1, 1, "conv_direct_bf16", "", 32, 1, 0},
  };
  for (int i = 0; i < TFU_COUNT(samples); i++) check_sample(&samples[i]);
  return verdict();
}
