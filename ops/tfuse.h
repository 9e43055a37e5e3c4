/* tfuse.h - all that an op author needs. Knows nothing of TensorFlow, XLA or CUDA.
 *
 * An op is one constant row, tfu_op: names, dtypes, attributes, a shape rule and two functions. Two bindings
 * (ops/core/tf_bind.c, ops/core/xla_bind.c) turn rows into registrations, and every run into one tfu_call.
 * docs/design.md#words says what row, call, given, wanted, T, S and K mean here, and other words of this project. */
#ifndef TFUSE_H_
#define TFUSE_H_

#include <stddef.h>
#include <stdint.h>

/* What is declared between such pragmas, here and in core, libtfuse.so also offers to libraries of ops. */
#pragma GCC visibility push(default)
/* And of what is defined anywhere, functions that Python reaches through ctypes. All else stays inside the library. */
#define TFU_EXPORT __attribute__((visibility("default")))

#define TFU_COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* ---- errors ---- */

/* TensorFlow and XLA number their codes alike, so both bindings forward these unchanged. */
typedef enum tfu_code {
  TFU_OK = 0,
  TFU_INVALID = 3,
  TFU_EXHAUSTED = 8,
  TFU_PRECONDITION = 9,
  TFU_UNIMPLEMENTED = 12,
  TFU_INTERNAL = 13
} tfu_code;

typedef struct tfu_error {
  char text[2000]; /* a compiler's log of some lines fits */
} tfu_error;

#define TFU_MUST_USE __attribute__((warn_unused_result))

/* Writes the message and returns `code`, so that a check is one statement. The bindings put the op's name before it. */
TFU_MUST_USE tfu_code tfu_fail(tfu_error *err, tfu_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define TFU_REQUIRE(err, condition, ...)                                \
  do {                                                                  \
    if (!(condition)) return tfu_fail((err), TFU_INVALID, __VA_ARGS__); \
  } while (0)
#define TFU_TRY(expression)              \
  do {                                   \
    const tfu_code code_ = (expression); \
    if (code_ != TFU_OK) return code_;   \
  } while (0)

/* ---- tensors ---- */

enum { TFU_MAX_RANK = 8, TFU_MAX_ARGS = 13, TFU_MAX_ATTRS = 10, TFU_UNKNOWN = -1 };

/* Floats come first: kernels are compiled for those. */
typedef enum tfu_dtype {
  TFU_F32,
  TFU_F16,
  TFU_BF16,
  TFU_F64,
  TFU_FLOATS,
  TFU_I32 = TFU_FLOATS,
  TFU_I64,
  TFU_BOOL,
  TFU_MOVED, /* from here on: what most kernels only move; a few compute with some of these */
  TFU_U8 = TFU_MOVED,
  TFU_I8,
  TFU_U16,
  TFU_I16,
  TFU_C64, /* complex: two floats, the real part first */
  TFU_C128,
  TFU_I4, /* in a byte of its own, as TensorFlow stores it */
  TFU_U4,
  TFU_E4M3, /* of 8 bits, without infinities */
  TFU_E5M2,
  TFU_DTYPES
} tfu_dtype;

/* Types of a row. T is any float, or any number; arithmetic is in float, in double for float64, and values in that type
 * are S. K is T or S, as the user keeps a weight: mixed precision has float32 ones beside data of 16 bits. */
#define TFU_T_FLOATS "T: {float, half, bfloat16, double}"
#define TFU_T_COMPLEX "T: {float, half, bfloat16, double, complex64, complex128}"
#define TFU_T_NUMBERS "T: {float, half, bfloat16, double, int32, int64}"
#define TFU_S_REALS "S: {float, double} = DT_FLOAT"
#define TFU_K_KEPT "K: {float, half, bfloat16, double} = DT_FLOAT"

/* Row-major. Rank and dims are TFU_UNKNOWN only while a graph is being built. */
typedef struct tfu_shape {
  int rank;
  int64_t dim[TFU_MAX_RANK];
} tfu_shape;

typedef struct tfu_tensor {
  void *data; /* not to be touched when the tensor has no elements */
  tfu_dtype dtype;
  tfu_shape shape;
} tfu_tensor;

/* A choice, "mode: {'a', 'b'} = 'a'", arrives as its index in .i, and "In: list({float, half})" as how many types it
 * has. */
typedef union tfu_value {
  float f;
  int64_t i;
  int b;
  const char *s; /* kept while the call runs; equal texts are one pointer (tfu_intern) */
} tfu_value;

/* A copy of the text, the same one for equal texts, which is kept until all who asked for it have dropped it; NULL
 * without memory. */
const char *tfu_intern(const char *text, size_t length);
void tfu_drop_text(const char *text); /* one that tfu_intern gave, or NULL */

const char *tfu_dtype_name(tfu_dtype dtype); /* "float32" …   */
const char *tfu_dtype_tag(tfu_dtype dtype);  /* "f32" …       */
size_t tfu_dtype_size(tfu_dtype dtype);      /* bytes         */
tfu_dtype tfu_real(tfu_dtype dtype);         /* what it is computed in: float, or double for float64 and complex128 */

int64_t tfu_count(const tfu_shape *shape); /* elements; 1 for scalars          */
int64_t tfu_cols(const tfu_shape *shape);  /* last dimension; 1 for scalars    */
int64_t tfu_rows(const tfu_shape *shape);  /* elements before the last axis    */

/* "[2, ?, 3]", "[]", or "unknown rank", for messages. */
typedef struct tfu_shape_text {
  char text[192];
} tfu_shape_text;
tfu_shape_text tfu_show(const tfu_shape *shape);

/* ---- ops ---- */

typedef struct tfu_call tfu_call;

/* One rule, two uses: at graph time dims may be unknown and attr is NULL; at run time it validates and sizes. Of a row
 * with `attr_shapes`, Python asks it at graph time too, with attributes and dims that may be unknown. */
typedef tfu_code tfu_shape_fn(const tfu_shape *in, tfu_shape *out, const tfu_value *attr, tfu_error *err);
/* The head of such a rule, with these names; it need not read the attributes. */
#define TFU_SHAPE_RULE(name)                                                                               \
  static tfu_code name(const tfu_shape *in, tfu_shape *out, __attribute__((unused)) const tfu_value *attr, \
                       tfu_error *err)
/* Lists of tensors, for ops with arguments like "x: N * T", or "x: In" where In is a list of types: one entry per
 * argument, of one tensor where it is no list. */
typedef struct tfu_list {
  tfu_tensor *at;
  int n;
} tfu_list;
typedef struct tfu_lists {
  tfu_list in[TFU_MAX_ARGS], out[TFU_MAX_ARGS];
  int inputs, outputs; /* tensors in all                            */
  tfu_shape *shapes;   /* of the outputs, one after the other       */
} tfu_lists;
/* The rule of an op with lists; at run time only, as how long they are is not known to TensorFlow's shape functions in
 * C. Fills lists->shapes. */
typedef tfu_code tfu_lists_fn(tfu_lists *lists, const tfu_value *attr, tfu_error *err);
/* Reads in and attr, writes out. Owns nothing, so it may return anywhere. Never called when all outputs are empty. */
typedef tfu_code tfu_compute_fn(tfu_call *call);
/* Bytes of scratch that a call will want. It has no memory yet, and sizes may be unknown. */
#define TFU_NO_ROOM ((size_t)-1)
typedef size_t tfu_room_fn(const tfu_call *call);

typedef struct tfu_op {
  const char *name; /* CamelCase; TensorFlow knows it as Tfuse>Name */
  const char *doc;
  const char *in[TFU_MAX_ARGS + 1], *out[TFU_MAX_ARGS + 1]; /* "x: T", NULL-ended                                */
  const char *attr[TFU_MAX_ATTRS + 1];                      /* TensorFlow's own notation: "epsilon: float = 1e-6" */
  tfu_shape_fn *shape;
  tfu_lists_fn *lists; /* instead of shape, for an op with lists */
  tfu_compute_fn *cpu, *gpu;
  int attr_shapes; /* attributes decide on the outputs' shapes */
  int in_place; /* out[0] (of a list, each of its tensors) may be in[0]'s own memory: elements are read, then written */
  /* XLA may capture the op into a CUDA graph, with `room` bytes of scratch: docs/design.md#cuda-graphs. */
  int capturable;
  size_t room;
  /* NULL, or what some tensors want beside that. TFU_NO_ROOM: their sizes are not known yet, and the kernel cannot do
   * without; such a call is not captured. */
  tfu_room_fn *more_room;
  int stateful; /* more than a function of its inputs: TensorFlow neither runs it ahead of time nor leaves out a second
                   one */
  /* NULL, or completes the attributes that a node or an eager call of TensorFlow has, before each run. */
  tfu_code (*complete)(tfu_value *attr, tfu_error *err);
} tfu_op;

/* The two functions of a row, by its stem. */
#define TFU_KERNELS(stem) .cpu = tfu_##stem##_cpu, .gpu = tfu_##stem##_gpu

struct tfu_call {
  const tfu_op *op;
  tfu_tensor in[TFU_MAX_ARGS], out[TFU_MAX_ARGS];
  tfu_lists *lists; /* of an op with lists: all its tensors; in and out are not used */
  tfu_value attr[TFU_MAX_ATTRS];
  void *stream;       /* CUstream; NULL on the CPU                     */
  const char *kernel; /* what ran, for tfuse.explain(); a static string */
  const char *why;    /* and why that, where there was a choice; a static string or NULL */
  tfu_error *err;
  int captured;      /* what is queued becomes part of a graph: nobody may wait for it, and scratch is `room` bytes */
  size_t room;       /* that are left of them */
  unsigned constant; /* of a captured call: inputs, a bit each, that nothing before it in the same graph writes */
  int invariant;     /* a row's result shall be the same, bit by bit, whatever other rows there are, and however many */
  void *(*allocate)(tfu_call *call, size_t bytes); /* the binding's own; see tfu_scratch */
  void *binding;
};

/* Memory where the tensors live, 16-byte aligned, good until the call's work is done; released by the binding. */
TFU_MUST_USE tfu_code tfu_scratch(tfu_call *call, size_t bytes, void **memory);
/* The same for `count` values of what `pointer` points to. */
#define TFU_SCRATCH(call, count, pointer)                                        \
  do {                                                                           \
    void *memory_;                                                               \
    TFU_TRY(tfu_scratch((call), (size_t)(count) * sizeof *(pointer), &memory_)); \
    (pointer) = memory_;                                                         \
  } while (0)
/* Whether there is so much, for ops that can do with less: always, but where the call is captured. */
int tfu_has_scratch(const tfu_call *call, size_t bytes);

/* The same as tfu_scratch where there is so much, for ops that can do without; whether it was to be had. */
int tfu_try_scratch(tfu_call *call, size_t bytes, void **memory);

/* Scratch of a captured call over rows: for what the parts of split rows give, where these are few. More stay whole. */
enum { TFU_ROWS_ROOM = 1 << 20 };

#pragma GCC visibility pop
#define X(stem)                   \
  extern const tfu_op tfu_##stem; \
  extern tfu_compute_fn tfu_##stem##_cpu, tfu_##stem##_gpu;
#if __has_include(<ops.def>) /* a program that runs models has no ops of its own */
#include <ops.def>
#endif
#undef X
#pragma GCC visibility push(default)

/* ---- shape rules that ops share ---- */

/* out[0] is like in[0]; for one input. */
tfu_shape_fn tfu_shape_like_input;
/* in is (dy, x), out is dx, all of one shape; for gradients. */
tfu_shape_fn tfu_shape_gradient;

/* Whether two sizes can be the same: what is unknown can be any. */
int tfu_may_be(int64_t a, int64_t b);
/* Whether an optional input is given: an empty vector means it is not. True while its shape is unknown. */
int tfu_given(const tfu_shape *shape);
/* An optional tensor's data; NULL where it is not given or, of an output, not wanted, or itself NULL. */
void *tfu_given_data(const tfu_tensor *tensor);
/* Whether all sizes from axis `from` on are known. Not to be seen by tfu_count, where two unknown ones make a size. */
int tfu_known(const tfu_shape *shape, int from);
/* The size of axis i, which is unknown where the rank is. */
int64_t tfu_axis(const tfu_shape *shape, int i);
/* The shape without its last axis. */
tfu_shape tfu_leading(const tfu_shape *shape);
/* The shape with one more axis at the end. */
tfu_shape tfu_append(const tfu_shape *shape, int64_t size);
/* What an optional output shall be: like `shape` where the input `when` is given, else an empty vector. */
tfu_shape tfu_like_if(const tfu_shape *shape, const tfu_shape *when);

/* Fails unless x has at least one axis. */
TFU_MUST_USE tfu_code tfu_has_rows(const char *name, const tfu_shape *x, tfu_error *err);
/* Fails unless x can have so many axes; `axes` is what the message calls them: "[batch, steps, units]". */
TFU_MUST_USE tfu_code tfu_has_rank(const char *name, const tfu_shape *x, int rank, const char *axes, tfu_error *err);
/* Fails unless a can be stretched to b's shape as NumPy stretches. */
TFU_MUST_USE tfu_code tfu_broadcasts(const char *a_name, const tfu_shape *a, const char *b_name, const tfu_shape *b,
                                     tfu_error *err);
/* Fails unless a and b can be the same shape. */
TFU_MUST_USE tfu_code tfu_match(const char *a_name, const tfu_shape *a, const char *b_name, const tfu_shape *b,
                                tfu_error *err);
/* Fails unless v is a vector with one value per channel (last axis) of x. An empty vector means "not given". */
TFU_MUST_USE tfu_code tfu_per_channel(const tfu_shape *x, const char *name, const tfu_shape *v, tfu_error *err);
/* The same for a weight that must be given, unless x has no channels. */
TFU_MUST_USE tfu_code tfu_given_per_channel(const tfu_shape *x, const char *name, const tfu_shape *v, tfu_error *err);
#pragma GCC visibility pop

#endif
