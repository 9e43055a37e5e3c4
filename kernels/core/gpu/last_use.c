#include "kernels/core/gpu/last_use.h"

#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/driver.h"

/* The place of a stream, or one that is free, or else the first: its event is then waited for by the new stream, so
 * that one event tells of both. */
static int place_of(const tfu_last_use *use, void *stream) {
  for (int i = 0; i < TFU_USE_STREAMS; i++)
    if (!use->by[i].event || use->by[i].stream == stream) return i;
  return 0;
}

void tfu_use(tfu_last_use *use, const tfu_call *call) {
  const tfu_driver *d = tfu_driver_if_any();
  const int i = place_of(use, call->stream);
  CUevent event = use->by[i].event;
  if (use->for_ever || !d) return;
  use->for_ever = 1;
  if (!tfu_may_wait(call)) return;
  if (!event && d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING)) return;
  const int moved = use->by[i].event && use->by[i].stream != call->stream;
  use->by[i].event = event;
  use->by[i].stream = call->stream;
  if (moved && d->cuStreamWaitEvent(call->stream, event, 0)) return;
  use->for_ever = d->cuEventRecord(event, call->stream) != CUDA_SUCCESS;
}

int tfu_use_done(const tfu_last_use *use) {
  if (use->for_ever) return 0;
  for (int i = 0; i < TFU_USE_STREAMS && use->by[i].event; i++) {
    const tfu_driver *d = tfu_driver_if_any();
    if (!d || d->cuEventQuery(use->by[i].event) != CUDA_SUCCESS) return 0;
  }
  return 1;
}

void tfu_use_close(tfu_last_use *use) {
  for (int i = 0; i < TFU_USE_STREAMS && use->by[i].event; i++) {
    const tfu_driver *d = tfu_driver_if_any();
    if (d) d->cuEventDestroy_v2(use->by[i].event);
  }
  *use = (tfu_last_use){.for_ever = 0};
}
