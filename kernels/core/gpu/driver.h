/* driver.h - the functions of libcuda.so.1 that we call. Private to kernels/core. */
#ifndef TFUSE_DRIVER_H_
#define TFUSE_DRIVER_H_

#include <cuda.h>

#include "tfuse.h"

#define TFU_DRIVER(X)                            \
  X(cuCtxGetCurrent)                             \
  X(cuCtxGetDevice)                              \
  X(cuCtxPopCurrent_v2)                          \
  X(cuCtxPushCurrent_v2)                         \
  X(cuDeviceGetAttribute)                        \
  X(cuDeviceGetName)                             \
  X(cuGetErrorName)                              \
  X(cuGetErrorString)                            \
  X(cuGraphAddEmptyNode)                         \
  X(cuGraphGetNodes)                             \
  X(cuKernelGetAttribute)                        \
  X(cuKernelSetAttribute)                        \
  X(cuLibraryGetGlobal)                          \
  X(cuLibraryGetKernel)                          \
  X(cuLibraryLoadData)                           \
  X(cuLibraryUnload)                             \
  X(cuLaunchKernelEx)                            \
  X(cuMemcpyDtoDAsync_v2)                        \
  X(cuMemcpyDtoHAsync_v2)                        \
  X(cuMemcpyHtoDAsync_v2)                        \
  X(cuMemFreeHost)                               \
  X(cuMemHostAlloc)                              \
  X(cuMemsetD8Async)                             \
  X(cuMemsetD32Async)                            \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor) \
  X(cuOccupancyMaxActiveClusters)                \
  X(cuStreamCreate)                              \
  X(cuStreamGetCaptureInfo_v2)                   \
  X(cuStreamIsCapturing)                         \
  X(cuThreadExchangeStreamCaptureMode)           \
  X(cuEventCreate)                               \
  X(cuEventQuery)                                \
  X(cuEventRecord)                               \
  X(cuEventSynchronize)                          \
  X(cuEventElapsedTime)                          \
  X(cuEventDestroy_v2)                           \
  X(cuStreamWaitEvent)                           \
  X(cuTensorMapEncodeTiled)
/* Those that work can do without; NULL in a driver that has them not. cuCtx… are from CUDA 12.5, cuKernelGetParamInfo
 * from 12.4. */
#define TFU_DRIVER_NEWER(X)      \
  X(cuGraphDestroy)              \
  X(cuGraphExecDestroy)          \
  X(cuGraphInstantiateWithFlags) \
  X(cuGraphLaunch)               \
  X(cuStreamBeginCapture_v2)     \
  X(cuStreamEndCapture)          \
  X(cuKernelGetParamInfo)        \
  X(cuCtxRecordEvent)            \
  X(cuCtxWaitEvent)

typedef struct tfu_driver {
#define X(name) __typeof__(name) *name;
  TFU_DRIVER(X)
  TFU_DRIVER_NEWER(X)
#undef X
} tfu_driver;

/* Opens the driver once; FailedPrecondition, naming what is missing, if there is none or it is too old. */
TFU_MUST_USE tfu_code tfu_driver_get(const tfu_driver **driver, tfu_error *err);

/* The same for what can do without: NULL where there is none. */
const tfu_driver *tfu_driver_if_any(void);

/* Of a table of streams that are our own, one for each GPU (TFU_PER_GPU). */
TFU_MUST_USE tfu_code tfu_create_stream(const void *gpu, void *stream, void *driver, tfu_error *err);

/* A driver result as ours: "what: CUDA_ERROR_… (its text)". */
TFU_MUST_USE tfu_code tfu_driver_code(const tfu_driver *driver, CUresult result, const char *what, tfu_error *err);

#endif
