/* xla_bind.c - offers every row to XLA as a custom call, for the CPU and for CUDA. The only file that sees XLA.
 *
 * The target of stem s is "tfuse.s"; inputs and outputs come in the row's order, attributes by name.
 *
 * What is capturable has a second target, "tfuse.s.captured", which XLA may capture into a CUDA graph and then run many
 * times without asking us. A call of it has one more result where the row has room: so many bytes of scratch, which XLA
 * plans like any other memory, since what an allocator gives is gone when the graph runs. And it is rehearsed: before
 * XLA captures it, a first run with results that nobody reads has times taken, plans made and code loaded, none of
 * which can be done while a stream is captured. docs/design.md#cuda-graphs tells more. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bind.h"
#include "kernels/core/gpu/cuda.h"
#include "kernels/core/hash.h"
#include "kernels/core/table.h"
#include "xla/ffi/api/c_api.h"

/* The argument of one of XLA's functions. */
#define ARGS(function, ...) \
  &(function##_Args) { .struct_size = function##_Args_STRUCT_SIZE, __VA_ARGS__ }

static const XLA_FFI_Api *api;
static char status[256] = "the library was not initialised";

/* Why ops cannot run inside XLA, or "". */
TFU_EXPORT const char *tfu_xla_status(void) { return status; }

/* ---- a call frame as a tfu_call ---- */

static const int numbers[] = {
    [TFU_F32] = XLA_FFI_DataType_F32,   [TFU_F16] = XLA_FFI_DataType_F16,  [TFU_BF16] = XLA_FFI_DataType_BF16,
    [TFU_F64] = XLA_FFI_DataType_F64,   [TFU_I32] = XLA_FFI_DataType_S32,  [TFU_I64] = XLA_FFI_DataType_S64,
    [TFU_BOOL] = XLA_FFI_DataType_PRED, [TFU_U8] = XLA_FFI_DataType_U8,    [TFU_I8] = XLA_FFI_DataType_S8,
    [TFU_C64] = XLA_FFI_DataType_C64,   [TFU_C128] = XLA_FFI_DataType_C128};

static tfu_code view(const char *argument, const XLA_FFI_Buffer *b, tfu_tensor *v, tfu_error *err) {
  return tfu_view(argument, b->data, b->rank, b->dims, (int)b->dtype, numbers, TFU_COUNT(numbers), v, err);
}

/* In the frame a choice is a string like a text, a list of types is its length, and anything else a scalar of the kind
 * that the row names. */
static tfu_code read_attr(const tfu_attr *a, void *attrs_, tfu_value *v, tfu_error *err) {
  const XLA_FFI_Attrs *attrs = attrs_;
  const int text = a->kind == TFU_ATTR_ENUM || a->kind == TFU_ATTR_STRING;
  const size_t length = strlen(a->name);
  int i = 0;
  while (i < attrs->size && (attrs->names[i]->len != length || memcmp(attrs->names[i]->ptr, a->name, length))) i++;
  TFU_REQUIRE(err, i < attrs->size, "the custom call has no attribute %s", a->name);
  TFU_REQUIRE(err, attrs->types[i] == (text ? XLA_FFI_AttrType_STRING : XLA_FFI_AttrType_SCALAR),
              "attribute %s of the custom call has the wrong type", a->name);
  const XLA_FFI_ByteSpan *word = attrs->attrs[i];
  if (text) return tfu_attr_word(a, word->ptr, word->len, v, err);
  const void *scalar = ((const XLA_FFI_Scalar *)attrs->attrs[i])->value;
  if (a->kind == TFU_ATTR_FLOAT) v->f = *(const float *)scalar;
  else if (a->kind == TFU_ATTR_BOOL) v->b = *(const unsigned char *)scalar;
  else v->i = *(const int64_t *)scalar;
  return TFU_OK;
}

/* XLA chose the output shapes when it compiled; the op's own rule must agree with them. `rooms` is how many results
 * come after the outputs: one, where the call has room. */
static tfu_code read_frame(const XLA_FFI_CallFrame *f, int rooms, tfu_call *call, tfu_lists *lists, int64_t *elements) {
  tfu_shape own[TFU_MAX_ARGS];
  int inputs, outputs;
  TFU_TRY(tfu_attrs_read(call->op, read_attr, (void *)&f->attrs, call->attr, call->err));
  TFU_TRY(tfu_lists_open(call, lists));
  tfu_tensor *in = tfu_inputs(call, &inputs), *out = tfu_outputs(call, &outputs);
  TFU_REQUIRE(call->err, f->args.size == inputs && f->rets.size == outputs + rooms,
              "wants %d inputs and %d outputs, the custom call has %d and %d", inputs, outputs + rooms,
              (int)f->args.size, (int)f->rets.size);
  for (int i = 0; i < inputs; i++) TFU_TRY(view(tfu_input_name(call, i), f->args.args[i], &in[i], call->err));
  for (int i = 0; i < outputs; i++) TFU_TRY(view(tfu_output_name(call, i), f->rets.rets[i], &out[i], call->err));
  TFU_TRY(tfu_infer(call, own, elements));
  const tfu_shape *shape = call->lists ? call->lists->shapes : own;
  for (int i = 0; i < outputs; i++) {
    const tfu_shape *got = &out[i].shape;
    TFU_REQUIRE(call->err, got->rank == shape[i].rank && !memcmp(got->dim, shape[i].dim, sizeof *got->dim * got->rank),
                "output %s has shape %s in the custom call, the op gives %s", tfu_output_name(call, i),
                tfu_show(got).text, tfu_show(&shape[i]).text);
  }
  return TFU_OK;
}

/* ---- handling ---- */

/* What one run holds; released together, however it ends. */
typedef struct run {
  XLA_FFI_ExecutionContext *ctx;
  int gpu;
  char *room; /* where the rest of the call's room begins */
  struct {
    void *data;
    size_t size;
  } held[2 * TFU_MAX_ARGS];
  int n;
} run;

static void drop(XLA_FFI_Error *e) {
  if (e) api->XLA_FFI_Error_Destroy(ARGS(XLA_FFI_Error_Destroy, .error = e));
}

/* Of the call's room while there is any; what is captured has nothing else. */
static void *allocate(tfu_call *call, size_t bytes) {
  run *r = call->binding;
  void *data;
  const size_t whole = (bytes + 255) / 256 * 256;
  if (bytes <= call->room) {
    data = r->room;
    r->room += whole;
    call->room -= whole < call->room ? whole : call->room;
    return data;
  }
  if (call->captured || r->n == TFU_COUNT(r->held)) return NULL;
  if (r->gpu) {
    /* An alignment above 16 is refused; what comes is 256-byte aligned all the same. */
    XLA_FFI_DeviceMemory_Allocate_Args *m =
        ARGS(XLA_FFI_DeviceMemory_Allocate, .ctx = r->ctx, .size = bytes, .alignment = 16);
    XLA_FFI_Error *e = api->XLA_FFI_DeviceMemory_Allocate(m);
    data = e ? NULL : m->data;
    drop(e);
  } else {
    data = aligned_alloc(64, (bytes + 63) / 64 * 64);
  }
  if (data) {
    r->held[r->n].data = data;
    r->held[r->n++].size = bytes;
  }
  return data;
}

static void release(run *r) {
  while (r->n-- > 0) {
    void *data = r->held[r->n].data;
    if (!r->gpu) free(data);
    else
      drop(api->XLA_FFI_DeviceMemory_Free(
          ARGS(XLA_FFI_DeviceMemory_Free, .ctx = r->ctx, .size = r->held[r->n].size, .data = data)));
  }
}

/* Registration asks each handler which API it speaks: the framework's own, since we use nothing newer; and whether it
 * may be captured. */
static int answered_metadata(const XLA_FFI_CallFrame *f, tfu_handler k) {
  if (!f->extension_start || f->extension_start->type != XLA_FFI_Extension_Metadata) return 0;
  XLA_FFI_Metadata *m = ((XLA_FFI_Metadata_Extension *)f->extension_start)->metadata;
  m->api_version.major_version = api->api_version.major_version;
  m->api_version.minor_version = api->api_version.minor_version;
  m->traits = k == TFU_CUDA_CAPTURED ? XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE : 0;
  return 1;
}

static XLA_FFI_Error *to_xla(const tfu_op *op, tfu_code code, const tfu_error *err) {
  const tfu_error_text shown = tfu_show_error(op, err);
  return api->XLA_FFI_Error_Create(ARGS(XLA_FFI_Error_Create, .message = shown.text, .errc = (XLA_FFI_Error_Code)code));
}

static XLA_FFI_Error *get_stream(run *r, void **stream) {
  XLA_FFI_Stream_Get_Args *s = ARGS(XLA_FFI_Stream_Get, .ctx = r->ctx);
  XLA_FFI_Error *e = api->XLA_FFI_Stream_Get(s);
  *stream = s->stream;
  return e;
}

/* The frame's last result is room for scratch, if the call has some. */
static int rooms_of(const tfu_op *op, tfu_handler k) { return k >= TFU_HOST_CAPTURED && op->room > 0; }

static void take_room(const XLA_FFI_CallFrame *f, run *r, tfu_call *call) {
  const XLA_FFI_Buffer *last = f->rets.rets[f->rets.size - 1];
  r->room = last->data;
  call->room = last->rank == 1 ? (size_t)last->dims[0] : 0;
}

static tfu_code execute(tfu_call *call, int64_t elements, int gpu) {
  static const char why[] = "captured into a CUDA graph: its later runs are not seen here";
  if (call->captured) call->why = why;
  if (elements > 0) TFU_TRY(tfu_execute(call, "XLA custom call", gpu));
  return call->captured ? tfu_capture_close(call) : TFU_OK;
}

static XLA_FFI_Error *handle(const tfu_op *op, XLA_FFI_CallFrame *f, tfu_handler k) {
  if (answered_metadata(f, k)) return NULL;
  tfu_error err;
  const int gpu = k == TFU_CUDA || k == TFU_CUDA_CAPTURED;
  run r = {.ctx = f->ctx, .gpu = gpu};
  tfu_call call = {.op = op, .err = &err, .allocate = allocate, .binding = &r};
  tfu_lists lists;
  int64_t elements = 0;
  XLA_FFI_Error *no_stream = NULL;
  tfu_code code = read_frame(f, rooms_of(op, k), &call, &lists, &elements);
  if (code == TFU_OK && gpu && (elements > 0 || k == TFU_CUDA_CAPTURED)) {
    no_stream = get_stream(&r, &call.stream);
    if (rooms_of(op, k)) take_room(f, &r, &call);
    if (!no_stream && k == TFU_CUDA_CAPTURED) call.captured = !tfu_may_wait(&call);
  }
  if (code == TFU_OK && !no_stream) code = execute(&call, elements, gpu);
  release(&r);
  tfu_lists_close(&call);
  tfu_attrs_drop(op, call.attr);
  if (no_stream) return no_stream;
  return code == TFU_OK ? NULL : to_xla(op, code, &err);
}

/* ---- rehearsing ---- */

static uint64_t hash_buffers(uint64_t hash, void *const *buffers, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    const XLA_FFI_Buffer *b = buffers[i];
    const int64_t kind[] = {b->dtype, b->rank};
    hash = tfu_hash(tfu_hash(hash, kind, sizeof kind), b->dims, (size_t)b->rank * sizeof *b->dims);
  }
  return hash;
}

static uint64_t hash_attrs(uint64_t hash, const XLA_FFI_Attrs *attrs) {
  for (int64_t i = 0; i < attrs->size; i++) {
    const XLA_FFI_ByteSpan *word = attrs->attrs[i];
    const XLA_FFI_Scalar *scalar = attrs->attrs[i];
    if (attrs->types[i] == XLA_FFI_AttrType_STRING) hash = tfu_hash(hash, word->ptr, word->len);
    if (attrs->types[i] == XLA_FFI_AttrType_SCALAR)
      hash = tfu_hash(hash, scalar->value,
                      scalar->dtype == XLA_FFI_DataType_S64   ? 8
                      : scalar->dtype == XLA_FFI_DataType_F32 ? 4
                                                              : 1);
  }
  return hash;
}

/* Puts all outputs, and inputs of integers, into memory of the rehearsal's own: the call's results may share their
 * memory with what is still to be read, and what its inputs hold is not computed yet. Floats may be anything, but
 * numbers that say where something lies must be zero. */
static tfu_code use_own_memory(tfu_call *call) {
  int counts[2];
  tfu_tensor *lists[2] = {tfu_outputs(call, &counts[0]), tfu_inputs(call, &counts[1])};
  for (int l = 0; l < 2; l++)
    for (int i = 0; i < counts[l]; i++) {
      tfu_tensor *t = &lists[l][i];
      const size_t bytes = (size_t)tfu_count(&t->shape) * tfu_dtype_size(t->dtype);
      if (!bytes || (l == 1 && t->dtype < TFU_FLOATS)) continue;
      TFU_TRY(tfu_scratch(call, bytes, &t->data));
      if (l == 1) TFU_TRY(tfu_clear(call, t->data, bytes));
    }
  return TFU_OK;
}

/* What is to be rehearsed. */
typedef struct rehearsal {
  const tfu_op *op;
  XLA_FFI_CallFrame *frame;
} rehearsal;

/* One that fails is no error: the call says what is wrong when it runs. */
static tfu_code run_rehearsal(const void *hash, void *nothing, void *rehearsal_, tfu_error *err) {
  const rehearsal *what = rehearsal_;
  run r = {.ctx = what->frame->ctx, .gpu = 1};
  tfu_call call = {.op = what->op, .err = err, .allocate = allocate, .binding = &r};
  tfu_lists lists;
  int64_t elements = 0;
  (void)hash, (void)nothing;
  tfu_code code = read_frame(what->frame, rooms_of(what->op, TFU_CUDA_CAPTURED), &call, &lists, &elements);
  XLA_FFI_Error *no_stream = get_stream(&r, &call.stream);
  drop(no_stream);
  if (code == TFU_OK) code = tfu_check_reals(&call);
  if (code == TFU_OK && elements > 0 && !no_stream && tfu_may_wait(&call)) {
    code = use_own_memory(&call);
    if (code == TFU_OK) code = call.op->gpu(&call);
  }
  release(&r);
  tfu_attrs_drop(call.op, call.attr);
  return code == TFU_EXHAUSTED ? code
                               : TFU_OK; /* where memory was short, the next call of its kind is the first again */
}

/* By a hash of their kind, far more than programs have. */
static tfu_table rehearsed = TFU_TABLE(.most = 1 << 14, .make = run_rehearsal);

/* XLA calls this before every run, and before it captures: the first call of a kind is rehearsed. Lists of tensors have
 * nothing to be timed or planned. */
static XLA_FFI_Error *rehearse(const tfu_op *op, XLA_FFI_CallFrame *f) {
  if (answered_metadata(f, TFU_CUDA_CAPTURED)) return NULL;
  tfu_error ignored;
  tfu_device device;
  void *done;
  if (op->lists || tfu_device_now(&device, &ignored) != TFU_OK) return NULL;
  const int64_t where[] = {(intptr_t)op, device.ordinal};
  uint64_t hash = tfu_hash(TFU_HASH_START, where, sizeof where);
  hash = hash_attrs(hash_buffers(hash, f->args.args, f->args.size), &f->attrs);
  if (tfu_table_get(&rehearsed, &hash, sizeof hash, &(rehearsal){op, f}, &done, &ignored) == TFU_OK)
    tfu_table_put(&rehearsed, done, NULL);
  return NULL;
}

struct XLA_FFI_Error *tfu_xla_handle(const tfu_op *op, XLA_FFI_CallFrame *frame, tfu_handler which) {
  return which == TFU_REHEARSE ? rehearse(op, frame) : handle(op, frame, which);
}

/* ---- registering ---- */

int tfu_xla_ask(XLA_FFI_Handler *handler) {
  if (!api) return -1;
  XLA_FFI_Metadata answer = {.struct_size = XLA_FFI_Metadata_STRUCT_SIZE};
  XLA_FFI_Metadata_Extension question = {
      .extension_base = {.struct_size = XLA_FFI_Metadata_Extension_STRUCT_SIZE, .type = XLA_FFI_Extension_Metadata},
      .metadata = &answer};
  XLA_FFI_CallFrame frame = {.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE, .extension_start = &question.extension_base};
  handler(&frame);
  return (int)answer.traits;
}

static int offer(const char *name, const char *platform, XLA_FFI_Handler *run_on, XLA_FFI_Handler *before) {
  XLA_FFI_Error *e = api->XLA_FFI_Handler_Register(ARGS(XLA_FFI_Handler_Register, .name = {name, strlen(name)},
                                                        .platform = {platform, strlen(platform)},
                                                        .bundle = {.initialize = before, .execute = run_on}));
  if (!e) return 1;
  XLA_FFI_Error_GetMessage_Args *m = ARGS(XLA_FFI_Error_GetMessage, .error = e);
  api->XLA_FFI_Error_GetMessage(m);
  snprintf(status, sizeof status, "XLA refused %s on %s: %s", name, platform, m->message);
  drop(e);
  return 0;
}

/* The table of XLA's functions lives in TensorFlow, under one of two names in one of two libraries. */
static const XLA_FFI_Api *find_api(void) {
  static const char *const libraries[] = {"libtensorflow_framework.so.2", "libtensorflow_cc.so.2"};
  static const char *const names[] = {"XLA_FFI_GetApi", "_ZN3xla3ffi12GetXlaFfiApiEv"};
  for (int i = 0; i < 4; i++) {
    void *library = dlopen(libraries[i / 2], RTLD_NOW | RTLD_NOLOAD);
    const XLA_FFI_Api *(*get)(void) = NULL;
    if (library) *(void **)&get = dlsym(library, names[i % 2]);
    if (get) return get();
  }
  return NULL;
}

static void open_api(void) {
  api = find_api();
  /* TensorFlow 2.17's table has no version field to ask; it is shorter, and 2.18's claims to end after this field. */
  if (api && api->struct_size > offsetof(XLA_FFI_Api, XLA_FFI_Stream_Get)) status[0] = 0;
  else
    snprintf(status, sizeof status, "this TensorFlow's XLA has no custom calls that C can serve (2.18 and later have)");
}

void tfu_xla_register(const tfu_entry *e) {
  static int opened;
  if (!opened++) open_api();
  if (status[0]) return;
  int good = offer(e->target, "Host", e->handle[TFU_HOST], NULL) && offer(e->target, "CUDA", e->handle[TFU_CUDA], NULL);
  if (good && e->op->capturable && offer(e->captured_target, "Host", e->handle[TFU_HOST_CAPTURED], NULL))
    offer(e->captured_target, "CUDA", e->handle[TFU_CUDA_CAPTURED], e->handle[TFU_REHEARSE]);
}
