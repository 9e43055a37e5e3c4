/* array.h - between arrays and tensors of TensorFlow. */
#ifndef TFUSE_ARRAY_H_
#define TFUSE_ARRAY_H_

#include "serving/tensorflow.h"

/* What the elements of an input count for where inputs have a limit: numbers their bytes; a string 40, of its tfu_text
 * and its TF_TString, beside its characters, which the caller adds. */
size_t tfu_array_counted(int dtype, size_t elements);
static inline size_t tfu_add_bytes(size_t a, size_t b) { return a < SIZE_MAX - b ? a + b : SIZE_MAX; }
/* An error where all inputs together are more than `most` bytes; 0: there is no limit. */
TFU_MUST_USE tfu_code tfu_check_limit(size_t bytes, size_t most, tfu_error *err);

/* The tensor of an array, or a copy; a copy is `owned`, and to be deleted. */
TFU_MUST_USE tfu_code tfu_array_to_tensor(const tfu_tensorflow *tf, const tfu_array *array, TF_Tensor **tensor,
                                          int *owned, tfu_error *err);
/* An array that holds the tensor from now on; where that fails, the tensor is deleted. */
TFU_MUST_USE tfu_code tfu_array_of_tensor(const tfu_tensorflow *tf, TF_Tensor *tensor, tfu_array *array,
                                          tfu_error *err);

#endif
