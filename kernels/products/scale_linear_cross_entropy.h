/* scale_linear_cross_entropy.h - y = x * by, for CPU and GPU alike; by is one number of the arithmetic type. */
TFU_CHANNELS(scale_linear_cross_entropy, 1, 1, S, 1, 0, { y[0] = x[0] * w[0]; })
