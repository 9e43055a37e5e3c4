#include "kernels/core/gpu/channels.h"

TFU_MODULE(add_constant);
#include "kernels/elementwise/add_constant.h"
