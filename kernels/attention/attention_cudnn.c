/* attention_cudnn.c - attention by cuDNN's fused kernels, where they are right and use memory linear in the lengths.
 *
 * Measured on an H200 (cuDNN 9.14, bfloat16, B4 H16 S4096 D128): 675 TF/s forward, 608 causal; 550 and 476 backward.
 * attention_served.c says what is served. */
#include "kernels/attention/attention_cudnn.h"

#include "kernels/attention/attention_edges.h"
#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/walk.h"
#include "kernels/core/nvidia/graph.h"

/* ---- planning ---- */

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

static tfu_code plan(const void *key, void *planned, void *with, tfu_error *err) {
  const planner *p = with;
  tfu_graph *g = tfu_graph_new(p->dnn);
  if (!g) return TFU_OK;
  tfu_attention_describe(g, key);
  if (tfu_graph_plan(g, p->handle, NULL, most_workspace(key), err) == TFU_OK) ((tfu_planned *)planned)->graph = g;
  else tfu_graph_free(g);
  return TFU_OK;
}

static tfu_table plans = TFU_PLANS(plan);

/* ---- lengths, and rows that a bias empties ---- */

TFU_MODULE(attention_edges);
static tfu_kernel before = {.module = &module, .name = "attention_before"};
static tfu_kernel after = {.module = &module, .name = "attention_after"};

/* As many threads as there are items, but no more blocks than fill the GPU: the kernels go round. */
static tfu_code launch(tfu_call *call, const tfu_attention_request *r, tfu_kernel *kernel, size_t items,
                       attention_edges *e) {
  const int64_t blocks = least(divide_up((int64_t)items, TFU_THREADS), (int64_t)r->multiprocessors * 8);
  return tfu_launch(call, kernel, 0, r->dtype, (tfu_grid){.x = (unsigned)blocks, .threads = TFU_THREADS}, e);
}

/* ---- running ---- */

/* Parts of one scratch block, each where the one before it ends, rounded up. */
static size_t part(size_t *end, size_t bytes) {
  const size_t begin = *end;
  *end = (begin + bytes + 255) / 256 * 256;
  return begin;
}

/* One block of scratch has all that the graph needs beside the tensors. Where lengths or a bias ask for it, kernels of
 * our own run before and after cuDNN's (attention_edges.cu). */
static tfu_code run(tfu_call *call, const tfu_attention_request *r, tfu_graph *g, cudnnHandle_t handle) {
  const attention_args *a = r->a;
  const tfu_attention_key *k = &r->key;
  const size_t rows = (size_t)k->batch * (size_t)k->heads * (size_t)k->queries;
  const int edges = r->given_lengths || a->bias, own_stats = r->backward && edges;
  size_t end = 0;
  const size_t dot = part(&end, r->backward ? rows * sizeof(float) : 0);
  const size_t sum = part(&end, r->backward ? rows * (size_t)k->head_dim * sizeof(float) : 0);
  const size_t stats = part(&end, own_stats ? rows * sizeof(float) : 0);
  const size_t queries = part(&end, k->lengths ? (size_t)k->batch * sizeof(int32_t) : 0);
  const size_t keys = part(&end, k->lengths ? (size_t)k->batch * sizeof(int32_t) : 0);
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
      [TFU_AT_STATS] = own_stats ? scratch + stats : a->stats,
      [TFU_AT_DOUTPUT] = (void *)a->doutput,
      [TFU_AT_DQUERY] = a->dquery,
      [TFU_AT_DKEY] = a->dkey,
      [TFU_AT_DVALUE] = a->dvalue,
      [TFU_AT_DOT] = scratch + dot,
      [TFU_AT_DQUERY_SUM] = scratch + sum,
  };
  attention_edges e = {.a = *a,
                       .queries = k->lengths ? memory[TFU_AT_QUERY_LENGTHS] : NULL,
                       .keys = k->lengths ? memory[TFU_AT_KEY_LENGTHS] : NULL,
                       .lowest = r->dtype == TFU_F16 ? 0xfc00 : 0xff80,
                       .stats = own_stats ? memory[TFU_AT_STATS] : NULL};
  call->kernel = r->backward ? "cuDNN attention gradient" : "cuDNN attention";
  if (k->lengths || own_stats) TFU_TRY(launch(call, r, &before, own_stats ? rows : (size_t)k->batch, &e));
  if (r->backward && g->dnn->version < 90600) /* later ones clear it themselves */
    TFU_TRY(tfu_fill(call, memory[TFU_AT_DQUERY_SUM], 0, rows * (size_t)k->head_dim));
  TFU_TRY(tfu_graph_run(g, handle, memory, scratch + workspace, call->err));
  return edges ? launch(call, r, &after, rows * 32, &e) : TFU_OK;
}

/* Whether there is memory for a run. Of a gradient there always is: it is not captured. */
static int has_room(const tfu_call *call, const tfu_attention_request *r, const tfu_graph *g) {
  enum { ROUNDING = 4 * 256 };
  const size_t lengths = 2 * sizeof(int32_t) * (size_t)r->key.batch;
  return tfu_has_scratch(call, (size_t)g->workspace + lengths + ROUNDING);
}

/* A handle and a plan, which may be made here, also while the call is captured. */
static tfu_planned *prepare(tfu_call *call, const tfu_attention_request *r, const tfu_cudnn *dnn,
                            tfu_cudnn_handle **handle) {
  const int mode = call->captured ? tfu_capture_relax() : 0;
  tfu_error ignored;
  void *p = NULL;
  if (tfu_cudnn_borrow(dnn, call->stream, handle, &ignored) != TFU_OK) *handle = NULL;
  else if (tfu_table_get(&plans, &r->key, sizeof r->key, &(planner){dnn, (*handle)->handle}, &p, &ignored) != TFU_OK)
    p = NULL;
  if (call->captured) tfu_capture_restore(mode);
  return p;
}

static tfu_code serve(tfu_call *call, tfu_attention_request *r, int *served, const char **why) {
  tfu_device device;
  tfu_cudnn_handle *handle;
  *served = 0;
  const tfu_cudnn *dnn = tfu_cudnn_get(why);
  if (!dnn) return TFU_OK;
  TFU_TRY(tfu_device_now(&device, call->err));
  r->capability = device.capability;
  r->multiprocessors = device.multiprocessors;
  tfu_attention_ask(r, device.ordinal);
  if ((*why = tfu_attention_refusal(r, dnn->version))) return TFU_OK;
  *why = "cuDNN cannot be started";
  tfu_planned *p = prepare(call, r, dnn, &handle);
  if (!handle) return TFU_OK;
  tfu_code code = TFU_OK;
  *why = "cuDNN has no plan for it";
  if (p && p->graph && !has_room(call, r, p->graph)) {
    *why = "cuDNN wants more scratch memory than a captured call has";
  } else if (p && p->graph) {
    *served = 1;
    code = run(call, r, p->graph, handle->handle);
  }
  if (p) tfu_table_put(&plans, p, *served ? call : NULL);
  tfu_cudnn_return(handle);
  return code;
}

tfu_code tfu_attention_cudnn(tfu_call *call, const attention_args *a, tfu_dtype dtype, int *served, const char **why) {
  tfu_attention_request r = {.a = a, .dtype = dtype};
  return serve(call, &r, served, why);
}

tfu_code tfu_attention_cudnn_grad(tfu_call *call, const attention_args *a, tfu_dtype dtype, int deterministic,
                                  int *served, const char **why) {
  tfu_attention_request r = {.a = a, .dtype = dtype, .backward = 1, .deterministic = deterministic};
  return serve(call, &r, served, why);
}
