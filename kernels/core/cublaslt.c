#define _GNU_SOURCE
#include "kernels/core/cublaslt.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "kernels/core/cuda.h"

/* ---- the library ---- */

static tfu_cublaslt cublaslt;
static const char *missing; /* NULL once everything is found */

static const char *const names[] = {"libcublasLt.so.12", "libcublasLt.so.13"};

/* Where pip puts NVIDIA's libraries, seen from TensorFlow. TensorFlow knows the place, dlopen does not. */
static void *open_beside_tensorflow(const char *name) {
  static const char *const folders[] = {"nvidia/cublas/lib", "nvidia/cu13/lib"};
  char path[PATH_MAX];
  Dl_info file;
  void *tensorflow = dlopen("libtensorflow_framework.so.2", RTLD_NOW | RTLD_NOLOAD), *found = NULL;
  if (!tensorflow) return NULL;
  void *inside = dlsym(tensorflow, "TF_Version");
  const char *end = inside && dladdr(inside, &file) && file.dli_fname ? strrchr(file.dli_fname, '/') : NULL;
  for (int i = 0; end && i < TFU_COUNT(folders) && !found; i++) {
    snprintf(path, sizeof path, "%.*s/../%s/%s", (int)(end - file.dli_fname), file.dli_fname, folders[i], name);
    found = dlopen(path, RTLD_NOW);
  }
  dlclose(tensorflow);
  return found;
}

static void *open_any(void) {
  void *library = NULL;
  for (int i = 0; i < TFU_COUNT(names) && !library; i++) library = dlopen(names[i], RTLD_NOW | RTLD_NOLOAD);
  for (int i = 0; i < TFU_COUNT(names) && !library; i++) library = dlopen(names[i], RTLD_NOW);
  for (int i = 0; i < TFU_COUNT(names) && !library; i++) library = open_beside_tensorflow(names[i]);
  return library;
}

static void open_cublaslt(void) {
  void *library = open_any();
  if (!library) {
    missing = "libcublasLt.so.12 is not there, nor is .13: pip install 'tensorflow[and-cuda]' brings it";
    return;
  }
#define X(result, name, arguments) \
  if (!missing && !(*(void **)&cublaslt.name = dlsym(library, #name))) missing = "libcublasLt.so lacks " #name;
  TFU_CUBLASLT_FUNCTIONS(X)
#undef X
  if (!missing) cublaslt.version = (int)cublaslt.cublasLtGetVersion();
}

const tfu_cublaslt *tfu_cublaslt_get(const char **why) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, open_cublaslt);
  *why = missing;
  return missing ? NULL : &cublaslt;
}

tfu_code tfu_cublaslt_code(const tfu_cublaslt *lt, cublasStatus_t status, const char *what, tfu_error *err) {
  if (status == CUBLAS_STATUS_SUCCESS) return TFU_OK;
  return tfu_fail(err, TFU_INTERNAL, "%s: %s", what, lt->cublasLtGetStatusName(status));
}

/* ---- handles ---- */

tfu_code tfu_cublaslt_handle(const tfu_cublaslt *lt, cublasLtHandle_t *handle, tfu_error *err) {
  enum { KNOWN = 64 };
  static cublasLtHandle_t handles[KNOWN];
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, err));
  if (device.ordinal >= KNOWN)
    return tfu_fail(err, TFU_UNIMPLEMENTED, "GPU number %d is beyond the 64 served", device.ordinal);
  pthread_mutex_lock(&lock);
  cublasLtHandle_t *mine = &handles[device.ordinal];
  const cublasStatus_t status = *mine ? CUBLAS_STATUS_SUCCESS : lt->cublasLtCreate(mine);
  *handle = *mine;
  pthread_mutex_unlock(&lock);
  return tfu_cublaslt_code(lt, status, "cublasLtCreate", err);
}
