/* square(x) = x * x, and its gradient. */
#include "tfuse.h"

const tfu_op tfu_square = {
    .name = "Square",
    .doc = "x * x.",
    .in = {"x: T"},
    .out = {"y: T"},
    .attr = {TFU_T_FLOATS},
    .shape = tfu_shape_like_input,
    TFU_KERNELS(square),
    .capturable = 1,
    .in_place = 1,
};

const tfu_op tfu_square_grad = {
    .name = "SquareGrad",
    .doc = "Gradient of Square: 2 * x * dy.",
    .in = {"dy: T", "x: T"},
    .out = {"dx: T"},
    .attr = {TFU_T_FLOATS},
    .shape = tfu_shape_gradient,
    TFU_KERNELS(square_grad),
    .capturable = 1,
    .in_place = 1,
};
