/* tf_bind.c - turns every row into a TensorFlow op with CPU and GPU kernels. The only file that sees TensorFlow. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bind.h"

/* TensorFlow's ops.h leaves these out when read as C. */
typedef struct TF_DimensionHandle TF_DimensionHandle;
typedef struct TF_OpDefinitionBuilder TF_OpDefinitionBuilder;
typedef struct TF_ShapeHandle TF_ShapeHandle;
typedef struct TF_ShapeInferenceContext TF_ShapeInferenceContext;
#include "tensorflow/c/kernels.h"
#include "tensorflow/c/ops.h"

static const int numbers[] = {
    [TFU_F32] = TF_FLOAT,      [TFU_F16] = TF_HALF,   [TFU_BF16] = TF_BFLOAT16, [TFU_F64] = TF_DOUBLE,
    [TFU_I32] = TF_INT32,      [TFU_I64] = TF_INT64,  [TFU_BOOL] = TF_BOOL,     [TFU_U8] = TF_UINT8,
    [TFU_I8] = TF_INT8,        [TFU_U16] = TF_UINT16, [TFU_I16] = TF_INT16,     [TFU_C64] = TF_COMPLEX64,
    [TFU_C128] = TF_COMPLEX128};

/* ---- running ---- */

typedef struct kernel {
  const tfu_op *op;
  tfu_value attr[TFU_MAX_ATTRS];
} kernel;

/* What one run holds; released together, however it ends. Scratch returns to TensorFlow's allocator as soon as the
 * work is queued: what it serves next is queued after. */
typedef struct run {
  TF_OpKernelContext *ctx;
  TF_Status *status;
  TF_Tensor *held[2 * TFU_MAX_ARGS]; /* scratch */
  int n;
} run;

static int failed(const run *r) { return TF_GetCode(r->status) != TF_OK; }

/* The context keeps the tensor. Our handle goes at once: a live one would forbid reusing the buffer. */
static tfu_code view(const char *argument, TF_Tensor *t, tfu_tensor *v, tfu_error *err) {
  int64_t dims[TFU_MAX_RANK];
  const int rank = TF_NumDims(t);
  for (int i = 0; i < rank && i < TFU_MAX_RANK; i++) dims[i] = TF_Dim(t, i);
  const tfu_code code =
      tfu_view(argument, TF_TensorData(t), rank, dims, (int)TF_TensorType(t), numbers, TFU_COUNT(numbers), v, err);
  TF_DeleteTensor(t);
  return code;
}

static tfu_code take_inputs(run *r, tfu_call *call) {
  int n;
  tfu_tensor *in = tfu_inputs(call, &n);
  for (int i = 0; i < n; i++) {
    TF_Tensor *t = NULL;
    TF_GetInput(r->ctx, i, &t, r->status);
    if (failed(r)) return TFU_OK;
    if (!t) return tfu_fail(call->err, TFU_INTERNAL, "TensorFlow gives no tensor for %s", tfu_input_name(call, i));
    TFU_TRY(view(tfu_input_name(call, i), t, &in[i], call->err));
  }
  return TFU_OK;
}

static tfu_code make_outputs(run *r, tfu_call *call, int64_t *elements) {
  tfu_shape own[TFU_MAX_ARGS];
  int n;
  tfu_tensor *out = tfu_outputs(call, &n);
  TFU_TRY(tfu_infer(call, own, elements));
  const tfu_shape *shape = call->lists ? call->lists->shapes : own;
  const int reuse = !call->op->in_place ? 0 : call->lists ? call->lists->out[0].n : 1;
  for (int i = 0; i < n; i++) {
    int same = i, taken;
    TF_Tensor *t;
    if (i < reuse) {
      t = TF_ForwardInputOrAllocateOutput(r->ctx, &same, 1, i, shape[i].dim, shape[i].rank, &taken, r->status);
    } else {
      const TF_DataType type = TF_ExpectedOutputDataType(r->ctx, i);
      t = TF_AllocateOutput(r->ctx, i, type, shape[i].dim, shape[i].rank, tfu_count(&shape[i]) * TF_DataTypeSize(type),
                            r->status);
    }
    if (failed(r) || !t) return TFU_OK;
    TFU_TRY(view(tfu_output_name(call, i), t, &out[i], call->err));
  }
  return TFU_OK;
}

static void *allocate(tfu_call *call, size_t bytes) {
  run *r = call->binding;
  const int64_t size = (int64_t)bytes;
  TF_AllocatorAttributes where = {.struct_size = sizeof where};
  if (r->n == TFU_COUNT(r->held)) return NULL;
  TF_Tensor *t = TF_AllocateTemp(r->ctx, TF_UINT8, &size, 1, &where, r->status);
  if (!t) return NULL;
  r->held[r->n++] = t;
  return failed(r) ? NULL : TF_TensorData(t);
}

static tfu_code execute_on_stream(run *r, tfu_call *call) {
  tfu_stream s;
  TFU_TRY(tfu_stream_open(r->ctx, &s, call->err));
  call->stream = s.stream;
  const tfu_code code = tfu_execute(call, "TensorFlow op", 1);
  /* Even after an error: part of the work may be queued. Its own error, if it has one, comes second. */
  tfu_error late;
  const tfu_code closed = tfu_stream_close(&s, code == TFU_OK ? call->err : &late);
  return code == TFU_OK ? closed : code;
}

static void compute(const kernel *k, TF_OpKernelContext *ctx, int gpu) {
  tfu_error err;
  run r = {.ctx = ctx, .status = TF_NewStatus()};
  tfu_call call = {.op = k->op, .err = &err, .allocate = allocate, .binding = &r};
  tfu_lists lists;
  int64_t elements = 0;
  memcpy(call.attr, k->attr, sizeof call.attr);

  tfu_code code = k->op->complete ? k->op->complete(call.attr, &err) : TFU_OK;
  if (code == TFU_OK) code = tfu_lists_open(&call, &lists);
  if (code == TFU_OK) code = take_inputs(&r, &call);
  if (code == TFU_OK && !failed(&r)) code = make_outputs(&r, &call, &elements);
  const int ran = code == TFU_OK && !failed(&r) && elements > 0;
  if (ran) code = gpu ? execute_on_stream(&r, &call) : tfu_execute(&call, "TensorFlow op", 0);
  if (ran && code == TFU_OK) TF_SetStatus(r.status, TF_OK, ""); /* scratch that was refused was done without */
  if (code != TFU_OK && !(code == TFU_EXHAUSTED && failed(&r))) /* else TensorFlow's own status is the cause */
    TF_SetStatus(r.status, (TF_Code)code, tfu_show_error(k->op, &err).text);
  if (failed(&r)) TF_OpKernelContext_Failure(ctx, r.status);
  while (r.n > 0) TF_DeleteTensor(r.held[--r.n]);
  tfu_lists_close(&call);
  TF_DeleteStatus(r.status);
}

static void compute_cpu(void *k, TF_OpKernelContext *ctx) { compute(k, ctx, 0); }
static void compute_gpu(void *k, TF_OpKernelContext *ctx) { compute(k, ctx, 1); }

/* ---- constructing ---- */

/* Where attributes are read from. Its errors are TensorFlow's own, unless they are ours. */
typedef struct construction {
  TF_OpKernelConstruction *ctx;
  TF_Status *status;
} construction;

static tfu_code read_word(const construction *c, const tfu_attr *a, int32_t bytes, tfu_value *v, tfu_error *err) {
  char *word = malloc((size_t)bytes + 1);
  if (!word) return tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
  TF_OpKernelConstruction_GetAttrString(c->ctx, a->name, word, (size_t)bytes, c->status);
  tfu_code code = (tfu_code)TF_GetCode(c->status);
  if (code == TFU_OK) code = tfu_attr_word(a, word, (size_t)bytes, v, err);
  free(word);
  return code;
}

static tfu_code read_attr(const tfu_attr *a, void *construction_, tfu_value *v, tfu_error *err) {
  const construction *c = construction_;
  unsigned char flag = 0;
  int32_t entries = 0, bytes = 0;
  switch (a->kind) {
    case TFU_ATTR_FLOAT: TF_OpKernelConstruction_GetAttrFloat(c->ctx, a->name, &v->f, c->status); break;
    case TFU_ATTR_INT: TF_OpKernelConstruction_GetAttrInt64(c->ctx, a->name, &v->i, c->status); break;
    case TFU_ATTR_BOOL: TF_OpKernelConstruction_GetAttrBool(c->ctx, a->name, &flag, c->status), v->b = flag; break;
    default: TF_OpKernelConstruction_GetAttrSize(c->ctx, a->name, &entries, &bytes, c->status);
  }
  const tfu_code code = (tfu_code)TF_GetCode(c->status);
  if (a->kind == TFU_ATTR_TYPES) v->i = entries;
  const int word = a->kind == TFU_ATTR_ENUM || a->kind == TFU_ATTR_STRING;
  return code == TFU_OK && word ? read_word(c, a, bytes, v, err) : code;
}

void *tfu_tf_create(const tfu_op *op, TF_OpKernelConstruction *ctx) {
  tfu_error err = {"out of host memory"};
  construction c = {.ctx = ctx, .status = TF_NewStatus()};
  kernel *k = calloc(1, sizeof *k);
  if (k) k->op = op;
  const tfu_code code = k ? tfu_attrs_read(op, read_attr, &c, k->attr, &err) : TFU_EXHAUSTED;
  if (code != TFU_OK && TF_GetCode(c.status) == TF_OK)
    TF_SetStatus(c.status, (TF_Code)code, tfu_show_error(op, &err).text);
  if (code != TFU_OK) TF_OpKernelConstruction_Failure(ctx, c.status);
  TF_DeleteStatus(c.status);
  return k;
}

static void destroy(void *made) {
  kernel *k = made;
  if (k) tfu_attrs_drop(k->op, k->attr);
  free(k);
}

/* ---- shapes ---- */

static tfu_code read_shape(TF_ShapeInferenceContext *ctx, const char *argument, TF_ShapeHandle *h, tfu_shape *s,
                           tfu_error *err) {
  s->rank = TFU_UNKNOWN;
  if (!TF_ShapeInferenceContextRankKnown(ctx, h)) return TFU_OK;
  const int rank = (int)TF_ShapeInferenceContextRank(ctx, h);
  TFU_TRY(tfu_check_rank(argument, rank, err));
  TF_DimensionHandle *d = TF_NewDimensionHandle();
  for (s->rank = 0; s->rank < rank; s->rank++) {
    TF_ShapeInferenceContextDim(ctx, h, s->rank, d);
    s->dim[s->rank] = TF_DimensionHandleValueKnown(d) ? TF_DimensionHandleValue(d) : TFU_UNKNOWN;
  }
  TF_DeleteDimensionHandle(d);
  return TFU_OK;
}

/* The C API has no MakeShape: join one-dimensional pieces. An unknown dim is the size -1. */
static void write_shape(TF_ShapeInferenceContext *ctx, int i, const tfu_shape *s, TF_Status *status) {
  TF_ShapeHandle *all = TF_ShapeInferenceContextScalar(ctx);
  for (int j = 0; j < s->rank && TF_GetCode(status) == TF_OK; j++) {
    TF_ShapeHandle *one = TF_ShapeInferenceContextVectorFromSize(ctx, (size_t)s->dim[j]);
    TF_ShapeInferenceContextConcatenateShapes(ctx, all, one, all, status);
    TF_DeleteShapeHandle(one);
  }
  if (TF_GetCode(status) == TF_OK) TF_ShapeInferenceContextSetOutput(ctx, i, all, status);
  TF_DeleteShapeHandle(all);
}

static tfu_code infer_all(const tfu_op *op, TF_ShapeInferenceContext *ctx, tfu_shape *out, TF_Status *status,
                          tfu_error *err) {
  tfu_shape in[TFU_MAX_ARGS];
  tfu_code code = TFU_OK;
  TF_ShapeHandle *h = TF_NewShapeHandle();
  for (int i = 0; op->in[i] && code == TFU_OK && TF_GetCode(status) == TF_OK; i++) {
    TF_ShapeInferenceContextGetInput(ctx, i, h, status);
    if (TF_GetCode(status) == TF_OK) code = read_shape(ctx, op->in[i], h, &in[i], err);
  }
  TF_DeleteShapeHandle(h);
  return code != TFU_OK || TF_GetCode(status) != TF_OK ? code : op->shape(in, out, NULL, err);
}

void tfu_tf_infer(const tfu_op *op, TF_ShapeInferenceContext *ctx, TF_Status *status) {
  tfu_shape out[TFU_MAX_ARGS];
  tfu_error err;
  TF_ShapeInferenceContextSetUnknownShape(ctx, status);
  if (op->lists) return; /* the Python wrapper knows them */
  const tfu_code code = infer_all(op, ctx, out, status, &err);
  if (code != TFU_OK) TF_SetStatus(status, (TF_Code)code, tfu_show_error(op, &err).text);
  for (int i = 0; op->out[i] && TF_GetCode(status) == TF_OK; i++)
    if (out[i].rank != TFU_UNKNOWN) write_shape(ctx, i, &out[i], status);
}

/* ---- registering ---- */

static void register_kernel(const tfu_entry *e, const char *name, const char *device,
                            void (*compute_on)(void *, TF_OpKernelContext *), TF_Status *status) {
  if (TF_GetCode(status) == TF_OK)
    TF_RegisterKernelBuilder(e->op->name, TF_NewKernelBuilder(name, device, e->create, compute_on, destroy), status);
}

tfu_code tfu_tf_register(const tfu_entry *e, tfu_error *err) {
  const tfu_op *op = e->op;
  char name[96];
  snprintf(name, sizeof name, "Tfuse>%s", op->name);
  TF_Status *status = TF_NewStatus();
  TF_OpDefinitionBuilder *b = TF_NewOpDefinitionBuilder(name);
  for (int i = 0; op->attr[i]; i++) TF_OpDefinitionBuilderAddAttr(b, op->attr[i]);
  for (int i = 0; op->in[i]; i++) TF_OpDefinitionBuilderAddInput(b, op->in[i]);
  for (int i = 0; op->out[i]; i++) TF_OpDefinitionBuilderAddOutput(b, op->out[i]);
  if (op->stateful) TF_OpDefinitionBuilderSetIsStateful(b, 1); /* it makes the op stateful whatever it is told */
  TF_OpDefinitionBuilderSetShapeInferenceFunction(b, e->infer);
  TF_RegisterOpDefinition(b, status);
  register_kernel(e, name, "CPU", compute_cpu, status);
  register_kernel(e, name, "GPU", compute_gpu, status);
  tfu_code code = (tfu_code)TF_GetCode(status);
  if (code != TFU_OK) code = tfu_fail(err, code, "%s: %s", op->name, TF_Message(status));
  TF_DeleteStatus(status);
  return code;
}
