/* stand_in_driver.h - what a driver of a test's own has in common with others: an H200 or a smaller GPU that is asked
 * what it is, loads nothing, and never fails. The test adds what it looks at: kernels and launches. */
#ifndef TFUSE_TESTS_STAND_IN_DRIVER_H_
#define TFUSE_TESTS_STAND_IN_DRIVER_H_

#include "kernels/core/gpu/driver.h"
#include "tests/check.h"

static const struct {
  int multiprocessors, shared, block_shared;
} gpus[] = {{132, 228 * 1024, 227 * 1024}, {1, 100 * 1024, 99 * 1024}};
static int gpu; /* which of them is there */

static CUresult get_device(CUdevice *device) {
  *device = gpu;
  return CUDA_SUCCESS;
}

static CUresult get_attribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR               ? 9
           : attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR             ? 0
           : attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT                 ? gpus[device].multiprocessors
           : attribute == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR ? gpus[device].shared
           : attribute == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN    ? gpus[device].block_shared
                                                                                   : -1;
  CHECK(*value >= 0);
  return CUDA_SUCCESS;
}

/* How many libraries there are that were loaded and not unloaded. */
static int libraries;
static CUresult load(CUlibrary *library, const void *code, CUjit_option *o, void **ov, unsigned on, CUlibraryOption *l,
                     void **lv, unsigned ln) {
  (void)code, (void)o, (void)ov, (void)on, (void)l, (void)lv, (void)ln;
  *library = (CUlibrary)&gpu;
  libraries++;
  return CUDA_SUCCESS;
}

static CUresult unload(CUlibrary library) {
  CHECK(library == (CUlibrary)&gpu && libraries > 0);
  libraries--;
  return CUDA_SUCCESS;
}

/* How often a kernel's shared memory was asked for, and how many bytes the last one has been given. */
static int asked, allowed;
static CUresult set_attribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device) {
  (void)kernel, (void)device;
  if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) asked++, allowed = value;
  return CUDA_SUCCESS;
}

static CUresult exchange_mode(CUstreamCaptureMode *mode) {
  (void)mode;
  return CUDA_SUCCESS;
}

/* Kernels by their names, which are what their handles are. */
static char names[256][64];
static inline CUresult get_named_kernel(CUkernel *kernel, CUlibrary library, const char *name) {
  (void)library;
  int i = 0;
  while (names[i][0]) i++;
  CHECK(i < TFU_COUNT(names) - 1);
  snprintf(names[i], sizeof names[i], "%s", name);
  *kernel = (CUkernel)names[i];
  return CUDA_SUCCESS;
}

static CUresult error_text(CUresult error, const char **text) {
  (void)error;
  *text = "";
  return CUDA_SUCCESS;
}

/* These, as members of a tfu_driver. */
#define STAND_INS                                                                                 \
  .cuCtxGetDevice = get_device, .cuDeviceGetAttribute = get_attribute, .cuLibraryLoadData = load, \
  .cuLibraryUnload = unload, .cuKernelSetAttribute = set_attribute,                               \
  .cuThreadExchangeStreamCaptureMode = exchange_mode, .cuGetErrorName = error_text, .cuGetErrorString = error_text

#endif
