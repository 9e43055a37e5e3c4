/* float8_linear.h - arguments and attributes of the float8 linear ops, as kernels see them. */
#ifndef TFUSE_FLOAT8_LINEAR_H_
#define TFUSE_FLOAT8_LINEAR_H_

#include "ops/products/linear.h"
#include "tfuse.h"

/* In this order for both ops. */
enum { TFU_FLOAT8_ACTIVATION, TFU_FLOAT8_TF32, TFU_FLOAT8_ORDER };
enum { TFU_FLOAT8_BY_ROWS, TFU_FLOAT8_BY_COLUMNS };
#define TFU_FLOAT8_ATTRS                                                 \
  TFU_LINEAR_ATTRS, "order: {'rows', 'columns'} = 'rows'", TFU_T_FLOATS, \
      "W: {float, half, bfloat16, double, uint8} = DT_FLOAT"

enum {
  TFU_FLOAT8_X,
  TFU_FLOAT8_KERNEL,
  TFU_FLOAT8_X_SCALE,
  TFU_FLOAT8_KERNEL_SCALE,
  TFU_FLOAT8_BIAS,
  TFU_FLOAT8_RESIDUAL,
  TFU_FLOAT8_KEEP
};
enum { TFU_FLOAT8_Y, TFU_FLOAT8_PRE };

/* Of the gradient. What is there of x, kernel and dy is in this order. */
enum { TFU_FLOAT8_OF_X, TFU_FLOAT8_OF_KERNEL, TFU_FLOAT8_OF_DY, TFU_FLOAT8_TENSORS };
enum {
  TFU_F8GRAD_DY,
  TFU_F8GRAD_X,
  TFU_F8GRAD_KERNEL,
  TFU_F8GRAD_SCALE,
  TFU_F8GRAD_HISTORY = TFU_F8GRAD_SCALE + TFU_FLOAT8_TENSORS,
  TFU_F8GRAD_BIAS = TFU_F8GRAD_HISTORY + TFU_FLOAT8_TENSORS,
  TFU_F8GRAD_PRE
};
enum {
  TFU_F8GRAD_DX,
  TFU_F8GRAD_DKERNEL,
  TFU_F8GRAD_DBIAS,
  TFU_F8GRAD_NEW_SCALE,
  TFU_F8GRAD_NEW_HISTORY = TFU_F8GRAD_NEW_SCALE + TFU_FLOAT8_TENSORS
};

/* Whether a kernel is kept as codes of e4m3. */
static inline int tfu_float8_kept(const tfu_tensor *kernel) { return kernel->dtype == TFU_U8; }

#endif
