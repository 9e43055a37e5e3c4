/* resize_gpu_test.c - what resizing asks of a GPU, without one: against a driver of our own that notes the kernels and
 * their arguments, and runs nothing. */
#include "kernels/convolution/resize.h"
#include "ops/convolution/resize.h"
#include "tests/stand_in_driver.h"

static const char *ran;
static int launches;
static unsigned shared;
static resize_args seen;
static resize_double_args doubled;

static int is_double(void) { return !strncmp(ran, "resize_double", 13); }

static CUresult launch(const CUlaunchConfig *c, CUfunction f, void **args, void **extra) {
  (void)extra;
  ran = (const char *)f;
  if (is_double()) doubled = *(const resize_double_args *)args[0];
  else seen = *(const resize_args *)args[0];
  shared = c->sharedMemBytes, launches++;
  CHECK(c->blockDimX == 256 && c->gridDimX >= 1);
  return CUDA_SUCCESS;
}

tfu_code tfu_driver_get(const tfu_driver **driver, tfu_error *err) {
  static const tfu_driver stand_in = {STAND_INS, .cuLibraryGetKernel = get_named_kernel, .cuLaunchKernelEx = launch};
  (void)err;
  *driver = &stand_in;
  return TFU_OK;
}

static char scratch[1 << 20];
static void *from_scratch(tfu_call *call, size_t bytes) {
  (void)call;
  return bytes <= sizeof scratch ? scratch : NULL;
}

/* [images, depth, high, wide, channels] to another size; `odd` bytes after an aligned address. */
typedef struct sample {
  tfu_dtype dtype;
  int64_t images, depth, high, wide, channels, to_depth, to_high, to_wide, interpolation, odd;
  const char *forward, *backward; /* the kernels that are wanted */
  int64_t rows;                   /* of a strip, both ways; 0: there are none */
  int in_scratch;                 /* the table */
} sample;

static void check_sample(const sample *s) {
  const tfu_shape x = SHAPE(s->images, s->depth, s->high, s->wide, s->channels);
  const tfu_shape y = SHAPE(s->images, s->to_depth, s->to_high, s->to_wide, s->channels);
  char *const memory = (char *)NULL + (1 << 20);
  for (int back = 0; back < 2; back++) {
    tfu_error err = {""};
    tfu_call call = {.op = back ? &tfu_resize_grad : &tfu_resize, .err = &err, .allocate = from_scratch};
    const tfu_shape *to = back ? &x : &y;
    call.attr[TFU_RESIZE_INTERPOLATION].i = s->interpolation;
    call.in[TFU_RESIZE_X] = (tfu_tensor){memory + s->odd, s->dtype, back ? y : x};
    call.in[TFU_RESIZE_SIZE] = (tfu_tensor){NULL, TFU_BOOL, SHAPE(to->dim[1], to->dim[2], to->dim[3], 0)};
    call.out[0] = (tfu_tensor){memory, s->dtype, *to};
    launches = 0;
    CHECK((call.op->more_room(&call) > 0) == s->in_scratch);
    CHECK_FOR(tfu_execute(&call, "test", 1) == TFU_OK, "%s", err.text);
    CHECK_TEXT(ran, back ? s->backward : s->forward);
    if (is_double()) {
      CHECK(launches == 1 && shared == 0);
      CHECK(doubled.high == s->high && doubled.wide == s->wide && doubled.rows == s->rows);
      CHECK(doubled.units == s->images * s->wide * doubled.by_words.by * doubled.by_strips.by);
      CHECK(doubled.by_strips.by * s->rows >= s->high && doubled.step == s->channels * tfu_dtype_size(s->dtype));
      continue;
    }
    CHECK(launches == 1 + s->in_scratch && (shared == 0) == s->in_scratch);
    CHECK_FOR(seen.rows == s->rows, "%s: %d rows", ran, seen.rows);
    CHECK(seen.axis[1].to == to->dim[2] && seen.back == back);
  }
}

int main(void) {
  static const sample samples[] = {
      {TFU_BF16, 128, 1, 64, 64, 64, 1, 128, 128, TFU_BILINEAR, 0, "resize_double_bf16", "resize_double_grad_bf16", 4,
       0},
      {TFU_F32, 1, 1, 8, 7, 4, 1, 16, 14, TFU_BILINEAR, 0, "resize_double_f32", "resize_double_grad_f32", 1, 0},
      {TFU_BF16, 1024, 1, 64, 64, 64, 1, 128, 129, TFU_BILINEAR, 0, "resize_strip_2_bf16", "resize_strip_8_bf16", 32,
       0},
      {TFU_BF16, 1024, 1, 64, 64, 64, 1, 128, 128, TFU_NEAREST, 0, "resize_strip_1_bf16", "resize_strip_2_bf16", 32, 0},
      {TFU_F32, 2, 1, 8, 8, 4, 1, 16, 16, TFU_BICUBIC, 0, "resize_strip_4_f32", "resize_strip_8_f32", 1, 0},
      {TFU_F16, 2, 3, 8, 9, 8, 3, 16, 9, TFU_BILINEAR, 0, "resize_strip_2_f16", "resize_strip_4_f16", 1, 0},
      /* Not of float64, parts of packs, unaligned, with depth, of more weights, and with more than 2^31 units. */
      {TFU_F64, 2, 1, 8, 8, 8, 1, 16, 16, TFU_BILINEAR, 0, "resize_any_f64", "resize_any_f64", 0, 0},
      {TFU_BF16, 2, 1, 8, 8, 12, 1, 16, 16, TFU_BILINEAR, 0, "resize_any_bf16", "resize_any_bf16", 0, 0},
      {TFU_BF16, 2, 1, 8, 8, 16, 1, 16, 16, TFU_BILINEAR, 2, "resize_any_bf16", "resize_any_bf16", 0, 0},
      {TFU_BF16, 2, 2, 8, 8, 16, 4, 16, 16, TFU_BILINEAR, 0, "resize_any_bf16", "resize_any_bf16", 0, 0},
      {TFU_BF16, 2, 1, 16, 16, 16, 1, 32, 32, TFU_LANCZOS5, 0, "resize_any_bf16", "resize_any_bf16", 0, 0},
      {TFU_BF16, 1 << 18, 1, 64, 64, 64, 1, 128, 128, TFU_NEAREST, 2, "resize_any_bf16", "resize_any_bf16", 0, 0},
      /* Long axes. */
      {TFU_F32, 1, 1, 2, 4000, 4, 1, 4, 8000, TFU_NEAREST, 0, "resize_strip_1_f32", "resize_strip_8_f32", 1, 1},
  };
  for (int i = 0; i < TFU_COUNT(samples); i++) check_sample(&samples[i]);
  return verdict();
}
