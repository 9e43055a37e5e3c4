#include "kernels/sorting/sort.h"

#include "kernels/core/gpu/choice.h"
#include "kernels/core/gpu/walk.h"
#include "kernels/sorting/order.h"
#include "kernels/sorting/radix.h"

TFU_MODULE(sort);
static tfu_kernel move = {.module = &module, .name = "move"};

TFU_CHOICE(move_blocks, 32, 1, 256); /* per multiprocessor */

tfu_code tfu_move_gpu(tfu_call *call, tfu_dtype dtype, move_args a) {
  tfu_device device;
  if (!a.n) return TFU_OK;
  TFU_TRY(tfu_device_now(&device, call->err));
  const int64_t wanted = (a.n + TFU_THREADS - 1) / TFU_THREADS, most = (int64_t)device.multiprocessors * move_blocks();
  const tfu_grid grid = {.x = (unsigned)(wanted < most ? wanted : most), .threads = TFU_THREADS};
  a.size = (int)tfu_dtype_size(dtype);
  return tfu_launch(call, &move, 0, TFU_F32, grid, &a);
}

static tfu_code sort(tfu_call *call, void *sorted, int32_t *places) {
  const tfu_tensor *x = &call->in[0];
  const radix_job job = {.from = x->data,
                         .dtype = x->dtype,
                         .order = tfu_wide_order_of(x->dtype, call->attr[0].b, places != NULL),
                         .rows = tfu_rows(&x->shape),
                         .cols = tfu_cols(&x->shape),
                         .sorted = sorted,
                         .places = places};
  return tfu_radix_gpu(call, &job);
}

tfu_code tfu_sort_gpu(tfu_call *call) { return sort(call, call->out[0].data, NULL); }
tfu_code tfu_argsort_gpu(tfu_call *call) { return sort(call, NULL, call->out[0].data); }

tfu_code tfu_unsort_gpu(tfu_call *call) {
  const tfu_tensor *dy = &call->in[0], *dx = &call->out[0];
  const int64_t k = tfu_cols(&dy->shape), cols = tfu_cols(&dx->shape);
  if (k < cols) TFU_TRY(tfu_clear(call, dx->data, (size_t)tfu_count(&dx->shape) * tfu_dtype_size(dx->dtype)));
  return tfu_move_gpu(call, dy->dtype,
                      (move_args){.put = 1,
                                  .from = dy->data,
                                  .to = dx->data,
                                  .places = call->in[1].data,
                                  .n = tfu_count(&dy->shape),
                                  .k = k,
                                  .cols = cols,
                                  .stride = k});
}
