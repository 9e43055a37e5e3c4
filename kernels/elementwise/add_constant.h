/* add_constant.h - x + constant, a weight that is one number, and its gradient, the sum of dy; for CPU and GPU alike.
 */
TFU_CHANNELS(add_constant, 1, 1, T, 1, 0, { y[0] = x[0] + w[0]; })
TFU_CHANNELS(add_constant_grad, 1, 0, T, 0, 1, { s[0] = x[0]; })
