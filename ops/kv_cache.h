/* kv_cache.h - a paged KV cache, as attention over it and the ops that write it have it. */
#ifndef TFUSE_KV_CACHE_H_
#define TFUSE_KV_CACHE_H_

#include "tfuse.h"

/* Inputs of PagedAttention. */
enum { TFU_PAGED_QUERY, TFU_PAGED_KEY, TFU_PAGED_VALUE, TFU_PAGED_TABLE, TFU_PAGED_LENGTHS };

/* The dtype of a cache: T, or uint8 for numbers of float8_e4m3fn. */
#define TFU_C_CACHE "C: {float, half, bfloat16, double, uint8}"

/* Of a call of PagedAttention whose cache is of 8 bits: sequences whose pages are widened to T at one time. There is
 * one at least, and as many as TFU_FLOAT8_ROOM bytes hold. */
enum { TFU_FLOAT8_ROOM = 64 << 20 };
int64_t tfu_float8_sequences(const tfu_call *call);

#endif
