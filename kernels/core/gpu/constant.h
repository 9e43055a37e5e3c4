/* constant.h - kernels that read constant memory, which is filled from the GPU's own memory before each launch. */
#ifndef TFUSE_CONSTANT_H_
#define TFUSE_CONSTANT_H_

#include "kernels/core/gpu/cuda.h"

/* A __constant__ variable of a module. There is one on each GPU, for all streams: a call that fills it waits, on the
 * GPU, until the call before has read it. */
typedef struct tfu_constant {
  tfu_module *module;
  const char *name;
} tfu_constant;

/* As tfu_launch, after copying `bytes` from `from` to the variable. Not for a stream that is captured: what a graph
 * waits for must be part of the graph. */
TFU_MUST_USE tfu_code tfu_launch_constant(tfu_call *call, tfu_kernel *kernel, tfu_dtype dtype, tfu_grid grid,
                                          void *args, tfu_constant *constant, const void *from, size_t bytes);

#endif
