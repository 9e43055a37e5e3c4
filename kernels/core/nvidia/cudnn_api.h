/* cudnn_api.h - what we use of cuDNN 9, declared by us: its own headers come in a wheel of half a gigabyte, and the
 * library is opened at run time. tests/core/cudnn_api_test.c compares all of it with those headers where they are
 * installed; to that end it defines TFU_CUDNN_HEADERS and gives the types itself. */
#ifndef TFUSE_CUDNN_API_H_
#define TFUSE_CUDNN_API_H_

#include <stddef.h>
#include <stdint.h>

/* The attributes of a convolution and of its gradients: the same ones in the same order, of which some are called D….
 */
#define TFU_CUDNN_CONVOLUTION(X, kind, first, dw, dx, dy)                                        \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_OPERATION_CONVOLUTION_##kind##_ALPHA, first)         \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_OPERATION_CONVOLUTION_##kind##_BETA, first + 1)      \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_OPERATION_CONVOLUTION_##kind##_CONV_DESC, first + 2) \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_OPERATION_CONVOLUTION_##kind##_##dw##W, first + 3)   \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_OPERATION_CONVOLUTION_##kind##_##dx##X, first + 4)   \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_OPERATION_CONVOLUTION_##kind##_##dy##Y, first + 5)

/* X(type, name, value) */
#define TFU_CUDNN_CONSTANTS(X)                                                                        \
  X(cudnnStatus_t, CUDNN_STATUS_SUCCESS, 0)                                                           \
  X(cudnnDataType_t, CUDNN_DATA_FLOAT, 0)                                                             \
  X(cudnnDataType_t, CUDNN_DATA_DOUBLE, 1)                                                            \
  X(cudnnDataType_t, CUDNN_DATA_HALF, 2)                                                              \
  X(cudnnDataType_t, CUDNN_DATA_INT32, 4)                                                             \
  X(cudnnDataType_t, CUDNN_DATA_BFLOAT16, 9)                                                          \
  X(cudnnDataType_t, CUDNN_DATA_BOOLEAN, 11)                                                          \
  X(cudnnReduceTensorOp_t, CUDNN_REDUCE_TENSOR_ADD, 0)                                                \
  X(cudnnReduceTensorOp_t, CUDNN_REDUCE_TENSOR_MAX, 3)                                                \
  X(cudnnPointwiseMode_t, CUDNN_POINTWISE_ADD, 0)                                                     \
  X(cudnnPointwiseMode_t, CUDNN_POINTWISE_MUL, 1)                                                     \
  X(cudnnPointwiseMode_t, CUDNN_POINTWISE_DIV, 6)                                                     \
  X(cudnnPointwiseMode_t, CUDNN_POINTWISE_SUB, 9)                                                     \
  X(cudnnPointwiseMode_t, CUDNN_POINTWISE_EXP, 13)                                                    \
  X(cudnnPointwiseMode_t, CUDNN_POINTWISE_LOG, 15)                                                    \
  X(cudnnPointwiseMode_t, CUDNN_POINTWISE_IDENTITY, 21)                                               \
  X(cudnnPointwiseMode_t, CUDNN_POINTWISE_RELU_FWD, 100)                                              \
  X(cudnnPointwiseMode_t, CUDNN_POINTWISE_CMP_GT, 302)                                                \
  X(cudnnPointwiseMode_t, CUDNN_POINTWISE_CMP_GE, 303)                                                \
  X(cudnnPointwiseMode_t, CUDNN_POINTWISE_CMP_LT, 304)                                                \
  X(cudnnPointwiseMode_t, CUDNN_POINTWISE_LOGICAL_AND, 400)                                           \
  X(cudnnPointwiseMode_t, CUDNN_POINTWISE_GEN_INDEX, 501)                                             \
  X(cudnnPointwiseMode_t, CUDNN_POINTWISE_BINARY_SELECT, 601)                                         \
  X(cudnnConvolutionMode_t, CUDNN_CROSS_CORRELATION, 1)                                               \
  X(cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TENSOR_CORE, 0)                                 \
  X(cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS, 1)                         \
  X(cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION, 2)                 \
  X(cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_FFT, 3)                                         \
  X(cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, 4)                            \
  X(cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_WINOGRAD, 5)                                    \
  X(cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4, 6)                           \
  X(cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6, 7)                           \
  X(cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13, 8)                         \
  X(cudnnBackendBehaviorNote_t, CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION, 0)                           \
  X(cudnnBackendHeurMode_t, CUDNN_HEUR_MODE_FALLBACK, 2)                                              \
  X(cudnnBackendHeurMode_t, CUDNN_HEUR_MODE_A, 3)                                                     \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_POINTWISE_MODE, 0)                                        \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_POINTWISE_MATH_PREC, 1)                                   \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_POINTWISE_AXIS, 9)                                        \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, 100)                               \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_CONVOLUTION_CONV_MODE, 101)                               \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_CONVOLUTION_DILATIONS, 102)                               \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, 103)                          \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, 104)                           \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, 105)                            \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 106)                            \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_ENGINEHEUR_MODE, 200)                                     \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, 201)                          \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_ENGINEHEUR_RESULTS, 202)                                  \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, 204)                               \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_ENGINECFG_ENGINE, 300)                                    \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, 400)                               \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, 401)                        \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, 402)                       \
  TFU_CUDNN_CONVOLUTION(X, FORWARD, 700, , , )                                                        \
  TFU_CUDNN_CONVOLUTION(X, BWD_DATA, 706, , D, D)                                                     \
  TFU_CUDNN_CONVOLUTION(X, BWD_FILTER, 712, D, , D)                                                   \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, 750)                   \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, 751)                           \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, 752)                           \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, 753)                           \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, 758)                           \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, 800)                               \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_OPERATIONGRAPH_OPS, 801)                                  \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 900)                               \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_TENSOR_DATA_TYPE, 901)                                    \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_TENSOR_DIMENSIONS, 902)                                   \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_TENSOR_STRIDES, 903)                                      \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_TENSOR_UNIQUE_ID, 906)                                    \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, 907)                                   \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, 908)                                  \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, 1000)                            \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, 1001)                         \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, 1003)                             \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, 1301)                                \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, 1303)                              \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, 1305)                               \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_MATMUL_COMP_TYPE, 1500)                                   \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_OPERATION_MATMUL_ADESC, 1520)                             \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_OPERATION_MATMUL_BDESC, 1521)                             \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_OPERATION_MATMUL_CDESC, 1522)                             \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_OPERATION_MATMUL_DESC, 1523)                              \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, 1525)              \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, 1526)              \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, 1527)              \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_REDUCTION_OPERATOR, 1600)                                 \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_REDUCTION_COMP_TYPE, 1601)                                \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, 1610)                          \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, 1611)                          \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_OPERATION_REDUCTION_DESC, 1612)                           \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, 2200)                            \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, 2201)                            \
  X(cudnnBackendAttributeName_t, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, 2702)                     \
  X(cudnnBackendAttributeType_t, CUDNN_TYPE_HANDLE, 0)                                                \
  X(cudnnBackendAttributeType_t, CUDNN_TYPE_DATA_TYPE, 1)                                             \
  X(cudnnBackendAttributeType_t, CUDNN_TYPE_BOOLEAN, 2)                                               \
  X(cudnnBackendAttributeType_t, CUDNN_TYPE_INT64, 3)                                                 \
  X(cudnnBackendAttributeType_t, CUDNN_TYPE_FLOAT, 4)                                                 \
  X(cudnnBackendAttributeType_t, CUDNN_TYPE_DOUBLE, 5)                                                \
  X(cudnnBackendAttributeType_t, CUDNN_TYPE_VOID_PTR, 6)                                              \
  X(cudnnBackendAttributeType_t, CUDNN_TYPE_CONVOLUTION_MODE, 7)                                      \
  X(cudnnBackendAttributeType_t, CUDNN_TYPE_HEUR_MODE, 8)                                             \
  X(cudnnBackendAttributeType_t, CUDNN_TYPE_NUMERICAL_NOTE, 11)                                       \
  X(cudnnBackendAttributeType_t, CUDNN_TYPE_POINTWISE_MODE, 14)                                       \
  X(cudnnBackendAttributeType_t, CUDNN_TYPE_BACKEND_DESCRIPTOR, 15)                                   \
  X(cudnnBackendAttributeType_t, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 18)                              \
  X(cudnnBackendAttributeType_t, CUDNN_TYPE_BEHAVIOR_NOTE, 19)                                        \
  X(cudnnBackendAttributeType_t, CUDNN_TYPE_CHAR, 24)                                                 \
  X(cudnnBackendDescriptorType_t, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, 0)                              \
  X(cudnnBackendDescriptorType_t, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, 1)                            \
  X(cudnnBackendDescriptorType_t, CUDNN_BACKEND_ENGINE_DESCRIPTOR, 2)                                 \
  X(cudnnBackendDescriptorType_t, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, 3)                              \
  X(cudnnBackendDescriptorType_t, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, 4)                             \
  X(cudnnBackendDescriptorType_t, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, 5)                         \
  X(cudnnBackendDescriptorType_t, CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, 10)         \
  X(cudnnBackendDescriptorType_t, CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, 11) \
  X(cudnnBackendDescriptorType_t, CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, 12)   \
  X(cudnnBackendDescriptorType_t, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, 13)                   \
  X(cudnnBackendDescriptorType_t, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, 15)                        \
  X(cudnnBackendDescriptorType_t, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, 16)                          \
  X(cudnnBackendDescriptorType_t, CUDNN_BACKEND_TENSOR_DESCRIPTOR, 17)                                \
  X(cudnnBackendDescriptorType_t, CUDNN_BACKEND_MATMUL_DESCRIPTOR, 18)                                \
  X(cudnnBackendDescriptorType_t, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, 19)                      \
  X(cudnnBackendDescriptorType_t, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, 21)                             \
  X(cudnnBackendDescriptorType_t, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, 22)                   \
  X(cudnnBackendDescriptorType_t, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, 31)                     \
  X(cudnnBackendDescriptorType_t, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, 38)

/* X(result, name, arguments) */
#define TFU_CUDNN_FUNCTIONS(X)                                                                                        \
  X(size_t, cudnnGetVersion, (void))                                                                                  \
  X(const char *, cudnnGetErrorString, (cudnnStatus_t))                                                               \
  X(void, cudnnGetLastErrorString, (char *, size_t))                                                                  \
  X(cudnnStatus_t, cudnnCreate, (cudnnHandle_t *))                                                                    \
  X(cudnnStatus_t, cudnnSetStream, (cudnnHandle_t, cudaStream_t))                                                     \
  X(cudnnStatus_t, cudnnBackendCreateDescriptor, (cudnnBackendDescriptorType_t, cudnnBackendDescriptor_t *))          \
  X(cudnnStatus_t, cudnnBackendDestroyDescriptor, (cudnnBackendDescriptor_t))                                         \
  X(cudnnStatus_t, cudnnBackendFinalize, (cudnnBackendDescriptor_t))                                                  \
  X(cudnnStatus_t, cudnnBackendSetAttribute,                                                                          \
    (cudnnBackendDescriptor_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, int64_t, const void *))      \
  X(cudnnStatus_t, cudnnBackendGetAttribute,                                                                          \
    (cudnnBackendDescriptor_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, int64_t, int64_t *, void *)) \
  X(cudnnStatus_t, cudnnBackendExecute, (cudnnHandle_t, cudnnBackendDescriptor_t, cudnnBackendDescriptor_t))

#ifndef TFU_CUDNN_HEADERS
/* cuDNN's enums are unsigned int to the compiler, as these are. */
typedef unsigned cudnnStatus_t, cudnnDataType_t, cudnnReduceTensorOp_t, cudnnPointwiseMode_t, cudnnConvolutionMode_t,
    cudnnBackendNumericalNote_t, cudnnBackendBehaviorNote_t, cudnnBackendHeurMode_t, cudnnBackendAttributeName_t,
    cudnnBackendAttributeType_t, cudnnBackendDescriptorType_t;
typedef struct cudnnContext *cudnnHandle_t;
typedef void *cudnnBackendDescriptor_t;
typedef struct CUstream_st *cudaStream_t;

enum {
#define X(type, name, value) name = value,
  TFU_CUDNN_CONSTANTS(X)
#undef X
};
#endif

#endif
