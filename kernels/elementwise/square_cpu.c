#include "kernels/core/cpu/map_cpu.h"
#include "kernels/elementwise/square.h"
