/* cudnn.h - cuDNN 9, opened on first use: TensorFlow's own copy where it has one, since a process can hold only one. */
#ifndef TFUSE_CUDNN_H_
#define TFUSE_CUDNN_H_

#include "kernels/core/gpu/library.h"
#include "kernels/core/nvidia/cudnn_api.h"
#include "tfuse.h"

typedef struct tfu_cudnn {
  TFU_CUDNN_FUNCTIONS(TFU_POINTER)
  int version; /* 91900 is 9.19.0 */
} tfu_cudnn;

/* NULL where there is none; `why` then says so, a static text. */
const tfu_cudnn *tfu_cudnn_get(const char **why);

/* Whether ops may use it: not where the environment variable TFUSE_CUDNN is 0, which is read once. */
int tfu_cudnn_allowed(void);

/* A cuDNN status as ours: "what: CUDNN_STATUS_…: its text". */
TFU_MUST_USE tfu_code tfu_cudnn_code(const tfu_cudnn *dnn, cudnnStatus_t status, const char *what, tfu_error *err);

/* A handle of the current GPU that nobody else uses meanwhile: cuDNN forbids two threads in one. */
typedef struct tfu_cudnn_handle {
  cudnnHandle_t handle;
  void *stream;
} tfu_cudnn_handle;
/* On this stream. */
TFU_MUST_USE tfu_code tfu_cudnn_borrow(const tfu_cudnn *dnn, void *stream, tfu_cudnn_handle **handle, tfu_error *err);
void tfu_cudnn_return(tfu_cudnn_handle *handle);

#endif
