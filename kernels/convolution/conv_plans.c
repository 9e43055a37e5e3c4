/* conv_plans.c - cuDNN's plans of a convolution, which are kept, and memory for them. */
#include "kernels/convolution/conv_choose.h"

/* What was asked, and which of the proposals for it. */
typedef struct plan_key {
  conv_key key;
  int32_t config;
} plan_key;
_Static_assert(sizeof(plan_key) == sizeof(conv_key) + sizeof(int32_t), "a gap would be compared too");

tfu_graph *tfu_conv_ask(const conv_request *r, const conv_key *key, tfu_error *err) {
  tfu_graph *g = tfu_graph_new(r->dnn);
  if (!g) return NULL;
  tfu_conv_describe(g, key);
  if (tfu_graph_ask(g, r->handle->handle, NULL, TFU_GRAPH_CONFIGS, tfu_conv_avoid(key), tfu_conv_fewest(key), err) ==
      TFU_OK)
    return g;
  tfu_graph_free(g);
  return NULL;
}

static tfu_code take_least(tfu_graph *g, const conv_key *key, cudnnHandle_t handle, tfu_error *err) {
  int64_t least = INT64_MAX;
  int best = -1;
  for (int i = 0; i < g->n_configs; i++)
    if (tfu_conv_trusts(key, tfu_graph_engine(g, i)) && tfu_graph_take(g, handle, i, err) == TFU_OK &&
        g->workspace < least)
      least = g->workspace, best = i;
  return best < 0 ? tfu_fail(err, TFU_INTERNAL, "no engine plans it") : tfu_graph_take(g, handle, best, err);
}

static tfu_code plan(const void *key_, void *planned, void *request, tfu_error *err) {
  const plan_key *key = key_;
  const conv_request *r = request;
  const cudnnHandle_t handle = r->handle->handle;
  tfu_graph *g = tfu_conv_ask(r, &key->key, err);
  if (g && key->config < g->n_configs &&
      (key->config < 0 ? take_least(g, &key->key, handle, err) : tfu_graph_take(g, handle, key->config, err)) == TFU_OK)
    ((tfu_planned *)planned)->graph = g;
  else tfu_graph_free(g);
  return TFU_OK;
}

static tfu_table plans = TFU_PLANS(plan);

tfu_planned *tfu_conv_plan(conv_request *r, int config) {
  const plan_key key = {.key = r->key, .config = config};
  tfu_error ignored;
  void *value;
  if (tfu_table_get(&plans, &key, sizeof key, r, &value, &ignored) != TFU_OK) return NULL;
  if (((tfu_planned *)value)->graph) return value;
  tfu_table_put(&plans, value, NULL);
  return NULL;
}

void tfu_conv_plan_put(tfu_planned *p, const tfu_call *ran) { tfu_table_put(&plans, p, ran); }

int tfu_conv_try_scratch(conv_request *r, int64_t bytes, void **memory) {
  const int there = tfu_try_scratch(r->call, (size_t)bytes, memory);
  r->short_of_memory |= !there;
  return there;
}

int tfu_conv_has_workspace(conv_request *r, int64_t bytes) {
  enum { ALIGN = 256 };
  void *memory;
  if (bytes <= r->space) return 1;
  if (!tfu_conv_try_scratch(r, bytes + ALIGN, &memory)) return 0;
  r->workspace = (void *)(((uintptr_t)memory + ALIGN - 1) & ~(uintptr_t)(ALIGN - 1));
  r->space = bytes;
  return 1;
}
