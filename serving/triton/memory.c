/* A GPU's memory is reached by the driver, which is opened when the first request brings such memory. Addresses are
 * unified: cuMemcpy sees by itself which is whose. */
#include "serving/triton/memory.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

/* A CUresult is an int, 0 where all is well; a CUdevice is an int, a CUcontext a pointer and a CUdeviceptr 64 bits. */
static struct {
  int (*cuInit)(unsigned);
  int (*cuDeviceGet)(int *, int);
  int (*cuDevicePrimaryCtxRetain)(void **, int);
  int (*cuCtxPushCurrent_v2)(void *);
  int (*cuCtxPopCurrent_v2)(void **);
  int (*cuMemcpy)(uint64_t, uint64_t, size_t);
} driver;

enum { MAX_GPUS = 64 };
static void *contexts[MAX_GPUS]; /* the primary ones, which TensorFlow uses too; retained once and kept */
static int opened;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int open_driver(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  return library && (driver.cuInit = dlsym(library, "cuInit")) &&
         (driver.cuDeviceGet = dlsym(library, "cuDeviceGet")) &&
         (driver.cuDevicePrimaryCtxRetain = dlsym(library, "cuDevicePrimaryCtxRetain")) &&
         (driver.cuCtxPushCurrent_v2 = dlsym(library, "cuCtxPushCurrent_v2")) &&
         (driver.cuCtxPopCurrent_v2 = dlsym(library, "cuCtxPopCurrent_v2")) &&
         (driver.cuMemcpy = dlsym(library, "cuMemcpy")) && !driver.cuInit(0);
}

static void *context_of(int64_t gpu) {
  int device;
  void *found = NULL;
  pthread_mutex_lock(&lock);
  if (!opened) opened = open_driver() ? 1 : -1;
  if (opened > 0 && gpu >= 0 && gpu < MAX_GPUS) {
    if (!contexts[gpu] &&
        (driver.cuDeviceGet(&device, (int)gpu) || driver.cuDevicePrimaryCtxRetain(&contexts[gpu], device)))
      contexts[gpu] = NULL;
    found = contexts[gpu];
  }
  pthread_mutex_unlock(&lock);
  return found;
}

tfu_code tfu_memory_copy(void *to, const void *from, size_t bytes, TRITONSERVER_MemoryType type, int64_t id,
                         tfu_error *err) {
  void *popped;
  if (!bytes) return TFU_OK;
  if (type != TRITONSERVER_MEMORY_GPU) return memcpy(to, from, bytes), TFU_OK;
  void *context = context_of(id);
  if (!context)
    return tfu_fail(err, TFU_PRECONDITION, "a tensor is in memory of GPU %lld, and there is no such GPU here",
                    (long long)id);
  int result = driver.cuCtxPushCurrent_v2(context);
  if (!result) {
    result = driver.cuMemcpy((uint64_t)(uintptr_t)to, (uint64_t)(uintptr_t)from, bytes);
    driver.cuCtxPopCurrent_v2(&popped);
  }
  return result ? tfu_fail(err, TFU_INTERNAL, "copying %zu bytes from or to GPU %lld failed with CUDA's error %d",
                           bytes, (long long)id, result)
                : TFU_OK;
}
