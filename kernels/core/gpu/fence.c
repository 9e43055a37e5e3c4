/* fence.c - work that is ordered against a framework whose stream we do not know: an event over the whole context
 * before it, and one that the whole context waits for after it. All on the device; the host never waits. */
#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/driver.h"
#include "kernels/core/table.h"

tfu_code tfu_fence_open(void **stream, tfu_error *err) {
  static tfu_table streams = TFU_PER_GPU(tfu_create_stream);
  const tfu_driver *d;
  CUcontext context;
  void *mine = NULL;
  CUevent before = NULL;
  TFU_TRY(tfu_driver_get(&d, err));
  if (!d->cuCtxRecordEvent || !d->cuCtxWaitEvent)
    return tfu_fail(err, TFU_PRECONDITION,
                    "this TensorFlow does not export its GPU stream, and the NVIDIA driver is too old to do without: "
                    "install driver 555 or later");
  TFU_TRY(tfu_per_gpu(&streams, d, &mine, err));
  CUresult r = d->cuCtxGetCurrent(&context);
  if (!r) r = d->cuEventCreate(&before, CU_EVENT_DISABLE_TIMING);
  if (!r) r = d->cuCtxRecordEvent(context, before);
  if (!r) r = d->cuStreamWaitEvent(mine, before, 0);
  if (before) d->cuEventDestroy_v2(before); /* takes effect once it has happened */
  *stream = mine;
  return tfu_driver_code(d, r, "waiting for TensorFlow's work", err);
}

tfu_code tfu_fence_close(void *stream, tfu_error *err) {
  const tfu_driver *d;
  CUcontext context;
  CUevent after = NULL;
  TFU_TRY(tfu_driver_get(&d, err));
  CUresult r = d->cuCtxGetCurrent(&context);
  if (!r) r = d->cuEventCreate(&after, CU_EVENT_DISABLE_TIMING);
  if (!r) r = d->cuEventRecord(after, stream);
  if (!r) r = d->cuCtxWaitEvent(context, after);
  if (after) d->cuEventDestroy_v2(after);
  return tfu_driver_code(d, r, "handing the result to TensorFlow", err);
}
