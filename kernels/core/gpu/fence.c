/* fence.c - work that is ordered against a framework whose stream we do not know: an event over the whole context
 * before it, and one that the whole context waits for after it. All on the device; the host never waits. */
#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/driver.h"
#include "kernels/core/table.h"

/* The stream waits for what the context has queued by now, or the context for what the stream has. */
static CUresult wait_for(const tfu_driver *d, int stream_waits, CUstream stream) {
  CUcontext context;
  CUevent event = NULL;
  CUresult r = d->cuCtxGetCurrent(&context);
  if (!r) r = d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  if (!r) r = stream_waits ? d->cuCtxRecordEvent(context, event) : d->cuEventRecord(event, stream);
  if (!r) r = stream_waits ? d->cuStreamWaitEvent(stream, event, 0) : d->cuCtxWaitEvent(context, event);
  if (event) d->cuEventDestroy_v2(event); /* takes effect once it has happened */
  return r;
}

tfu_code tfu_fence_open(void **stream, tfu_error *err) {
  static tfu_table streams = TFU_PER_GPU(tfu_create_stream);
  const tfu_driver *d;
  TFU_TRY(tfu_driver_get(&d, err));
  if (!d->cuCtxRecordEvent || !d->cuCtxWaitEvent)
    return tfu_fail(err, TFU_PRECONDITION,
                    "this TensorFlow does not export its GPU stream, and the NVIDIA driver is too old to do without: "
                    "install driver 555 or later");
  TFU_TRY(tfu_per_gpu(&streams, d, stream, err));
  return tfu_driver_code(d, wait_for(d, 1, *stream), "waiting for TensorFlow's work", err);
}

tfu_code tfu_fence_close(void *stream, tfu_error *err) {
  const tfu_driver *d;
  TFU_TRY(tfu_driver_get(&d, err));
  return tfu_driver_code(d, wait_for(d, 0, stream), "handing the result to TensorFlow", err);
}
