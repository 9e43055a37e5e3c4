/* linear_cross_entropy.h - arguments and attributes of the linear_cross_entropy ops, as kernels see them. */
#ifndef TFUSE_LINEAR_CROSS_ENTROPY_H_
#define TFUSE_LINEAR_CROSS_ENTROPY_H_

/* In this order for both ops. */
enum { TFU_LCE_SMOOTHING, TFU_LCE_Z_LOSS, TFU_LCE_IGNORE, TFU_LCE_TRANSPOSED, TFU_LCE_TF32 };
#define TFU_LCE_ATTRS                                                                                                \
  "smoothing: float = 0.0", "z_loss: float = 0.0", "ignore: int = -9223372036854775808", "transposed: bool = false", \
      "tf32: bool = false", "L: {int32, int64}"

/* Of both, too; TFU_LCE_WEIGHTS is dloss in the gradient. */
enum {
  TFU_LCE_X,
  TFU_LCE_KERNEL,
  TFU_LCE_BIAS,
  TFU_LCE_LABELS,
  TFU_LCE_WEIGHTS,
  TFU_LCE_DX_FOR,
  TFU_LCE_DKERNEL_FOR,
  TFU_LCE_DBIAS_FOR
};

/* The gradients, which are the outputs of the one op and follow the loss in the other. */
enum { TFU_LCE_DX, TFU_LCE_DKERNEL, TFU_LCE_DBIAS };

#endif
