#include "kernels/core/map.cuh"
#include "kernels/square.h"
