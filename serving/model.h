/* model.h - a SavedModel from C: open it, see its signatures, run them from any number of threads.
 *
 *   tfu_error err;
 *   tfu_model *model;
 *   if (tfu_model_open("my_model", NULL, &model, &err)) return fail(err.text);
 *   const tfu_signature *s = tfu_model_signature(model, NULL);
 *   tfu_array x = {.dtype = TFU_TF_FLOAT, .shape = {2, {1, 4}}, .data = numbers}, y;
 *   if (tfu_model_run(model, s, &x, &y, &err)) return fail(err.text);
 *   … y.data, y.shape …
 *   tfu_array_free(&y);
 *   tfu_model_close(model);
 *
 * TensorFlow, 2.16 or later, is found when the first model is opened, and nothing of it is needed to build or link.
 * Every function that may fail returns a code, of TensorFlow's numbers, and writes a text. */
#ifndef TFUSE_MODEL_H_
#define TFUSE_MODEL_H_

#include <tfuse.h>

#pragma GCC visibility push(default)

/* Numbers of TensorFlow's dtypes; others, such as resources and complex numbers, are refused. */
enum {
  TFU_TF_FLOAT = 1,
  TFU_TF_DOUBLE = 2,
  TFU_TF_INT32 = 3,
  TFU_TF_UINT8 = 4,
  TFU_TF_INT16 = 5,
  TFU_TF_INT8 = 6,
  TFU_TF_STRING = 7,
  TFU_TF_INT64 = 9,
  TFU_TF_BOOL = 10,
  TFU_TF_BFLOAT16 = 14,
  TFU_TF_UINT16 = 17,
  TFU_TF_HALF = 19,
  TFU_TF_UINT32 = 22,
  TFU_TF_UINT64 = 23
};

const char *tfu_tf_dtype_name(int dtype); /* "float32" …; NULL for one that is refused */
size_t tfu_tf_dtype_size(int dtype);      /* bytes of an element; of a string, those of its tfu_text; 0: refused */

typedef struct tfu_model tfu_model;

typedef struct tfu_model_options {
  const char *tensorflow; /* folder with libtensorflow_cc.so.2; NULL: TFUSE_TENSORFLOW, or where Python has it */
  const char *library;    /* libtfuse.so; NULL: TFUSE_LIBRARY, or the one beside this code, or none */
  const char *libraries;  /* more libraries of ops, with colons between them; NULL: none */
  const char *tags;       /* of the graph, with commas between them; NULL: "serve" */
  const char *device;     /* "CPU", "GPU" or "GPU:1"; NULL: a GPU where there is one */
  int inter_threads;      /* ops at a time; 0: as many as cores */
  int intra_threads;      /* threads of an op; 0: as many as cores. The first model of a process decides. */
  int xla;                /* whether XLA compiles what it can of a graph that does not ask for it itself */
  size_t most_bytes;      /* of all inputs of a run, of which a string is 40 and its characters; 0: no limit */
} tfu_model_options;

/* An input or output. A size that the model leaves open is TFU_UNKNOWN, and so is an open rank. */
typedef struct tfu_port {
  const char *name;
  int dtype;
  tfu_shape shape;
  const char *tensor; /* what the graph calls it: "serving_default_x:0" */
} tfu_port;

typedef struct tfu_signature {
  const char *name;
  int inputs, outputs;
  const tfu_port *input, *output; /* in the order of their names */
} tfu_signature;

/* A tensor in memory, row-major. Of strings, data is a tfu_text for each. */
typedef struct tfu_array {
  int dtype;
  tfu_shape shape;
  void *data;
  void *held; /* NULL where the memory is the caller's */
} tfu_array;

typedef struct tfu_text {
  const char *data; /* need not end with a zero */
  size_t bytes;
} tfu_text;

/* Opens the folder of a SavedModel. `options` may be NULL, and so may each of its members. */
TFU_MUST_USE tfu_code tfu_model_open(const char *folder, const tfu_model_options *options, tfu_model **model,
                                     tfu_error *err);
/* No run may be under way. NULL is no model, and is fine. */
void tfu_model_close(tfu_model *model);

/* How many signatures there are, the i-th, and that of a name; for NULL the one that is called serving_default, or is
 * the only one. NULL: there is none. They live as long as the model. */
int tfu_model_signatures(const tfu_model *model);
const tfu_signature *tfu_model_signature_at(const tfu_model *model, int i);
const tfu_signature *tfu_model_signature(const tfu_model *model, const char *name);

/* Runs it: `in` has an array for each input, in the signature's order, and `out` gets one for each output, which
 * tfu_array_free frees. Inputs stay the caller's. Any number of threads may run a model at a time. */
TFU_MUST_USE tfu_code tfu_model_run(tfu_model *model, const tfu_signature *signature, const tfu_array *in,
                                    tfu_array *out, tfu_error *err);

/* Memory that a run takes as it is, where other memory is copied: fill `data`. Not for strings. */
TFU_MUST_USE tfu_code tfu_array_new(int dtype, const tfu_shape *shape, tfu_array *array, tfu_error *err);
/* Has a run take the caller's own memory as it is, where it is aligned to 64 bytes; if not, returns 0, and a run copies
 * it. `done` is called once, by any thread, when nobody reads the memory any more: in tfu_array_free, or later where an
 * output is that memory, or the model keeps it. */
int tfu_array_lend(tfu_array *array, void (*done)(void *owner), void *owner);
void tfu_array_free(tfu_array *array); /* also one that is all zeros, or was freed */

/* Elements of a shape that is known, and their bytes: TFU_INVALID where a size is negative, TFU_EXHAUSTED where they
 * are more than any memory has. */
TFU_MUST_USE tfu_code tfu_array_size(int dtype, const tfu_shape *shape, size_t *elements, size_t *bytes,
                                     tfu_error *err);

/* The version of the TensorFlow that is in use; NULL before a model was opened. */
const char *tfu_tensorflow_version(void);

#pragma GCC visibility pop
#endif
