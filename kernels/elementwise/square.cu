#include "kernels/core/device/map.cuh"
/* Lines of its macros: */
#include "kernels/elementwise/square.h"
