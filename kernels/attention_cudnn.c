/* attention_cudnn.c - attention by cuDNN's fused kernels, where they are right and use memory linear in the lengths.
 *
 * Measured on an H200 (cuDNN 9.14, bfloat16, B4 H16 S4096 D128): 675 TF/s forward, 608 causal; 550 and 476 backward.
 * What is not served here our own kernels do; the table below says what, and from where it is known. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "kernels/attention.h"
#include "kernels/attention_cudnn.h"
#include "kernels/core/cuda.h"
#include "kernels/core/plan_cache.h"
#include "ops/attention.h"

typedef struct request {
  const attention_args *a;
  tfu_dtype dtype;
  int backward, deterministic, capability;
  tfu_attention_key key;
} request;

/* ---- what is served ---- */

static int other_dtype(const request *r) { return r->dtype != TFU_F16 && r->dtype != TFU_BF16; }
static int old_device(const request *r) { return r->capability < 80; }
static int dropout(const request *r) { return r->a->seed != NULL; }
static int mask(const request *r) { return r->a->mask != NULL; }
static int ragged(const request *r) { return r->a->ragged || r->a->table; }
static int lengths(const request *r) { return r->a->query_lengths || r->a->key_lengths; }
static int always(const request *r) { return r != NULL; }
static int ordered(const request *r) { return r->backward && r->deterministic; }
static int bias_gradient(const request *r) { return r->backward && r->a->dbias; }
static int stats_gradient(const request *r) { return r->backward && r->a->dstats; }
static int odd_head_dim(const request *r) { return r->key.head_dim % 8 || r->key.value_dim % 8; }
static int wide_head(const request *r) { return r->key.head_dim > 256 || r->key.value_dim > 256; }
static int stretched_keys(const request *r) { return r->key.bias && !r->key.bias_along[3]; }
static int one_pair(const request *r) { return r->backward && r->key.queries == 1 && r->key.keys == 1; }
static int one_query(const request *r) { return r->key.queries == 1; }
static int window(const request *r) { return r->key.left >= 0; }
static int shifted(const request *r) { return r->key.align; }
static int shifted_window(const request *r) { return window(r) && shifted(r); }
static int shifted_bias(const request *r) { return shifted(r) && r->key.bias; }
static int two_sided(const request *r) { return r->key.right > 0 || (window(r) && r->key.right != 0); }
static int window_bias(const request *r) { return window(r) && r->key.bias; }
static int uneven_head(const request *r) {
  return r->backward && r->key.head_dim > 128 && !(r->key.head_dim == 192 && r->key.value_dim == 128);
}
static int wide_elsewhere(const request *r) { return r->key.head_dim > 128 && r->capability / 10 != 9; }

/* Queries that come too early for every key, or too late. */
static int keyless(const request *r) { return r->key.queries > r->key.keys && (shifted(r) || window(r)); }

static int empty(const request *r) {
  const tfu_attention_key *k = &r->key;
  return !k->batch || !k->heads || !k->queries || !k->keys || !k->head_dim || !k->value_dim;
}

static int huge(const request *r) {
  const tfu_attention_key *k = &r->key;
  const int dim = k->head_dim > k->value_dim ? k->head_dim : k->value_dim;
  const int64_t rows = (int64_t)k->batch * k->heads * (k->queries > k->keys ? k->queries : k->keys);
  int64_t bias = k->bias;
  const int sizes[4] = {k->batch, k->heads, k->queries, k->keys};
  for (int i = 0; i < 4; i++)
    if (k->bias_along[i]) bias *= sizes[i];
  return rows > INT_MAX / dim || bias > INT_MAX;
}

static int misaligned(const request *r) {
  const attention_args *a = r->a;
  const void *all[] = {a->query, a->key,     a->value,  a->bias, a->output,
                       a->stats, a->doutput, a->dquery, a->dkey, a->dvalue};
  for (int i = 0; i < TFU_COUNT(all); i++)
    if ((uintptr_t)all[i] % 16) return 1;
  return 0;
}

/* For versions from <= version < until; 91002 is 9.10.2. The versions are those that cudnn-frontend checks for, the
 * limits without versions are our own. */
enum { EVER = INT_MAX };
static const struct rule {
  int from, until;
  int (*applies)(const request *);
  const char *why;
} rules[] = {
    {0, EVER, other_dtype, "cuDNN attention is for float16 and bfloat16"},
    {0, EVER, old_device, "cuDNN attention needs compute capability 8.0"},
    {0, EVER, empty, "there is nothing to attend to"},
    {0, EVER, ragged, "ragged sequences and pages are our own kernel's"},
    {0, EVER, dropout, "cuDNN would draw other random numbers than philox.h"},
    {0, EVER, mask, "cuDNN attention takes no boolean mask"},
    /* A sequence without keys gives NaN before 9.25, and lengths are not known to the host. */
    {0, EVER, lengths, "cuDNN attention is wrong for sequences of length 0"},
    {0, EVER, keyless, "some queries attend to no key"},
    {0, EVER, odd_head_dim, "cuDNN attention needs head dims that are multiples of 8"},
    {0, EVER, wide_head, "cuDNN attention needs head dims of at most 256"},
    {0, EVER, stretched_keys, "cuDNN attention needs a bias with an element for every key"},
    {0, EVER, shifted_bias, "cuDNN attention takes no bias where the last steps are aligned"},
    {0, EVER, huge, "cuDNN attention is for tensors below 2^31 elements"},
    {0, EVER, misaligned, "cuDNN attention needs tensors on 16-byte boundaries"},
    /* The ways of cuDNN to both of these keep the gradients of all scores, batch * heads * queries * keys. */
    {0, EVER, ordered, "cuDNN attention has no repeatable gradient in linear memory"},
    {0, EVER, bias_gradient, "cuDNN attention has no gradient of the bias in linear memory"},
    {0, EVER, stats_gradient, "cuDNN attention has no gradient of stats"},
    {0, EVER, one_pair, "cuDNN attention has no gradient of one query and one key"},

    {0, 90600, shifted, "cuDNN before 9.6 aligns last steps only at multiples of 64"},
    {0, 91000, one_query, "cuDNN before 9.10 is for more than one query"},
    {0, 91000, wide_elsewhere, "cuDNN before 9.10 has head dims above 128 on compute capability 9.0 only"},
    {0, 91002, two_sided, "cuDNN before 9.10.2 has no window that is not causal"},
    {0, 91002, window_bias, "cuDNN before 9.10.2 has no window with bias"},
    {0, 91002, shifted_window, "cuDNN before 9.10.2 has no window where the last steps are aligned"},
    {91000, 91002, always, "cuDNN 9.10.0 and 9.10.1 compute attention wrongly"},
    {91100, 91300, uneven_head, "cuDNN 9.11 and 9.12 have gradients of head dims above 128 only for 192 with 128"},
    {91400, 91401, two_sided, "cuDNN 9.14.0 computes windows wrongly that are not causal"},
};

static const char *refusal(const request *r, int version) {
  for (int i = 0; i < TFU_COUNT(rules); i++)
    if (version >= rules[i].from && version < rules[i].until && rules[i].applies(r)) return rules[i].why;
  return NULL;
}

/* ---- what is asked ---- */

/* Limits that limit nothing are left out: plainer graphs are faster, and served by more versions. */
static void read_band(const attention_args *a, tfu_attention_key *k) {
  const int shift = a->align ? a->keys - a->queries : 0;
  k->left = a->left < 0 || a->left - shift >= a->queries - 1 ? -1 : a->left;
  k->right = a->right < 0 || a->right + shift >= a->keys - 1 ? -1 : a->right;
  k->align = shift != 0 && (k->left >= 0 || k->right >= 0);
}

static void read_key(request *r, int ordinal) {
  const attention_args *a = r->a;
  tfu_attention_key *k = &r->key;
  memset(k, 0, sizeof *k);
  k->backward = r->backward;
  k->dtype = (int32_t)r->dtype;
  k->ordinal = ordinal;
  k->batch = a->batch;
  k->heads = a->heads;
  k->key_heads = a->key_heads;
  k->head_dim = a->head_dim;
  k->value_dim = a->value_dim;
  k->queries = a->queries;
  k->keys = a->keys;
  k->scale = a->scale;
  read_band(a, k);
  k->bias = a->bias != NULL;
  for (int i = 0; i < 4 && a->bias; i++) k->bias_along[i] = a->bias_step[i] != 0 || (i == 3 && a->keys == 1);
  /* The gradient counts what is beyond the last whole tile of 128 as scores of 0, which gives NaN where all true scores
   * are low (seen through 9.26): lengths, which are the axes' sizes here, mask that. */
  k->lengths = r->backward && (a->queries % 128 || a->keys % 128);
}

/* ---- running ---- */

/* Room for the gradients of key and value for every query head, in float, and a little. More would be a way of
 * computing that keeps scores. */
static int64_t most_workspace(const tfu_attention_key *k) {
  const int64_t heads = (int64_t)k->batch * k->heads * k->keys * (k->head_dim + k->value_dim);
  return ((int64_t)64 << 20) + (k->backward ? heads * (int64_t)sizeof(float) : 0);
}

typedef struct planner {
  const tfu_cudnn *dnn;
  cudnnHandle_t handle;
} planner;

static tfu_graph *plan(const void *key, void *with, char *why, size_t size) {
  const planner *p = with;
  tfu_error err;
  tfu_graph *g = tfu_graph_new(p->dnn);
  if (!g) return NULL;
  tfu_attention_describe(g, key);
  if (tfu_graph_plan(g, p->handle, NULL, most_workspace(key), &err) == TFU_OK) return g;
  snprintf(why, size, "%s", err.text);
  tfu_graph_free(g);
  return NULL;
}

/* Scratch for everything at once; a part is where the one before it ends, rounded up. */
static size_t part(size_t *end, size_t bytes) {
  const size_t begin = *end;
  *end = (begin + bytes + 255) / 256 * 256;
  return begin;
}

static tfu_code run(tfu_call *call, const request *r, tfu_graph *g, cudnnHandle_t handle) {
  const attention_args *a = r->a;
  const tfu_attention_key *k = &r->key;
  const size_t rows = (size_t)k->batch * (size_t)k->heads * (size_t)k->queries, batch = (size_t)k->batch;
  size_t end = 0;
  const size_t dot = part(&end, r->backward ? rows * sizeof(float) : 0);
  const size_t sum = part(&end, r->backward ? rows * (size_t)k->head_dim * sizeof(float) : 0);
  const size_t queries = part(&end, k->lengths ? batch * sizeof(int32_t) : 0);
  const size_t keys = part(&end, k->lengths ? batch * sizeof(int32_t) : 0);
  const size_t workspace = part(&end, (size_t)g->workspace);
  void *block;
  TFU_TRY(tfu_scratch(call, end, &block));
  char *scratch = block;
  void *const memory[TFU_AT_SLOTS] = {
      [TFU_AT_QUERY] = (void *)a->query,
      [TFU_AT_KEY] = (void *)a->key,
      [TFU_AT_VALUE] = (void *)a->value,
      [TFU_AT_BIAS] = (void *)a->bias,
      [TFU_AT_QUERY_LENGTHS] = scratch + queries,
      [TFU_AT_KEY_LENGTHS] = scratch + keys,
      [TFU_AT_OUTPUT] = a->output,
      [TFU_AT_STATS] = a->stats,
      [TFU_AT_DOUTPUT] = (void *)a->doutput,
      [TFU_AT_DQUERY] = a->dquery,
      [TFU_AT_DKEY] = a->dkey,
      [TFU_AT_DVALUE] = a->dvalue,
      [TFU_AT_DOT] = scratch + dot,
      [TFU_AT_DQUERY_SUM] = scratch + sum,
  };
  if (k->lengths) {
    TFU_TRY(tfu_fill(call, memory[TFU_AT_QUERY_LENGTHS], (uint32_t)k->queries, batch));
    TFU_TRY(tfu_fill(call, memory[TFU_AT_KEY_LENGTHS], (uint32_t)k->keys, batch));
  }
  if (r->backward && g->dnn->version < 90600) /* later ones clear it themselves */
    TFU_TRY(tfu_fill(call, memory[TFU_AT_DQUERY_SUM], 0, rows * (size_t)k->head_dim));
  if (!call->kernel) call->kernel = r->backward ? "cuDNN attention gradient" : "cuDNN attention";
  return tfu_graph_run(g, handle, memory, scratch + workspace, call->err);
}

static tfu_code serve(tfu_call *call, request *r, int *served, const char **why) {
  tfu_device device;
  tfu_cudnn_handle *handle;
  tfu_error ignored;
  *served = 0;
  const tfu_cudnn *dnn = tfu_cudnn_get(why);
  if (!dnn) return TFU_OK;
  TFU_TRY(tfu_device_now(&device, call->err));
  r->capability = device.capability;
  read_key(r, device.ordinal);
  if ((*why = refusal(r, dnn->version))) return TFU_OK;
  *why = "cuDNN cannot be started";
  if (tfu_cudnn_borrow(dnn, call->stream, &handle, &ignored) != TFU_OK) return TFU_OK;
  tfu_code code = TFU_OK;
  tfu_planned *p = tfu_plan_get("attention", &r->key, sizeof r->key, plan, &(planner){dnn, handle->handle});
  *why = "cuDNN has no plan for it";
  if (p && p->graph) {
    *served = 1;
    code = run(call, r, p->graph, handle->handle);
  }
  if (p) tfu_plan_release(p);
  tfu_cudnn_return(handle);
  return code;
}

tfu_code tfu_attention_cudnn(tfu_call *call, const attention_args *a, tfu_dtype dtype, int *served, const char **why) {
  request r = {.a = a, .dtype = dtype};
  return serve(call, &r, served, why);
}

tfu_code tfu_attention_cudnn_grad(tfu_call *call, const attention_args *a, tfu_dtype dtype, int deterministic,
                                  int *served, const char **why) {
  request r = {.a = a, .dtype = dtype, .backward = 1, .deterministic = deterministic};
  return serve(call, &r, served, why);
}
