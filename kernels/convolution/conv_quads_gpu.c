/* conv_quads_gpu.c - convolutions in quads (conv_quads.h), by cuDNN: whether that is faster than the convolution as it
 * is, with all that either needs around it, is timed once per shape (tuned.h). */
#include "kernels/convolution/conv_quads.h"

#include <limits.h>
#include <stdio.h>

#include "kernels/convolution/conv_cudnn.h"
#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/trial.h"
#include "kernels/core/gpu/tunable.h"
#include "kernels/core/gpu/tuned.h"
#include "kernels/core/gpu/walk.h"
#include "kernels/core/recycle.h"

TFU_MODULE(conv_quads);
static tfu_kernel move_image = {.module = &module, .name = "conv_quads_image", .keys = tfu_bits};
static tfu_kernel move_kernel = {.module = &module, .name = "conv_quads_kernel", .keys = tfu_bits};

/* 0: never; 1: where a timing says so; 2: wherever they can be. */
TFU_TUNABLE(in_quads, 1, 0, 2);
TFU_TUNABLE(quad_blocks, 32, 1, 128); /* per multiprocessor */

typedef struct quads {
  tfu_call *call;
  conv_pass pass;
  tfu_dtype dtype;
  const conv_args *plain;
  conv_args made;
  conv_quads_args image, kernel;
  /* While ways are timed: */
  tfu_recycled space;
  int way, short_of_memory;
} quads;

int tfu_conv_in_quads(conv_pass pass, tfu_dtype dtype, const conv_args *a, conv_args *made, conv_quads_args *image,
                      conv_quads_args *kernel) {
  const conv_shape *s = &a->s;
  conv_shape *q = &made->s;
  int can = pass != CONV_DATA && tfu_dtype_size(dtype) == 2 && s->groups == 1 && s->c >= 1 && s->c <= CONV_QUAD_MOST &&
            s->in[0] == 1 && s->out[0] == 1 && s->window[0] == 1 && s->before[0] == 0;
  *made = *a;
  q->c = CONV_QUAD;
  q->stride[0] = 1;
  for (int i = 1; i < CONV_AXES; i++) {
    can &= s->stride[i] == 2 && s->dilation[i] == 1 && s->window[i] > 1 && s->out[i] > 0;
    q->window[i] = divide_up(s->window[i], 2);
    q->in[i] = s->out[i] + q->window[i] - 1;
    q->stride[i] = 1, q->before[i] = 0;
  }
  const int64_t images = s->batch * conv_volume(q->in) * CONV_QUAD, kernels = conv_volume(q->window) * CONV_QUAD * s->k;
  if (!can || images <= 0 || images > INT_MAX || kernels <= 0 || kernels > INT_MAX || s->in[2] > INT_MAX / s->c)
    return 0;
  *image = (conv_quads_args){.units = (uint32_t)(images / CONV_QUAD_HALF),
                             .rows = (int)s->in[1],
                             .cols = (int)(s->in[2] * s->c),
                             .above = (int)s->before[1],
                             .left = (int)(s->before[2] * s->c),
                             .wide = (int)(2 * s->c),
                             .quad_rows = (uint32_t)q->in[1],
                             .quad_cols = (uint32_t)q->in[2],
                             .inner = 1};
  *kernel = (conv_quads_args){.units = (uint32_t)kernels,
                              .back = pass == CONV_FILTER,
                              .rows = (int)s->window[1],
                              .cols = (int)(s->window[2] * s->c),
                              .wide = (int)(2 * s->c),
                              .quad_rows = (uint32_t)q->window[1],
                              .quad_cols = (uint32_t)q->window[2],
                              .inner = (uint32_t)s->k};
  return 1;
}

/* ---- running ---- */

static tfu_code move(tfu_call *call, tfu_kernel *kernel, conv_quads_args a, const void *from, void *to) {
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  a.from = from, a.to = to;
  const int64_t most = (int64_t)device.multiprocessors * quad_blocks();
  const tfu_grid grid = {.x = (unsigned)least(divide_up(a.units, TFU_THREADS), most), .threads = TFU_THREADS};
  return tfu_launch(call, kernel, 0, tfu_bits_of(2), grid, &a);
}

static tfu_code run(tfu_call *call, quads *q, int *served) {
  const size_t images = conv_quads_image_bytes(&q->image), kernels = conv_quads_kernel_bytes(&q->kernel);
  conv_args made = q->made;
  *served = 0;
  if (!tfu_try_scratch(call, images + kernels, &made.x)) {
    q->short_of_memory = 1;
    return TFU_OK;
  }
  made.kernel = (char *)made.x + images;
  TFU_TRY(move(call, &move_image, q->image, q->plain->x, made.x));
  if (!q->kernel.back) TFU_TRY(move(call, &move_kernel, q->kernel, q->plain->kernel, made.kernel));
  TFU_TRY(tfu_conv_by_cudnn(call, q->pass, q->dtype, 0, &made, served));
  return *served && q->kernel.back ? move(call, &move_kernel, q->kernel, made.kernel, q->plain->kernel) : TFU_OK;
}

/* ---- choosing ---- */

enum { AS_IT_IS, IN_QUADS, WAYS };

static void describe(const void *key, void *quads_, char *text, size_t size) {
  const char *why;
  const conv_key *k = key;
  const tfu_cudnn *dnn = tfu_cudnn_get(&why);
  (void)quads_;
  snprintf(text, size,
           "cuDNN %d, quads or not, product %d %s epilogue %d, %d x %dx%d to %dx%d, window %dx%d, %d to %d, before "
           "%dx%d",
           dnn ? dnn->version : 0, k->pass, tfu_dtype_name((tfu_dtype)k->dtype), k->epilogue, k->batch, k->in[1],
           k->in[2], k->out[1], k->out[2], k->window[1], k->window[2], k->c, k->k, k->before[1], k->before[2]);
}

static int usable(const void *key, void *quads_, const tfu_choice *choice) {
  (void)key, (void)quads_;
  return choice->data[0] < WAYS;
}

static int adopt(const void *key, const void *other, void *quads_, tfu_choice *choice) {
  (void)other;
  return usable(key, quads_, choice);
}

static const char *take_way(void *quads_, tfu_tried *tried) {
  ((quads *)quads_)->way = tried->plan;
  return NULL;
}

static tfu_code run_way(void *quads_) {
  quads *q = quads_;
  tfu_call *call = tfu_recycle(&q->space);
  int served = 0;
  if (q->way == IN_QUADS) TFU_TRY(run(call, q, &served));
  else TFU_TRY(tfu_conv_by_cudnn(call, q->pass, q->dtype, 0, q->plain, &served));
  return served ? TFU_OK : tfu_fail(call->err, TFU_UNIMPLEMENTED, "cuDNN does not serve it");
}

static tfu_chosen choose(const void *key, void *quads_, tfu_choice *choice) {
  quads *q = quads_;
  tfu_tried tried[WAYS];
  tfu_trial t = {.call = q->call, .with = q, .plans = WAYS, .most = WAYS, .timed = 1, .take = take_way, .run = run_way};
  (void)key;
  *choice = (tfu_choice){.data = {AS_IT_IS}};
  if (!tfu_tuning()) return TFU_CHOSEN;
  if (!tfu_may_wait(q->call)) return TFU_CHOSEN_ONCE;
  tfu_recycled_open(&q->space, q->call);
  const int best = tfu_trial_pick(tried, tfu_trial_run(&t, tried), 0, 1);
  if (best >= 0) choice->data[0] = (unsigned char)best, choice->microseconds = tried[best].microseconds;
  snprintf(choice->label, sizeof choice->label, "cuDNN, x in quads %.1f us, as it is %.1f us",
           tried[IN_QUADS].microseconds, tried[AS_IT_IS].microseconds);
  return q->short_of_memory ? TFU_CHOSEN_ONCE : TFU_CHOSEN;
}

static const tfu_tuner tuner = {.bytes = sizeof(conv_key),
                                .describe = describe,
                                .usable = usable,
                                .choose = choose,
                                .apart = tfu_conv_apart,
                                .adopt = adopt};

tfu_code tfu_conv_quads(tfu_call *call, conv_pass pass, tfu_dtype dtype, const conv_args *a, int *served) {
  quads q = {.call = call, .pass = pass, .dtype = dtype, .plain = a};
  const char *label = NULL;
  tfu_choice choice = {.data = {IN_QUADS}};
  tfu_device device;
  conv_key key;
  *served = 0;
  if (!in_quads() || !tfu_conv_in_quads(pass, dtype, a, &q.made, &q.image, &q.kernel)) return TFU_OK;
  TFU_TRY(tfu_device_now(&device, call->err));
  if (tfu_conv_key_of(a, pass, dtype, 0, device.ordinal, &key)) return TFU_OK;
  if (in_quads() == 1) label = tfu_tuned_get(&tuner, &key, &q, &choice);
  if (choice.data[0] != IN_QUADS) return TFU_OK;
  TFU_TRY(run(call, &q, served));
  if (*served) call->kernel = label ? label : "cuDNN, x in quads";
  return TFU_OK;
}
