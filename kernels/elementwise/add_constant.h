/* add_constant.h - the formula, for CPU and GPU alike. */
TFU_MAP2(add_constant, x, constant, (x + constant))
