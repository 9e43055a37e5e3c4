#include "kernels/core/cpu/channels_cpu.h"
/* The formulas: */
#include "soft_cap.h"
