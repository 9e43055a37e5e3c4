/* tensors_update.h - arguments of the kernels of tensors_update.cu, and what stands where. Read by host and device. */
#ifndef TFUSE_TENSORS_UPDATE_H_
#define TFUSE_TENSORS_UPDATE_H_

#include "kernels/lists/tensors.h"

/* The numbers of the input `hyper`. */
enum { DECAY, CLIP, BETA_1, BETA_2, REST_1, REST_2, EPSILON, CLIP_VALUES, HYPERS };
/* The lists of a table. The first has as many elements as the table says. */
enum { WEIGHT, GRADIENT, SLOT, NEW_WEIGHT = SLOT + 3, NEW_SLOT };

/* The rules, as in ops/lists/rules.h. */
enum { UPDATE_sgd, UPDATE_momentum, UPDATE_nesterov, UPDATE_adam, UPDATE_amsgrad, UPDATE_lion, UPDATE_lamb };
/* What gradients are of: the weights' type, or 16 bits beside float32; or the weights' type, and the sums of squares
 * lie after them. */
enum { GRADIENTS_OWN, GRADIENTS_F16, GRADIENTS_BF16, GRADIENTS_SQUARES };

typedef struct update_args {
  tensors_table table;
  int rule, gradients, slots;              /* slots: of each weight      */
  const void *rate, *step, *hyper, *scale; /* scale: NULL for 1          */
  const void *norm;                        /* NULL for no clipping by it */
  int each;                                /* one norm for each tensor   */
  double *chunks;                          /* lamb, by chunk: the sums of w * w and u * u */
  double *ratios;                          /* by tensor: |w| / |u| */
} update_args;

#endif
