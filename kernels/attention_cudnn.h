/* attention_cudnn.h - attention as graphs for cuDNN. */
#ifndef TFUSE_ATTENTION_CUDNN_H_
#define TFUSE_ATTENTION_CUDNN_H_

#include "kernels/core/graph.h"

/* All that a plan depends on. Compared as bytes: zero it first, and keep it free of gaps. */
typedef struct tfu_attention_key {
  int32_t backward, dtype, ordinal;
  int32_t batch, heads, key_heads, head_dim, value_dim, queries, keys;
  int32_t align, left, right;  /* negative: no limit */
  int32_t lengths;             /* there are lengths of queries and keys: a padding mask */
  int32_t bias, bias_along[4]; /* there is one; the axes of the scores along which it is not stretched */
  float scale;
} tfu_attention_key;

/* Memory of a run. The last three are ours. */
enum {
  TFU_AT_QUERY,
  TFU_AT_KEY,
  TFU_AT_VALUE,
  TFU_AT_BIAS,
  TFU_AT_QUERY_LENGTHS,
  TFU_AT_KEY_LENGTHS,
  TFU_AT_OUTPUT,
  TFU_AT_STATS,
  TFU_AT_DOUTPUT,
  TFU_AT_DQUERY,
  TFU_AT_DKEY,
  TFU_AT_DVALUE,
  TFU_AT_DOT,        /* of output and its gradient, float, one per query */
  TFU_AT_DQUERY_SUM, /* float, like the gradient of query  */
  TFU_AT_SLOTS
};

/* Describes the key's graph in g, which is new. */
void tfu_attention_describe(tfu_graph *g, const tfu_attention_key *k);

#endif
