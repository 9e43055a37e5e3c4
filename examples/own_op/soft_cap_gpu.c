#include "kernels/core/gpu/channels.h"

TFU_MODULE(soft_cap);
#include "soft_cap.h"
