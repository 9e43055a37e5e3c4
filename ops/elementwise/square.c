/* square(x) = x * x, and its gradient. */
#include "tfuse.h"

const tfu_op tfu_square = {
    .name = "Square",
    .doc = "x * x.",
    .in = {"x: T"},
    .out = {"y: T"},
    .attr = {TFU_T_FLOATS},
    .shape = tfu_shape_like_input,
    .cpu = tfu_square_cpu,
    .gpu = tfu_square_gpu,
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
    .cpu = tfu_square_grad_cpu,
    .gpu = tfu_square_grad_gpu,
    .capturable = 1,
    .in_place = 1,
};
