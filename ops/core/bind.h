/* bind.h - what the two bindings share. */
#ifndef TFUSE_BIND_H_
#define TFUSE_BIND_H_

#include "tfuse.h"

/* Functions that Python reaches through ctypes; everything else stays inside the library. */
#define TFU_EXPORT __attribute__((visibility("default")))

/* ---- attributes (attr.c) ---- */

typedef enum tfu_attr_kind {
  TFU_ATTR_DTYPE,
  TFU_ATTR_FLOAT,
  TFU_ATTR_INT,
  TFU_ATTR_BOOL,
  TFU_ATTR_CHOICE
} tfu_attr_kind;

typedef struct tfu_attr {
  char name[32];
  tfu_attr_kind kind;
  const char *choices; /* the text from '{' on, for TFU_ATTR_CHOICE */
} tfu_attr;

/* Reads "epsilon: float = 1e-6"; 0 if it is no attribute we know. */
TFU_MUST_USE int tfu_attr_parse(const char *text, tfu_attr *attr);
/* The index of word among the choices, or -1. */
int tfu_attr_choice(const tfu_attr *attr, const char *word, size_t length);

/* ---- calls (call.c) ---- */

int tfu_args(const char *const *list); /* entries before the NULL */

/* Runs the shape rule on the call's inputs and sizes the outputs; *elements is their sum. Dims are all known, and no
 * output has more bytes than memory could have. */
TFU_MUST_USE tfu_code tfu_infer(tfu_call *call, tfu_shape *out, int64_t *elements);
/* Runs the op's kernel and leaves a trace of it. */
TFU_MUST_USE tfu_code tfu_execute(tfu_call *call, const char *route, int gpu);
/* "Op: text", as TensorFlow and XLA report it. */
void tfu_explain_error(const tfu_op *op, const tfu_error *err, char *text, size_t size);

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
