#include "kernels/core/nvidia/cublaslt.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/gpu/cuda.h"
#include "kernels/core/nvidia/library.h"
#include "kernels/core/table.h"

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

/* Weak, for a test may put functions of its own in their place. */
__attribute__((weak)) const tfu_cublaslt *tfu_cublaslt_get(const char **why) {
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

static tfu_code create(const void *gpu, void *handle, void *lt_, tfu_error *err) {
  const tfu_cublaslt *lt = lt_;
  (void)gpu;
  return tfu_cublaslt_code(lt, lt->cublasLtCreate(handle), "cublasLtCreate", err);
}

tfu_code tfu_cublaslt_handle(const tfu_cublaslt *lt, cublasLtHandle_t *handle, tfu_error *err) {
  static tfu_table handles = TFU_PER_GPU(create);
  return tfu_per_gpu(&handles, lt, (void **)handle, err);
}
