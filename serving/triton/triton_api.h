/* triton_api.h - what is called of Triton's backend API, major version 1. The server that loads the backend has it;
 * nothing is linked. Triton's own headers declare the same; tests/serving/serving_apis_test.c compares where they are
 * installed. */
#ifndef TFUSE_TRITON_API_H_
#define TFUSE_TRITON_API_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef TFU_TRITON_HEADERS
typedef struct TRITONSERVER_Error TRITONSERVER_Error;
typedef struct TRITONSERVER_Message TRITONSERVER_Message;
typedef struct TRITONBACKEND_Backend TRITONBACKEND_Backend;
typedef struct TRITONBACKEND_Input TRITONBACKEND_Input;
typedef struct TRITONBACKEND_Model TRITONBACKEND_Model;
typedef struct TRITONBACKEND_ModelInstance TRITONBACKEND_ModelInstance;
typedef struct TRITONBACKEND_Output TRITONBACKEND_Output;
typedef struct TRITONBACKEND_Request TRITONBACKEND_Request;
typedef struct TRITONBACKEND_Response TRITONBACKEND_Response;

typedef unsigned TRITONBACKEND_ArtifactType; /* enums */
typedef unsigned TRITONSERVER_DataType;
typedef unsigned TRITONSERVER_Error_Code;
typedef unsigned TRITONSERVER_InstanceGroupKind;
typedef unsigned TRITONSERVER_MemoryType;
#endif

/* Values of its enums, in all releases; that of CANCELLED came with TRITONBACKEND_RequestIsCancelled. */
#define TFU_TRITON_CONSTANTS(X)              \
  X(TRITONSERVER_ERROR_INTERNAL, 1)          \
  X(TRITONSERVER_ERROR_NOT_FOUND, 2)         \
  X(TRITONSERVER_ERROR_INVALID_ARG, 3)       \
  X(TRITONSERVER_ERROR_UNAVAILABLE, 4)       \
  X(TRITONSERVER_ERROR_UNSUPPORTED, 5)       \
  X(TRITONSERVER_ERROR_CANCELLED, 7)         \
  X(TRITONSERVER_MEMORY_CPU, 0)              \
  X(TRITONSERVER_MEMORY_CPU_PINNED, 1)       \
  X(TRITONSERVER_MEMORY_GPU, 2)              \
  X(TRITONSERVER_INSTANCEGROUPKIND_GPU, 2)   \
  X(TRITONSERVER_REQUEST_RELEASE_ALL, 1)     \
  X(TRITONSERVER_RESPONSE_COMPLETE_FINAL, 1) \
  X(TRITONBACKEND_ARTIFACT_FILESYSTEM, 0)    \
  X(TRITONSERVER_TYPE_BOOL, 1)               \
  X(TRITONSERVER_TYPE_UINT8, 2)              \
  X(TRITONSERVER_TYPE_UINT16, 3)             \
  X(TRITONSERVER_TYPE_UINT32, 4)             \
  X(TRITONSERVER_TYPE_UINT64, 5)             \
  X(TRITONSERVER_TYPE_INT8, 6)               \
  X(TRITONSERVER_TYPE_INT16, 7)              \
  X(TRITONSERVER_TYPE_INT32, 8)              \
  X(TRITONSERVER_TYPE_INT64, 9)              \
  X(TRITONSERVER_TYPE_FP16, 10)              \
  X(TRITONSERVER_TYPE_FP32, 11)              \
  X(TRITONSERVER_TYPE_FP64, 12)              \
  X(TRITONSERVER_TYPE_BYTES, 13)             \
  X(TRITONSERVER_TYPE_BF16, 14)

#define TFU_TRITON_FUNCTIONS(X)                                                                                        \
  X(TRITONSERVER_Error *, TRITONSERVER_ErrorNew, (TRITONSERVER_Error_Code, const char *))                              \
  X(void, TRITONSERVER_ErrorDelete, (TRITONSERVER_Error *))                                                            \
  X(const char *, TRITONSERVER_ErrorMessage, (TRITONSERVER_Error *))                                                   \
  X(TRITONSERVER_Error *, TRITONSERVER_MessageNewFromSerializedJson, (TRITONSERVER_Message **, const char *, size_t))  \
  X(TRITONSERVER_Error *, TRITONSERVER_MessageSerializeToJson, (TRITONSERVER_Message *, const char **, size_t *))      \
  X(TRITONSERVER_Error *, TRITONSERVER_MessageDelete, (TRITONSERVER_Message *))                                        \
  X(TRITONSERVER_Error *, TRITONBACKEND_ApiVersion, (uint32_t *, uint32_t *))                                          \
  X(TRITONSERVER_Error *, TRITONBACKEND_BackendConfig, (TRITONBACKEND_Backend *, TRITONSERVER_Message **))             \
  X(TRITONSERVER_Error *, TRITONBACKEND_ModelBackend, (TRITONBACKEND_Model *, TRITONBACKEND_Backend **))               \
  X(TRITONSERVER_Error *, TRITONBACKEND_ModelConfig, (TRITONBACKEND_Model *, uint32_t, TRITONSERVER_Message **))       \
  X(TRITONSERVER_Error *, TRITONBACKEND_ModelAutoCompleteConfig, (TRITONBACKEND_Model *, bool *))                      \
  X(TRITONSERVER_Error *, TRITONBACKEND_ModelSetConfig, (TRITONBACKEND_Model *, uint32_t, TRITONSERVER_Message *))     \
  X(TRITONSERVER_Error *, TRITONBACKEND_ModelRepository,                                                               \
    (TRITONBACKEND_Model *, TRITONBACKEND_ArtifactType *, const char **))                                              \
  X(TRITONSERVER_Error *, TRITONBACKEND_ModelVersion, (TRITONBACKEND_Model *, uint64_t *))                             \
  X(TRITONSERVER_Error *, TRITONBACKEND_ModelState, (TRITONBACKEND_Model *, void **))                                  \
  X(TRITONSERVER_Error *, TRITONBACKEND_ModelSetState, (TRITONBACKEND_Model *, void *))                                \
  X(TRITONSERVER_Error *, TRITONBACKEND_ModelInstanceKind,                                                             \
    (TRITONBACKEND_ModelInstance *, TRITONSERVER_InstanceGroupKind *))                                                 \
  X(TRITONSERVER_Error *, TRITONBACKEND_ModelInstanceDeviceId, (TRITONBACKEND_ModelInstance *, int32_t *))             \
  X(TRITONSERVER_Error *, TRITONBACKEND_ModelInstanceModel, (TRITONBACKEND_ModelInstance *, TRITONBACKEND_Model **))   \
  X(TRITONSERVER_Error *, TRITONBACKEND_ModelInstanceState, (TRITONBACKEND_ModelInstance *, void **))                  \
  X(TRITONSERVER_Error *, TRITONBACKEND_ModelInstanceSetState, (TRITONBACKEND_ModelInstance *, void *))                \
  X(TRITONSERVER_Error *, TRITONBACKEND_ModelInstanceReportStatistics,                                                 \
    (TRITONBACKEND_ModelInstance *, TRITONBACKEND_Request *, bool, uint64_t, uint64_t, uint64_t, uint64_t))            \
  X(TRITONSERVER_Error *, TRITONBACKEND_ModelInstanceReportBatchStatistics,                                            \
    (TRITONBACKEND_ModelInstance *, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t))                                 \
  X(TRITONSERVER_Error *, TRITONBACKEND_RequestInput, (TRITONBACKEND_Request *, const char *, TRITONBACKEND_Input **)) \
  X(TRITONSERVER_Error *, TRITONBACKEND_RequestOutputCount, (TRITONBACKEND_Request *, uint32_t *))                     \
  X(TRITONSERVER_Error *, TRITONBACKEND_RequestOutputName, (TRITONBACKEND_Request *, uint32_t, const char **))         \
  X(TRITONSERVER_Error *, TRITONBACKEND_RequestRelease, (TRITONBACKEND_Request *, uint32_t))                           \
  X(TRITONSERVER_Error *, TRITONBACKEND_InputProperties,                                                               \
    (TRITONBACKEND_Input *, const char **, TRITONSERVER_DataType *, const int64_t **, uint32_t *, uint64_t *,          \
     uint32_t *))                                                                                                      \
  X(TRITONSERVER_Error *, TRITONBACKEND_InputBuffer,                                                                   \
    (TRITONBACKEND_Input *, uint32_t, const void **, uint64_t *, TRITONSERVER_MemoryType *, int64_t *))                \
  X(TRITONSERVER_Error *, TRITONBACKEND_ResponseNew, (TRITONBACKEND_Response **, TRITONBACKEND_Request *))             \
  X(TRITONSERVER_Error *, TRITONBACKEND_ResponseOutput,                                                                \
    (TRITONBACKEND_Response *, TRITONBACKEND_Output **, const char *, TRITONSERVER_DataType, const int64_t *,          \
     uint32_t))                                                                                                        \
  X(TRITONSERVER_Error *, TRITONBACKEND_OutputBuffer,                                                                  \
    (TRITONBACKEND_Output *, void **, uint64_t, TRITONSERVER_MemoryType *, int64_t *))                                 \
  X(TRITONSERVER_Error *, TRITONBACKEND_ResponseSend, (TRITONBACKEND_Response *, uint32_t, TRITONSERVER_Error *))

/* What later releases have: NULL where a server does not. */
#define TFU_TRITON_LATER_FUNCTIONS(X) \
  X(TRITONSERVER_Error *, TRITONBACKEND_RequestIsCancelled, (TRITONBACKEND_Request *, bool *))

/* What the server calls of a backend. */
#define TFU_TRITON_ENTRIES(X)                                                                     \
  X(TRITONSERVER_Error *, TRITONBACKEND_Initialize, (TRITONBACKEND_Backend *))                    \
  X(TRITONSERVER_Error *, TRITONBACKEND_ModelInitialize, (TRITONBACKEND_Model *))                 \
  X(TRITONSERVER_Error *, TRITONBACKEND_ModelFinalize, (TRITONBACKEND_Model *))                   \
  X(TRITONSERVER_Error *, TRITONBACKEND_ModelInstanceInitialize, (TRITONBACKEND_ModelInstance *)) \
  X(TRITONSERVER_Error *, TRITONBACKEND_ModelInstanceFinalize, (TRITONBACKEND_ModelInstance *))   \
  X(TRITONSERVER_Error *, TRITONBACKEND_ModelInstanceExecute,                                     \
    (TRITONBACKEND_ModelInstance *, TRITONBACKEND_Request **, uint32_t))

#ifndef TFU_TRITON_HEADERS
#pragma GCC visibility push(default)
#define X(result, name, arguments) result name arguments;
TFU_TRITON_FUNCTIONS(X)
TFU_TRITON_ENTRIES(X)
#undef X
#define X(result, name, arguments) __attribute__((weak)) result name arguments;
TFU_TRITON_LATER_FUNCTIONS(X)
#undef X
#pragma GCC visibility pop
#define X(name, value) name = value,
enum { TFU_TRITON_CONSTANTS(X) };
#undef X
#endif

#endif
