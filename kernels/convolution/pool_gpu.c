#include "kernels/convolution/pool.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/choice.h"
#include "kernels/core/gpu/walk.h"
#include "ops/convolution/pool.h"

TFU_MODULE(pool);
static tfu_kernel max_forward = {.module = &module, .name = "max_pool"};
static tfu_kernel max_bare = {.module = &module, .name = "max_pool_bare"};
static tfu_kernel max_backward = {.module = &module, .name = "max_pool_grad"};
static tfu_kernel average_forward = {.module = &module, .name = "average_pool"};
static tfu_kernel average_backward = {.module = &module, .name = "average_pool_grad"};

/* Blocks per multiprocessor, which then go through the units in turn. */
TFU_CHOICE(blocks, 32, 1, 128);

/* What the kernel reads and writes; `back`: the second of them is dx, and not y. */
static tfu_code run(tfu_call *call, tfu_kernel *kernel, int back, const tfu_tensor *from, const tfu_tensor *to,
                    int64_t *places) {
  tfu_pool p;
  tfu_device device;
  TFU_TRY(tfu_pool_read(back ? &to->shape : &from->shape, call->attr, &p, call->err));
  TFU_TRY(tfu_device_now(&device, call->err));
  TFU_REQUIRE(call->err, p.channels <= INT32_MAX - TFU_POOL_UNIT, "x must have less than 2^31 channels, got %lld",
              (long long)p.channels);
  pool_args a = {.from = from->data,
                 .to = to->data,
                 .places = places,
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
  const int64_t most = (int64_t)device.multiprocessors * blocks();
  const tfu_grid grid = {.x = (unsigned)least(divide_up(a.units, TFU_THREADS), most), .threads = TFU_THREADS};
  return tfu_launch(call, kernel, 0, from->dtype, grid, &a);
}

tfu_code tfu_max_pool_gpu(tfu_call *call) {
  const tfu_tensor *places = &call->out[TFU_POOL_PLACES];
  int64_t *const wanted = tfu_count(&places->shape) ? places->data : NULL;
  return run(call, wanted ? &max_forward : &max_bare, 0, &call->in[TFU_POOL_X], &call->out[TFU_POOL_Y], wanted);
}

tfu_code tfu_max_pool_grad_gpu(tfu_call *call) {
  return run(call, &max_backward, 1, &call->in[TFU_MAXGRAD_DY], &call->out[0], call->in[TFU_MAXGRAD_PLACES].data);
}

tfu_code tfu_average_pool_gpu(tfu_call *call) {
  return run(call, &average_forward, 0, &call->in[TFU_POOL_X], &call->out[TFU_POOL_Y], NULL);
}

tfu_code tfu_average_pool_grad_gpu(tfu_call *call) {
  return run(call, &average_backward, 1, &call->in[TFU_AVERAGEGRAD_DY], &call->out[0], NULL);
}
