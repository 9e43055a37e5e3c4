/* decode_attention.h - DecodeAttention by the ops that it is made of, on either device. */
#ifndef TFUSE_KERNELS_DECODE_ATTENTION_H_
#define TFUSE_KERNELS_DECODE_ATTENTION_H_

#include "tfuse.h"

typedef struct decode_attention_parts {
  tfu_compute_fn *rope, *put_rows, *attention;
} decode_attention_parts;

TFU_MUST_USE tfu_code tfu_decode_attention_by_parts(tfu_call *call, const decode_attention_parts *parts);

#endif
