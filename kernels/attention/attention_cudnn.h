/* attention_cudnn.h - attention as graphs for cuDNN. */
#ifndef TFUSE_ATTENTION_CUDNN_H_
#define TFUSE_ATTENTION_CUDNN_H_

#include "kernels/attention/attention.h"
#include "kernels/core/nvidia/graph.h"

/* All that a plan depends on. Compared as bytes, so it has no gaps. */
typedef struct tfu_attention_key {
  int32_t backward, dtype, ordinal;
  int32_t batch, heads, key_heads, head_dim, value_dim, queries, keys;
  int32_t align, left, right;  /* negative: no limit */
  int32_t lengths;             /* there are lengths of queries and keys: a padding mask */
  int32_t bias, bias_along[4]; /* there is one; the axes of the scores along which it is not stretched */
  float scale;
} tfu_attention_key;
_Static_assert(sizeof(tfu_attention_key) == 20 * sizeof(int32_t), "a gap would be compared too");

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

typedef struct tfu_attention_request {
  const attention_args *a;
  tfu_dtype dtype;
  int backward, deterministic;
  int capability, multiprocessors; /* of the GPU */
  /* By tfu_attention_ask: */
  int given_lengths; /* by the caller: there may be queries and keys that stand for nothing */
  tfu_attention_key key;
} tfu_attention_request;

void tfu_attention_ask(tfu_attention_request *r, int ordinal);
/* Why this version of cuDNN is not asked for it, a static text; NULL where it is. */
const char *tfu_attention_refusal(const tfu_attention_request *r, int version);

#endif
