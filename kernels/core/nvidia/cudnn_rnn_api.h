/* cudnn_rnn_api.h - what we use of cuDNN's recurrent layers, declared by us, beside cudnn_api.h;
 * tests/core/cudnn_api_test.c compares it with cuDNN's headers where they are installed. */
#ifndef TFUSE_CUDNN_RNN_API_H_
#define TFUSE_CUDNN_RNN_API_H_

#include "kernels/core/nvidia/cudnn_api.h"

/* X(type, name, value) */
#define TFU_CUDNN_RNN_CONSTANTS(X)                                       \
  X(cudnnForwardMode_t, CUDNN_FWD_MODE_INFERENCE, 0)                     \
  X(cudnnForwardMode_t, CUDNN_FWD_MODE_TRAINING, 1)                      \
  X(cudnnRNNAlgo_t, CUDNN_RNN_ALGO_STANDARD, 0)                          \
  X(cudnnRNNAlgo_t, CUDNN_RNN_ALGO_PERSIST_STATIC, 1)                    \
  X(cudnnRNNAlgo_t, CUDNN_RNN_ALGO_PERSIST_DYNAMIC, 2)                   \
  X(cudnnRNNMode_t, CUDNN_LSTM, 2)                                       \
  X(cudnnRNNMode_t, CUDNN_GRU, 3)                                        \
  X(cudnnRNNBiasMode_t, CUDNN_RNN_DOUBLE_BIAS, 2)                        \
  X(cudnnDirectionMode_t, CUDNN_UNIDIRECTIONAL, 0)                       \
  X(cudnnRNNInputMode_t, CUDNN_LINEAR_INPUT, 0)                          \
  X(cudnnMathType_t, CUDNN_DEFAULT_MATH, 0)                              \
  X(cudnnMathType_t, CUDNN_TENSOR_OP_MATH, 1)                            \
  X(cudnnMathType_t, CUDNN_FMA_MATH, 3)                                  \
  X(cudnnRNNDataLayout_t, CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED, 2) \
  X(cudnnWgradMode_t, CUDNN_WGRAD_MODE_ADD, 0)
/* A flag, which is none of an enum's. */
#define TFU_CUDNN_PADDED_IO 1u

/* X(result, name, arguments) */
#define TFU_CUDNN_RNN_FUNCTIONS(X)                                                                                     \
  X(cudnnStatus_t, cudnnCreateTensorDescriptor, (cudnnTensorDescriptor_t *))                                           \
  X(cudnnStatus_t, cudnnDestroyTensorDescriptor, (cudnnTensorDescriptor_t))                                            \
  X(cudnnStatus_t, cudnnSetTensorNdDescriptor,                                                                         \
    (cudnnTensorDescriptor_t, cudnnDataType_t, int, const int[], const int[]))                                         \
  X(cudnnStatus_t, cudnnCreateDropoutDescriptor, (cudnnDropoutDescriptor_t *))                                         \
  X(cudnnStatus_t, cudnnDestroyDropoutDescriptor, (cudnnDropoutDescriptor_t))                                          \
  X(cudnnStatus_t, cudnnSetDropoutDescriptor,                                                                          \
    (cudnnDropoutDescriptor_t, cudnnHandle_t, float, void *, size_t, unsigned long long))                              \
  X(cudnnStatus_t, cudnnCreateRNNDescriptor, (cudnnRNNDescriptor_t *))                                                 \
  X(cudnnStatus_t, cudnnDestroyRNNDescriptor, (cudnnRNNDescriptor_t))                                                  \
  X(cudnnStatus_t, cudnnSetRNNDescriptor_v8,                                                                           \
    (cudnnRNNDescriptor_t, cudnnRNNAlgo_t, cudnnRNNMode_t, cudnnRNNBiasMode_t, cudnnDirectionMode_t,                   \
     cudnnRNNInputMode_t, cudnnDataType_t, cudnnDataType_t, cudnnMathType_t, int32_t, int32_t, int32_t, int32_t,       \
     cudnnDropoutDescriptor_t, uint32_t))                                                                              \
  X(cudnnStatus_t, cudnnBuildRNNDynamic, (cudnnHandle_t, cudnnRNNDescriptor_t, int))                                   \
  X(cudnnStatus_t, cudnnCreateRNNDataDescriptor, (cudnnRNNDataDescriptor_t *))                                         \
  X(cudnnStatus_t, cudnnDestroyRNNDataDescriptor, (cudnnRNNDataDescriptor_t))                                          \
  X(cudnnStatus_t, cudnnSetRNNDataDescriptor,                                                                          \
    (cudnnRNNDataDescriptor_t, cudnnDataType_t, cudnnRNNDataLayout_t, int, int, int, const int[], void *))             \
  X(cudnnStatus_t, cudnnGetRNNWeightSpaceSize, (cudnnHandle_t, cudnnRNNDescriptor_t, size_t *))                        \
  X(cudnnStatus_t, cudnnGetRNNWeightParams,                                                                            \
    (cudnnHandle_t, cudnnRNNDescriptor_t, int32_t, size_t, const void *, int32_t, cudnnTensorDescriptor_t, void **,    \
     cudnnTensorDescriptor_t, void **))                                                                                \
  X(cudnnStatus_t, cudnnGetRNNTempSpaceSizes,                                                                          \
    (cudnnHandle_t, cudnnRNNDescriptor_t, cudnnForwardMode_t, cudnnRNNDataDescriptor_t, size_t *, size_t *))           \
  X(cudnnStatus_t, cudnnRNNForward,                                                                                    \
    (cudnnHandle_t, cudnnRNNDescriptor_t, cudnnForwardMode_t, const int32_t[], cudnnRNNDataDescriptor_t, const void *, \
     cudnnRNNDataDescriptor_t, void *, cudnnTensorDescriptor_t, const void *, void *, cudnnTensorDescriptor_t,         \
     const void *, void *, size_t, const void *, size_t, void *, size_t, void *))                                      \
  X(cudnnStatus_t, cudnnRNNBackwardData_v8,                                                                            \
    (cudnnHandle_t, cudnnRNNDescriptor_t, const int32_t[], cudnnRNNDataDescriptor_t, const void *, const void *,       \
     cudnnRNNDataDescriptor_t, void *, cudnnTensorDescriptor_t, const void *, const void *, void *,                    \
     cudnnTensorDescriptor_t, const void *, const void *, void *, size_t, const void *, size_t, void *, size_t,        \
     void *))                                                                                                          \
  X(cudnnStatus_t, cudnnRNNBackwardWeights_v8,                                                                         \
    (cudnnHandle_t, cudnnRNNDescriptor_t, cudnnWgradMode_t, const int32_t[], cudnnRNNDataDescriptor_t, const void *,   \
     cudnnTensorDescriptor_t, const void *, cudnnRNNDataDescriptor_t, const void *, size_t, void *, size_t, void *,    \
     size_t, void *))

#ifndef TFU_CUDNN_HEADERS
typedef unsigned cudnnForwardMode_t, cudnnRNNAlgo_t, cudnnRNNMode_t, cudnnRNNBiasMode_t, cudnnDirectionMode_t,
    cudnnRNNInputMode_t, cudnnMathType_t, cudnnRNNDataLayout_t, cudnnWgradMode_t;
typedef struct cudnnTensorStruct *cudnnTensorDescriptor_t;
typedef struct cudnnDropoutStruct *cudnnDropoutDescriptor_t;
typedef struct cudnnRNNStruct *cudnnRNNDescriptor_t;
typedef struct cudnnRNNDataStruct *cudnnRNNDataDescriptor_t;

enum {
#define X(type, name, value) name = value,
  TFU_CUDNN_RNN_CONSTANTS(X)
#undef X
};
#endif

#endif
