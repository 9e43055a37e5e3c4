/* conv_own.h - attributes of ConvOwn, as kernels see them: those of Conv (conv.h), and the rung in the place of relu.
 */
#ifndef TFUSE_CONV_OWN_H_
#define TFUSE_CONV_OWN_H_

#include "ops/convolution/conv.h"

enum { TFU_CONV_OWN_RUNG = TFU_CONV_BEFORE + 1 };
#define TFU_CONV_OWN_RUNGS "rung: {'tensor', 'shared', 'constant', 'direct'} = 'tensor'"
typedef enum conv_rung { CONV_TENSOR, CONV_SHARED, CONV_CONSTANT, CONV_DIRECT, CONV_RUNGS } conv_rung;

enum { TFU_CONV_OWN_SIZES = TFU_CONV_KERNEL + 1 };

#endif
