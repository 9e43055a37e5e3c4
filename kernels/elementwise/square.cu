#include "kernels/core/device/map.cuh"
#include "kernels/elementwise/square.h"
