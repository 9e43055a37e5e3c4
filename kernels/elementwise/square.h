/* square.h - the formulas, for CPU and GPU alike. */
TFU_MAP1(square, x, (x * x))
TFU_MAP2(square_grad, dy, x, (2 * x * dy))
