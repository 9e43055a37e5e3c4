/* channels.h - the GPU's side of elementwise formulas with weights and sums per channel; kernels/core/channels.h says
 * what those are. Read by host and device. */
#ifndef TFUSE_CHANNELS_GPU_H_
#define TFUSE_CHANNELS_GPU_H_

#include "kernels/core/channels.h"
#include "kernels/core/gpu/walk.h"

/* What the launch hands the device. */
typedef struct tfu_channels_args {
  tfu_walk walk;
  const void *x[TFU_CHANNEL_TENSORS];
  void *y[TFU_CHANNEL_RESULTS];
  const void *w[TFU_CHANNEL_WEIGHTS];
  int64_t cols;                       /* channels of a joined row; 1 where nothing is per channel */
  int64_t count[TFU_CHANNEL_WEIGHTS]; /* values of a weight: 0 for "not given", 1 for one number, else the channels */
  float absent[TFU_CHANNEL_WEIGHTS];  /* what is read in place of a weight that is not given */
  void *partial;                      /* [sum_blocks][sums][sum_width]; NULL: no sum is wanted */
  int64_t sum_blocks, sum_width;      /* sum_width: cols, or where a block of threads has less, the walk's width */
  int64_t half;   /* not 0: some tensors are halves of rows of 2 * half elements, those that the kernel says */
  int activation; /* for kernels that serve any */
  int any;        /* such a kernel is taken, also where there may be one for this activation alone */
  int blocks;     /* of threads, per multiprocessor; 0: as many as suit a formula with few weights */
} tfu_channels_args;

#ifndef TFU_DEVICE
#include "activations.h"

#pragma GCC visibility push(default)
/* The kernels that TFU_CHANNELS_ACT makes: variant TFU_ACT_… is the activation's own, the last serves any, in
 * double, and is the only one in float64. */
extern const char *const tfu_activation_variants[TFU_ACTS + 1];
#define TFU_ACTIVATION_KERNEL(stem) \
  { .module = &module, .name = stem, .variants = tfu_activation_variants }

/* Launches the kernel on the call's tensors; variant is the activation, or 0 where there is none. */
TFU_MUST_USE tfu_code tfu_channels_gpu(tfu_call *call, tfu_kernel *kernel, int variant, const tfu_channels *op);

/* The same on the tensors in args, which may begin a larger argument, of n elements, which begin on a 16-byte boundary
 * unless they are the call's own; cols is the number of channels, 1 if nothing is per channel. sums has op->sums
 * tensors, an empty one is not wanted; where it is NULL, the partial sums are left in args, and what folds them comes
 * next. */
TFU_MUST_USE tfu_code tfu_channels_launch(tfu_call *call, tfu_kernel *kernel, int variant, const tfu_channels *op,
                                          tfu_dtype dtype, int64_t n, int64_t cols, tfu_channels_args *args,
                                          const tfu_tensor *sums);

#pragma GCC visibility pop
#define TFU_CHANNELS(stem, tensors, weights, stored, results, sums, ...)             \
  tfu_code tfu_##stem##_gpu(tfu_call *call) {                                        \
    static tfu_kernel kernel = {.module = &module, .name = #stem};                   \
    static const tfu_channels op = TFU_CHANNELS_OP(tensors, weights, results, sums); \
    return tfu_channels_gpu(call, &kernel, 0, &op);                                  \
  }
#define TFU_CHANNELS_WITH(stem, tensors, weights, stored, results, sums, attributes, ...) \
  tfu_code tfu_##stem##_gpu(tfu_call *call) {                                             \
    static tfu_kernel kernel = {.module = &module, .name = #stem};                        \
    const tfu_channels own = TFU_CHANNELS_OP(tensors, weights, results, sums);            \
    const tfu_channels op = tfu_channels_with(call, own, attributes);                     \
    return tfu_channels_gpu(call, &kernel, 0, &op);                                       \
  }
#endif

#endif
