/* jit.h - attributes of the op Jit as kernels see them, and its texts of sizes. */
#ifndef TFUSE_JIT_H_
#define TFUSE_JIT_H_

#include "tfuse.h"

enum {
  TFU_JIT_KERNEL,
  TFU_JIT_KIND,
  TFU_JIT_SOURCE,
  TFU_JIT_PROGRAM,
  TFU_JIT_INPUTS,
  TFU_JIT_OUTPUTS,
  TFU_JIT_SHAPES,
  TFU_JIT_LAUNCH,
  TFU_JIT_IN,
  TFU_JIT_OUT
};
enum { TFU_JIT_ELEMENTWISE, TFU_JIT_ROWS, TFU_JIT_RAW };

/* Tensors of one kernel, at most: pointers of all of them are its arguments. */
enum { TFU_JIT_MOST_IN = 16, TFU_JIT_MOST_OUT = 8, TFU_JIT_MOST_RAW = 64 };

/* Takes what is registered under the name that attribute `kernel` is, if it is one of those. */
TFU_MUST_USE tfu_code tfu_jit_complete(tfu_value *attr, tfu_error *err);
/* A short name for all texts of a kernel, the same one for the same texts; NULL without memory. It is to be forgotten
 * when no call will name it any more, and none is running; then it may come to stand for other texts, once more than
 * TFU_JIT_KEPT_NAMES have been forgotten. */
enum { TFU_JIT_KEPT_NAMES = 64 };
TFU_EXPORT void tfu_jit_forget(const char *name);
TFU_EXPORT const char *tfu_jit_register(const char *kernel, int kind, const char *source, const char *program,
                                        const char *inputs, const char *outputs, const char *shapes,
                                        const char *launch);

/* Sizes as text. An expression has integers, + - * / % and parentheses, "1.2" for the size of axis 2 of input 1 ("1.-1"
 * for its last), and "1.n" for all its elements. A list has expressions with commas between, or "like 1" for all sizes
 * of input 1, and ends with the text or at a semicolon. Both move *at past what they read; `what` is for messages.
 * Texts may come from a graph that nobody has looked at, so signs and parentheses nest TFU_JIT_DEEPEST deep at most. */
enum { TFU_JIT_DEEPEST = 64 };
typedef struct tfu_sizes {
  const char *at, *what;
  const tfu_list *in;
  tfu_error *err;
  int depth; /* of signs and parentheses around *at */
} tfu_sizes;
TFU_MUST_USE tfu_code tfu_sizes_expression(tfu_sizes *s, int64_t *value);
TFU_MUST_USE tfu_code tfu_sizes_list(tfu_sizes *s, int64_t *values, int most, int *n);
/* The value of an expression without inputs. "", or what is wrong. */
TFU_EXPORT const char *tfu_jit_size(const char *text, int64_t *value);

/* Name number i of "x, beta, …". */
typedef struct tfu_jit_name {
  char text[64];
} tfu_jit_name;
tfu_jit_name tfu_jit_name_of(const char *names, int i);

#endif
