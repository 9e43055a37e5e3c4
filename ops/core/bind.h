/* bind.h - what the two bindings share. */
#ifndef TFUSE_BIND_H_
#define TFUSE_BIND_H_

#include "entry.h"

/* ---- registering (tf_bind.c, xla_bind.c): what register.c calls for every entry ---- */

TFU_MUST_USE tfu_code tfu_tf_register(const tfu_entry *entry, tfu_error *err);
/* What fails is in tfu_xla_status(): ops then do without XLA. */
void tfu_xla_register(const tfu_entry *entry);
/* The traits that a handler tells XLA; -1 where there is no XLA to tell. */
int tfu_xla_ask(struct XLA_FFI_Error *(*handler)(struct XLA_FFI_CallFrame *));

/* ---- finding (register.c) ---- */

/* The op with this stem, name or target of XLA's; NULL: there is none. */
const tfu_entry *tfu_find(const char *called);

/* ---- attributes (attr.c) ---- */

typedef enum tfu_attr_kind {
  TFU_ATTR_DTYPE,
  TFU_ATTR_FLOAT,
  TFU_ATTR_INT,
  TFU_ATTR_BOOL,
  TFU_ATTR_ENUM,
  TFU_ATTR_STRING,
  TFU_ATTR_TYPES
} tfu_attr_kind;

typedef struct tfu_attr {
  char name[32];
  tfu_attr_kind kind;
  const char *choices; /* the text from '{' on, for TFU_ATTR_ENUM */
} tfu_attr;

/* Reads "epsilon: float = 1e-6"; 0 if it is no attribute we know. */
TFU_MUST_USE int tfu_attr_parse(const char *text, tfu_attr *attr);
/* The index of word among the choices, or -1. */
int tfu_attr_enum(const tfu_attr *attr, const char *word, size_t length);
/* The value of an attribute that is a choice or a text. */
TFU_MUST_USE tfu_code tfu_attr_word(const tfu_attr *attr, const char *word, size_t length, tfu_value *value,
                                    tfu_error *err);
/* The value of any attribute but a dtype, from a text in which a number may be followed by anything but digits. */
TFU_MUST_USE tfu_code tfu_attr_text(const tfu_attr *attr, const char *text, size_t length, tfu_value *value,
                                    tfu_error *err);
/* Reads all of a row's attributes but dtypes, which every tensor has itself, by a function that knows where they are.
 */
typedef tfu_code tfu_attr_reader(const tfu_attr *attr, void *from, tfu_value *value, tfu_error *err);
TFU_MUST_USE tfu_code tfu_attrs_read(const tfu_op *op, tfu_attr_reader *read, void *from, tfu_value *values,
                                     tfu_error *err);
/* Drops the texts among a row's attributes, of which those that were not read are NULL. */
void tfu_attrs_drop(const tfu_op *op, const tfu_value *attr);

/* ---- what Python asks before a call (row.c) ---- */

/* A tensor as Python tells it, of which sizes may be unknown. */
typedef struct tfu_spec {
  const char *dtype; /* "float32" … */
  tfu_shape shape;
} tfu_spec;
TFU_MUST_USE tfu_code tfu_tensor_of(const tfu_spec *spec, tfu_tensor *tensor, tfu_error *err);

/* ---- calls (call.c) ---- */

int tfu_args(const char *const *list); /* entries before the NULL */

/* A tensor as a framework shows it. `numbers` are the framework's own of dtypes, by tfu_dtype. */
TFU_MUST_USE tfu_code tfu_view(const char *argument, void *data, int64_t rank, const int64_t *dims, int number,
                               const int *numbers, int count, tfu_tensor *tensor, tfu_error *err);
/* Fails where the argument has more axes than a shape has room for. */
TFU_MUST_USE tfu_code tfu_check_rank(const char *argument, int64_t rank, tfu_error *err);

/* ---- lists (lists.c) ---- */

/* Of an op with lists: makes room for all its tensors and their shapes, as many as its number attributes say. Does
 * nothing for other ops. */
TFU_MUST_USE tfu_code tfu_lists_open(tfu_call *call, tfu_lists *lists);
void tfu_lists_close(tfu_call *call);
/* All inputs and outputs of a call, one after the other, and how many. */
tfu_tensor *tfu_inputs(tfu_call *call, int *n);
tfu_tensor *tfu_outputs(tfu_call *call, int *n);
/* The row's text for input or output number i of these, for messages. */
const char *tfu_input_name(const tfu_call *call, int i);
const char *tfu_output_name(const tfu_call *call, int i);

/* Runs the shape rule on the call's inputs: the shapes of all its outputs, which are in call->lists or in `own`, that
 * has room for TFU_MAX_ARGS. */
TFU_MUST_USE tfu_code tfu_infer_shapes(tfu_call *call, tfu_shape *own, const tfu_shape **shapes);
/* The same where dims are all known; *elements is the sum of all outputs'. Fails where one has more bytes than memory
 * could have. */
TFU_MUST_USE tfu_code tfu_infer(tfu_call *call, tfu_shape *own, int64_t *elements);
/* What a row declares as S has the type that in[0] is computed in: kernels count on it. Lists check their own. */
TFU_MUST_USE tfu_code tfu_check_reals(const tfu_call *call);
/* Runs the op's kernel and leaves a trace of it. */
TFU_MUST_USE tfu_code tfu_execute(tfu_call *call, const char *route, int gpu);
/* "Op: text", as TensorFlow and XLA report it. */
typedef struct tfu_error_text {
  char text[sizeof(tfu_error) + 64];
} tfu_error_text;
tfu_error_text tfu_show_error(const tfu_op *op, const tfu_error *err);

/* ---- traces (trace.c): the last runs, for tfuse.explain() ---- */

void tfu_trace(const tfu_call *call, const char *route, int gpu);

/* ---- streams (stream.c) ---- */

/* The stream a GPU kernel has to run on: TensorFlow's own, or a fenced one of ours where that cannot be found. */
typedef struct tfu_stream {
  void *stream;
  int fenced;
} tfu_stream;
TFU_MUST_USE tfu_code tfu_stream_open(void *tf_op_kernel_context, tfu_stream *stream, tfu_error *err);
/* Makes TensorFlow wait for what was put on the stream. */
TFU_MUST_USE tfu_code tfu_stream_close(const tfu_stream *stream, tfu_error *err);

#endif
