#include "kernels/core/nvidia/graph.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/core/gpu/library.h"

/* ---- descriptors ---- */

static void check(tfu_graph *g, cudnnStatus_t status, const char *what) {
  if (g->code == TFU_OK) g->code = tfu_cudnn_code(g->dnn, status, what, &g->err);
}

static int room(tfu_graph *g, int used, int most, const char *what) {
  if (g->code == TFU_OK && used == most) g->code = tfu_fail(&g->err, TFU_INTERNAL, "more than %d %s", most, what);
  return g->code == TFU_OK;
}

static cudnnBackendDescriptor_t create(tfu_graph *g, cudnnBackendDescriptorType_t type, const char *what) {
  cudnnBackendDescriptor_t desc = NULL;
  if (!room(g, g->n_descs, TFU_GRAPH_DESCS, "descriptors in a graph")) return NULL;
  check(g, g->dnn->cudnnBackendCreateDescriptor(type, &desc), what);
  if (desc) g->descs[g->n_descs++] = desc;
  return desc;
}
#define CREATE(g, type) create(g, type, #type)

/* An attribute: so many values of a type. NULL: it is left out. */
typedef struct attribute {
  const char *what;
  cudnnBackendAttributeName_t name;
  cudnnBackendAttributeType_t type;
  int64_t count;
  const void *values;
} attribute;
#define VALUES(name, type, count, values) \
  { #name, name, type, count, values }
#define DESC(name, desc) VALUES(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, desc)
/* Of a node; NULL: there is none. */
#define NODE(name, node) DESC(name, node ? &node->desc : NULL)

static void set(tfu_graph *g, cudnnBackendDescriptor_t desc, const attribute *a, int n) {
  for (int i = 0; i < n && g->code == TFU_OK; i++)
    if (a[i].values)
      check(g, g->dnn->cudnnBackendSetAttribute(desc, a[i].name, a[i].type, a[i].count, a[i].values), a[i].what);
}

static cudnnBackendDescriptor_t describe(tfu_graph *g, cudnnBackendDescriptorType_t type, const char *what,
                                         const attribute *attributes, int n) {
  cudnnBackendDescriptor_t desc = create(g, type, what);
  set(g, desc, attributes, n);
  if (g->code == TFU_OK) check(g, g->dnn->cudnnBackendFinalize(desc), what);
  return desc;
}
#define LIST(...) (const attribute[]){__VA_ARGS__}, TFU_COUNT(((const attribute[]){__VA_ARGS__}))
#define DESCRIBE(g, type, ...) describe(g, type, #type, LIST(__VA_ARGS__))

static void add(tfu_graph *g, cudnnBackendDescriptor_t op) {
  if (room(g, g->n_ops, TFU_GRAPH_OPS, "operations in a graph")) g->ops[g->n_ops++] = op;
}

tfu_graph *tfu_graph_new(const tfu_cudnn *dnn) {
  tfu_graph *g = calloc(1, sizeof *g);
  if (!g) return NULL;
  g->dnn = dnn;
  pthread_mutex_init(&g->running, NULL);
  return g;
}

/* In reverse, so that none goes before one that was made from it. */
void tfu_graph_free(tfu_graph *g) {
  if (!g) return;
  while (g->n_descs > 0) g->dnn->cudnnBackendDestroyDescriptor(g->descs[--g->n_descs]);
  pthread_mutex_destroy(&g->running);
  free(g);
}

/* ---- tensors ---- */

/* Unique ids: slots from 1 on, scalars from 101 on, virtual tensors from 1001 on. */
static int64_t slot_id(int slot) { return slot + 1; }
static int64_t scalar_id(int scalar) { return scalar + 101; }

static tfu_node tensor(tfu_graph *g, int64_t id, int is_virtual, int by_value, cudnnDataType_t type, int rank,
                       const int64_t *dim, const int64_t *stride) {
  const int64_t alignment = 16;
  const char yes = 1, no = 0; /* cuDNN's booleans are C++'s */
  tfu_node t = {.rank = rank};
  memcpy(t.dim, dim, (size_t)rank * sizeof *dim);
  memcpy(t.stride, stride, (size_t)rank * sizeof *stride);
  t.desc =
      DESCRIBE(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR, VALUES(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type),
               VALUES(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, rank, dim),
               VALUES(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, rank, stride),
               VALUES(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id),
               VALUES(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment),
               VALUES(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, is_virtual ? &yes : &no),
               VALUES(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, by_value ? &yes : NULL));
  return t;
}

tfu_node tfu_graph_real(tfu_graph *g, int slot, cudnnDataType_t type, int rank, const int64_t *dim,
                        const int64_t *stride) {
  if (room(g, g->n_slots, TFU_GRAPH_SLOTS, "tensors in memory in a graph")) g->slot[g->n_slots++] = slot;
  return tensor(g, slot_id(slot), 0, 0, type, rank, dim, stride);
}

tfu_node tfu_graph_virtual(tfu_graph *g, cudnnDataType_t type, int rank, const int64_t *dim, const int64_t *stride) {
  return tensor(g, 1001 + g->n_descs, 1, 0, type, rank, dim, stride);
}

tfu_node tfu_graph_virtual_like(tfu_graph *g, cudnnDataType_t type, const tfu_node *like) {
  return tfu_graph_virtual(g, type, like->rank, like->dim, like->stride);
}

static tfu_node scalar(tfu_graph *g, cudnnDataType_t type, int rank, const void *bits) {
  static const int64_t ones[TFU_GRAPH_RANK] = {1, 1, 1, 1, 1};
  if (!room(g, g->n_scalars, TFU_GRAPH_SCALARS, "scalars in a graph")) return (tfu_node){.rank = rank};
  memcpy(&g->scalar[g->n_scalars], bits, sizeof *g->scalar);
  return tensor(g, scalar_id(g->n_scalars++), 0, 1, type, rank, ones, ones);
}

tfu_node tfu_graph_float(tfu_graph *g, int rank, float value) { return scalar(g, CUDNN_DATA_FLOAT, rank, &value); }
tfu_node tfu_graph_int(tfu_graph *g, int rank, int32_t value) { return scalar(g, CUDNN_DATA_INT32, rank, &value); }

void tfu_graph_packed(int rank, const int64_t *dim, int64_t *stride) {
  int64_t step = 1;
  for (int i = rank - 1; i >= 0; i--) {
    stride[i] = step;
    step *= dim[i];
  }
}

/* ---- operations ---- */

static const cudnnDataType_t in_float = CUDNN_DATA_FLOAT;

void tfu_graph_pointwise(tfu_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t compute, int axis, const tfu_node *x,
                         const tfu_node *b, const tfu_node *t, const tfu_node *y) {
  const int64_t along = axis;
  const cudnnBackendDescriptor_t math = DESCRIBE(
      g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, VALUES(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode),
      VALUES(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute),
      VALUES(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, axis >= 0 ? &along : NULL));
  add(g, DESCRIBE(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
                  DESC(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, &math),
                  NODE(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x), NODE(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b),
                  NODE(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t), NODE(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y)));
}

void tfu_graph_reduce(tfu_graph *g, cudnnReduceTensorOp_t mode, const tfu_node *x, const tfu_node *y) {
  const cudnnBackendDescriptor_t math =
      DESCRIBE(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR,
               VALUES(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode),
               VALUES(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &in_float));
  add(g, DESCRIBE(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, DESC(CUDNN_ATTR_OPERATION_REDUCTION_DESC, &math),
                  NODE(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x), NODE(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y)));
}

void tfu_graph_matmul(tfu_graph *g, const tfu_node *a, const tfu_node *b, const tfu_node *c, const tfu_node *m,
                      const tfu_node *n, const tfu_node *k) {
  const cudnnBackendDescriptor_t math = DESCRIBE(
      g, CUDNN_BACKEND_MATMUL_DESCRIPTOR, VALUES(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &in_float));
  add(g,
      DESCRIBE(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, NODE(CUDNN_ATTR_OPERATION_MATMUL_ADESC, a),
               NODE(CUDNN_ATTR_OPERATION_MATMUL_BDESC, b), NODE(CUDNN_ATTR_OPERATION_MATMUL_CDESC, c),
               DESC(CUDNN_ATTR_OPERATION_MATMUL_DESC, &math), NODE(CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, m),
               NODE(CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, n),
               NODE(CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, k)));
}

void tfu_graph_reshape(tfu_graph *g, const tfu_node *x, const tfu_node *y) {
  add(g, DESCRIBE(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, NODE(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x),
                  NODE(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y)));
}

static cudnnBackendDescriptor_t describe_window(tfu_graph *g, cudnnDataType_t compute, const tfu_graph_window *w) {
  const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  const int64_t axes = w->axes;
  return DESCRIBE(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR,
                  VALUES(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute),
                  VALUES(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode),
                  VALUES(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &axes),
                  VALUES(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, axes, w->before),
                  VALUES(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, axes, w->after),
                  VALUES(CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, axes, w->dilation),
                  VALUES(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, axes, w->stride));
}

/* The three operations have the same attributes in the same order. */
enum { ALPHA, BETA, WINDOW, W, X, Y };
static const struct {
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t first;
} convolutions[] = {[TFU_GRAPH_FORWARD] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                                           CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA},
                    [TFU_GRAPH_BACKWARD_DATA] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                                                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA},
                    [TFU_GRAPH_BACKWARD_FILTER] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                                                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA}};

void tfu_graph_conv(tfu_graph *g, tfu_graph_conv_kind kind, cudnnDataType_t compute, const tfu_graph_window *window,
                    const tfu_node *x, const tfu_node *w, const tfu_node *y) {
  const int wide = compute == CUDNN_DATA_DOUBLE;
  const cudnnBackendAttributeType_t desc = CUDNN_TYPE_BACKEND_DESCRIPTOR;
  const cudnnBackendAttributeType_t number = wide ? CUDNN_TYPE_DOUBLE : CUDNN_TYPE_FLOAT;
  const double wide_one = 1, none = 0; /* a double that is zero begins with a float that is */
  const float one = 1;
  const cudnnBackendDescriptor_t math = describe_window(g, compute, window);
  const cudnnBackendAttributeName_t first = convolutions[kind].first;
  const attribute attributes[] = {{"window", first + WINDOW, desc, 1, &math},
                                  {"x", first + X, desc, 1, &x->desc},
                                  {"w", first + W, desc, 1, &w->desc},
                                  {"y", first + Y, desc, 1, &y->desc},
                                  {"alpha", first + ALPHA, number, 1, wide ? (const void *)&wide_one : &one},
                                  {"beta", first + BETA, number, 1, &none}};
  add(g, describe(g, convolutions[kind].type, "convolution operation", attributes, TFU_COUNT(attributes)));
}

tfu_node tfu_graph_unary(tfu_graph *g, cudnnPointwiseMode_t mode, const tfu_node *x) {
  const tfu_node y = tfu_graph_virtual_like(g, CUDNN_DATA_FLOAT, x);
  tfu_graph_pointwise(g, mode, CUDNN_DATA_FLOAT, -1, x, NULL, NULL, &y);
  return y;
}

tfu_node tfu_graph_binary(tfu_graph *g, cudnnPointwiseMode_t mode, const tfu_node *x, const tfu_node *b) {
  const tfu_node y = tfu_graph_virtual_like(g, CUDNN_DATA_FLOAT, x);
  tfu_graph_pointwise(g, mode, CUDNN_DATA_FLOAT, -1, x, b, NULL, &y);
  return y;
}

/* ---- planning ---- */

/* cuDNN opens NVRTC with the first configuration of an engine that is to be compiled, and closes it with the last: 37
 * times in conv_graph_test. Unloaded, it leaves some 70 KB each time, and threads that were in it may crash. */
static void keep_nvrtc(void) {
  static const char *const names[] = {"libnvrtc.so.12", "libnvrtc.so.13", NULL};
  tfu_keep_loaded(names);
}

/* Engine configurations by a mode of heuristics, best first, after those that are in g->config. That there are none is
 * no failure. */
static tfu_code propose(tfu_graph *g, cudnnBackendDescriptor_t graph, cudnnHandle_t handle,
                        cudnnBackendDescriptor_t properties, cudnnBackendHeurMode_t mode, int most, tfu_error *err) {
  const tfu_cudnn *dnn = g->dnn;
  cudnnBackendDescriptor_t *const config = g->config + g->n_configs;
  int64_t found = 0;
  most -= g->n_configs;
  cudnnBackendDescriptor_t heuristics = CREATE(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  set(g, heuristics,
      LIST(DESC(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &graph),
           VALUES(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode),
           DESC(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, handle ? NULL : &properties)));
  for (int i = 0; i < most; i++) config[i] = CREATE(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  if (g->code != TFU_OK) return g->code;
  TFU_TRY(tfu_cudnn_code(dnn, dnn->cudnnBackendFinalize(heuristics), "heuristics", err));
  TFU_TRY(tfu_cudnn_code(dnn,
                         dnn->cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                       CUDNN_TYPE_BACKEND_DESCRIPTOR, most, &found, config),
                         "CUDNN_ATTR_ENGINEHEUR_RESULTS", err));
  keep_nvrtc();
  g->n_configs += found < most ? (int)found : most;
  return TFU_OK;
}

/* What is known of a proposal's engine: bits by CUDNN_NUMERICAL_NOTE_…, whether it is to be compiled, its number. */
typedef struct notes {
  unsigned numerical;
  int compiled, number;
} notes;

static notes notes_of(const tfu_graph *g, int i) {
  enum { MOST = 32 };
  const tfu_cudnn *dnn = g->dnn;
  notes n = {.number = -1};
  cudnnBackendNumericalNote_t numerical[MOST];
  cudnnBackendBehaviorNote_t behavior[MOST];
  int64_t count = 0, numericals = 0, behaviors = 0, number = -1;
  cudnnBackendDescriptor_t engine = NULL;
  if (dnn->cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine)) return n;
  if (!dnn->cudnnBackendGetAttribute(g->config[i], CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                     &count, &engine)) {
    dnn->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &count, &number);
    dnn->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, MOST,
                                  &numericals, numerical);
    dnn->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE, MOST, &behaviors,
                                  behavior);
  }
  dnn->cudnnBackendDestroyDescriptor(engine);
  n.number = (int)number;
  for (int64_t k = 0; k < numericals && k < MOST; k++)
    if (numerical[k] < 32) n.numerical |= 1u << numerical[k];
  for (int64_t k = 0; k < behaviors && k < MOST; k++)
    n.compiled |= behavior[k] == CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION;
  return n;
}

/* Keeps, of the proposals from `first` on, those without any of the notes to avoid, and, if there are such, only those
 * that need no compiling. */
static void sift(tfu_graph *g, int first, unsigned avoid, int ready) {
  int compiled[TFU_GRAPH_CONFIGS], kept = first, readies = 0, last = first;
  for (int i = first; i < g->n_configs; i++) {
    const notes n = notes_of(g, i);
    if (n.numerical & avoid) continue;
    compiled[kept] = n.compiled;
    readies += !n.compiled;
    g->config[kept++] = g->config[i];
  }
  for (int i = first; i < kept; i++)
    if (!ready || !readies || !compiled[i]) g->config[last++] = g->config[i];
  g->n_configs = last;
}

tfu_code tfu_graph_ask(tfu_graph *g, cudnnHandle_t handle, cudnnBackendDescriptor_t properties, int most,
                       unsigned avoid, int fewest, tfu_error *err) {
  static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
  tfu_code code = TFU_OK;
  const cudnnBackendDescriptor_t graph =
      DESCRIBE(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
               VALUES(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_ops, g->ops),
               VALUES(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, handle ? &handle : NULL));
  for (int i = 0; i < TFU_COUNT(modes) && (!i || g->n_configs < fewest) && g->code == TFU_OK; i++) {
    tfu_error later;
    const int first = g->n_configs;
    const tfu_code mine = propose(g, graph, handle, properties, modes[i], most, i ? &later : err);
    if (!i) code = mine;
    if (mine == TFU_OK && (avoid || fewest)) sift(g, first, avoid, fewest);
  }
  if (g->code != TFU_OK) return *err = g->err, g->code;
  if (g->n_configs) return TFU_OK;
  return code != TFU_OK ? code : tfu_fail(err, TFU_UNIMPLEMENTED, "cuDNN has no engine for this graph");
}

tfu_code tfu_graph_take(tfu_graph *g, cudnnHandle_t handle, int i, tfu_error *err) {
  int64_t count = 0;
  g->plan = NULL;
  cudnnBackendDescriptor_t plan = CREATE(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  set(g, plan,
      LIST(DESC(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &g->config[i]),
           VALUES(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, handle ? &handle : NULL)));
  if (g->code != TFU_OK) return *err = g->err, g->code;
  TFU_TRY(tfu_cudnn_code(g->dnn, g->dnn->cudnnBackendFinalize(plan), "execution plan", err));
  TFU_TRY(tfu_cudnn_code(g->dnn,
                         g->dnn->cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                                          CUDNN_TYPE_INT64, 1, &count, &g->workspace),
                         "CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE", err));
  g->plan = plan;
  return TFU_OK;
}

int tfu_graph_engine(const tfu_graph *g, int i) { return notes_of(g, i).number; }

tfu_code tfu_graph_plan(tfu_graph *g, cudnnHandle_t handle, cudnnBackendDescriptor_t properties, int64_t most,
                        tfu_error *err) {
  enum { PROPOSALS = 8 };
  tfu_code last = TFU_OK;
  TFU_TRY(tfu_graph_ask(g, handle, properties, PROPOSALS, 0, 0, err));
  /* That a proposal cannot be planned is no failure of the graph: the next one may do. */
  for (int i = 0; i < g->n_configs; i++) {
    last = tfu_graph_take(g, handle, i, err);
    if (last == TFU_OK && g->workspace <= most) return TFU_OK;
    if (g->code != TFU_OK) return last;
  }
  g->plan = NULL;
  if (last != TFU_OK) return last;
  return tfu_fail(err, TFU_UNIMPLEMENTED, "cuDNN wants %lld bytes of workspace where %lld are granted",
                  (long long)g->workspace, (long long)most);
}

/* ---- running ---- */

static tfu_code run(tfu_graph *g, cudnnHandle_t handle, cudnnBackendDescriptor_t pack, void *const *memory,
                    void *workspace, tfu_error *err) {
  const tfu_cudnn *dnn = g->dnn;
  int64_t id[TFU_GRAPH_SLOTS + TFU_GRAPH_SCALARS];
  const void *address[TFU_GRAPH_SLOTS + TFU_GRAPH_SCALARS];
  int n = 0;
  for (int i = 0; i < g->n_slots; i++) {
    id[n] = slot_id(g->slot[i]);
    address[n++] = memory[g->slot[i]];
  }
  for (int i = 0; i < g->n_scalars; i++) {
    id[n] = scalar_id(i);
    address[n++] = &g->scalar[i];
  }
  cudnnStatus_t s = dnn->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, id);
  if (!s)
    s = dnn->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, address);
  if (!s)
    s = dnn->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  if (!s) s = dnn->cudnnBackendFinalize(pack);
  TFU_TRY(tfu_cudnn_code(dnn, s, "binding memory for cuDNN", err));
  pthread_mutex_lock(&g->running);
  s = dnn->cudnnBackendExecute(handle, g->plan, pack);
  pthread_mutex_unlock(&g->running);
  return tfu_cudnn_code(dnn, s, "cudnnBackendExecute", err);
}

tfu_code tfu_graph_run(tfu_graph *g, cudnnHandle_t handle, void *const *memory, void *workspace, tfu_error *err) {
  cudnnBackendDescriptor_t pack = NULL; /* one per run: it holds the addresses */
  TFU_TRY(tfu_cudnn_code(g->dnn, g->dnn->cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack),
                         "CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR", err));
  const tfu_code code = run(g, handle, pack, memory, workspace, err);
  g->dnn->cudnnBackendDestroyDescriptor(pack);
  return code;
}

void tfu_planned_free(void *planned) { tfu_graph_free(((tfu_planned *)planned)->graph); }
