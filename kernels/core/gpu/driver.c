#include "kernels/core/gpu/driver.h"

#include <dlfcn.h>
#include <pthread.h>

static tfu_driver driver;
static const char *missing; /* NULL once everything is found */

static void open_driver(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) {
    missing = "libcuda.so.1";
    return;
  }
#define X(name) *(void **)&driver.name = dlsym(library, #name);
  TFU_DRIVER(X)
  TFU_DRIVER_NEWER(X)
#undef X
#define X(name) \
  if (!driver.name) missing = #name;
  TFU_DRIVER(X)
#undef X
}

/* Weak, for a test may put a driver of its own in its place. */
__attribute__((weak)) tfu_code tfu_driver_get(const tfu_driver **out, tfu_error *err) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, open_driver);
  *out = &driver;
  if (!missing) return TFU_OK;
  return tfu_fail(err, TFU_PRECONDITION, "the NVIDIA driver lacks %s: install driver 525 or later", missing);
}

tfu_code tfu_driver_code(const tfu_driver *d, CUresult result, const char *what, tfu_error *err) {
  const char *name = "unknown CUDA error", *text = "";
  if (result == CUDA_SUCCESS) return TFU_OK;
  d->cuGetErrorName(result, &name);
  d->cuGetErrorString(result, &text);
  return tfu_fail(err, result == CUDA_ERROR_OUT_OF_MEMORY ? TFU_EXHAUSTED : TFU_INTERNAL, "%s: %s (%s)", what, name,
                  text);
}
