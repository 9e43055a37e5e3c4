/* tensorflow.h - what is called of TensorFlow's C API, which is found at run time and not linked. Its own headers
 * declare the same; tests/serving/serving_apis_test.c compares. */
#ifndef TFUSE_TENSORFLOW_H_
#define TFUSE_TENSORFLOW_H_

#include "serving/model.h"

#ifndef TFU_TENSORFLOW_HEADERS
typedef struct TF_Buffer TF_Buffer;
typedef struct TF_DeviceList TF_DeviceList;
typedef struct TF_Graph TF_Graph;
typedef struct TF_Library TF_Library;
typedef struct TF_Operation TF_Operation;
typedef struct TF_Session TF_Session;
typedef struct TF_SessionOptions TF_SessionOptions;
typedef struct TF_Status TF_Status;
typedef struct TF_Tensor TF_Tensor;
typedef struct TF_TString {
  uint64_t words[3];
} TF_TString;
typedef struct TF_Output {
  TF_Operation *oper;
  int index;
} TF_Output;
typedef unsigned TF_DataType; /* enums */
typedef unsigned TF_Code;
#endif

#define TFU_TENSORFLOW_FUNCTIONS(X)                                                                                 \
  X(const char *, TF_Version, (void))                                                                               \
  X(TF_Status *, TF_NewStatus, (void))                                                                              \
  X(void, TF_DeleteStatus, (TF_Status *))                                                                           \
  X(TF_Code, TF_GetCode, (const TF_Status *))                                                                       \
  X(const char *, TF_Message, (const TF_Status *))                                                                  \
  X(TF_Library *, TF_LoadLibrary, (const char *, TF_Status *))                                                      \
  X(void, TF_DeleteLibraryHandle, (TF_Library *))                                                                   \
  X(TF_SessionOptions *, TF_NewSessionOptions, (void))                                                              \
  X(void, TF_SetConfig, (TF_SessionOptions *, const void *, size_t, TF_Status *))                                   \
  X(void, TF_DeleteSessionOptions, (TF_SessionOptions *))                                                           \
  X(TF_Graph *, TF_NewGraph, (void))                                                                                \
  X(void, TF_DeleteGraph, (TF_Graph *))                                                                             \
  X(TF_Operation *, TF_GraphOperationByName, (TF_Graph *, const char *))                                            \
  X(int, TF_OperationNumOutputs, (TF_Operation *))                                                                  \
  X(TF_Session *, TF_LoadSessionFromSavedModel,                                                                     \
    (const TF_SessionOptions *, const TF_Buffer *, const char *, const char *const *, int, TF_Graph *, TF_Buffer *, \
     TF_Status *))                                                                                                  \
  X(void, TF_CloseSession, (TF_Session *, TF_Status *))                                                             \
  X(void, TF_DeleteSession, (TF_Session *, TF_Status *))                                                            \
  X(TF_DeviceList *, TF_SessionListDevices, (TF_Session *, TF_Status *))                                            \
  X(int, TF_DeviceListCount, (const TF_DeviceList *))                                                               \
  X(const char *, TF_DeviceListType, (const TF_DeviceList *, int, TF_Status *))                                     \
  X(void, TF_DeleteDeviceList, (TF_DeviceList *))                                                                   \
  X(void, TF_SessionRun,                                                                                            \
    (TF_Session *, const TF_Buffer *, const TF_Output *, TF_Tensor *const *, int, const TF_Output *, TF_Tensor **,  \
     int, const TF_Operation *const *, int, TF_Buffer *, TF_Status *))                                              \
  X(TF_Tensor *, TF_NewTensor,                                                                                      \
    (TF_DataType, const int64_t *, int, void *, size_t, void (*)(void *, size_t, void *), void *))                  \
  X(void, TF_DeleteTensor, (TF_Tensor *))                                                                           \
  X(TF_DataType, TF_TensorType, (const TF_Tensor *))                                                                \
  X(int, TF_NumDims, (const TF_Tensor *))                                                                           \
  X(int64_t, TF_Dim, (const TF_Tensor *, int))                                                                      \
  X(size_t, TF_TensorByteSize, (const TF_Tensor *))                                                                 \
  X(void *, TF_TensorData, (const TF_Tensor *))                                                                     \
  X(void, TF_StringInit, (TF_TString *))                                                                            \
  X(void, TF_StringCopy, (TF_TString *, const char *, size_t))                                                      \
  X(const char *, TF_StringGetDataPointer, (const TF_TString *))                                                    \
  X(size_t, TF_StringGetSize, (const TF_TString *))                                                                 \
  X(void, TF_StringDealloc, (TF_TString *))

typedef struct tfu_tensorflow {
#define X(result, name, arguments) result(*name) arguments;
  TFU_TENSORFLOW_FUNCTIONS(X)
#undef X
} tfu_tensorflow;

/* The functions, which are found once in a process. `folder` as in tfu_model_options. */
TFU_MUST_USE tfu_code tfu_tensorflow_get(const char *folder, const tfu_tensorflow **tf, tfu_error *err);
/* Those that were found; NULL: none yet. */
const tfu_tensorflow *tfu_tensorflow_now(void);
/* Opens it and fills the table; a test has one of its own. */
TFU_MUST_USE tfu_code tfu_tensorflow_find(const char *folder, tfu_tensorflow *tf, tfu_error *err);

/* Loads tfuse's ops, where its library is found, and those of `libraries`; both as in tfu_model_options. */
TFU_MUST_USE tfu_code tfu_load_ops(const tfu_tensorflow *tf, const char *library, const char *libraries,
                                   tfu_error *err);

/* What a status of TensorFlow says; `what` comes first. The status is deleted. */
TFU_MUST_USE tfu_code tfu_tensorflow_code(const tfu_tensorflow *tf, TF_Status *status, const char *what,
                                          tfu_error *err);

#endif
