#include "kernels/core/cpu/channels_cpu.h"

#include "kernels/elementwise/square.h"
