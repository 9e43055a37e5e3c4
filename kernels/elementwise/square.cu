#include "kernels/core/device/channels.cuh"
/* The formulas: */
#include "kernels/elementwise/square.h"
