/* cudnn_planning.h - cuDNN without a GPU: it plans for an H200 that is described to it. The toolkit's stub of libcuda
 * lets it compile its kernels and not load them. */
#ifndef TFUSE_CUDNN_PLANNING_H_
#define TFUSE_CUDNN_PLANNING_H_

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>

#include "kernels/core/nvidia/cudnn.h"
#include "tests/check.h"

static const char h200[] =
    "{\"maxGridSize\": [2147483647, 65535, 65535], \"maxBlockSize\": [1024, 1024, 64], \"regsPerBlock\": 65536, "
    "\"multiProcessorCount\": 132, \"smClockRateKHz\": 1980000, \"memClockRateKHz\": 3201000, \"l2CacheSize\": "
    "62914560, \"warpSize\": 32, \"maxSharedMemoryPerBlock\": 49152, \"maxSharedMemoryPerBlockOptin\": 232448, "
    "\"reservedSharedMemoryPerBlock\": 1024, \"maxRegistersPerSM\": 65536, \"maxCtasPerSM\": 32, "
    "\"maxThreadsPerBlock\": 1024, \"maxThreadsPerSM\": 2048, \"isTccDriver\": 0, \"supportCoopLaunch\": 1, "
    "\"deviceVer\": 900, \"driverVer\": 13000, \"cudaDeviceId\": 0, \"totalGlobalMem\": 150754820096, "
    "\"pciDeviceId\": 0, \"deviceName\": \"NVIDIA H200\", \"name\": \"NVIDIA H200\", \"deviceId\": 0, "
    "\"cudnnVersion\": 91900, \"schemaVersion\": 1}";

static inline void *open_stub(void) {
  glob_t found;
  void *stub = NULL;
  if (!glob("/usr/local/cuda*/lib*/stubs/libcuda.so", 0, NULL, &found))
    for (size_t i = 0; i < found.gl_pathc && !stub; i++) stub = dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_GLOBAL);
  globfree(&found);
  return stub;
}

/* cuDNN and the described GPU; NULL, and a line that says so, where something is not installed. */
static inline const tfu_cudnn *open_planning(cudnnBackendDescriptor_t *properties) {
  const char *why;
  if (!open_stub()) { /* first: cuDNN then finds it by its name */
    puts("SKIPPED: no /usr/local/cuda*/lib*/stubs/libcuda.so");
    return NULL;
  }
  const tfu_cudnn *dnn = tfu_cudnn_get(&why);
  if (!dnn || dnn->version < 91900) {
    printf("SKIPPED: %s\n", dnn ? "cuDNN is older than 9.19, which is the one this was tried with" : why);
    return NULL;
  }
  CHECK(!dnn->cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, properties));
  CHECK(!dnn->cudnnBackendSetAttribute(*properties, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                       sizeof h200 - 1, h200));
  CHECK(!dnn->cudnnBackendFinalize(*properties));
  return dnn;
}

#endif
