#include "kernels/core/device/channels.cuh"
/* The formulas: */
#include "soft_cap.h"
