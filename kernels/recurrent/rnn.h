/* rnn.h - a recurrent layer as host and device see it. */
#ifndef TFUSE_KERNELS_RNN_H_
#define TFUSE_KERNELS_RNN_H_

#include <stdint.h>

/* Kernels, then recurrent kernels, one for each gate. */
#define TFU_RNN_MATRICES 8

/* Weights between Keras's order and cuDNN's, which has a matrix [units, features or units] for each gate. */
typedef struct rnn_weights_args {
  void *matrix[TFU_RNN_MATRICES], *vector[TFU_RNN_MATRICES]; /* cuDNN's */
  int gate[TFU_RNN_MATRICES];                                /* of Keras's that each of them is */
  void *kernel, *recurrent, *bias, *recurrent_bias;          /* Keras's; biases may be NULL, for zeros */
  int64_t features, units;
  int gates;
  int back; /* from cuDNN's to Keras's */
} rnn_weights_args;

/* The states before each step: h, zeros where it is NULL, then all of y but the last. */
typedef struct rnn_before_args {
  const void *h, *y;
  void *before;
  int64_t batch, steps, units;
} rnn_before_args;

#ifndef TFU_DEVICE
#include "tfuse.h"

/* Rnn by the ops that it is made of, on either device. */
typedef struct rnn_parts {
  tfu_compute_fn *linear, *linear_grad, *recurrence, *recurrence_grad;
  tfu_code (*before)(tfu_call *call, tfu_dtype dtype, rnn_before_args *a);
} rnn_parts;
TFU_MUST_USE tfu_code tfu_rnn_by_parts(tfu_call *call, const rnn_parts *parts);
TFU_MUST_USE tfu_code tfu_rnn_grad_by_parts(tfu_call *call, const rnn_parts *parts);

/* Either op by cuDNN. *served is 0 where it does not serve, and *why says why, a static text: of layers of the same
 * sizes always both or none. */
TFU_MUST_USE tfu_code tfu_rnn_cudnn(tfu_call *call, int backward, int *served, const char **why);
#endif

#endif
