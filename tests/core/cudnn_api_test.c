/* cudnn_api_test.c - our declarations of cuDNN against its own headers. Compiling is the test; where the headers are
 * not installed it says so and passes. */
#include <stdio.h>

#if defined(__has_include)
#if __has_include(<cudnn_graph.h>) && __has_include(<cudnn_adv.h>) && __has_include(<cuda_runtime_api.h>)
#include <cudnn_adv.h>
#include <cudnn_graph.h>
#define TFU_CUDNN_HEADERS
#endif
#endif

#include "kernels/core/nvidia/cudnn_rnn_api.h"

#ifdef TFU_CUDNN_HEADERS
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

#define X(type, name, value)                \
  _Static_assert((name) == (value), #name); \
  _Static_assert(sizeof(type) == sizeof(unsigned) && (type)-1 > (type)0, #type " is an unsigned int");
TFU_CUDNN_CONSTANTS(X)
TFU_CUDNN_RNN_CONSTANTS(X)
#undef X
_Static_assert(CUDNN_RNN_PADDED_IO_ENABLED == TFU_CUDNN_PADDED_IO, "CUDNN_RNN_PADDED_IO_ENABLED");

#define X(result, name, arguments) \
  _Static_assert(__builtin_types_compatible_p(__typeof__(name), result arguments), #name);
TFU_CUDNN_FUNCTIONS(X)
TFU_CUDNN_RNN_FUNCTIONS(X)
#undef X

_Static_assert(sizeof(cudnnHandle_t) == sizeof(void *) && sizeof(cudnnBackendDescriptor_t) == sizeof(void *) &&
                   sizeof(cudaStream_t) == sizeof(void *),
               "handles are pointers");

int main(void) {
  printf("all right: compared with the headers of cuDNN %d.%d.%d\n", CUDNN_MAJOR, CUDNN_MINOR, CUDNN_PATCHLEVEL);
  return 0;
}
#else
int main(void) {
  puts("SKIPPED: the headers of cuDNN (cudnn_graph.h, cudnn_adv.h) are not installed, nothing was compared");
  return 0;
}
#endif
