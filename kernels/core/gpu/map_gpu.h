/* map_gpu.h - elementwise formulas on the GPU, host side. TFU_MAP1 and TFU_MAP2 define tfu_<name>_gpu, which launches
 * the kernel that map.cuh makes of the same line. */
#ifndef TFUSE_MAP_GPU_H_
#define TFUSE_MAP_GPU_H_

#include "kernels/core/gpu/cuda.h"

TFU_MUST_USE tfu_code tfu_map_gpu(tfu_call *call, tfu_kernel *kernel);

#define TFU_MAP1(stem, a, formula)                                 \
  tfu_code tfu_##stem##_gpu(tfu_call *call) {                      \
    static tfu_kernel kernel = {.module = &module, .name = #stem}; \
    return tfu_map_gpu(call, &kernel);                             \
  }
#define TFU_MAP2(stem, a, b, formula) TFU_MAP1(stem, a, formula)

#endif
