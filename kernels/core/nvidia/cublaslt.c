#include "kernels/core/nvidia/cublaslt.h"

#include "kernels/core/gpu/cuda.h"
#include "kernels/core/table.h"

static void ask_version(void *cublaslt) {
  ((tfu_cublaslt *)cublaslt)->version = (int)((tfu_cublaslt *)cublaslt)->cublasLtGetVersion();
}

/* Weak, for a test may put functions of its own in their place. */
__attribute__((weak)) const tfu_cublaslt *tfu_cublaslt_get(const char **why) {
  static const char *const functions[] = {TFU_CUBLASLT_FUNCTIONS(TFU_NAME) NULL};
  static tfu_cublaslt cublaslt;
  static tfu_shared library = {.called = "libcublasLt.so.12 or .13",
                               .names = {"libcublasLt.so.12", "libcublasLt.so.13"},
                               .folders = {"nvidia/cublas/lib", "nvidia/cu13/lib"},
                               .off = "TFUSE_CUBLASLT",
                               .functions = functions,
                               .table = &cublaslt,
                               .ready = ask_version,
                               .why = "%s is not there: pip install 'tensorflow[and-cuda]' brings it"};
  *why = tfu_shared_open(&library);
  return *why ? NULL : &cublaslt;
}

tfu_code tfu_cublaslt_code(const tfu_cublaslt *lt, cublasStatus_t status, const char *what, tfu_error *err) {
  if (status == CUBLAS_STATUS_SUCCESS) return TFU_OK;
  return tfu_fail(err, TFU_INTERNAL, "%s: %s", what, lt->cublasLtGetStatusName(status));
}

static tfu_code create(const void *gpu, void *handle, void *lt_, tfu_error *err) {
  const tfu_cublaslt *lt = lt_;
  (void)gpu;
  return tfu_cublaslt_code(lt, lt->cublasLtCreate(handle), "cublasLtCreate", err);
}

tfu_code tfu_cublaslt_handle(const tfu_cublaslt *lt, cublasLtHandle_t *handle, tfu_error *err) {
  static tfu_table handles = TFU_PER_GPU(create);
  return tfu_per_gpu(&handles, lt, (void **)handle, err);
}
