/* projections.h - Projections and QuantizedProjections by the ops that they are made of, on either device. */
#ifndef TFUSE_KERNELS_PROJECTIONS_H_
#define TFUSE_KERNELS_PROJECTIONS_H_

#include "tfuse.h"

typedef struct projection_parts {
  tfu_compute_fn *norm, *linear, *gated;
  tfu_compute_fn *quantized; /* instead of linear */
  /* All products of x, which is normed, at once, where it can; or NULL. */
  tfu_code (*together)(tfu_call *call, const tfu_tensor *x, int *served);
} projection_parts;

TFU_MUST_USE tfu_code tfu_projections_by_parts(tfu_call *call, const projection_parts *parts);

#endif
