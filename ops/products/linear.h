/* linear.h - arguments and attributes of the linear ops, as kernels see them. */
#ifndef TFUSE_LINEAR_H_
#define TFUSE_LINEAR_H_

#include "activations.h"

/* In this order for both ops. */
enum { TFU_LINEAR_ACTIVATION, TFU_LINEAR_TF32 };
#define TFU_LINEAR_ATTRS TFU_ACTIVATION_ATTR, "tf32: bool = false"

enum { TFU_LINEAR_X, TFU_LINEAR_KERNEL, TFU_LINEAR_BIAS, TFU_LINEAR_RESIDUAL, TFU_LINEAR_KEEP };
enum { TFU_LINEAR_Y, TFU_LINEAR_PRE };

/* Of the gradient. */
enum { TFU_LINGRAD_DY, TFU_LINGRAD_X, TFU_LINGRAD_KERNEL, TFU_LINGRAD_BIAS, TFU_LINGRAD_PRE };
enum { TFU_LINGRAD_DX, TFU_LINGRAD_DKERNEL, TFU_LINGRAD_DBIAS };

/* Scratch of a captured Linear: the workspace of cuBLASLt, and what it may take to align it. */
enum { TFU_LINEAR_ROOM = (32 << 20) + 512 };

#endif
