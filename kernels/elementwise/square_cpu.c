#include "kernels/core/cpu/map_cpu.h"
/* Lines of its macros: */
#include "kernels/elementwise/square.h"
