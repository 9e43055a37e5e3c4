#include "kernels/convolution/pool.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/tunable.h"
#include "kernels/core/gpu/walk.h"
#include "ops/convolution/pool.h"

TFU_MODULE(pool);
TFU_MODULE_AS(by_two_module, pool_by_two);

/* The kernel of any windows, and the one of those that pool_by_two.cu serves, by their size, and of numbers up to so
 * many bytes. On an H200 it takes 0.52 ms for the gradient of averages of 2 x 2 float32 of [256, 112, 112, 64], the
 * other 0.38. */
typedef struct pooling {
  tfu_kernel any, by_two;
  size_t most_bytes;
} pooling;
enum { LEAST_SIZE = 2, MOST_SIZE = 3 };
static const char *const sizes[] = {"2", "3"};
#define POOLING(name_, by_two_, bytes_)                                                            \
  {                                                                                                \
    .any = {.module = &module, .name = name_},                                                     \
    .by_two = {.module = &by_two_module, .name = by_two_, .variants = sizes}, .most_bytes = bytes_ \
  }
static pooling max_forward = POOLING("max_pool", "max_by_two", 4);
static pooling max_bare = POOLING("max_pool_bare", "max_by_two", 4);
static pooling max_backward = POOLING("max_pool_grad", "max_grad_by_two", 4);
static pooling average_forward = POOLING("average_pool", "average_by_two", 4);
static pooling average_backward = POOLING("average_pool_grad", "average_grad_by_two", 2);

/* Blocks per multiprocessor, which then go through the units in turn. */
TFU_TUNABLE(blocks, 32, 1, 128);
TFU_TUNABLE(by_two, 1, 0, 1); /* whether pool_by_two.cu serves what it can */

/* The windows' size, if pool_by_two.cu serves them; else 0. */
static int size_by_two(const pooling *by, const pool_args *a, tfu_dtype dtype) {
  const pool_axis *deep = &a->axis[0], *high = &a->axis[1], *wide = &a->axis[2];
  if (!by_two() || !a->aligned || tfu_dtype_size(dtype) > by->most_bytes || a->units >= INT32_MAX) return 0;
  if (deep->in != 1 || deep->out != 1 || deep->size != 1 || deep->before != 0) return 0;
  if (high->stride != 2 || wide->stride != 2 || high->size != wide->size) return 0;
  if (high->size < LEAST_SIZE || high->size > MOST_SIZE) return 0;
  return (int64_t)high->in * wide->in <= INT32_MAX / a->channels ? high->size : 0;
}

/* Quads of two rows, or columns, of dx that the windows along an axis see together. */
static int64_t quads_of(const pool_axis *a) { return (a->in - 1 + a->before) / 2 - a->before / 2 + 1; }

/* What the kernel reads and writes; `back`: the second of them is dx, and not y. */
static tfu_code run(tfu_call *call, pooling *by, int back, const tfu_tensor *from, const tfu_tensor *to,
                    int64_t *positions) {
  tfu_pool p;
  tfu_device device;
  TFU_TRY(tfu_pool_read(back ? &to->shape : &from->shape, call->attr, &p, call->err));
  TFU_TRY(tfu_device_now(&device, call->err));
  TFU_REQUIRE(call->err, p.channels <= INT32_MAX - TFU_POOL_UNIT, "x must have less than 2^31 channels, got %lld",
              (long long)p.channels);
  pool_args a = {.from = from->data,
                 .to = to->data,
                 .positions = positions,
                 .channels = (int)p.channels,
                 .words = (int)divide_up(p.channels, TFU_POOL_UNIT),
                 .zeros = p.zeros,
                 .aligned = p.channels % TFU_POOL_UNIT == 0 && ((uintptr_t)from->data | (uintptr_t)to->data) % 16 == 0};
  for (int i = 0; i < TFU_POOL_AXES; i++)
    a.axis[i] = (pool_axis){.in = (int)p.axis[i].in,
                            .out = (int)p.axis[i].out,
                            .size = (int)p.axis[i].size,
                            .stride = (int)p.axis[i].stride,
                            .before = (int)p.axis[i].before};
  a.units = tfu_count(&to->shape) / p.channels * a.words;
  if (a.units < INT32_MAX) {
    a.by[0] = divisor_of(a.words);
    for (int i = 0; i < TFU_POOL_AXES; i++) a.by[TFU_POOL_AXES - i] = divisor_of(to->shape.dim[1 + i]);
  }
  const int size = size_by_two(by, &a, from->dtype);
  if (size && back) {
    a.by[1] = divisor_of(quads_of(&a.axis[2])), a.by[2] = divisor_of(quads_of(&a.axis[1]));
    a.units = p.batch * a.words * a.by[1].by * a.by[2].by;
  }
  const int64_t most = (int64_t)device.multiprocessors * blocks();
  const tfu_grid grid = {.x = (unsigned)least(divide_up(a.units, TFU_THREADS), most), .threads = TFU_THREADS};
  return size ? tfu_launch(call, &by->by_two, size - LEAST_SIZE, from->dtype, grid, &a)
              : tfu_launch(call, &by->any, 0, from->dtype, grid, &a);
}

tfu_code tfu_max_pool_gpu(tfu_call *call) {
  const tfu_tensor *positions = &call->out[TFU_POOL_POSITIONS];
  int64_t *const wanted = tfu_count(&positions->shape) ? positions->data : NULL;
  return run(call, wanted ? &max_forward : &max_bare, 0, &call->in[TFU_POOL_X], &call->out[TFU_POOL_Y], wanted);
}

tfu_code tfu_max_pool_grad_gpu(tfu_call *call) {
  return run(call, &max_backward, 1, &call->in[TFU_MAXGRAD_DY], &call->out[0], call->in[TFU_MAXGRAD_POSITIONS].data);
}

tfu_code tfu_average_pool_gpu(tfu_call *call) {
  return run(call, &average_forward, 0, &call->in[TFU_POOL_X], &call->out[TFU_POOL_Y], NULL);
}

tfu_code tfu_average_pool_grad_gpu(tfu_call *call) {
  return run(call, &average_backward, 1, &call->in[TFU_AVERAGEGRAD_DY], &call->out[0], NULL);
}
