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
typedef struct TRITONBACKEND_Backend TRITONBACKEND_Backend;
typedef struct TRITONBACKEND_BackendAttribute TRITONBACKEND_BackendAttribute;
typedef struct TRITONBACKEND_Batcher TRITONBACKEND_Batcher;
typedef struct TRITONBACKEND_Input TRITONBACKEND_Input;
typedef struct TRITONBACKEND_MemoryManager TRITONBACKEND_MemoryManager;
typedef struct TRITONBACKEND_Model TRITONBACKEND_Model;
typedef struct TRITONBACKEND_ModelInstance TRITONBACKEND_ModelInstance;
typedef struct TRITONBACKEND_ModelInstanceResponseStatistics TRITONBACKEND_ModelInstanceResponseStatistics;
typedef struct TRITONBACKEND_Output TRITONBACKEND_Output;
typedef struct TRITONBACKEND_Request TRITONBACKEND_Request;
typedef struct TRITONBACKEND_Response TRITONBACKEND_Response;
typedef struct TRITONBACKEND_ResponseFactory TRITONBACKEND_ResponseFactory;
typedef struct TRITONBACKEND_State TRITONBACKEND_State;
typedef struct TRITONSERVER_BufferAttributes TRITONSERVER_BufferAttributes;
typedef struct TRITONSERVER_Error TRITONSERVER_Error;
typedef struct TRITONSERVER_InferenceRequest TRITONSERVER_InferenceRequest;
typedef struct TRITONSERVER_InferenceResponse TRITONSERVER_InferenceResponse;
typedef struct TRITONSERVER_InferenceTrace TRITONSERVER_InferenceTrace;
typedef struct TRITONSERVER_Message TRITONSERVER_Message;
typedef struct TRITONSERVER_Metric TRITONSERVER_Metric;
typedef struct TRITONSERVER_MetricArgs TRITONSERVER_MetricArgs;
typedef struct TRITONSERVER_MetricFamily TRITONSERVER_MetricFamily;
typedef struct TRITONSERVER_Metrics TRITONSERVER_Metrics;
typedef struct TRITONSERVER_Parameter TRITONSERVER_Parameter;
typedef struct TRITONSERVER_ResponseAllocator TRITONSERVER_ResponseAllocator;
typedef struct TRITONSERVER_Server TRITONSERVER_Server;
typedef struct TRITONSERVER_ServerOptions TRITONSERVER_ServerOptions;
#include <stdbool.h>
#include <triton/core/tritonbackend.h>
#define TFU_TRITON_HEADERS
#include "serving/triton/triton_api.h"
#define X(result, name, arguments) \
  _Static_assert(__builtin_types_compatible_p(__typeof__(name), result arguments), #name);
TFU_TRITON_FUNCTIONS(X)
TFU_TRITON_LATER_FUNCTIONS(X)
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
