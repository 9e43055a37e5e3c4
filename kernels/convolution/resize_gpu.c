#include "kernels/convolution/resize.h"

#include "kernels/convolution/pool.h"
#include "kernels/core/gpu/tunable.h"
#include "kernels/core/gpu/walk.h"

TFU_MODULE(resize);
TFU_MODULE_AS(double_module, resize_double);
static tfu_kernel fill = {.module = &module, .name = "resize_fill"};
static tfu_kernel any = {.module = &module, .name = "resize_any"};
static const char *const taps[] = {"1", "2", "4", "8"};
static tfu_kernel strip = {.module = &module, .name = "resize_strip", .variants = taps};

/* Blocks per multiprocessor, which then go through the units in turn; each makes a table of its own. */
TFU_TUNABLE(blocks, 16, 1, 128);
TFU_TUNABLE(rows, 32, 1, 64); /* of a strip, at most: of fewer, more of what is read is read twice */
TFU_TUNABLE(strips, 1, 0, 1); /* whether strips serve what they can */
/* Rows of x in a strip of resize_double.cu, at most; 0: resize.cu serves. On an H200, [128, 64, 64, 128] in bfloat16
 * moves 86 / 92% of a copy's bytes in a second with 4, 84 / 90% with 16, and 63 / 54% by strips. */
TFU_TUNABLE(double_rows, 4, 0, 64);
enum { IN_SHARED = 24 << 10 };   /* bytes of a table that every block makes; others are made once, in scratch */
enum { THREADS_TO_FILL = 2048 }; /* of a multiprocessor, before strips have more rows */

static int64_t table_bytes(const resize_args *a, tfu_dtype dtype) {
  return (2 * (int64_t)a->entries + 3) / 4 * 16 + a->weights * (int64_t)tfu_dtype_size(tfu_real(dtype));
}

/* Which of `taps` serves, or -1. All weights of an entry are then so many. */
static int strip_variant(resize_args *a, tfu_dtype dtype) {
  resize_axis *high = &a->axis[1], *wide = &a->axis[2];
  const int most = high->taps > wide->taps ? high->taps : wide->taps;
  if (!strips() || !a->aligned || dtype == TFU_F64 || a->axis[0].in != 1 || a->axis[0].out != 1 || most > 8) return -1;
  const int variant = most <= 1 ? 0 : most <= 2 ? 1 : most <= 4 ? 2 : 3;
  high->taps = wide->taps = 1 << variant;
  return variant;
}

/* What does not need memory. Returns the number of images. */
static int64_t plan(const tfu_call *call, int back, resize_args *a, int *variant) {
  const tfu_tensor *from = &call->in[TFU_RESIZE_X], *to = &call->out[0];
  const int64_t channels = to->shape.dim[4], pack = 16 / (int64_t)tfu_dtype_size(from->dtype);
  *a = (resize_args){.from = from->data, .to = to->data, .back = back, .channels = (int)channels};
  const int64_t images = resize_axes_of(call, back, a->axis);
  const int on_packs = ((uintptr_t)from->data | (uintptr_t)to->data) % 16 == 0;
  a->aligned = on_packs && channels % pack == 0;
  a->words = (int)divide_up(channels, pack);
  const int64_t most = images * a->axis[0].to * a->axis[1].to * a->axis[2].to * a->words;
  *variant = most < INT32_MAX ? strip_variant(a, from->dtype) : -1;
  if (*variant < 0) {
    a->aligned = on_packs && channels % TFU_POOL_UNIT == 0;
    a->words = (int)divide_up(channels, TFU_POOL_UNIT);
  }
  resize_place(a->axis, &a->entries, &a->weights);
  return images;
}

static size_t more_room(const tfu_call *call, int back) {
  resize_args a;
  int variant;
  if (!tfu_known(&call->in[TFU_RESIZE_X].shape, 1) || !tfu_known(&call->in[TFU_RESIZE_SIZE].shape, 0))
    return TFU_NO_ROOM;
  tfu_call sized = *call;
  tfu_shape *const to = &sized.out[0].shape;
  *to = call->in[TFU_RESIZE_X].shape;
  for (int i = 0; i < TFU_RESIZE_AXES; i++) to->dim[1 + i] = call->in[TFU_RESIZE_SIZE].shape.dim[i];
  sized.in[TFU_RESIZE_X].data = sized.out[0].data = NULL;
  plan(&sized, back, &a, &variant);
  /* What is not aligned takes no strips, whose tables are no smaller. */
  const int64_t bytes = table_bytes(&a, call->in[TFU_RESIZE_X].dtype);
  return bytes > IN_SHARED ? (size_t)bytes + 16 : 0;
}
size_t tfu_resize_more_room(const tfu_call *call) { return more_room(call, 0); }
size_t tfu_resize_grad_more_room(const tfu_call *call) { return more_room(call, 1); }

/* Whether resize_double.cu serves. */
static int doubles(const resize_args *a, tfu_dtype dtype, int64_t images) {
  const resize_axis *deep = &a->axis[0], *high = &a->axis[1], *wide = &a->axis[2];
  return double_rows() && dtype != TFU_F64 && a->aligned && deep->in == 1 && deep->out == 1 &&
         wide->kind == RESIZE_BILINEAR && wide->convention == RESIZE_HALF && high->out == 2 * high->in &&
         wide->out == 2 * wide->in && (int64_t)wide->out * a->channels * 4 < INT32_MAX &&
         images * high->in * wide->in * a->words < INT32_MAX;
}

static tfu_code run_double(tfu_call *call, const resize_args *a, tfu_dtype dtype, int64_t images, int64_t enough) {
  static tfu_kernel forward = {.module = &double_module, .name = "resize_double"};
  static tfu_kernel backward = {.module = &double_module, .name = "resize_double_grad"};
  const resize_axis *high = &a->axis[1], *wide = &a->axis[2];
  const int64_t across = images * wide->in * a->words;
  resize_double_args d = {.from = a->from,
                          .to = a->to,
                          .step = (unsigned)a->channels * (unsigned)tfu_dtype_size(dtype),
                          .high = high->in,
                          .wide = wide->in,
                          .rows = double_rows()};
  while (d.rows > 1 && across * divide_up(high->in, d.rows) < enough) d.rows /= 2;
  const int64_t strips = divide_up(high->in, d.rows);
  d.units = (uint32_t)(across * strips);
  d.by_words = divisor_of(a->words), d.by_wide = divisor_of(wide->in), d.by_strips = divisor_of(strips);
  const tfu_grid grid = {.x = (unsigned)divide_up(d.units, TFU_THREADS), .threads = TFU_THREADS};
  return tfu_launch(call, a->back ? &backward : &forward, 0, dtype, grid, &d);
}

static tfu_code run(tfu_call *call, int back) {
  const tfu_dtype dtype = call->in[TFU_RESIZE_X].dtype;
  const int64_t channels = call->out[0].shape.dim[4];
  tfu_device device;
  resize_args a;
  int variant;
  TFU_TRY(tfu_device_now(&device, call->err));
  TFU_REQUIRE(call->err, channels <= INT32_MAX - TFU_POOL_UNIT, "x must have less than 2^31 channels, got %lld",
              (long long)channels);
  const int64_t images = plan(call, back, &a, &variant);
  const resize_axis *deep = &a.axis[0], *high = &a.axis[1], *wide = &a.axis[2];
  const int64_t enough = (int64_t)device.multiprocessors * THREADS_TO_FILL;
  if (doubles(&a, dtype, images)) return run_double(call, &a, dtype, images, enough);
  if (variant >= 0) {
    const int64_t across = images * wide->to * a.words;
    for (a.rows = rows(); a.rows > 1 && across * divide_up(high->to, a.rows) < enough;) a.rows /= 2;
    a.strips = (int)divide_up(high->to, a.rows);
    a.units = across * a.strips;
    a.by[0] = divisor_of(a.words), a.by[1] = divisor_of(wide->to), a.by[2] = divisor_of(a.strips);
  } else {
    a.units = images * deep->to * high->to * wide->to * a.words;
    if (a.units < INT32_MAX) {
      a.by[0] = divisor_of(a.words);
      for (int i = 0; i < TFU_RESIZE_AXES; i++) a.by[TFU_RESIZE_AXES - i] = divisor_of(a.axis[i].to);
    }
  }
  const int64_t bytes = table_bytes(&a, dtype);
  if (bytes > IN_SHARED) {
    const tfu_grid grid = {.x = (unsigned)divide_up(a.entries, TFU_THREADS), .threads = TFU_THREADS};
    TFU_TRY(tfu_scratch(call, (size_t)bytes, &a.table));
    TFU_TRY(tfu_launch(call, &fill, 0, dtype, grid, &a));
  }
  const int64_t most = (int64_t)device.multiprocessors * blocks();
  const tfu_grid grid = {.x = (unsigned)least(divide_up(a.units, TFU_THREADS), most),
                         .threads = TFU_THREADS,
                         .shared = a.table ? 0 : (unsigned)bytes};
  return variant >= 0 ? tfu_launch(call, &strip, variant, dtype, grid, &a) : tfu_launch(call, &any, 0, dtype, grid, &a);
}

tfu_code tfu_resize_gpu(tfu_call *call) { return run(call, 0); }
tfu_code tfu_resize_grad_gpu(tfu_call *call) { return run(call, 1); }
