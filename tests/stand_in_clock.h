/* stand_in_clock.h - of a driver of a test's own: a stream whose work takes as long as the test says, events that tell
 * when that was, and memory that is the host's. */
#ifndef TFUSE_TESTS_STAND_IN_CLOCK_H_
#define TFUSE_TESTS_STAND_IN_CLOCK_H_

#include "kernels/core/gpu/driver.h"
#include "tests/check.h"

static double now;   /* microseconds that all that was queued takes */
static int captures; /* nobody may wait, and nothing may run that is not wanted */

static CUresult is_capturing(CUstream stream, CUstreamCaptureStatus *status) {
  (void)stream;
  *status = captures ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
/* An event is when it was recorded. */
static CUresult create_event(CUevent *event, unsigned flags) {
  (void)flags;
  *event = calloc(1, sizeof(double));
  return CUDA_SUCCESS;
}
static CUresult record_event(CUevent event, CUstream stream) {
  (void)stream;
  *(double *)event = now;
  return CUDA_SUCCESS;
}
static CUresult wait_for_event(CUevent event) {
  (void)event;
  CHECK(!captures);
  return CUDA_SUCCESS;
}
static CUresult time_between(float *ms, CUevent start, CUevent stop) {
  *ms = (float)((*(double *)stop - *(double *)start) / 1000);
  return CUDA_SUCCESS;
}
static CUresult destroy_event(CUevent event) {
  free(event);
  return CUDA_SUCCESS;
}
static CUresult fill_words(CUdeviceptr to, unsigned value, size_t words, CUstream stream) {
  (void)stream;
  for (size_t i = 0; i < words; i++) ((uint32_t *)(uintptr_t)to)[i] = value;
  return CUDA_SUCCESS;
}
static CUresult copy_back(void *to, CUdeviceptr from, size_t n, CUstream stream) {
  (void)stream;
  memcpy(to, (const void *)(uintptr_t)from, n);
  return CUDA_SUCCESS;
}

/* These, as members of a tfu_driver. */
#define CLOCK_STAND_INS                                                                                         \
  .cuStreamIsCapturing = is_capturing, .cuEventCreate = create_event, .cuEventRecord = record_event,            \
  .cuEventSynchronize = wait_for_event, .cuEventElapsedTime = time_between, .cuEventDestroy_v2 = destroy_event, \
  .cuMemsetD32Async = fill_words, .cuMemcpyDtoHAsync_v2 = copy_back

#endif
