#include "kernels/generation/decode_attention.h"

tfu_code tfu_decode_attention_cpu(tfu_call *call) {
  static const decode_attention_parts parts = {
      .rope = tfu_rope_cpu, .put_rows = tfu_put_rows_cpu, .attention = tfu_paged_attention_cpu};
  return tfu_decode_attention_by_parts(call, &parts);
}
