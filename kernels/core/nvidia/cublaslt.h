/* cublaslt.h - cuBLASLt of CUDA 12 or 13, opened on first use: TensorFlow's own copy where it has one. */
#ifndef TFUSE_CUBLASLT_H_
#define TFUSE_CUBLASLT_H_

#include "kernels/core/gpu/library.h"
#include "kernels/core/nvidia/cublaslt_api.h"
#include "tfuse.h"

typedef struct tfu_cublaslt {
  TFU_CUBLASLT_FUNCTIONS(TFU_POINTER)
  int version; /* 130100 is 13.1.0 */
} tfu_cublaslt;

/* NULL where there is none, or the environment variable TFUSE_CUBLASLT is 0; `why` then says so, a static text. */
const tfu_cublaslt *tfu_cublaslt_get(const char **why);

/* A cuBLAS status as ours: "what: CUBLAS_STATUS_…". */
TFU_MUST_USE tfu_code tfu_cublaslt_code(const tfu_cublaslt *lt, cublasStatus_t status, const char *what,
                                        tfu_error *err);

/* The handle of the current GPU, made once. It has no state but the GPU: all threads share it. */
TFU_MUST_USE tfu_code tfu_cublaslt_handle(const tfu_cublaslt *lt, cublasLtHandle_t *handle, tfu_error *err);

#endif
