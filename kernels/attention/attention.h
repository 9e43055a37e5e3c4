/* attention.h - attention in numbers (ops/attention/attention.c says what they mean), for every kernel of it. Host and
 * device.
 *
 * A step is a position in time, of queries or of keys. A pair is a query and a key of one head. A query's band are the
 * keys that it may attend to by its position alone. Keys may lie in pages (a paged KV cache). Other words are explained
 * in docs/design.md#words. */
#ifndef TFUSE_KERNELS_ATTENTION_H_
#define TFUSE_KERNELS_ATTENTION_H_

#include <stdint.h>

#ifdef TFU_DEVICE
#define TFU_ATTENTION __device__ inline
#else
#define TFU_ATTENTION static inline
#endif

typedef struct attention_args {
  /* Tensors; NULL where not given. The last two lines are the gradient's alone. */
  const void *query, *key, *value, *bias;
  const uint8_t *mask;
  const int64_t *query_lengths, *key_lengths; /* of each sequence; splits where ragged  */
  const int64_t *table;                       /* of pages, [batch, table_width]; or NULL */
  const uint64_t *seed;                       /* NULL: no dropout                        */
  void *output, *stats;
  const void *doutput, *dstats;
  void *dquery, *dkey, *dvalue, *dbias;

  int batch, heads, key_heads, head_dim, value_dim;
  int queries, keys; /* steps of the longest sequence: the axes' sizes; where ragged, of all sequences together */
  int ragged;
  int page, pages, table_width;       /* steps of a page, pages there are */
  int align, left, right;             /* negative: no limit */
  int64_t bias_step[4], mask_step[4]; /* elements from one batch, head, query, key to the next; 0 where stretched */
  float scale, rate;
  int tf32;       /* float32 products may take their factors with 10 bits after the point */
  float soft_cap; /* 0: none */
} attention_args;

/* One sequence: its first rows among the queries and keys, how many there are, and the shift s that aligns them. */
typedef struct tfu_sequence {
  int64_t first_query, first_key;
  int queries, keys, shift;
} tfu_sequence;

TFU_ATTENTION int tfu_clamp(int64_t v, int most) { return v < 0 ? 0 : v < most ? (int)v : most; }

/* Lengths and splits that are out of range are cut to it. */
TFU_ATTENTION tfu_sequence tfu_sequence_of(const attention_args *a, int b) {
  tfu_sequence s;
  if (a->ragged) {
    const int q = tfu_clamp(a->query_lengths[b], a->queries), k = tfu_clamp(a->key_lengths[b], a->keys);
    s.first_query = q;
    s.first_key = k;
    s.queries = tfu_clamp(a->query_lengths[b + 1], a->queries) - q;
    s.keys = tfu_clamp(a->key_lengths[b + 1], a->keys) - k;
    s.queries = s.queries < 0 ? 0 : s.queries;
    s.keys = s.keys < 0 ? 0 : s.keys;
  } else {
    s.first_query = (int64_t)b * a->queries;
    s.first_key = (int64_t)b * a->keys;
    s.queries = a->query_lengths ? tfu_clamp(a->query_lengths[b], a->queries) : a->queries;
    s.keys = a->key_lengths ? tfu_clamp(a->key_lengths[b], a->keys) : a->keys;
  }
  s.shift = a->align ? s.keys - s.queries : 0;
  return s;
}

/* The keys that query i may attend to by its position: first <= j < end. */
TFU_ATTENTION void tfu_band(const attention_args *a, const tfu_sequence *s, int i, int *first, int *end) {
  const int64_t at = (int64_t)i + s->shift;
  const int64_t low = a->left < 0 ? 0 : at - a->left, high = a->right < 0 ? s->keys : at + a->right + 1;
  *first = low < 0 ? 0 : low < s->keys ? (int)low : s->keys;
  *end = i >= s->queries || high < *first ? *first : high < s->keys ? (int)high : s->keys;
}

/* Where a query's number is in stats: one per query, head by head. */
TFU_ATTENTION int64_t tfu_stats_at(const attention_args *a, const tfu_sequence *s, int b, int h, int i) {
  return a->ragged ? (int64_t)h * a->queries + s->first_query + i : ((int64_t)b * a->heads + h) * a->queries + i;
}

/* Row of key and value in memory for step j: rows of a dense or ragged tensor, or of the pages. -1: no such page. */
TFU_ATTENTION int64_t tfu_key_row(const attention_args *a, const tfu_sequence *s, int b, int j) {
  if (!a->table) return s->first_key + j;
  const int64_t page = a->table[(int64_t)b * a->table_width + j / a->page];
  return page < 0 || page >= a->pages ? -1 : page * a->page + j % a->page;
}

/* Which element of philox.h decides on a pair's dropout. */
TFU_ATTENTION int64_t tfu_pair(const attention_args *a, int b, int h, int i, int j) {
  return (((int64_t)b * a->heads + h) * a->queries + i) * a->keys + j;
}

#ifndef TFU_DEVICE
#include "tfuse.h"

/* Reads the call of Attention, AttentionGrad or PagedAttention. */
TFU_MUST_USE tfu_code tfu_attention_read(tfu_call *call, attention_args *a);
/* The same for the gradient and for paged attention. */
TFU_MUST_USE tfu_code tfu_attention_grad_read(tfu_call *call, attention_args *a);
TFU_MUST_USE tfu_code tfu_paged_attention_read(tfu_call *call, attention_args *a);

/* Our own GPU kernels: they take whatever the shape rules accept. */
TFU_MUST_USE tfu_code tfu_attention_own(tfu_call *call, const attention_args *a, tfu_dtype dtype);
TFU_MUST_USE tfu_code tfu_attention_own_grad(tfu_call *call, const attention_args *a, tfu_dtype dtype);

/* cuDNN's. *served is false where cuDNN is not there or does not take the case; `why` then says so, a static text. */
TFU_MUST_USE tfu_code tfu_attention_cudnn(tfu_call *call, const attention_args *a, tfu_dtype dtype, int *served,
                                          const char **why);
TFU_MUST_USE tfu_code tfu_attention_cudnn_grad(tfu_call *call, const attention_args *a, tfu_dtype dtype,
                                               int deterministic, int *served, const char **why);
#endif
#endif
