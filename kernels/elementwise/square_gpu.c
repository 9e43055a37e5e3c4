#include "kernels/core/gpu/map_gpu.h"
TFU_MODULE(square);
#include "kernels/elementwise/square.h"
