/* xla_bind.c - offers every row to XLA as a custom call, for the CPU and for CUDA. The only file that sees XLA.
 *
 * The target of stem s is "tfuse.s"; inputs and outputs come in the row's order, attributes by name. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bind.h"
#include "xla/ffi/api/c_api.h"

static const XLA_FFI_Api *api;
static char status[256] = "the library was not initialised";

/* Why ops cannot run inside XLA, or "". */
TFU_EXPORT const char *tfu_xla_status(void) { return status; }

/* ---- a call frame as a tfu_call ---- */

static tfu_code to_dtype(XLA_FFI_DataType type, tfu_dtype *dtype, tfu_error *err) {
  switch (type) {
    case XLA_FFI_DataType_F32: *dtype = TFU_F32; return TFU_OK;
    case XLA_FFI_DataType_F16: *dtype = TFU_F16; return TFU_OK;
    case XLA_FFI_DataType_BF16: *dtype = TFU_BF16; return TFU_OK;
    case XLA_FFI_DataType_F64: *dtype = TFU_F64; return TFU_OK;
    case XLA_FFI_DataType_S32: *dtype = TFU_I32; return TFU_OK;
    case XLA_FFI_DataType_S64: *dtype = TFU_I64; return TFU_OK;
    case XLA_FFI_DataType_PRED: *dtype = TFU_BOOL; return TFU_OK;
    default: return tfu_fail(err, TFU_UNIMPLEMENTED, "XLA dtype number %d is not supported", (int)type);
  }
}

static tfu_code view(const char *argument, const XLA_FFI_Buffer *b, tfu_tensor *v, tfu_error *err) {
  *v = (tfu_tensor){.data = b->data, .shape.rank = (int)b->rank};
  TFU_REQUIRE(err, b->rank <= TFU_MAX_RANK, "%s has %d dimensions, at most %d are supported: reshape it", argument,
              (int)b->rank, TFU_MAX_RANK);
  for (int i = 0; i < v->shape.rank; i++) v->shape.dim[i] = b->dims[i];
  return to_dtype(b->dtype, &v->dtype, err);
}

static int find_attr(const XLA_FFI_Attrs *attrs, const char *name) {
  for (int i = 0; i < attrs->size; i++)
    if (attrs->names[i]->len == strlen(name) && !memcmp(attrs->names[i]->ptr, name, attrs->names[i]->len)) return i;
  return -1;
}

/* In the frame a choice is a string and anything else a scalar of the kind that the row names. */
static tfu_code read_attr(const tfu_attr *a, XLA_FFI_AttrType type, const void *data, tfu_value *v, tfu_error *err) {
  const int choice = a->kind == TFU_ATTR_CHOICE;
  TFU_REQUIRE(err, type == (choice ? XLA_FFI_AttrType_STRING : XLA_FFI_AttrType_SCALAR),
              "attribute %s of the custom call has the wrong type", a->name);
  if (choice) {
    const XLA_FFI_ByteSpan *word = data;
    v->i = tfu_attr_choice(a, word->ptr, word->len);
    TFU_REQUIRE(err, v->i >= 0, "attribute %s must be one of %s, got '%.*s'", a->name, a->choices, (int)word->len,
                word->ptr);
    return TFU_OK;
  }
  const void *scalar = ((const XLA_FFI_Scalar *)data)->value;
  if (a->kind == TFU_ATTR_FLOAT) v->f = *(const float *)scalar;
  if (a->kind == TFU_ATTR_INT) v->i = *(const int64_t *)scalar;
  if (a->kind == TFU_ATTR_BOOL) v->b = *(const unsigned char *)scalar;
  return TFU_OK;
}

static tfu_code read_attrs(const XLA_FFI_Attrs *attrs, tfu_call *call) {
  for (int i = 0; call->op->attr[i]; i++) {
    tfu_attr a;
    if (!tfu_attr_parse(call->op->attr[i], &a) || a.kind == TFU_ATTR_DTYPE) continue;
    const int at = find_attr(attrs, a.name);
    TFU_REQUIRE(call->err, at >= 0, "the custom call has no attribute %s", a.name);
    TFU_TRY(read_attr(&a, attrs->types[at], attrs->attrs[at], &call->attr[i], call->err));
  }
  return TFU_OK;
}

/* XLA chose the output shapes when it compiled; the op's own rule must agree with them. */
static tfu_code read_frame(const XLA_FFI_CallFrame *f, tfu_call *call, tfu_lists *lists, int64_t *elements) {
  tfu_shape own[TFU_MAX_ARGS];
  int inputs, outputs;
  TFU_TRY(read_attrs(&f->attrs, call));
  TFU_TRY(tfu_lists_open(call, lists));
  tfu_tensor *in = tfu_inputs(call, &inputs), *out = tfu_outputs(call, &outputs);
  TFU_REQUIRE(call->err, f->args.size == inputs && f->rets.size == outputs,
              "wants %d inputs and %d outputs, the custom call has %d and %d", inputs, outputs, (int)f->args.size,
              (int)f->rets.size);
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
  struct {
    void *data;
    size_t size;
  } held[2 * TFU_MAX_ARGS];
  int n;
} run;

static void drop(XLA_FFI_Error *e) {
  XLA_FFI_Error_Destroy_Args d = {.struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, .error = e};
  if (e) api->XLA_FFI_Error_Destroy(&d);
}

static void *allocate(tfu_call *call, size_t bytes) {
  run *r = call->binding;
  void *data;
  if (r->n == TFU_COUNT(r->held)) return NULL;
  if (r->gpu) {
    /* An alignment above 16 is refused; what comes is 256-byte aligned all the same. */
    XLA_FFI_DeviceMemory_Allocate_Args m = {
        .struct_size = XLA_FFI_DeviceMemory_Allocate_Args_STRUCT_SIZE, .ctx = r->ctx, .size = bytes, .alignment = 16};
    XLA_FFI_Error *e = api->XLA_FFI_DeviceMemory_Allocate(&m);
    data = e ? NULL : m.data;
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
    if (!r->gpu) {
      free(r->held[r->n].data);
      continue;
    }
    XLA_FFI_DeviceMemory_Free_Args m = {.struct_size = XLA_FFI_DeviceMemory_Free_Args_STRUCT_SIZE,
                                        .ctx = r->ctx,
                                        .size = r->held[r->n].size,
                                        .data = r->held[r->n].data};
    drop(api->XLA_FFI_DeviceMemory_Free(&m));
  }
}

/* Registration asks each handler which API it speaks: the framework's own, since we use nothing newer. No traits: an op
 * that takes scratch memory must not be captured into a command buffer and replayed after the memory is gone. */
static int answered_metadata(const XLA_FFI_CallFrame *f) {
  if (!f->extension_start || f->extension_start->type != XLA_FFI_Extension_Metadata) return 0;
  XLA_FFI_Metadata *m = ((XLA_FFI_Metadata_Extension *)f->extension_start)->metadata;
  m->api_version.major_version = api->api_version.major_version;
  m->api_version.minor_version = api->api_version.minor_version;
  m->traits = 0;
  return 1;
}

static XLA_FFI_Error *to_xla(const tfu_op *op, tfu_code code, const tfu_error *err) {
  char text[sizeof err->text + 64];
  tfu_explain_error(op, err, text, sizeof text);
  XLA_FFI_Error_Create_Args a = {
      .struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE, .message = text, .errc = (XLA_FFI_Error_Code)code};
  return api->XLA_FFI_Error_Create(&a);
}

static XLA_FFI_Error *handle(const tfu_op *op, XLA_FFI_CallFrame *f, int gpu) {
  if (answered_metadata(f)) return NULL;
  tfu_error err;
  run r = {.ctx = f->ctx, .gpu = gpu};
  tfu_call call = {.op = op, .err = &err, .allocate = allocate, .binding = &r};
  tfu_lists lists;
  int64_t elements = 0;
  XLA_FFI_Error *no_stream = NULL;
  tfu_code code = read_frame(f, &call, &lists, &elements);
  if (code == TFU_OK && elements > 0 && gpu) {
    XLA_FFI_Stream_Get_Args s = {.struct_size = XLA_FFI_Stream_Get_Args_STRUCT_SIZE, .ctx = f->ctx};
    no_stream = api->XLA_FFI_Stream_Get(&s);
    call.stream = s.stream;
  }
  if (code == TFU_OK && elements > 0 && !no_stream) code = tfu_execute(&call, "XLA custom call", gpu);
  release(&r);
  tfu_lists_close(&call);
  if (no_stream) return no_stream;
  return code == TFU_OK ? NULL : to_xla(op, code, &err);
}

/* ---- registering ---- */

#define X(stem)                                                                                 \
  static XLA_FFI_Error *host_##stem(XLA_FFI_CallFrame *f) { return handle(&tfu_##stem, f, 0); } \
  static XLA_FFI_Error *cuda_##stem(XLA_FFI_CallFrame *f) { return handle(&tfu_##stem, f, 1); }
#include "ops.def"
#undef X

static const struct target {
  const char *name;
  XLA_FFI_Handler *host, *cuda;
} targets[] = {
#define X(stem) {"tfuse." #stem, host_##stem, cuda_##stem},
#include "ops.def"
#undef X
};

static int offer(const char *name, const char *platform, XLA_FFI_Handler *run_on) {
  XLA_FFI_Handler_Register_Args a = {.struct_size = XLA_FFI_Handler_Register_Args_STRUCT_SIZE,
                                     .name = {name, strlen(name)},
                                     .platform = {platform, strlen(platform)},
                                     .bundle = {.execute = run_on}};
  XLA_FFI_Error *e = api->XLA_FFI_Handler_Register(&a);
  if (!e) return 1;
  XLA_FFI_Error_GetMessage_Args m = {.struct_size = XLA_FFI_Error_GetMessage_Args_STRUCT_SIZE, .error = e};
  api->XLA_FFI_Error_GetMessage(&m);
  snprintf(status, sizeof status, "XLA refused %s on %s: %s", name, platform, m.message);
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

__attribute__((constructor)) static void offer_all(void) {
  api = find_api();
  /* TensorFlow 2.17's table has no version field to ask; it is shorter, and 2.18's claims to end after this field. */
  if (!api || api->struct_size <= offsetof(XLA_FFI_Api, XLA_FFI_Stream_Get)) {
    snprintf(status, sizeof status, "this TensorFlow's XLA has no custom calls that C can serve (2.18 and later have)");
    return;
  }
  status[0] = 0;
  for (int i = 0; i < TFU_COUNT(targets); i++)
    if (!offer(targets[i].name, "Host", targets[i].host) || !offer(targets[i].name, "CUDA", targets[i].cuda)) return;
}
