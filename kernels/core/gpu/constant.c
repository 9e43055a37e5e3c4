#include "kernels/core/gpu/constant.h"

#include <pthread.h>

#include "kernels/core/gpu/driver.h"
#include "kernels/core/table.h"

static tfu_code create_event(const void *variable, void *event, void *driver, tfu_error *err) {
  const tfu_driver *d = driver;
  (void)variable;
  return tfu_driver_code(d, d->cuEventCreate(event, CU_EVENT_DISABLE_TIMING), "making an event", err);
}

/* By where a variable lies: on each GPU elsewhere. The event is behind the last kernel that reads it. */
static tfu_table events = TFU_TABLE(.value = sizeof(CUevent), .most = TFU_KEEP_ALL, .make = create_event);

tfu_code tfu_launch_constant(tfu_call *call, tfu_kernel *kernel, tfu_dtype dtype, tfu_grid grid, void *args,
                             tfu_constant *constant, const void *from, size_t bytes) {
  /* Nobody may queue a copy between ours and the kernel that reads it. */
  static pthread_mutex_t queueing = PTHREAD_MUTEX_INITIALIZER;
  const tfu_driver *d;
  void *to, *event = NULL;
  size_t room;
  TFU_TRY(tfu_driver_get(&d, call->err));
  TFU_TRY(tfu_variable(constant->module, constant->name, &to, &room, call->err));
  TFU_REQUIRE(call->err, bytes <= room, "%s has %zu bytes, and %zu do not fit", constant->name, room, bytes);
  TFU_TRY(tfu_table_get(&events, &to, sizeof to, (void *)d, &event, call->err));
  const CUevent read = *(CUevent *)event;
  pthread_mutex_lock(&queueing);
  CUresult r = d->cuStreamWaitEvent(call->stream, read, 0);
  if (!r) r = d->cuMemcpyDtoDAsync_v2((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, bytes, call->stream);
  tfu_code code = tfu_driver_code(d, r, "filling constant memory", call->err);
  if (code == TFU_OK) code = tfu_launch(call, kernel, 0, dtype, grid, args);
  /* Also where the launch failed: the copy is queued. */
  const CUresult recorded = r ? CUDA_SUCCESS : d->cuEventRecord(read, call->stream);
  if (code == TFU_OK) code = tfu_driver_code(d, recorded, "recording an event", call->err);
  pthread_mutex_unlock(&queueing);
  return code;
}
