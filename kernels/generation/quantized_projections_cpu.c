#include "kernels/generation/projections.h"

tfu_code tfu_quantized_projections_cpu(tfu_call *call) {
  static const projection_parts parts = {
      .norm = tfu_norm_cpu, .quantized = tfu_quantized_linear_cpu, .gated = tfu_gated_cpu};
  return tfu_projections_by_parts(call, &parts);
}
