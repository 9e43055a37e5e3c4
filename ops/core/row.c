/* row.c - what an op's row says of a call before it is made, for Python: TensorFlow's shape functions in C see no
 * attributes, and XLA wants to know how much scratch a captured call has. */
#include <stdlib.h>
#include <string.h>

#include "chain.h"

tfu_code tfu_tensor_of(const tfu_spec *spec, tfu_tensor *t, tfu_error *err) {
  *t = (tfu_tensor){.shape = spec->shape};
  while (t->dtype < TFU_DTYPES && strcmp(tfu_dtype_name(t->dtype), spec->dtype)) t->dtype++;
  return t->dtype < TFU_DTYPES ? TFU_OK : tfu_fail(err, TFU_UNIMPLEMENTED, "dtype %s is not supported", spec->dtype);
}

/* Of `attrs_`, which has names and values in turn up to a NULL. */
static tfu_code read_attr(const tfu_attr *a, void *attrs_, tfu_value *v, tfu_error *err) {
  const char *const *at = attrs_;
  while (*at && strcmp(*at, a->name)) at += 2;
  TFU_REQUIRE(err, *at, "attribute %s is missing", a->name);
  return tfu_attr_text(a, at[1], strlen(at[1]), v, err);
}

/* The call's attributes and inputs. */
static tfu_code fill(tfu_call *call, tfu_lists *lists, const tfu_spec *in, const char *const *attrs) {
  TFU_TRY(tfu_attrs_read(call->op, read_attr, (void *)attrs, call->attr, call->err));
  TFU_TRY(tfu_lists_open(call, lists));
  int n;
  tfu_tensor *tensors = tfu_inputs(call, &n);
  for (int i = 0; i < n; i++) TFU_TRY(tfu_tensor_of(&in[i], &tensors[i], call->err));
  return TFU_OK;
}

static void release(tfu_call *call) {
  tfu_lists_close(call);
  tfu_attrs_drop(call->op, call->attr);
}

/* Whether the row of this stem is to be asked: 1 for shapes, 2 for room, 3 for both. */
TFU_EXPORT int tfu_row_asks(const char *stem) {
  const tfu_op *op = tfu_find(stem)->op;
  return op->attr_shapes | (op->more_room != NULL) << 1;
}

/* Fills `out` with the shapes of all outputs. "", or what is wrong. */
TFU_EXPORT const char *tfu_row_shapes(const char *stem, const tfu_spec *in, const char *const *attrs, tfu_shape *out) {
  static _Thread_local tfu_error err;
  tfu_lists lists;
  tfu_call call = {.op = tfu_find(stem)->op, .err = &err};
  tfu_shape own[TFU_MAX_ARGS];
  const tfu_shape *shapes;
  tfu_code code = fill(&call, &lists, in, attrs);
  if (code == TFU_OK) code = tfu_infer_shapes(&call, own, &shapes);
  if (code == TFU_OK) memcpy(out, shapes, (size_t)(call.lists ? lists.outputs : tfu_args(call.op->out)) * sizeof *out);
  release(&call);
  return code == TFU_OK ? "" : err.text;
}

/* Bytes of scratch beside the row's `room`; 0 where it asks for none, -1 for TFU_NO_ROOM. For ops without lists. */
TFU_EXPORT int64_t tfu_row_more_room(const char *stem, const tfu_spec *in, const char *const *attrs,
                                     const tfu_spec *out) {
  tfu_error err;
  tfu_call call = {.op = tfu_find(stem)->op, .err = &err};
  tfu_code code = fill(&call, NULL, in, attrs);
  for (int i = 0; code == TFU_OK && call.op->out[i]; i++) code = tfu_tensor_of(&out[i], &call.out[i], &err);
  const int64_t bytes = code == TFU_OK && call.op->more_room ? (int64_t)call.op->more_room(&call) : 0;
  release(&call);
  return bytes;
}

/* Fills in the bytes that the memory of a chain must have. "", or what is wrong. */
TFU_EXPORT const char *tfu_chain_bytes(const char *text, const tfu_spec *in, int n, size_t *bytes) {
  static _Thread_local tfu_error err;
  tfu_tensor *inputs = malloc((size_t)n * sizeof *inputs);
  tfu_code code = inputs ? TFU_OK : tfu_fail(&err, TFU_EXHAUSTED, "out of host memory");
  for (int i = 0; i < n && code == TFU_OK; i++) code = tfu_tensor_of(&in[i], &inputs[i], &err);
  if (code == TFU_OK) code = tfu_chain_room(text, inputs, n, bytes, &err);
  free(inputs);
  return code == TFU_OK ? "" : err.text;
}
