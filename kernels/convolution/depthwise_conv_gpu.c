/* depthwise_conv on the GPU: by strips where there are kernels for the window, else element by element. The gradient
 * first makes dpre = dy * act'(pre), in a pass that has the sums of bias too; where the activation is linear that is dy
 * itself, and the sums are taken along with those of the filter. */
#include "ops/convolution/depthwise_conv.h"

#include "kernels/convolution/depthwise_conv.h"
#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/tunable.h"
#include "kernels/core/gpu/walk.h"
#include "kernels/elementwise/scale_bias_act.h"

/* Packs of channels that threads of a block stand side by side on: 64 or 128 bytes, whole sectors of memory. The fewer
 * they are, the more strips a block has, whose neighbours read the same places. */
TFU_TUNABLE(side_by_side, 16, 1, 32);
/* Strips along the height that follow each other before those along the width do: a block of 8 strips is 2 by 4. */
TFU_TUNABLE(swath, 2, 1, 8);
/* Blocks per multiprocessor of what is summed element by element. */
TFU_TUNABLE(any_blocks, 16, 1, 64);

/* What networks have: 7 by 7 with a stride of 2 would be a fifth of the device code, and is nobody's. */
static const char *const windows[] = {"3_1", "3_2", "5_1", "5_2", "7_1"};
TFU_MODULE_AS(any_module, depthwise_conv);
TFU_MODULE_AS(strips_module, depthwise_strips);
TFU_MODULE_AS(filter_module, depthwise_filter);
static tfu_kernel any = {.module = &any_module, .name = "depthwise_any"};
static tfu_kernel any_back = {.module = &any_module, .name = "depthwise_any_back"};
static tfu_kernel any_filter = {.module = &any_module, .name = "depthwise_any_filter"};
static tfu_kernel strip = {.module = &strips_module, .name = "depthwise_strip", .variants = windows};
static tfu_kernel strip_back = {.module = &strips_module, .name = "depthwise_back", .variants = windows};
static tfu_kernel strip_filter = {.module = &filter_module, .name = "depthwise_filter", .variants = windows};

static depthwise_axis axis_of(const tfu_window *w) {
  return (depthwise_axis){.in = (int)w->in,
                          .out = (int)w->out,
                          .size = (int)w->size,
                          .stride = (int)w->stride,
                          .dilation = (int)w->dilation,
                          .before = (int)w->before};
}

/* ---- strips ---- */

/* The kernel's variant for these windows, or -1. */
static int window_of(const tfu_depthwise *d, tfu_dtype dtype) {
  const tfu_window *h = &d->h, *w = &d->w;
  const int64_t size = (int64_t)tfu_dtype_size(dtype);
  if (dtype == TFU_F64 || d->multiplier != 1 || h->dilation != 1 || w->dilation != 1) return -1;
  if (h->size != w->size || (h->size != 3 && h->size != 5 && h->size != 7)) return -1;
  if (h->stride != w->stride || h->stride > (h->size < 7 ? 2 : 1)) return -1;
  if (d->channels % TFU_STRIP_CHANNELS(h->size, size)) return -1;
  /* What the kernels hold in 32 bits: a line's bytes, and the numbers of strips. */
  if ((w->in + w->out) * d->channels * size > INT32_MAX) return -1;
  if (d->batch * (h->in + h->out + 64) * (w->in + w->out + 64) > INT32_MAX) return -1;
  return (int)(h->size - 3) + (int)h->stride - 1;
}

/* Whether packs of such windows may begin where these tensors do; NULL may. */
static int in_packs(const tfu_depthwise *d, tfu_dtype dtype, const void *const *data, int n) {
  const size_t size = tfu_dtype_size(dtype), pack = TFU_STRIP_CHANNELS(d->h.size, size) * size;
  for (int i = 0; i < n; i++)
    if ((uintptr_t)data[i] % pack) return 0;
  return 1;
}

/* Strips over so many rows and columns. */
static depthwise_strips strips_of(const tfu_depthwise *d, tfu_dtype dtype, int64_t rows, int64_t columns) {
  const int64_t packs = d->channels / TFU_STRIP_CHANNELS(d->h.size, (int)tfu_dtype_size(dtype));
  const int64_t groups = divide_up(packs, side_by_side()), lanes = divide_up(packs, groups);
  const int64_t high = divide_up(rows, TFU_STRIP_SIDE), wide = divide_up(columns, TFU_STRIP_SIDE);
  int64_t tall = swath();
  while (high % tall) tall--;
  return (depthwise_strips){.channels = (int)d->channels,
                            .groups = (int)groups,
                            .lanes = (int)lanes,
                            .per = (int)(TFU_STRIP_THREADS / lanes),
                            .swath = (int)tall,
                            .wide = (int)wide,
                            .swaths = (int)(high / tall),
                            .count = (int)(d->batch * high * wide)};
}

static tfu_grid grid_of(const depthwise_strips *s) {
  return (tfu_grid){.x = (unsigned)(divide_up(s->count, s->per) * s->groups), .threads = TFU_STRIP_THREADS};
}

/* ---- y and dx ---- */

/* dx's positions along an axis, counted from a multiple of the stride in the padding. */
static int64_t places_back(const tfu_window *w) { return w->in + w->before % w->stride; }

/* y of x or, back, dx of dy: by strips or element by element. */
static tfu_code run(tfu_call *call, const tfu_depthwise *d, tfu_dtype dtype, int back, depthwise_args a) {
  const void *const data[] = {a.from, a.kernel, a.bias, a.to, a.pre};
  const int window = window_of(d, dtype);
  tfu_device device;
  a.h = axis_of(&d->h), a.w = axis_of(&d->w);
  a.channels = d->channels, a.multiplier = d->multiplier;
  if (window >= 0 && in_packs(d, dtype, data, TFU_COUNT(data))) {
    a.strips =
        back ? strips_of(d, dtype, places_back(&d->h), places_back(&d->w)) : strips_of(d, dtype, d->h.out, d->w.out);
    return tfu_launch(call, back ? &strip_back : &strip, window, dtype, grid_of(&a.strips), &a);
  }
  TFU_TRY(tfu_device_now(&device, call->err));
  const int64_t blocks = least(divide_up(a.elements, TFU_THREADS), (int64_t)device.multiprocessors * 64);
  const tfu_grid grid = {.x = (unsigned)blocks, .threads = TFU_THREADS};
  return tfu_launch(call, back ? &any_back : &any, 0, dtype, grid, &a);
}

tfu_code tfu_depthwise_conv_gpu(tfu_call *call) {
  const tfu_tensor *x = &call->in[TFU_DEPTHWISE_X], *kernel = &call->in[TFU_DEPTHWISE_KERNEL];
  const tfu_tensor *y = &call->out[TFU_DEPTHWISE_Y];
  tfu_depthwise d;
  TFU_TRY(tfu_depthwise_read(&x->shape, &kernel->shape, call->attr, &d, call->err));
  return run(call, &d, x->dtype, 0,
             (depthwise_args){.from = x->data,
                              .kernel = kernel->data,
                              .bias = tfu_given_data(&call->in[TFU_DEPTHWISE_BIAS]),
                              .to = y->data,
                              .pre = tfu_given_data(&call->out[TFU_DEPTHWISE_PRE]),
                              .elements = tfu_count(&y->shape),
                              .activation = (int)call->attr[TFU_DEPTHWISE_ACTIVATION].i});
}

/* ---- dkernel and dbias ---- */

/* In how many shares the positions are summed: as many blocks as the multiprocessors hold, where each has enough to do.
 */
static tfu_code shares_of(tfu_call *call, int64_t columns, int64_t per_multiprocessor, int64_t most, int64_t *shares) {
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  *shares = least(least(device.multiprocessors * per_multiprocessor / columns, most), 65535);
  if (*shares < 1) *shares = 1;
  return TFU_OK;
}

static tfu_code run_filter(tfu_call *call, const tfu_depthwise *d, tfu_dtype dtype, const void *dpre,
                           const tfu_tensor *dkernel, const tfu_tensor *dbias) {
  enum { FEWEST = 4 }; /* strips, or rows of positions, that a block has of each of its threads */
  const int64_t outputs = d->channels * d->multiplier, taps = d->h.size * d->w.size;
  const size_t real = tfu_dtype_size(tfu_real(dtype));
  const int wants_bias = tfu_count(&dbias->shape) > 0, window = window_of(d, dtype);
  depthwise_filter_args a = {.x = call->in[TFU_DEPTHGRAD_X].data,
                             .dy = dpre,
                             .h = axis_of(&d->h),
                             .w = axis_of(&d->w),
                             .channels = d->channels,
                             .multiplier = d->multiplier,
                             .positions = d->batch * d->h.out * d->w.out};
  const void *const data[] = {a.x, a.dy};
  const int by_strips = window >= 0 && in_packs(d, dtype, data, TFU_COUNT(data));
  tfu_grid grid = {.threads = by_strips ? TFU_STRIP_THREADS : TFU_THREADS};
  int64_t shares;
  if (by_strips) {
    a.strips = strips_of(d, dtype, d->h.out, d->w.out);
    grid.x = (unsigned)a.strips.groups;
    TFU_TRY(shares_of(call, grid.x, TFU_STRIP_BLOCKS(d->h.size, (int)tfu_dtype_size(dtype)),
                      divide_up(a.strips.count, (int64_t)a.strips.per * FEWEST), &shares));
  } else {
    enum { LANES = 32, ROWS = TFU_THREADS / LANES };
    const int64_t blocks = divide_up(outputs, LANES) * (taps + wants_bias);
    if (blocks > INT32_MAX)
      return tfu_fail(call->err, TFU_UNIMPLEMENTED,
                      "kernel has %lld positions and %lld channels, which is too many for a gradient", (long long)taps,
                      (long long)outputs);
    grid.x = (unsigned)blocks;
    TFU_TRY(shares_of(call, blocks, any_blocks(), divide_up(a.positions, (int64_t)ROWS * FEWEST), &shares));
  }
  grid.y = (unsigned)shares;
  TFU_TRY(tfu_scratch(call, (size_t)(shares * taps * outputs) * real, &a.dkernel));
  if (wants_bias) TFU_TRY(tfu_scratch(call, (size_t)(shares * outputs) * real, &a.dbias));
  TFU_TRY(tfu_launch(call, by_strips ? &strip_filter : &any_filter, by_strips ? window : 0, dtype, grid, &a));
  if (tfu_count(&dkernel->shape)) TFU_TRY(tfu_fold_gpu(call, a.dkernel, shares, taps * outputs, 1, dkernel));
  return wants_bias ? tfu_fold_gpu(call, a.dbias, shares, outputs, 1, dbias) : TFU_OK;
}

/* ---- gradient ---- */

static tfu_code clear(tfu_call *call, const tfu_tensor *t) {
  return tfu_clear(call, t->data, (size_t)tfu_count(&t->shape) * tfu_dtype_size(t->dtype));
}

tfu_code tfu_depthwise_conv_grad_gpu(tfu_call *call) {
  const tfu_tensor *dy = &call->in[TFU_DEPTHGRAD_DY], *x = &call->in[TFU_DEPTHGRAD_X];
  const tfu_tensor *dx = &call->out[TFU_DEPTHGRAD_DX], *dkernel = &call->out[TFU_DEPTHGRAD_DKERNEL];
  const tfu_tensor *dbias = &call->out[TFU_DEPTHGRAD_DBIAS];
  const tfu_tensor none = {.dtype = dy->dtype, .shape = {.rank = 1}}; /* dim[0] is 0 */
  const int act = (int)call->attr[TFU_DEPTHWISE_ACTIVATION].i;
  const int64_t n = tfu_count(&dy->shape);
  void *dpre = dy->data;
  tfu_depthwise d;
  TFU_TRY(tfu_depthwise_read(&x->shape, &call->in[TFU_DEPTHGRAD_KERNEL].shape, call->attr, &d, call->err));
  if (n == 0) { /* sums of nothing */
    TFU_TRY(clear(call, dx));
    TFU_TRY(clear(call, dkernel));
    return clear(call, dbias);
  }
  if (act != TFU_ACT_linear) {
    TFU_TRY(tfu_scratch(call, (size_t)n * tfu_dtype_size(dy->dtype), &dpre));
    TFU_TRY(tfu_act_grad_launch(call, act, dy->dtype, n, tfu_cols(&dy->shape), dpre, dy->data,
                                call->in[TFU_DEPTHGRAD_PRE].data, dbias));
    dbias = &none;
  }
  const depthwise_args for_dx = {
      .from = dpre, .kernel = call->in[TFU_DEPTHGRAD_KERNEL].data, .to = dx->data, .elements = tfu_count(&dx->shape)};
  if (for_dx.elements) TFU_TRY(run(call, &d, dy->dtype, 1, for_dx));
  if (tfu_count(&dkernel->shape) || tfu_count(&dbias->shape))
    return run_filter(call, &d, dy->dtype, dpre, dkernel, dbias);
  return TFU_OK;
}
