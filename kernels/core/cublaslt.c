#include "kernels/core/cublaslt.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/cuda.h"
#include "kernels/core/library.h"

/* ---- the library ---- */

static tfu_cublaslt cublaslt;
static const char *missing; /* NULL once everything is found */

static void open_cublaslt(void) {
  const char *value = getenv("TFUSE_CUBLASLT");
  if (value && !strcmp(value, "0")) {
    missing = "TFUSE_CUBLASLT=0";
    return;
  }
  static const char *const names[] = {"libcublasLt.so.12", "libcublasLt.so.13", NULL};
  static const char *const folders[] = {"nvidia/cublas/lib", "nvidia/cu13/lib", NULL};
  void *library = tfu_open_library(names, folders);
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
