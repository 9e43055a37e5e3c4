/* attention_graph.c - attention and its gradient as cuDNN knows them: patterns of operations that it recognises and
 * fuses into one kernel each. Shapes are [batch, heads, queries, keys or head_dim]; our memory is [batch, time, heads,
 * head_dim], which is a matter of strides.
 *
 *   S = scale Q K' + bias, masked    P = exp(S - stats)    stats = max S + log(sum exp(S - max S))    O = P V
 *   dV = P' dO    dS = P (dO V' - sum over head_dim of dO O)    dK = scale dS' Q    dQ = scale dS K
 *
 * Fewer heads of keys than of queries: cuDNN broadcasts them in products, and their gradients are sums over heads. The
 * order of operations, and which of them compute in which type, is NVIDIA's own, in cudnn-frontend: cuDNN recognises
 * other orders not at all, or runs them slowly. */
#include <float.h>
#include <math.h>

#include "kernels/attention/attention_cudnn.h"

/* What every step needs. */
typedef struct sketch {
  tfu_graph *g;
  const tfu_attention_key *k;
  cudnnDataType_t type;
  tfu_node queries, keys;          /* lengths, where there are any */
  const tfu_node *n_query, *n_key; /* the same, or NULL            */
} sketch;

/* ---- tensors ---- */

/* [batch, heads, time, dim] in memory of [batch, time, heads, dim]; transposed, the last two axes change places. */
static tfu_node rows(sketch *s, int slot, int64_t heads, int64_t time, int64_t dim, int transposed) {
  const int64_t d[4] = {s->k->batch, heads, transposed ? dim : time, transposed ? time : dim};
  const int64_t step[4] = {time * heads * dim, dim, transposed ? 1 : heads * dim, transposed ? heads * dim : 1};
  return tfu_graph_real(s->g, slot, s->type, 4, d, step);
}

static tfu_node query_rows(sketch *s, int slot, int dim) { return rows(s, slot, s->k->heads, s->k->queries, dim, 0); }
static tfu_node key_rows(sketch *s, int slot, int dim) { return rows(s, slot, s->k->key_heads, s->k->keys, dim, 0); }
static tfu_node key_columns(sketch *s, int slot, int dim) { return rows(s, slot, s->k->key_heads, s->k->keys, dim, 1); }

/* Row-major [batch, heads, a, b]; virtual where slot is negative. */
static tfu_node packed(sketch *s, int slot, cudnnDataType_t type, int64_t heads, int64_t a, int64_t b) {
  const int64_t d[4] = {s->k->batch, heads, a, b};
  int64_t step[4];
  tfu_graph_packed(4, d, step);
  return slot < 0 ? tfu_graph_virtual(s->g, type, 4, d, step) : tfu_graph_real(s->g, slot, type, 4, d, step);
}

static tfu_node per_query(sketch *s, int slot) {
  return packed(s, slot, CUDNN_DATA_FLOAT, s->k->heads, s->k->queries, 1);
}

static tfu_node per_pair(sketch *s) { return packed(s, -1, CUDNN_DATA_FLOAT, s->k->heads, s->k->queries, s->k->keys); }

/* x with the last two axes exchanged, as a virtual tensor. */
static tfu_node transpose(sketch *s, cudnnDataType_t type, const tfu_node *x) {
  const int64_t d[4] = {x->dim[0], x->dim[1], x->dim[3], x->dim[2]};
  const int64_t step[4] = {x->stride[0], x->stride[1], x->stride[3], x->stride[2]};
  const tfu_node y = tfu_graph_virtual(s->g, type, 4, d, step);
  tfu_graph_reshape(s->g, x, &y);
  return y;
}

static tfu_node bias_of(sketch *s) {
  const int64_t full[4] = {s->k->batch, s->k->heads, s->k->queries, s->k->keys};
  int64_t d[4], step[4];
  for (int i = 0; i < 4; i++) d[i] = s->k->bias_along[i] ? full[i] : 1;
  tfu_graph_packed(4, d, step);
  return tfu_graph_real(s->g, TFU_AT_BIAS, s->type, 4, d, step);
}

static void open_lengths(sketch *s) {
  static const int64_t ones[4] = {1, 1, 1, 1};
  const int64_t d[4] = {s->k->batch, 1, 1, 1};
  if (!s->k->lengths) return;
  s->queries = tfu_graph_real(s->g, TFU_AT_QUERY_LENGTHS, CUDNN_DATA_INT32, 4, d, ones);
  s->keys = tfu_graph_real(s->g, TFU_AT_KEY_LENGTHS, CUDNN_DATA_INT32, 4, d, ones);
  s->n_query = &s->queries;
  s->n_key = &s->keys;
}

/* ---- masks ---- */

/* Each pair's query (axis 2) or key (axis 3). */
static tfu_node place(sketch *s, cudnnDataType_t compute, int axis, const tfu_node *scores) {
  const tfu_node y = tfu_graph_virtual_like(s->g, CUDNN_DATA_INT32, scores);
  tfu_graph_pointwise(s->g, CUDNN_POINTWISE_GEN_INDEX, compute, axis, scores, NULL, NULL, &y);
  return y;
}

static tfu_node shifted(sketch *s, cudnnPointwiseMode_t mode, cudnnDataType_t type, const tfu_node *x,
                        const tfu_node *by) {
  const tfu_node y = tfu_graph_virtual_like(s->g, type, x);
  tfu_graph_pointwise(s->g, mode, type, 3, x, by, NULL, &y);
  return y;
}

static tfu_node test(sketch *s, cudnnPointwiseMode_t mode, const tfu_node *a, const tfu_node *b) {
  const tfu_node y = tfu_graph_virtual_like(s->g, CUDNN_DATA_BOOLEAN, a);
  tfu_graph_pointwise(s->g, mode, CUDNN_DATA_BOOLEAN, -1, a, b, NULL, &y);
  return y;
}

/* Scores where `kept`, elsewhere what becomes 0 in exp. Before 9.10 cuDNN wanted a finite number there. */
static tfu_node masked(sketch *s, const tfu_node *scores, const tfu_node *kept) {
  const tfu_node low = tfu_graph_float(s->g, 4, s->g->dnn->version < 91000 ? -FLT_MAX : -INFINITY);
  const tfu_node y = tfu_graph_virtual_like(s->g, CUDNN_DATA_FLOAT, scores);
  tfu_graph_pointwise(s->g, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, -1, scores, &low, kept, &y);
  return y;
}

static tfu_node within_lengths(sketch *s, tfu_node scores) {
  const tfu_node i = place(s, CUDNN_DATA_INT32, 2, &scores), j = place(s, CUDNN_DATA_INT32, 3, &scores);
  const tfu_node i_in = test(s, CUDNN_POINTWISE_CMP_LT, &i, &s->queries);
  const tfu_node j_in = test(s, CUDNN_POINTWISE_CMP_LT, &j, &s->keys);
  const tfu_node kept = test(s, CUDNN_POINTWISE_LOGICAL_AND, &i_in, &j_in);
  return masked(s, &scores, &kept);
}

/* j <= i + shift + right, where the shift aligns the last steps. */
static tfu_node not_after(sketch *s, tfu_node scores) {
  const tfu_attention_key *k = s->k;
  tfu_node i = place(s, CUDNN_DATA_FLOAT, 2, &scores);
  const tfu_node j = place(s, CUDNN_DATA_FLOAT, 3, &scores);
  if (k->align) {
    const tfu_node keys = s->n_key ? *s->n_key : tfu_graph_int(s->g, 4, k->keys);
    const tfu_node queries = s->n_query ? *s->n_query : tfu_graph_int(s->g, 4, k->queries);
    i = shifted(s, CUDNN_POINTWISE_ADD, CUDNN_DATA_INT32, &i, &keys);
    i = shifted(s, CUDNN_POINTWISE_SUB, CUDNN_DATA_INT32, &i, &queries);
  }
  if (k->right > 0) {
    const tfu_node right = tfu_graph_int(s->g, 4, k->right);
    i = shifted(s, CUDNN_POINTWISE_ADD, CUDNN_DATA_INT32, &i, &right);
  }
  const tfu_node kept = test(s, CUDNN_POINTWISE_CMP_GE, &i, &j);
  return masked(s, &scores, &kept);
}

/* j >= i + shift - left, as j + left + 1 - shift > i. */
static tfu_node not_before(sketch *s, tfu_node scores) {
  const tfu_attention_key *k = s->k;
  const tfu_node i = place(s, CUDNN_DATA_FLOAT, 2, &scores);
  tfu_node j = place(s, CUDNN_DATA_FLOAT, 3, &scores);
  if (k->align && k->lengths) {
    const tfu_node left = tfu_graph_int(s->g, 4, k->left + 1);
    j = shifted(s, CUDNN_POINTWISE_ADD, CUDNN_DATA_INT32, &j, &left);
    j = shifted(s, CUDNN_POINTWISE_SUB, CUDNN_DATA_INT32, &j, &s->keys);
    j = shifted(s, CUDNN_POINTWISE_ADD, CUDNN_DATA_INT32, &j, &s->queries);
  } else {
    const tfu_node left = tfu_graph_float(s->g, 4, (float)(k->left + 1 - (k->align ? k->keys - k->queries : 0)));
    j = shifted(s, CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, &j, &left);
  }
  const tfu_node kept = test(s, CUDNN_POINTWISE_CMP_GT, &j, &i);
  return masked(s, &scores, &kept);
}

static tfu_node within_band(sketch *s, tfu_node scores) {
  if (s->k->right >= 0) scores = not_after(s, scores);
  if (s->k->left >= 0) scores = not_before(s, scores);
  return scores;
}

/* ---- the two graphs ---- */

static tfu_node scores_of(sketch *s, const tfu_node *q, const tfu_node *k, const tfu_node *scale) {
  const tfu_node product = per_pair(s);
  tfu_graph_matmul(s->g, q, k, &product, s->n_query, s->n_key, NULL);
  const tfu_node scores = tfu_graph_binary(s->g, CUDNN_POINTWISE_MUL, &product, scale);
  if (!s->k->bias) return scores;
  const tfu_node bias = bias_of(s);
  return tfu_graph_binary(s->g, CUDNN_POINTWISE_ADD, &scores, &bias);
}

static void forward(sketch *s) {
  tfu_graph *g = s->g;
  const tfu_node q = query_rows(s, TFU_AT_QUERY, s->k->head_dim), k = key_columns(s, TFU_AT_KEY, s->k->head_dim);
  const tfu_node v = key_rows(s, TFU_AT_VALUE, s->k->value_dim), o = query_rows(s, TFU_AT_OUTPUT, s->k->value_dim);
  const tfu_node stats = per_query(s, TFU_AT_STATS), scale = tfu_graph_float(g, 4, s->k->scale);

  tfu_node scores = scores_of(s, &q, &k, &scale);
  if (s->k->lengths) scores = within_lengths(s, scores);
  scores = within_band(s, scores);

  const tfu_node max = per_query(s, -1), sum = per_query(s, -1);
  tfu_graph_reduce(g, CUDNN_REDUCE_TENSOR_MAX, &scores, &max);
  const tfu_node below = tfu_graph_binary(g, CUDNN_POINTWISE_SUB, &scores, &max);
  const tfu_node exps = tfu_graph_unary(g, CUDNN_POINTWISE_EXP, &below);
  tfu_graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, &exps, &sum);
  const tfu_node log = tfu_graph_unary(g, CUDNN_POINTWISE_LOG, &sum);
  tfu_graph_pointwise(g, CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, -1, &max, &log, NULL, &stats);

  const tfu_node p = tfu_graph_virtual_like(g, s->type, &exps);
  tfu_graph_pointwise(g, CUDNN_POINTWISE_DIV, CUDNN_DATA_FLOAT, -1, &exps, &sum, NULL, &p);
  tfu_graph_matmul(g, &p, &v, &o, s->n_query, NULL, s->n_key);
}

/* The gradient of key or value: a b, summed over the query heads that share a key head. */
static void key_gradient(sketch *s, const tfu_node *a, const tfu_node *b, int slot, int dim) {
  const tfu_node gradient = key_rows(s, slot, dim);
  if (s->k->heads == s->k->key_heads) {
    tfu_graph_matmul(s->g, a, b, &gradient, s->n_key, NULL, s->n_query);
    return;
  }
  const tfu_node every = packed(s, -1, s->type, s->k->heads, s->k->keys, dim);
  tfu_graph_matmul(s->g, a, b, &every, s->n_key, NULL, s->n_query);
  tfu_graph_reduce(s->g, CUDNN_REDUCE_TENSOR_ADD, &every, &gradient);
}

/* The sum over head_dim of doutput * output. */
static tfu_node dot(sketch *s, const tfu_node *d_o, const tfu_node *o) {
  const int64_t heads = s->k->heads, queries = s->k->queries, dim = s->k->value_dim;
  /* Strides of a product that is nowhere: these odd ones are part of the pattern. */
  const tfu_node product = tfu_graph_virtual(s->g, CUDNN_DATA_FLOAT, 4, (int64_t[]){s->k->batch, heads, queries, dim},
                                             (int64_t[]){heads * queries * dim, queries * dim, heads * dim, 1});
  tfu_graph_pointwise(s->g, CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, -1, d_o, o, NULL, &product);
  const tfu_node sum = per_query(s, -1), y = per_query(s, TFU_AT_DOT), one = tfu_graph_float(s->g, 4, 1);
  tfu_graph_reduce(s->g, CUDNN_REDUCE_TENSOR_ADD, &product, &sum);
  tfu_graph_pointwise(s->g, CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, -1, &sum, &one, NULL, &y);
  return y;
}

static void backward(sketch *s) {
  tfu_graph *g = s->g;
  const int head_dim = s->k->head_dim, value_dim = s->k->value_dim;
  const tfu_node q = query_rows(s, TFU_AT_QUERY, head_dim), k = key_columns(s, TFU_AT_KEY, head_dim);
  const tfu_node v = key_columns(s, TFU_AT_VALUE, value_dim), o = query_rows(s, TFU_AT_OUTPUT, value_dim);
  const tfu_node d_o = query_rows(s, TFU_AT_DOUTPUT, value_dim), stats = per_query(s, TFU_AT_STATS);
  const tfu_node scale = tfu_graph_float(g, 4, s->k->scale), d = dot(s, &d_o, &o);

  tfu_node scores = scores_of(s, &q, &k, &scale);
  if (s->k->lengths) scores = within_lengths(s, scores);
  scores = tfu_graph_binary(g, CUDNN_POINTWISE_SUB, &scores, &stats);
  if (s->k->lengths && g->dnn->version < 91000) scores = within_lengths(s, scores); /* -FLT_MAX - stats is not low */
  scores = within_band(s, scores);
  const tfu_node p = tfu_graph_unary(g, CUDNN_POINTWISE_EXP, &scores);
  const tfu_node p_columns = transpose(s, s->type, &p);
  key_gradient(s, &p_columns, &d_o, TFU_AT_DVALUE, value_dim);

  const tfu_node d_p = per_pair(s);
  tfu_graph_matmul(g, &d_o, &v, &d_p, s->n_query, s->n_key, NULL);
  tfu_node d_s = tfu_graph_binary(g, CUDNN_POINTWISE_SUB, &d_p, &d);
  d_s = tfu_graph_binary(g, CUDNN_POINTWISE_MUL, &d_s, &p);
  d_s = tfu_graph_binary(g, CUDNN_POINTWISE_MUL, &d_s, &scale);
  const tfu_node d_s_columns = transpose(s, s->type, &d_s);
  key_gradient(s, &d_s_columns, &q, TFU_AT_DKEY, head_dim);

  /* Blocks of keys add to dQ in whatever order they finish: in float, and rounded at the end. */
  const tfu_node k_rows = transpose(s, CUDNN_DATA_FLOAT, &k), dq = query_rows(s, TFU_AT_DQUERY, head_dim);
  const tfu_node sum = packed(s, TFU_AT_DQUERY_SUM, CUDNN_DATA_FLOAT, s->k->heads, s->k->queries, head_dim);
  tfu_graph_matmul(g, &d_s, &k_rows, &sum, s->n_query, NULL, s->n_key);
  tfu_graph_pointwise(g, CUDNN_POINTWISE_IDENTITY, CUDNN_DATA_FLOAT, -1, &sum, NULL, NULL, &dq);
}

void tfu_attention_describe(tfu_graph *g, const tfu_attention_key *k) {
  sketch s = {.g = g, .k = k, .type = k->dtype == TFU_F16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16};
  open_lengths(&s);
  if (k->backward) backward(&s);
  else forward(&s);
}
