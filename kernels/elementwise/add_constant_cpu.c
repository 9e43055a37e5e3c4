#include "kernels/core/cpu/channels_cpu.h"

#include "kernels/elementwise/add_constant.h"
