/* quantized_conv_gpu_test.c - what QuantizedConv asks of a GPU of compute capability 9.0, without one: against a driver
 * of our own that notes what is queued and runs nothing. */
#include "kernels/convolution/quantized_conv.h"
#include "ops/convolution/quantized_conv.h"
#include "tests/stand_in_driver.h"

static CUlaunchConfig last;
static const char *queued;
static quantized_conv_args asked_for;

static CUresult launch(const CUlaunchConfig *c, CUfunction f, void **args, void **extra) {
  (void)extra;
  last = *c, queued = (const char *)f, asked_for = *(const quantized_conv_args *)args[0];
  return CUDA_SUCCESS;
}

tfu_code tfu_driver_get(const tfu_driver **driver, tfu_error *err) {
  static const tfu_driver stand_in = {STAND_INS, .cuLibraryGetKernel = get_named_kernel, .cuLaunchKernelEx = launch};
  (void)err;
  *driver = &stand_in;
  return TFU_OK;
}

typedef struct sample {
  int64_t n, side, c, k, size;
  int residual, relu, odd;
  const char *queued, *why; /* what is wanted of it */
  unsigned blocks, shared;
  int tiles;
} sample;

static void check_sample(const sample *s) {
  enum { TIGHT = 1 << TFU_AXIS_BITS | 1 }; /* 1 along two axes */
  tfu_error err = {""};
  tfu_call call = {.op = &tfu_quantized_conv, .err = &err, .stream = names};
  const int64_t out = s->side - s->size + 1;
  char *const memory = (char *)NULL + (1 << 20);
  call.attr[TFU_CONV_STRIDES].i = call.attr[TFU_CONV_DILATION].i = TIGHT;
  call.attr[TFU_QCONV_RELU].b = s->relu != 0;
  call.attr[TFU_QCONV_Y_SCALE].f = 254;
  call.attr[TFU_QCONV_RESIDUAL_SCALE].f = 1;
  call.in[TFU_QCONV_X] = (tfu_tensor){memory + s->odd, TFU_I8, SHAPE(s->n, s->side, s->side, s->c)};
  call.in[TFU_QCONV_KERNEL] = (tfu_tensor){memory, TFU_I8, SHAPE(s->k, s->size, s->size, s->c)};
  call.in[TFU_QCONV_SCALE] = (tfu_tensor){memory, TFU_F32, SHAPE(s->k)};
  call.in[TFU_QCONV_BIAS] = (tfu_tensor){memory, TFU_F32, SHAPE(s->k)};
  call.out[0] = (tfu_tensor){memory, TFU_I8, SHAPE(s->n, out, out, s->k)};
  call.in[TFU_QCONV_RESIDUAL] = s->residual ? call.out[0] : (tfu_tensor){NULL, TFU_I8, SHAPE(0)};
  call.in[TFU_QCONV_SIZES] = (tfu_tensor){NULL, TFU_BOOL, SHAPE(out, out, 0)};
  CHECK_FOR(tfu_execute(&call, "test", 1) == TFU_OK, "%s", err.text);
  CHECK_TEXT(queued, s->queued);
  CHECK_TEXT(call.why ? call.why : "", s->why);
  CHECK_FOR(last.gridDimX == s->blocks && last.sharedMemBytes == s->shared && asked_for.tiles == s->tiles,
            "%s: %u blocks, %u bytes, %d tiles", s->queued, last.gridDimX, last.sharedMemBytes, asked_for.tiles);
  CHECK(asked_for.terms == s->size * s->size * s->c);
  /* The least and the most number of int8, and that of 0, are where the device clips at 0 and 1. */
  const float zero = asked_for.y_first * asked_for.y_steps + asked_for.y_least,
              most = asked_for.y_steps + asked_for.y_least;
  CHECK(zero == 0 && most == 127 && asked_for.y_least == (s->relu ? 0 : -127));
  CHECK(asked_for.y_step * asked_for.y_steps == 254);
}

int main(void) {
  static const char packs[] = "tensor cores take channels and outputs of a group in multiples of 16";
  static const char bytes[] = "tensor cores take tensors that begin on 16 bytes";
  static const char narrow[] = "quantized_conv_groups_12_64_any", wide[] = "quantized_conv_groups_12_128_any";
  static const char direct[] = "quantized_conv_direct_any";
  enum { NARROW = 4 * 13 << 10, WIDE = 3 * 33 << 10 };
  static const sample samples[] = {
      /* Tiles of 128 positions by 64 or 128 outputs; three blocks of the one and two of the other share a
         multiprocessor. */
      {8, 56, 64, 64, 1, 0, 1, 0, narrow, "", 196, NARROW, 196},
      {128, 56, 64, 64, 1, 0, 1, 0, narrow, "", 396, NARROW, 3136},
      {128, 56, 64, 256, 1, 1, 1, 0, narrow, "", 396, NARROW, 12544},
      {128, 14, 1024, 256, 1, 0, 0, 0, wide, "", 264, WIDE, 392},
      {2, 9, 16, 144, 3, 0, 1, 0, wide, "", 2, WIDE, 2},
      {2, 9, 16, 24, 3, 0, 1, 0, direct, packs, 10, 0, 0},
      {2, 9, 16, 32, 3, 0, 1, 4, direct, bytes, 13, 0, 0},
  };
  for (int i = 0; i < TFU_COUNT(samples); i++) check_sample(&samples[i]);
  return verdict();
}
