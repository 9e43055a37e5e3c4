/* graph.h - a computation as a graph for cuDNN: described by tensors and operations, planned once, executed often.
 *
 *   tfu_graph_new; tensors and operations; tfu_graph_plan; tfu_graph_run …; tfu_graph_free
 *
 * The first call that fails leaves its error in the graph and the later ones do nothing, so that only tfu_graph_plan
 * has to be checked. Which graphs cuDNN takes is its own affair: it knows patterns, not compositions in general. */
#ifndef TFUSE_GRAPH_H_
#define TFUSE_GRAPH_H_

#include <pthread.h>

#include "kernels/core/nvidia/cudnn.h"
#include "kernels/core/table.h"

enum { TFU_GRAPH_RANK = 5, TFU_GRAPH_SLOTS = 32, TFU_GRAPH_SCALARS = 16, TFU_GRAPH_DESCS = 256, TFU_GRAPH_OPS = 64 };
enum { TFU_GRAPH_CONFIGS = 40 };

typedef struct tfu_node {
  cudnnBackendDescriptor_t desc;
  int rank;
  int64_t dim[TFU_GRAPH_RANK], stride[TFU_GRAPH_RANK];
} tfu_node;

typedef struct tfu_graph {
  const tfu_cudnn *dnn;
  tfu_code code; /* the first failure, and its text */
  tfu_error err;
  cudnnBackendDescriptor_t descs[TFU_GRAPH_DESCS], ops[TFU_GRAPH_OPS];
  int n_descs, n_ops;
  /* What is bound for a run: the caller's memory by slot, then our scalars, which cuDNN reads on the host. */
  int slot[TFU_GRAPH_SLOTS], n_slots;
  int32_t scalar[TFU_GRAPH_SCALARS]; /* the bits of an int32 or a float */
  int n_scalars;
  cudnnBackendDescriptor_t config[TFU_GRAPH_CONFIGS]; /* cuDNN's proposals, best first */
  int n_configs;
  cudnnBackendDescriptor_t plan;
  int64_t workspace;       /* bytes that a run needs                                            */
  pthread_mutex_t running; /* cuDNN does not promise that two threads may execute one plan at once */
} tfu_graph;

/* NULL: out of memory. */
tfu_graph *tfu_graph_new(const tfu_cudnn *dnn);
void tfu_graph_free(tfu_graph *g);

/* ---- tensors ---- */

/* In the caller's memory, which a run gets as memory[slot]; begins on a 16-byte boundary. */
tfu_node tfu_graph_real(tfu_graph *g, int slot, cudnnDataType_t type, int rank, const int64_t *dim,
                        const int64_t *stride);
/* Between two operations, and nowhere in memory. */
tfu_node tfu_graph_virtual(tfu_graph *g, cudnnDataType_t type, int rank, const int64_t *dim, const int64_t *stride);
tfu_node tfu_graph_virtual_like(tfu_graph *g, cudnnDataType_t type, const tfu_node *like);
/* One number that broadcasts over tensors of this rank. */
tfu_node tfu_graph_float(tfu_graph *g, int rank, float value);
tfu_node tfu_graph_int(tfu_graph *g, int rank, int32_t value);
/* The strides of a row-major tensor. */
void tfu_graph_packed(int rank, const int64_t *dim, int64_t *stride);

/* ---- operations ---- */

/* y = mode(x, b, t); b and t may be NULL. axis is for GEN_INDEX, else -1. */
void tfu_graph_pointwise(tfu_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t compute, int axis, const tfu_node *x,
                         const tfu_node *b, const tfu_node *t, const tfu_node *y);
/* Along every axis where y has one element and x more. */
void tfu_graph_reduce(tfu_graph *g, cudnnReduceTensorOp_t mode, const tfu_node *x, const tfu_node *y);
/* c = a b over the last two axes; m, n and k, where not NULL, say per batch how much of these sizes is in use. */
void tfu_graph_matmul(tfu_graph *g, const tfu_node *a, const tfu_node *b, const tfu_node *c, const tfu_node *m,
                      const tfu_node *n, const tfu_node *k);
void tfu_graph_reshape(tfu_graph *g, const tfu_node *x, const tfu_node *y);

/* A convolution, or one of its gradients: y = x w, x = y w and w = x y are the results. */
typedef enum tfu_graph_conv_kind {
  TFU_GRAPH_FORWARD,
  TFU_GRAPH_BACKWARD_DATA,
  TFU_GRAPH_BACKWARD_FILTER
} tfu_graph_conv_kind;
typedef struct tfu_graph_window {
  int axes;
  int64_t before[3], after[3], stride[3], dilation[3];
} tfu_graph_window;
void tfu_graph_conv(tfu_graph *g, tfu_graph_conv_kind kind, cudnnDataType_t compute, const tfu_graph_window *window,
                    const tfu_node *x, const tfu_node *w, const tfu_node *y);

/* mode(x) and mode(x, b), in float, as new virtual tensors. */
tfu_node tfu_graph_unary(tfu_graph *g, cudnnPointwiseMode_t mode, const tfu_node *x);
tfu_node tfu_graph_binary(tfu_graph *g, cudnnPointwiseMode_t mode, const tfu_node *x, const tfu_node *b);

/* ---- planning and running ---- */

/* Plans for the handle's GPU or, where handle is NULL, for the one that `properties` describes (a finalized
 * CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR). Takes the first of cuDNN's proposals that wants at most `most` bytes of
 * workspace. Fails with the error of the first call that failed. */
TFU_MUST_USE tfu_code tfu_graph_plan(tfu_graph *g, cudnnHandle_t handle, cudnnBackendDescriptor_t properties,
                                     int64_t most, tfu_error *err);

/* The same in two steps, for who chooses among the proposals. Asks for those, as many as `most`, that have none of the
 * notes in `avoid`, bits by CUDNN_NUMERICAL_NOTE_…. Where `fewest` is not 0, those that cuDNN has to compile first come
 * only where there are no others, and where there are fewer than `fewest`, those that cuDNN falls back to come after
 * them. Fails where there are none then. */
TFU_MUST_USE tfu_code tfu_graph_ask(tfu_graph *g, cudnnHandle_t handle, cudnnBackendDescriptor_t properties, int most,
                                    unsigned avoid, int fewest, tfu_error *err);
/* Plans proposal i: g->plan and g->workspace are its own then. */
TFU_MUST_USE tfu_code tfu_graph_take(tfu_graph *g, cudnnHandle_t handle, int i, tfu_error *err);
/* The number of the engine that proposal i is for, by which cuDNN's logs call it. */
int tfu_graph_engine(const tfu_graph *g, int i);

/* Queues one run on the handle's stream. Threads may share a graph, each with a handle of its own. */
TFU_MUST_USE tfu_code tfu_graph_run(tfu_graph *g, cudnnHandle_t handle, void *const *memory, void *workspace,
                                    tfu_error *err);

/* ---- plan caches ---- */

/* Of a table of plans: to make one takes 50 to 900 ms, a run microseconds. That there is none is remembered, too. */
typedef struct tfu_planned {
  tfu_graph *graph; /* NULL: it cannot be planned */
} tfu_planned;
void tfu_planned_free(void *planned);

#define TFU_PLANS(make_) \
  TFU_TABLE(.value = sizeof(tfu_planned), .most = 256, .make = make_, .release = tfu_planned_free)

#endif
