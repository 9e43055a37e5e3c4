#include "kernels/core/device/channels.cuh"
/* The formulas: */
#include "kernels/elementwise/add_constant.h"
