/* cublaslt_api.h - what we use of cuBLASLt 12 and 13, declared by us: its headers come in a wheel of half a gigabyte,
 * and the library is opened at run time. tests/core/cublaslt_api_test.c compares all of it with those headers where
 * they are installed; to that end it defines TFU_CUBLASLT_HEADERS and gives the types itself. */
#ifndef TFUSE_CUBLASLT_API_H_
#define TFUSE_CUBLASLT_API_H_

#include <stddef.h>
#include <stdint.h>

/* X(type, name, value) */
#define TFU_CUBLASLT_CONSTANTS(X)                                                        \
  X(cublasStatus_t, CUBLAS_STATUS_SUCCESS, 0)                                            \
  X(cublasComputeType_t, CUBLAS_COMPUTE_32F, 68)                                         \
  X(cublasComputeType_t, CUBLAS_COMPUTE_64F, 70)                                         \
  X(cublasComputeType_t, CUBLAS_COMPUTE_32I, 72)                                         \
  X(cublasComputeType_t, CUBLAS_COMPUTE_32F_FAST_TF32, 77)                               \
  X(cublasOperation_t, CUBLAS_OP_N, 0)                                                   \
  X(cublasOperation_t, CUBLAS_OP_T, 1)                                                   \
  X(cudaDataType_t, CUDA_R_32F, 0)                                                       \
  X(cudaDataType_t, CUDA_R_64F, 1)                                                       \
  X(cudaDataType_t, CUDA_R_16F, 2)                                                       \
  X(cudaDataType_t, CUDA_R_8I, 3)                                                        \
  X(cudaDataType_t, CUDA_R_32I, 10)                                                      \
  X(cudaDataType_t, CUDA_R_16BF, 14)                                                     \
  X(cudaDataType_t, CUDA_R_8F_E4M3, 28)                                                  \
  X(cudaDataType_t, CUDA_R_8F_E5M2, 29)                                                  \
  X(cublasLtEpilogue_t, CUBLASLT_EPILOGUE_DEFAULT, 1)                                    \
  X(cublasLtEpilogue_t, CUBLASLT_EPILOGUE_RELU, 2)                                       \
  X(cublasLtEpilogue_t, CUBLASLT_EPILOGUE_BIAS, 4)                                       \
  X(cublasLtEpilogue_t, CUBLASLT_EPILOGUE_RELU_BIAS, 6)                                  \
  X(cublasLtEpilogue_t, CUBLASLT_EPILOGUE_GELU, 32)                                      \
  X(cublasLtEpilogue_t, CUBLASLT_EPILOGUE_GELU_BIAS, 36)                                 \
  X(cublasLtEpilogue_t, CUBLASLT_EPILOGUE_GELU_AUX, 160)                                 \
  X(cublasLtEpilogue_t, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, 164)                            \
  X(cublasLtEpilogue_t, CUBLASLT_EPILOGUE_BGRADA, 256)                                   \
  X(cublasLtMatmulDescAttributes_t, CUBLASLT_MATMUL_DESC_TRANSA, 3)                      \
  X(cublasLtMatmulDescAttributes_t, CUBLASLT_MATMUL_DESC_TRANSB, 4)                      \
  X(cublasLtMatmulDescAttributes_t, CUBLASLT_MATMUL_DESC_EPILOGUE, 7)                    \
  X(cublasLtMatmulDescAttributes_t, CUBLASLT_MATMUL_DESC_BIAS_POINTER, 8)                \
  X(cublasLtMatmulDescAttributes_t, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, 11)       \
  X(cublasLtMatmulDescAttributes_t, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 12)            \
  X(cublasLtMatmulDescAttributes_t, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, 17)            \
  X(cublasLtMatmulDescAttributes_t, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, 18)            \
  X(cublasLtMatmulDescAttributes_t, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, 31)               \
  X(cublasLtMatmulDescAttributes_t, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, 32)               \
  X(cublasLtMatmulMatrixScale_t, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F, 3)          \
  X(cublasLtMatrixLayoutAttribute_t, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 5)              \
  X(cublasLtMatrixLayoutAttribute_t, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 6)     \
  X(cublasLtMatmulPreferenceAttributes_t, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 1)   \
  X(cublasLtMatmulPreferenceAttributes_t, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 3) \
  X(cublasLtMatmulPreferenceAttributes_t, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 5) \
  X(cublasLtMatmulPreferenceAttributes_t, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 6) \
  X(cublasLtMatmulPreferenceAttributes_t, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 7) \
  X(cublasLtMatmulPreferenceAttributes_t, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 8) \
  X(cublasLtReductionScheme_t, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 2)                \
  X(cublasLtMatmulAlgoConfigAttributes_t, CUBLASLT_ALGO_CONFIG_ID, 0)

/* X(result, name, arguments) */
#define TFU_CUBLASLT_FUNCTIONS(X)                                                                                    \
  X(size_t, cublasLtGetVersion, (void))                                                                              \
  X(const char *, cublasLtGetStatusName, (cublasStatus_t))                                                           \
  X(cublasStatus_t, cublasLtCreate, (cublasLtHandle_t *))                                                            \
  X(cublasStatus_t, cublasLtMatmulDescCreate, (cublasLtMatmulDesc_t *, cublasComputeType_t, cudaDataType_t))         \
  X(cublasStatus_t, cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t))                                               \
  X(cublasStatus_t, cublasLtMatmulDescSetAttribute,                                                                  \
    (cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void *, size_t))                                    \
  X(cublasStatus_t, cublasLtMatrixLayoutCreate,                                                                      \
    (cublasLtMatrixLayout_t *, cudaDataType_t, uint64_t, uint64_t, int64_t))                                         \
  X(cublasStatus_t, cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t))                                           \
  X(cublasStatus_t, cublasLtMatrixLayoutSetAttribute,                                                                \
    (cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t, const void *, size_t))                                 \
  X(cublasStatus_t, cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t *))                                  \
  X(cublasStatus_t, cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t))                                   \
  X(cublasStatus_t, cublasLtMatmulPreferenceSetAttribute,                                                            \
    (cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void *, size_t))                        \
  X(cublasStatus_t, cublasLtMatmulAlgoGetHeuristic,                                                                  \
    (cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, \
     cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t *, int *))             \
  X(cublasStatus_t, cublasLtMatmulAlgoCheck,                                                                         \
    (cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, \
     cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t *, cublasLtMatmulHeuristicResult_t *))                       \
  X(cublasStatus_t, cublasLtMatmulAlgoConfigGetAttribute,                                                            \
    (const cublasLtMatmulAlgo_t *, cublasLtMatmulAlgoConfigAttributes_t, void *, size_t, size_t *))                  \
  X(cublasStatus_t, cublasLtMatmul,                                                                                  \
    (cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *, cublasLtMatrixLayout_t, const void *,       \
     cublasLtMatrixLayout_t, const void *, const void *, cublasLtMatrixLayout_t, void *, cublasLtMatrixLayout_t,     \
     const cublasLtMatmulAlgo_t *, void *, size_t, cudaStream_t))

#ifndef TFU_CUBLASLT_HEADERS
/* cuBLASLt's enums are unsigned int to the compiler, as these are. */
typedef unsigned cublasStatus_t, cublasComputeType_t, cublasOperation_t, cudaDataType_t, cublasLtEpilogue_t,
    cublasLtMatmulDescAttributes_t, cublasLtMatrixLayoutAttribute_t, cublasLtMatmulPreferenceAttributes_t,
    cublasLtReductionScheme_t, cublasLtMatmulAlgoConfigAttributes_t, cublasLtMatmulMatrixScale_t;
typedef struct cublasLtContext *cublasLtHandle_t;
typedef struct tfu_matmul_desc *cublasLtMatmulDesc_t;
typedef struct tfu_matrix_layout *cublasLtMatrixLayout_t;
typedef struct tfu_matmul_preference *cublasLtMatmulPreference_t;
typedef struct CUstream_st *cudaStream_t; /* C11 lets cudnn_api.h say so too */
/* May be kept, and used again with the same version of the library. */
typedef struct cublasLtMatmulAlgo_t {
  uint64_t data[8];
} cublasLtMatmulAlgo_t;
typedef struct cublasLtMatmulHeuristicResult_t {
  cublasLtMatmulAlgo_t algo;
  size_t workspaceSize;
  cublasStatus_t state;
  float wavesCount;
  int reserved[4];
} cublasLtMatmulHeuristicResult_t;

enum {
#define X(type, name, value) name = value,
  TFU_CUBLASLT_CONSTANTS(X)
#undef X
};
#endif

#endif
