#include "kernels/core/gpu/driver.h"

#include "kernels/core/gpu/library.h"

/* Weak, for a test may put a driver of its own in its place. */
__attribute__((weak)) tfu_code tfu_driver_get(const tfu_driver **out, tfu_error *err) {
#define X(name) #name,
  static const char *const functions[] = {TFU_DRIVER(X) NULL}, *const newer[] = {TFU_DRIVER_NEWER(X) NULL};
#undef X
  static tfu_driver driver;
  static tfu_shared library = {.called = "libcuda.so.1",
                               .names = {"libcuda.so.1"},
                               .functions = functions,
                               .newer = newer,
                               .table = &driver,
                               .why = "the NVIDIA driver lacks %s: install driver 525 or later"};
  const char *missing = tfu_shared_open(&library);
  *out = &driver;
  return missing ? tfu_fail(err, TFU_PRECONDITION, "%s", missing) : TFU_OK;
}

const tfu_driver *tfu_driver_if_any(void) {
  const tfu_driver *d;
  tfu_error ignored;
  return tfu_driver_get(&d, &ignored) == TFU_OK ? d : NULL;
}

tfu_code tfu_create_stream(const void *gpu, void *stream, void *driver, tfu_error *err) {
  const tfu_driver *d = driver;
  (void)gpu;
  return tfu_driver_code(d, d->cuStreamCreate(stream, CU_STREAM_NON_BLOCKING), "creating a stream", err);
}

tfu_code tfu_driver_code(const tfu_driver *d, CUresult result, const char *what, tfu_error *err) {
  const char *name = "unknown CUDA error", *text = "";
  if (result == CUDA_SUCCESS) return TFU_OK;
  d->cuGetErrorName(result, &name);
  d->cuGetErrorString(result, &text);
  return tfu_fail(err, result == CUDA_ERROR_OUT_OF_MEMORY ? TFU_EXHAUSTED : TFU_INTERNAL, "%s: %s (%s)", what, name,
                  text);
}
