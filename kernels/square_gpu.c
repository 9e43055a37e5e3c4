#include "kernels/core/map_gpu.h"
TFU_MODULE(square);
#include "kernels/square.h"
