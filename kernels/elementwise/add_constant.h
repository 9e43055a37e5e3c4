/* add_constant.h - x + constant, a weight that is one number; for CPU and GPU alike. */
TFU_CHANNELS(add_constant, 1, 1, T, 1, 0, { y[0] = x[0] + w[0]; })
