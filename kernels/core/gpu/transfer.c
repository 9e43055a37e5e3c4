#include "kernels/core/gpu/transfer.h"

#include <stdlib.h>

#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/driver.h"
#include "kernels/core/table.h"

struct tfu_transfer {
  const tfu_driver *driver;
  CUcontext context; /* of the GPU: threads that send or wait have none of their own */
  CUstream copying;
  void *memory;
  CUevent sent, taken; /* one that was never recorded counts as done */
};

tfu_code tfu_transfer_open(tfu_transfer **out, size_t bytes, void *stream, tfu_error *err) {
  enum { EVENT = CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC }; /* who waits leaves its core to others */
  static tfu_table streams = TFU_PER_GPU(tfu_create_stream);
  const tfu_driver *d;
  void *copying;
  TFU_TRY(tfu_driver_get(&d, err));
  TFU_TRY(tfu_per_gpu(&streams, d, &copying, err));
  tfu_transfer *t = calloc(1, sizeof *t);
  if (!t) return tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
  t->driver = d;
  t->copying = copying;
  CUresult r = d->cuCtxGetCurrent(&t->context);
  if (!r) r = d->cuMemHostAlloc(&t->memory, bytes, CU_MEMHOSTALLOC_PORTABLE);
  if (!r) r = d->cuEventCreate(&t->sent, EVENT);
  if (!r) r = d->cuEventCreate(&t->taken, EVENT);
  if (!r) r = d->cuEventRecord(t->taken, stream);
  const tfu_code code = tfu_driver_code(d, r, "page-locked memory", err);
  if (code != TFU_OK) tfu_transfer_close(t);
  else *out = t;
  return code;
}

tfu_code tfu_transfer_memory(tfu_transfer *t, void **memory, tfu_error *err) {
  const tfu_driver *d = t->driver;
  CUcontext mine;
  CUresult r = d->cuCtxPushCurrent_v2(t->context);
  const int pushed = !r;
  if (!r) r = d->cuEventSynchronize(t->sent);
  if (pushed) d->cuCtxPopCurrent_v2(&mine);
  *memory = t->memory;
  return tfu_driver_code(d, r, "waiting for a copy", err);
}

tfu_code tfu_transfer_send(tfu_transfer *t, void *to, size_t bytes, tfu_error *err) {
  const tfu_driver *d = t->driver;
  CUcontext mine;
  CUresult r = d->cuCtxPushCurrent_v2(t->context);
  const int pushed = !r;
  if (!r) r = d->cuStreamWaitEvent(t->copying, t->taken, 0);
  if (!r && bytes) r = d->cuMemcpyHtoDAsync_v2((CUdeviceptr)(uintptr_t)to, t->memory, bytes, t->copying);
  if (!r) r = d->cuEventRecord(t->sent, t->copying);
  if (pushed) d->cuCtxPopCurrent_v2(&mine);
  return tfu_driver_code(d, r, "copying to the GPU", err);
}

tfu_code tfu_transfer_await(tfu_transfer *t, void *stream, tfu_error *err) {
  return tfu_driver_code(t->driver, t->driver->cuStreamWaitEvent(stream, t->sent, 0), "waiting for a copy", err);
}

tfu_code tfu_transfer_take(void *stream, void *to, const void *from, size_t bytes, tfu_error *err) {
  const tfu_driver *d;
  if (!bytes) return TFU_OK;
  TFU_TRY(tfu_driver_get(&d, err));
  const CUresult r = d->cuMemcpyDtoDAsync_v2((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, bytes, stream);
  return tfu_driver_code(d, r, "taking what was copied", err);
}

tfu_code tfu_transfer_taken(tfu_transfer *t, void *stream, tfu_error *err) {
  return tfu_driver_code(t->driver, t->driver->cuEventRecord(t->taken, stream), "taking what was copied", err);
}

tfu_code tfu_transfer_fetch(tfu_transfer *t, void *stream, size_t at, const void *from, size_t bytes, tfu_error *err) {
  const CUresult r =
      t->driver->cuMemcpyDtoHAsync_v2((char *)t->memory + at, (CUdeviceptr)(uintptr_t)from, bytes, stream);
  return tfu_driver_code(t->driver, r, "copying to the host", err);
}

tfu_code tfu_transfer_fetched(tfu_transfer *t, void *stream, tfu_error *err) {
  return tfu_driver_code(t->driver, t->driver->cuEventRecord(t->sent, stream), "copying to the host", err);
}

void tfu_transfer_close(tfu_transfer *t) {
  CUcontext mine;
  if (!t) return;
  const tfu_driver *d = t->driver;
  const int pushed = t->context && !d->cuCtxPushCurrent_v2(t->context);
  if (t->sent) {
    d->cuEventSynchronize(t->sent);
    d->cuEventDestroy_v2(t->sent);
  }
  if (t->taken) d->cuEventDestroy_v2(t->taken);
  if (t->memory) d->cuMemFreeHost(t->memory);
  if (pushed) d->cuCtxPopCurrent_v2(&mine);
  free(t);
}
