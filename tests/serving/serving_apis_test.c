/* serving_apis_test.c - our declarations of TensorFlow's C API and of Triton's backend API against their own headers.
 * Compiling is the test; where Triton's headers are not installed it says so. */
#include <stdio.h>

#include "tensorflow/c/c_api.h"
#include "tensorflow/c/tf_tstring.h"
#define TFU_TENSORFLOW_HEADERS
#include "serving/tensorflow.h"

#define X(result, name, arguments) \
  _Static_assert(__builtin_types_compatible_p(__typeof__(name), result arguments), #name);
TFU_TENSORFLOW_FUNCTIONS(X)
#undef X
_Static_assert(sizeof(TF_TString) == 24, "a string's size");
_Static_assert(sizeof(TF_Output) == 16 && offsetof(TF_Output, index) == 8, "an output's layout");
_Static_assert((TF_DataType)-1 > 0 && sizeof(TF_DataType) == 4 && sizeof(TF_Code) == 4, "enums are unsigned ints");
#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #theirs);
#define DTYPE(name) SAME(TFU_TF_##name, TF_##name)
DTYPE(FLOAT)
DTYPE(DOUBLE)
DTYPE(INT32)
DTYPE(UINT8)
DTYPE(INT16)
DTYPE(INT8)
DTYPE(STRING)
DTYPE(INT64)
DTYPE(BOOL)
DTYPE(BFLOAT16)
DTYPE(UINT16)
DTYPE(HALF)
DTYPE(UINT32)
DTYPE(UINT64)
SAME(TFU_INVALID, TF_INVALID_ARGUMENT)
SAME(TFU_EXHAUSTED, TF_RESOURCE_EXHAUSTED)

#if __has_include(<triton/core/tritonbackend.h>)
/* Read as C, these headers lack typedefs. */
#define STRUCTS(X)                                                                                                    \
  X(BACKEND_Backend)                                                                                                  \
  X(BACKEND_BackendAttribute)                                                                                         \
  X(BACKEND_Batcher)                                                                                                  \
  X(BACKEND_Input)                                                                                                    \
  X(BACKEND_MemoryManager) X(BACKEND_Model) X(BACKEND_ModelInstance) X(BACKEND_ModelInstanceResponseStatistics)       \
      X(BACKEND_Output) X(BACKEND_Request) X(BACKEND_Response) X(BACKEND_ResponseFactory) X(BACKEND_State)            \
          X(SERVER_BufferAttributes) X(SERVER_Error) X(SERVER_InferenceRequest) X(SERVER_InferenceResponse)           \
              X(SERVER_InferenceTrace) X(SERVER_Message) X(SERVER_Metric) X(SERVER_MetricArgs) X(SERVER_MetricFamily) \
                  X(SERVER_Metrics) X(SERVER_Parameter) X(SERVER_ResponseAllocator) X(SERVER_Server)                  \
                      X(SERVER_ServerOptions)
#define X(name) typedef struct TRITON##name TRITON##name;
STRUCTS(X)
#undef X
#include <stdbool.h>
#include <triton/core/tritonbackend.h>
#define TFU_TRITON_HEADERS
#include "serving/triton/triton_api.h"
#define X(result, name, arguments) \
  _Static_assert(__builtin_types_compatible_p(__typeof__(name), result arguments), #name);
TFU_TRITON_FUNCTIONS(X)
TFU_TRITON_ENTRIES(X)
#undef X
#define X(name, value) _Static_assert((int)(name) == (value), #name);
TFU_TRITON_CONSTANTS(X)
#undef X
#define TRITON "and of Triton's backend API"
#else
#define TRITON "; Triton's headers are not installed, and nothing was compared with them"
#endif

int main(void) {
  puts("all right: compared with the headers of TensorFlow " TRITON);
  return 0;
}
