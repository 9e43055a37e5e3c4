#include "kernels/core/map_cpu.h"
#include "kernels/square.h"
