/* capture.c - calls that a framework captures into a graph, which it then runs by itself, many times. */
#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/driver.h"

int tfu_may_wait(const tfu_call *call) {
  const tfu_driver *d = tfu_driver_if_any();
  CUstreamCaptureStatus status;
  return d && !d->cuStreamIsCapturing(call->stream, &status) && status == CU_STREAM_CAPTURE_STATUS_NONE;
}

tfu_code tfu_capture_close(const tfu_call *call) {
  const tfu_driver *d;
  CUstreamCaptureStatus status;
  CUgraph graph = NULL;
  CUgraphNode node;
  size_t nodes = 1;
  TFU_TRY(tfu_driver_get(&d, call->err));
  CUresult r = d->cuStreamGetCaptureInfo_v2(call->stream, &status, NULL, &graph, NULL, NULL);
  if (!r && graph) r = d->cuGraphGetNodes(graph, NULL, &nodes);
  if (!r && !nodes) r = d->cuGraphAddEmptyNode(&node, graph, NULL, 0);
  return tfu_driver_code(d, r, "ending a captured call", call->err);
}

static int exchange(CUstreamCaptureMode mode) {
  const tfu_driver *d = tfu_driver_if_any();
  if (d) d->cuThreadExchangeStreamCaptureMode(&mode);
  return (int)mode;
}

int tfu_capture_relax(void) { return exchange(CU_STREAM_CAPTURE_MODE_RELAXED); }
void tfu_capture_restore(int mode) { exchange((CUstreamCaptureMode)mode); }
