#include "kernels/core/cpu/channels_cpu.h"
/* The formulas: */
#include "kernels/elementwise/square.h"
