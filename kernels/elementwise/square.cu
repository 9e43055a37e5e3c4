#include "kernels/core/device/channels.cuh"

#include "kernels/elementwise/square.h"
