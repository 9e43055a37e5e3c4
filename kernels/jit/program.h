/* program.h - a jit kernel for the CPU: words of a stack machine, read once and run over blocks of elements.
 *
 * A program has sections, "body:" or, of rows, "map0:", "reduce0:", "identity0:", "map1:" … and at the end "post:" or
 * "final:". Words push and pop: x0 (an input), r0 (what pass 0 gave), t0 (a local), a and b (what reduce joins), n (the
 * columns), a number, a function of what was pushed, "=y0" and "=t0" (pop into an output or a local). */
#ifndef TFUSE_PROGRAM_H_
#define TFUSE_PROGRAM_H_

#include "tfuse.h"

/* Name, operands, and the value from a, b and c, which are of the type REAL. M(f) is f for that type. NaN stays NaN in
 * min and max. */
#define JIT_FUNCTIONS(X)                                               \
  X(add, 2, a + b)                                                     \
  X(sub, 2, a - b)                                                     \
  X(mul, 2, a *b)                                                      \
  X(div, 2, a / b)                                                     \
  X(neg, 1, -a)                                                        \
  X(pow, 2, M(pow)(a, b))                                              \
  X(exp, 1, FN(exp_any)(a))                                            \
  X(log, 1, M(log)(a))                                                 \
  X(log1p, 1, M(log1p)(a))                                             \
  X(expm1, 1, M(expm1)(a))                                             \
  X(tanh, 1, M(tanh)(a))                                               \
  X(sqrt, 1, M(sqrt)(a))                                               \
  X(rsqrt, 1, 1 / M(sqrt)(a))                                          \
  X(abs, 1, M(fabs)(a))                                                \
  X(min, 2, a < b || a != a ? a : b)                                   \
  X(max, 2, a > b || a != a ? a : b)                                   \
  X(floor, 1, M(floor)(a))                                             \
  X(ceil, 1, M(ceil)(a))                                               \
  X(sin, 1, M(sin)(a))                                                 \
  X(cos, 1, M(cos)(a))                                                 \
  X(erf, 1, M(erf)(a))                                                 \
  X(sigmoid, 1, 1 / (1 + FN(exp_any)(-a)))                             \
  X(softplus, 1, (a > 0 ? a : 0) + M(log1p)(FN(exp_any)(-M(fabs)(a)))) \
  X(lt, 2, a < b ? 1 : 0)                                              \
  X(le, 2, a <= b ? 1 : 0)                                             \
  X(gt, 2, a > b ? 1 : 0)                                              \
  X(ge, 2, a >= b ? 1 : 0)                                             \
  X(eq, 2, a == b ? 1 : 0)                                             \
  X(ne, 2, a != b ? 1 : 0)                                             \
  X(and, 2, a != 0 && b != 0 ? 1 : 0)                                  \
  X(or, 2, a != 0 || b != 0 ? 1 : 0)                                   \
  X(not, 1, a == 0 ? 1 : 0)                                            \
  X(select, 3, a != 0 ? b : c)

typedef enum jit_op {
#define X(name, operands, value) JIT_##name,
  JIT_FUNCTIONS(X)
#undef X
      JIT_CONSTANT,
  JIT_INPUT,
  JIT_RESULT, /* of an earlier pass */
  JIT_LOCAL,
  JIT_A,
  JIT_B,
  JIT_N,
  JIT_SET_OUTPUT,
  JIT_SET_LOCAL
} jit_op;

int jit_operands(jit_op function);

typedef struct jit_step {
  jit_op op;
  int index;
  double value;
} jit_step;

enum { JIT_MOST_PASSES = 12, JIT_MOST_LOCALS = 64, JIT_MOST_STACK = 32 };

typedef struct jit_section {
  jit_step *step;
  int n;
} jit_section;

typedef struct jit_program {
  jit_section body, map[JIT_MOST_PASSES], reduce[JIT_MOST_PASSES], identity[JIT_MOST_PASSES], post, final;
  int passes, stack, locals; /* at most */
  const char *text;          /* of tfu_intern, of one that is kept */
} jit_program;

/* The program of a text that tfu_intern gave, to be handed back: read when it is first asked for. Of those that nobody
 * runs the last JIT_KEPT_PROGRAMS are kept. */
enum { JIT_KEPT_PROGRAMS = 256 };
TFU_MUST_USE tfu_code jit_program_of(const char *text, int inputs, int outputs, const jit_program **program,
                                     tfu_error *err);
void jit_program_back(const jit_program *program);
/* Reads a text into an empty program; what it has of memory is given back by jit_program_free. */
TFU_MUST_USE tfu_code jit_program_read(const char *text, int inputs, int outputs, jit_program *program, tfu_error *err);
void jit_program_free(jit_program *program);

#endif
