#include "kernels/core/device/channels.cuh"

#include "kernels/elementwise/add_constant.h"
