/* timing.c - how long work takes on a GPU, by its own clock, and what it left in memory. The only place where the host
 * waits for a stream. */
#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/driver.h"

typedef struct stopwatch {
  const tfu_driver *d;
  tfu_call *call;
  CUevent start, stop;
} stopwatch;

static tfu_code measure(stopwatch *w, tfu_code (*work)(void *), void *with, int runs, float *microseconds) {
  const tfu_driver *d = w->d;
  tfu_error *err = w->call->err;
  float ms = 0;
  TFU_TRY(tfu_driver_code(d, d->cuEventRecord(w->start, w->call->stream), "starting a clock", err));
  for (int i = 0; i < runs; i++) TFU_TRY(work(with));
  TFU_TRY(tfu_driver_code(d, d->cuEventRecord(w->stop, w->call->stream), "stopping a clock", err));
  TFU_TRY(tfu_driver_code(d, d->cuEventSynchronize(w->stop), "timing", err));
  TFU_TRY(tfu_driver_code(d, d->cuEventElapsedTime(&ms, w->start, w->stop), "reading a clock", err));
  *microseconds = ms * 1000 / (float)runs;
  return TFU_OK;
}

/* The first run pays for loading the kernel and does not count; the second says how many are worth their time. */
tfu_code tfu_time(tfu_call *call, tfu_code (*work)(void *), void *with, float *microseconds) {
  enum { BUDGET = 2000, FEWEST = 3, MOST = 30 }; /* microseconds for all; runs */
  stopwatch w = {.call = call};
  tfu_code code;
  TFU_TRY(tfu_driver_get(&w.d, call->err));
  CUresult r = w.d->cuEventCreate(&w.start, CU_EVENT_DEFAULT);
  if (!r) r = w.d->cuEventCreate(&w.stop, CU_EVENT_DEFAULT);
  code = tfu_driver_code(w.d, r, "making a clock", call->err);
  if (code == TFU_OK) code = work(with);
  if (code == TFU_OK) code = measure(&w, work, with, 1, microseconds);
  if (code == TFU_OK) {
    const float fit = BUDGET / (*microseconds > 1 ? *microseconds : 1);
    code = measure(&w, work, with, fit < FEWEST ? FEWEST : fit > MOST ? MOST : (int)fit, microseconds);
  }
  if (w.start) w.d->cuEventDestroy_v2(w.start);
  if (w.stop) w.d->cuEventDestroy_v2(w.stop);
  return code;
}

tfu_code tfu_peek(tfu_call *call, const void *memory, void *to, size_t bytes) {
  const tfu_driver *d;
  CUevent copied;
  TFU_TRY(tfu_driver_get(&d, call->err));
  TFU_TRY(tfu_driver_code(d, d->cuEventCreate(&copied, CU_EVENT_DISABLE_TIMING), "making an event", call->err));
  CUresult r = d->cuMemcpyDtoHAsync_v2(to, (CUdeviceptr)memory, bytes, call->stream);
  if (!r) r = d->cuEventRecord(copied, call->stream);
  if (!r) r = d->cuEventSynchronize(copied);
  d->cuEventDestroy_v2(copied);
  return tfu_driver_code(d, r, "reading back a result", call->err);
}
