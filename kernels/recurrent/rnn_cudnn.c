/* rnn_cudnn.c - a recurrent layer as one function of cuDNN, forward, and as two backward: data, then weights.
 *
 * Sequences are all of one length, so cuDNN's array of lengths, which it wants on the host and on the GPU, is the
 * number of steps so many times. Weights are put into cuDNN's order before each call, and their gradients back: that
 * moves them twice, where the products read them at every step. Layers always have both biases, of which those that are
 * not given are zeros: cuDNN's LSTM with fewer is never one that keeps the weights between steps. cuDNN's backward
 * functions change what forward has left in the reserve space, which is an input of our gradient: they get a copy. */
#include <stdatomic.h>
#include <stdlib.h>

#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/determinism.h"
#include "kernels/core/gpu/transfer.h"
#include "kernels/core/nvidia/cudnn.h"
#include "kernels/core/nvidia/cudnn_rnn_api.h"
#include "kernels/core/table.h"
#include "kernels/recurrent/rnn.h"
#include "ops/recurrent/recurrence.h"
#include "ops/recurrent/rnn.h"

/* ---- the library ---- */

typedef struct rnn_functions {
  TFU_CUDNN_RNN_FUNCTIONS(TFU_POINTER)
} rnn_functions;

static const rnn_functions *functions_get(const char **why) {
  static const char *const names[] = {TFU_CUDNN_RNN_FUNCTIONS(TFU_NAME) NULL};
  static rnn_functions functions;
  static tfu_shared library = {.called = "libcudnn.so.9",
                               .names = {"libcudnn.so.9"},
                               .folders = {"nvidia/cudnn/lib"},
                               .functions = names,
                               .table = &functions,
                               .why = "cuDNN lacks %s"};
  *why = tfu_shared_open(&library);
  return *why ? NULL : &functions;
}

/* ---- layers that cuDNN has been asked about ---- */

typedef struct layer_key {
  int32_t device, lstm, dtype, tf32, batch, steps, features, units;
} layer_key;

/* Descriptors and sizes in bytes; work and reserve for inference, then for training. */
typedef struct layer {
  atomic_int trained; /* once: a gradient may be to come, which has to find cuDNN's own reserve */
  atomic_int refused; /* by cuDNN, when it was asked or when it ran: from then on nobody asks */
  cudnnRNNDescriptor_t rnn;
  cudnnDropoutDescriptor_t dropout;
  cudnnRNNDataDescriptor_t x, y;
  cudnnTensorDescriptor_t state, matrix, vector; /* the last two are for what cuDNN says of its weights */
  size_t weights, work[2], reserve[2];
} layer;

/* What a layer is made and run with. */
typedef struct session {
  const tfu_cudnn *dnn;
  const rnn_functions *f;
  cudnnHandle_t handle;
} session;

static const cudnnDataType_t types[TFU_FLOATS] = {[TFU_F32] = CUDNN_DATA_FLOAT,
                                                  [TFU_F16] = CUDNN_DATA_HALF,
                                                  [TFU_BF16] = CUDNN_DATA_BFLOAT16,
                                                  [TFU_F64] = CUDNN_DATA_DOUBLE};

static int is_narrow(const layer_key *k) { return k->dtype == TFU_F16 || k->dtype == TFU_BF16; }

/* Which of cuDNN's algorithms is fastest. Two keep the recurrent weights between steps, one in tensor cores' order, one
 * compiled for the layer when that is described. An LSTM over 256 steps on an H200, cuDNN 9.19, both ways, ms:
 *
 *                    float32, 1,024 units, batch  64    16    8     1     float16, batch  64    16    8     1
 *   standard                                    13.2  10.5  10.0   6.1                   7.4   6.6   6.8   6.7
 *   PERSIST_STATIC                              98.8  28.6  14.3   2.7                   5.9   2.1   2.1   1.9
 *   PERSIST_DYNAMIC                                -   8.6   4.6   1.5                     -  14.8   7.5   2.3
 *
 * A GRU's times are alike. Of bfloat16 none keeps weights: PERSIST_STATIC takes as long as the standard one. */
static cudnnRNNAlgo_t algorithm_of(const layer_key *k) {
  const int whole = k->units <= 1024 && k->units % 128 == 0 && k->features % 128 == 0;
  if (k->dtype == TFU_F16 && whole && k->batch <= 64 && (k->batch < 8 || k->batch % 8 == 0))
    return CUDNN_RNN_ALGO_PERSIST_STATIC;
  if (k->dtype == TFU_F32 && whole && k->batch <= 16) return CUDNN_RNN_ALGO_PERSIST_DYNAMIC;
  return CUDNN_RNN_ALGO_STANDARD;
}

static cudnnStatus_t describe_layer(const session *s, const layer_key *k, layer *l, cudnnRNNAlgo_t algorithm) {
  const cudnnDataType_t type = types[k->dtype];
  const cudnnMathType_t math = is_narrow(k)                     ? CUDNN_TENSOR_OP_MATH
                               : k->dtype == TFU_F32 && k->tf32 ? CUDNN_DEFAULT_MATH
                                                                : CUDNN_FMA_MATH;
  cudnnStatus_t status =
      s->f->cudnnSetRNNDescriptor_v8(l->rnn, algorithm, k->lstm ? CUDNN_LSTM : CUDNN_GRU, CUDNN_RNN_DOUBLE_BIAS,
                                     CUDNN_UNIDIRECTIONAL, CUDNN_LINEAR_INPUT, type, types[tfu_real(k->dtype)], math,
                                     k->features, k->units, k->units, 1, l->dropout, TFU_CUDNN_PADDED_IO);
  if (!status && algorithm == CUDNN_RNN_ALGO_PERSIST_DYNAMIC)
    status = s->f->cudnnBuildRNNDynamic(s->handle, l->rnn, k->batch);
  if (!status) status = s->f->cudnnGetRNNWeightSpaceSize(s->handle, l->rnn, &l->weights);
  for (int training = 0; training < 2 && !status; training++)
    status = s->f->cudnnGetRNNTempSpaceSizes(s->handle, l->rnn,
                                             training ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE, l->x,
                                             &l->work[training], &l->reserve[training]);
  return status;
}

static cudnnStatus_t describe(const session *s, const layer_key *k, layer *l, const int *lengths) {
  const cudnnDataType_t type = types[k->dtype];
  const cudnnRNNDataLayout_t layout = CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED;
  const int state[3] = {1, k->batch, k->units}, strides[3] = {k->batch * k->units, k->units, 1};
  const rnn_functions *f = s->f;
  cudnnStatus_t status = f->cudnnCreateRNNDescriptor(&l->rnn);
  if (!status) status = f->cudnnCreateDropoutDescriptor(&l->dropout);
  if (!status) status = f->cudnnCreateRNNDataDescriptor(&l->x);
  if (!status) status = f->cudnnCreateRNNDataDescriptor(&l->y);
  if (!status) status = f->cudnnCreateTensorDescriptor(&l->state);
  if (!status) status = f->cudnnCreateTensorDescriptor(&l->matrix);
  if (!status) status = f->cudnnCreateTensorDescriptor(&l->vector);
  if (!status) status = f->cudnnSetDropoutDescriptor(l->dropout, s->handle, 0, NULL, 0, 0);
  if (!status)
    status = f->cudnnSetRNNDataDescriptor(l->x, type, layout, k->steps, k->batch, k->features, lengths, NULL);
  if (!status) status = f->cudnnSetRNNDataDescriptor(l->y, type, layout, k->steps, k->batch, k->units, lengths, NULL);
  if (!status) status = f->cudnnSetTensorNdDescriptor(l->state, type, 3, state, strides);
  if (status) return status;
  if (!describe_layer(s, k, l, algorithm_of(k))) return CUDNN_STATUS_SUCCESS;
  return describe_layer(s, k, l, CUDNN_RNN_ALGO_STANDARD);
}

static void release(const session *s, layer *l) {
  const rnn_functions *f = s->f;
  if (l->rnn) f->cudnnDestroyRNNDescriptor(l->rnn);
  if (l->dropout) f->cudnnDestroyDropoutDescriptor(l->dropout);
  if (l->x) f->cudnnDestroyRNNDataDescriptor(l->x);
  if (l->y) f->cudnnDestroyRNNDataDescriptor(l->y);
  if (l->state) f->cudnnDestroyTensorDescriptor(l->state);
  if (l->matrix) f->cudnnDestroyTensorDescriptor(l->matrix);
  if (l->vector) f->cudnnDestroyTensorDescriptor(l->vector);
  *l = (layer){.refused = 1};
}

/* That cuDNN refuses is known from then on, and no failure. */
static tfu_code make(const void *key, void *layer_, void *session_, tfu_error *err) {
  const layer_key *k = key;
  int *lengths = malloc((size_t)k->batch * sizeof *lengths);
  if (!lengths) return tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
  for (int b = 0; b < k->batch; b++) lengths[b] = k->steps;
  if (describe(session_, k, layer_, lengths)) release(session_, layer_);
  free(lengths);
  return TFU_OK;
}

/* None is evicted: a gradient must find what was known of its layer when that ran forward. */
static tfu_table layers = TFU_TABLE(.value = sizeof(layer), .most = TFU_KEEP_ALL, .make = make);

/* ---- running ---- */

TFU_MODULE(rnn);
static tfu_kernel weights_kernel = {.module = &module, .name = "rnn_weights"};

/* A layer at work: what both ways share. */
typedef struct work {
  tfu_call *call;
  const session *s;
  layer *l;
  layer_key key;
  const tfu_tensor *from; /* inputs of the layer, from x on */
  int32_t *lengths;
  char *weights, *space;
} work;

/* Bytes in whole lines of memory, as cuDNN's kernels may want them. */
static size_t lines(size_t bytes) { return (bytes + 255) / 256 * 256; }

/* Scratch that begins with a line. */
static tfu_code take(tfu_call *call, size_t bytes, char **memory) {
  void *scratch;
  TFU_TRY(tfu_scratch(call, bytes + 255, &scratch));
  *memory = (char *)(((uintptr_t)scratch + 255) / 256 * 256);
  return TFU_OK;
}

/* Between cuDNN's weights at `own` and these tensors, in the order of the op's inputs. */
static tfu_code move_weights(const work *w, void *own, const tfu_tensor *tensors, int back) {
  static const int lstm_gates[] = {0, 1, 2, 3}, gru_gates[] = {1, 0, 2}; /* cuDNN has a GRU's reset gate first */
  const int gates = w->key.lstm ? 4 : 3;
  rnn_weights_args a = {.kernel = tensors[TFU_RNN_KERNEL].data,
                        .recurrent = tensors[TFU_RNN_RECURRENT].data,
                        .bias = tfu_given_data(&tensors[TFU_RNN_BIAS]),
                        .recurrent_bias = tfu_given_data(&tensors[TFU_RNN_RECURRENT_BIAS]),
                        .features = w->key.features,
                        .units = w->key.units,
                        .gates = gates,
                        .back = back};
  for (int i = 0; i < 2 * gates; i++) {
    a.gate[i] = (w->key.lstm ? lstm_gates : gru_gates)[i % gates];
    TFU_TRY(tfu_cudnn_code(w->s->dnn,
                           w->s->f->cudnnGetRNNWeightParams(w->s->handle, w->l->rnn, 0, w->l->weights, own, i,
                                                            w->l->matrix, &a.matrix[i], w->l->vector, &a.vector[i]),
                           "cudnnGetRNNWeightParams", w->call->err));
  }
  const int64_t columns = w->key.features > w->key.units ? w->key.features : w->key.units;
  const tfu_grid grid = {.x = (unsigned)divide_up(w->key.units, 32),
                         .y = (unsigned)divide_up(columns, 32),
                         .z = (unsigned)(4 * gates),
                         .threads = 256};
  return tfu_launch(w->call, &weights_kernel, 0, w->key.dtype, grid, &a);
}

/* Lengths and weights; training is 0 where nothing is kept. */
static tfu_code begin(work *w, int training) {
  char *lengths;
  TFU_TRY(take(w->call, (size_t)w->key.batch * sizeof *w->lengths, &lengths));
  TFU_TRY(take(w->call, lines(w->l->weights), &w->weights));
  TFU_TRY(take(w->call, lines(w->l->work[training]), &w->space));
  w->lengths = (int32_t *)lengths;
  TFU_TRY(tfu_fill(w->call, lengths, (uint32_t)w->key.steps, (size_t)w->key.batch));
  return move_weights(w, w->weights, w->from, 0);
}

static tfu_code forward(work *w, int *served) {
  const tfu_tensor *from = w->from, *out = w->call->out, *kept = &out[TFU_RNN_KEPT];
  const int training = tfu_given(&kept->shape);
  TFU_TRY(begin(w, training));
  const cudnnStatus_t status = w->s->f->cudnnRNNForward(
      w->s->handle, w->l->rnn, training ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE, w->lengths, w->l->x,
      from[TFU_RNN_X].data, w->l->y, out[TFU_RNN_Y].data, w->l->state, tfu_given_data(&from[TFU_RNN_H]), NULL,
      w->l->state, w->key.lstm ? tfu_given_data(&from[TFU_RNN_C]) : NULL, w->key.lstm ? out[TFU_RNN_LAST].data : NULL,
      w->l->weights, w->weights, w->l->work[training], w->space, training ? w->l->reserve[1] : 0,
      training ? kept->data : NULL);
  if (training && !status) atomic_store(&w->l->trained, 1);
  if (status && !atomic_load(&w->l->trained)) atomic_store(&w->l->refused, 1);
  if (status && !atomic_load(&w->l->refused) && training)
    return tfu_cudnn_code(w->s->dnn, status, "cudnnRNNForward", w->call->err);
  *served = !status;
  w->call->kernel = "cuDNN recurrent layer";
  return TFU_OK;
}

static tfu_code backward(work *w) {
  const tfu_tensor *in = w->call->in, *from = w->from, *out = w->call->out, *c = &from[TFU_RNN_C];
  const rnn_functions *f = w->s->f;
  const size_t reserved = w->l->reserve[1];
  tfu_error *err = w->call->err;
  char *reserve, *dweights;
  TFU_TRY(begin(w, 1));
  TFU_TRY(take(w->call, lines(reserved), &reserve));
  TFU_TRY(take(w->call, lines(w->l->weights), &dweights));
  TFU_TRY(tfu_transfer_take(w->call->stream, reserve, in[TFU_RNNGRAD_KEPT].data, reserved, err));
  TFU_TRY(
      tfu_cudnn_code(w->s->dnn,
                     f->cudnnRNNBackwardData_v8(w->s->handle, w->l->rnn, w->lengths, w->l->y, in[TFU_RNNGRAD_Y].data,
                                                in[TFU_RNNGRAD_DY].data, w->l->x, out[TFU_RNN_X].data, w->l->state,
                                                tfu_given_data(&from[TFU_RNN_H]), NULL, tfu_given_data(&out[TFU_RNN_H]),
                                                w->l->state, w->key.lstm ? tfu_given_data(c) : NULL,
                                                w->key.lstm ? tfu_given_data(&in[TFU_RNNGRAD_DLAST]) : NULL,
                                                w->key.lstm ? tfu_given_data(&out[TFU_RNN_C]) : NULL, w->l->weights,
                                                w->weights, w->l->work[1], w->space, reserved, reserve),
                     "cudnnRNNBackwardData_v8", err));
  TFU_TRY(tfu_clear(w->call, dweights, w->l->weights));
  TFU_TRY(tfu_cudnn_code(w->s->dnn,
                         f->cudnnRNNBackwardWeights_v8(
                             w->s->handle, w->l->rnn, CUDNN_WGRAD_MODE_ADD, w->lengths, w->l->x, from[TFU_RNN_X].data,
                             w->l->state, tfu_given_data(&from[TFU_RNN_H]), w->l->y, in[TFU_RNNGRAD_Y].data,
                             w->l->weights, dweights, w->l->work[1], w->space, reserved, reserve),
                         "cudnnRNNBackwardWeights_v8", err));
  w->call->kernel = "cuDNN recurrent layer gradient";
  return move_weights(w, dweights, out, 1);
}

/* ---- who is served ---- */

/* What of a call decides: the same of a layer and of its gradient. */
static layer_key key_of(const tfu_call *call, const tfu_tensor *from, int device) {
  const tfu_shape *x = &from[TFU_RNN_X].shape;
  return (layer_key){.device = device,
                     .lstm = call->attr[TFU_RNN_CELL].i == TFU_CELL_LSTM,
                     .dtype = (int32_t)from[TFU_RNN_X].dtype,
                     .tf32 = call->attr[TFU_RNN_TF32].b,
                     .batch = (int32_t)x->dim[0],
                     .steps = (int32_t)x->dim[1],
                     .features = (int32_t)x->dim[2],
                     .units = (int32_t)from[TFU_RNN_RECURRENT].shape.dim[0]};
}

static const char *why_not(const tfu_call *call, const tfu_tensor *from) {
  enum { MOST = 1 << 20 }; /* of each size, so that cuDNN's are of 31 bits */
  const tfu_shape *x = &from[TFU_RNN_X].shape;
  const int64_t units = from[TFU_RNN_RECURRENT].shape.dim[0];
  if (!tfu_cudnn_allowed()) return "TFUSE_CUDNN is 0";
  if (tfu_count(x) == 0 || units == 0) return "cuDNN has no layers without steps, features or units";
  if (x->dim[0] > MOST || x->dim[1] > MOST || x->dim[2] > MOST || units > MOST || x->dim[0] * units > INT32_MAX)
    return "cuDNN has no layers of that size";
  if (tfu_deterministic()) return "cuDNN's products may be summed in another order in another process";
  return call->invariant ? "cuDNN's results depend on how many sequences there are" : NULL;
}

/* Whether the layer may be run, and, as that is known to its gradient as well, what it would keep has room. */
static const char *refusal(const layer *l, const layer_key *k) {
  const size_t kept =
      (size_t)k->batch * (size_t)k->steps * (size_t)k->units * TFU_RNN_KEPT_UNITS * tfu_dtype_size((tfu_dtype)k->dtype);
  if (atomic_load(&l->refused)) return "cuDNN has no such layer";
  return l->reserve[1] > kept ? "cuDNN reserves more memory than is kept for the gradient" : NULL;
}

tfu_code tfu_rnn_cudnn(tfu_call *call, int backwards, int *served, const char **why) {
  const tfu_tensor *from = backwards ? call->in + TFU_RNNGRAD_X : call->in;
  tfu_device device;
  tfu_cudnn_handle *handle;
  void *l = NULL;
  *served = 0;
  if ((*why = why_not(call, from))) return TFU_OK;
  session s = {.dnn = tfu_cudnn_get(why)};
  if (!s.dnn) return TFU_OK;
  s.f = functions_get(why);
  if (!s.f) return TFU_OK;
  TFU_TRY(tfu_device_now(&device, call->err));
  TFU_TRY(tfu_cudnn_borrow(s.dnn, call->stream, &handle, call->err));
  s.handle = handle->handle;
  work w = {.call = call, .s = &s, .key = key_of(call, from, device.ordinal), .from = from};
  tfu_code code = tfu_table_get(&layers, &w.key, sizeof w.key, &s, &l, call->err);
  w.l = l;
  if (code == TFU_OK && !(*why = refusal(l, &w.key))) {
    *served = backwards;
    code = backwards ? backward(&w) : forward(&w, served);
    if (!*served) *why = "cuDNN has no such layer";
  }
  if (l) tfu_table_put(&layers, l, NULL);
  tfu_cudnn_return(handle);
  return code;
}
