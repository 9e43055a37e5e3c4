#include "kernels/core/gpu/channels.h"

TFU_MODULE(square);
#include "kernels/elementwise/square.h"
