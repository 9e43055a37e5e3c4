/* attention_gpu.c - which GPU kernel does an attention: cuDNN's where it serves the case, else our own.
 *
 * The environment variable TFUSE_CUDNN=0 leaves cuDNN out. */
#include "kernels/attention/attention.h"

#include "kernels/attention/float8_pages.h"
#include "kernels/core/nvidia/cudnn.h"
#include "kv_cache.h"
#include "ops/attention/attention.h"

/* So few queries, as in decoding, fill no GPU by themselves; our own kernel also splits the keys. */
enum { FEW_QUERIES = 16 };

tfu_code tfu_attention_gpu(tfu_call *call) {
  attention_args a;
  int served = 0;
  const tfu_dtype dtype = call->in[TFU_ATT_QUERY].dtype;
  TFU_TRY(tfu_attention_read(call, &a));
  if (!tfu_cudnn_allowed()) call->why = "TFUSE_CUDNN=0";
  else if (a.queries <= FEW_QUERIES) call->why = "few queries: the keys are split";
  else TFU_TRY(tfu_attention_cudnn(call, &a, dtype, &served, &call->why));
  if (!served) return tfu_attention_own(call, &a, dtype);
  call->why = NULL;
  return TFU_OK;
}

tfu_code tfu_attention_grad_gpu(tfu_call *call) {
  attention_args a;
  int served = 0;
  const int deterministic = call->attr[TFU_ATT_DETERMINISTIC].b;
  const tfu_dtype dtype = call->in[0].dtype;
  TFU_TRY(tfu_attention_grad_read(call, &a));
  if (!tfu_cudnn_allowed()) call->why = "TFUSE_CUDNN=0";
  else TFU_TRY(tfu_attention_cudnn_grad(call, &a, dtype, deterministic, &served, &call->why));
  if (!served) return tfu_attention_own_grad(call, &a, dtype);
  call->why = NULL;
  return TFU_OK;
}

tfu_code tfu_paged_attention_gpu(tfu_call *call) {
  static const float8_pages_parts parts = {.widen = tfu_widen_pages_gpu, .attention = tfu_paged_attention_gpu};
  attention_args a;
  int is_float8;
  TFU_TRY(tfu_is_float8_cache(call, call->in[TFU_PAGED_KEY].dtype, call->in[0].dtype, &is_float8));
  if (is_float8) return tfu_float8_paged_attention(call, &parts);
  TFU_TRY(tfu_paged_attention_read(call, &a));
  return tfu_attention_own(call, &a, call->in[0].dtype);
}
