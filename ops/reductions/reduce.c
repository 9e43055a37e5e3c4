/* Reductions over any axes, and their gradients.
 *
 * With v the values of x that belong to an element of y, and n their number: sum, mean, max, min, prod; logsumexp =
 * log(sum(exp(v))); variance = sum((v - mean)^2) / n; std = sqrt(variance); l2 = sqrt(sum(v^2)). Integers have the
 * first five; their sums and products wrap, and their mean is rounded towards zero. Over no values y is what TensorFlow
 * gives: 0, NaN (0 for integers), the lowest and the highest value, 1, -infinity, NaN, NaN, 0.
 *
 * The gradient of a sum is dy for each value. It needs no x, only its shape: room, a tensor without elements, is [sizes
 * of x, 0]; that of a mean is that of a sum of dy / n. For the others dx is: dy / (how many values of v equal
 * y) where v equals y, else 0; dy times the product of all other v; dy exp(v - y); dy 2 (v - mean) / n; dy (v - mean) /
 * (n y); dy v / y. Where y is 0 the last two are NaN, as in TensorFlow. With y given, that of l2 reads x once; the
 * others need more than y, and do not look at it. */
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
  const tfu_shape *room = &in[3];
  const int sum = room->rank != TFU_UNKNOWN && tfu_given(room);
  TFU_REQUIRE(err, !sum || (room->rank > 0 && tfu_may_be(room->dim[room->rank - 1], 0)),
              "room must be [sizes, 0], got %s", tfu_show(room).text);
  out[0] = sum ? tfu_leading(room) : in[1];
  if (!attr) return TFU_OK;
  unsigned reduced;
  TFU_REQUIRE(err, sum == (attr[0].i == 0), "room must be given for a sum, and for nothing else, got %s",
              tfu_show(room).text);
  TFU_TRY(tfu_reduced_axes(&out[0], attr[1].i, &reduced, err));
  const tfu_shape y = tfu_reduced_shape(&out[0], reduced, attr[2].b);
  if (in[2].rank != TFU_UNKNOWN && tfu_given(&in[2])) TFU_TRY(tfu_match("y", &in[2], "the result of x", &y, err));
  return tfu_match("dy", &in[0], "the result of x", &y, err);
}

const tfu_op tfu_reduce_grad = {
    .name = "ReduceGrad",
    .doc = "Gradient of Reduce, for sums and for the kinds whose gradient depends on x.",
    .in = {"dy: T", "x: T", "y: T", "room: bool"},
    .out = {"dx: T"},
    .attr = {KIND, "axes: int = 65536", "keepdims: bool = false", TFU_T_FLOATS},
    .shape = grad_shape,
    TFU_KERNELS(reduce_grad),
};
