/* Reductions over any axes, and their gradients.
 *
 * With v the values of x that belong to an element of y, and n their number: sum, mean, max, min, prod; logsumexp =
 * log(sum(exp(v))); variance = sum((v - mean)^2) / n; std = sqrt(variance); l2 = sqrt(sum(v^2)). Integers have the
 * first five; their sums and products wrap, and their mean is rounded towards zero. Over no values y is what TensorFlow
 * gives: 0, NaN (0 for integers), the lowest and the highest value, 1, -infinity, NaN, NaN, 0.
 *
 * The gradient of sum and mean needs no x and is no op of ours. For the others dx is: dy / (how many values of v equal
 * y) where v equals y, else 0; dy times the product of all other v; dy exp(v - y); dy 2 (v - mean) / n; dy (v - mean) /
 * (n y); dy v / y. Where y is 0 the last two are NaN, as in TensorFlow. */
#include "ops/reductions/axes.h"

#define KIND "kind: {'sum', 'mean', 'max', 'min', 'prod', 'logsumexp', 'variance', 'std', 'l2'} = 'sum'"

/* Without attributes nothing is known of y. */
TFU_SHAPE_RULE(forward_shape) {
  unsigned reduced;
  out[0].rank = attr && attr[1].i & TFU_ALL_AXES && !attr[2].b ? 0 : TFU_UNKNOWN;
  if (!attr || in[0].rank == TFU_UNKNOWN) return TFU_OK;
  TFU_TRY(tfu_reduced_axes(&in[0], attr[1].i, &reduced, err));
  out[0] = tfu_reduced_shape(&in[0], reduced, attr[2].b);
  return TFU_OK;
}

const tfu_op tfu_reduce = {
    .name = "Reduce",
    .doc = "Sum, mean, maximum, … of x over axes, which are bits of a mask.",
    .in = {"x: T"},
    .out = {"y: T"},
    .attr = {KIND, "axes: int = 65536", "keepdims: bool = false", "T: {float, half, bfloat16, double, int32, int64}"},
    .shape = forward_shape,
    .attr_shapes = 1,
    TFU_KERNELS(reduce),
};

TFU_SHAPE_RULE(grad_shape) {
  out[0] = in[1];
  if (!attr) return TFU_OK;
  unsigned reduced;
  TFU_TRY(tfu_reduced_axes(&in[1], attr[1].i, &reduced, err));
  const tfu_shape y = tfu_reduced_shape(&in[1], reduced, attr[2].b);
  return tfu_match("dy", &in[0], "the result of x", &y, err);
}

const tfu_op tfu_reduce_grad = {
    .name = "ReduceGrad",
    .doc = "Gradient of Reduce, for the kinds whose gradient depends on x.",
    .in = {"dy: T", "x: T"},
    .out = {"dx: T"},
    .attr = {KIND, "axes: int = 65536", "keepdims: bool = false", TFU_T_FLOATS},
    .shape = grad_shape,
    TFU_KERNELS(reduce_grad),
};
