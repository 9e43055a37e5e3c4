/* cublaslt_api_test.c - our declarations of cuBLASLt against its own headers. Compiling is the test; where the headers
 * are not installed it says so and passes. */
#include <stdio.h>

#if defined(__has_include)
#if __has_include(<cublasLt.h>) && __has_include(<cuda_runtime_api.h>)
#include <cublasLt.h>
#define TFU_CUBLASLT_HEADERS
#endif
#endif

#include "kernels/core/nvidia/cublaslt_api.h"

#ifdef TFU_CUBLASLT_HEADERS
#define X(type, name, value)                          \
  _Static_assert((int)(name) == (int)(value), #name); \
  _Static_assert(sizeof(type) == sizeof(unsigned) && (type)-1 > (type)0, #type " is an unsigned int");
TFU_CUBLASLT_CONSTANTS(X)
#undef X

#define X(result, name, arguments) \
  _Static_assert(__builtin_types_compatible_p(__typeof__(name), result arguments), #name);
TFU_CUBLASLT_FUNCTIONS(X)
#undef X

/* Ours, as the library lays it out. */
struct ours {
  uint64_t algo[8];
  size_t workspace;
  unsigned state;
  float waves;
  int reserved[4];
};
_Static_assert(sizeof(cublasLtMatmulAlgo_t) == 64, "the algorithm");
_Static_assert(sizeof(cublasLtMatmulHeuristicResult_t) == sizeof(struct ours) &&
                   offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize) == offsetof(struct ours, workspace) &&
                   offsetof(cublasLtMatmulHeuristicResult_t, state) == offsetof(struct ours, state),
               "what the heuristics return");
_Static_assert(sizeof(cublasLtHandle_t) == sizeof(void *) && sizeof(cublasLtMatmulDesc_t) == sizeof(void *) &&
                   sizeof(cublasLtMatrixLayout_t) == sizeof(void *) && sizeof(cudaStream_t) == sizeof(void *),
               "handles are pointers");

int main(void) {
  printf("all right: compared with the headers of cuBLAS %d.%d.%d\n", CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR,
         CUBLAS_VER_PATCH);
  return 0;
}
#else
int main(void) {
  puts("SKIPPED: the headers of cuBLASLt (cublasLt.h) are not installed, nothing was compared");
  return 0;
}
#endif
