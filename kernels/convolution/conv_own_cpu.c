/* ConvOwn on the CPU, which has no ladder: Conv's own kernel. */
#include "kernels/convolution/conv.h"

tfu_code tfu_conv_own_cpu(tfu_call *call) { return tfu_conv_bare_cpu(call); }
