/* array.h - between arrays and tensors of TensorFlow. */
#ifndef TFUSE_ARRAY_H_
#define TFUSE_ARRAY_H_

#include "serving/tensorflow.h"

/* The tensor of an array, or a copy; a copy is `owned`, and to be deleted. */
TFU_MUST_USE tfu_code tfu_array_to_tensor(const tfu_tensorflow *tf, const tfu_array *array, TF_Tensor **tensor,
                                          int *owned, tfu_error *err);
/* An array that holds the tensor from now on; where that fails, the tensor is deleted. */
TFU_MUST_USE tfu_code tfu_array_of_tensor(const tfu_tensorflow *tf, TF_Tensor *tensor, tfu_array *array,
                                          tfu_error *err);

#endif
