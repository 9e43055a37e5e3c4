/* chain.h - a chain: ops that run one after the other as one op, on a GPU as one CUDA graph.
 *
 * Its text has a line for each op, here of three:
 *
 *   norm t0 t1 t2 = i2 - i3 - - | kind=rms epsilon=1e-06 rate=0
 *   linear t3 t4 = t0 i4 - - - | activation=linear tf32=0
 *   square i5 = t3:4x1x32x64 |
 *
 * Before '=' are the op's outputs, after it its inputs, after '|' all its attributes but types. i2 is input 2 of the
 * chain, t0 is temporary 0, and - is what is not given. A shape after a name, sizes with x between them, says how
 * the elements are seen. An output that is an input of the chain is written in place. A temporary is as large as the
 * largest that is kept in it, and lies in input 0, the chain's memory.
 *
 * Where the first line is "invariant", all ops have tfu_call.invariant. */
#ifndef TFUSE_CHAIN_H_
#define TFUSE_CHAIN_H_

#include "bind.h"

enum { TFU_CHAIN_TEMPS = 64 };

typedef enum tfu_operand_kind { TFU_NOT_GIVEN, TFU_INPUT, TFU_TEMPORARY } tfu_operand_kind;

typedef struct tfu_operand {
  tfu_operand_kind kind;
  int number;
  int seen; /* as `shape`, and not as it is */
  tfu_shape shape;
} tfu_operand;

typedef struct tfu_step {
  const tfu_op *op;
  tfu_operand in[TFU_MAX_ARGS], out[TFU_MAX_ARGS];
  tfu_value attr[TFU_MAX_ATTRS];
  unsigned constant; /* inputs, a bit each, that no op before it in the chain writes */
} tfu_step;

typedef struct tfu_chain_steps {
  tfu_step *step;
  int n, invariant;
  uint64_t serial; /* no others that were ever parsed have it */
} tfu_chain_steps;

/* Reads a text. Whatever comes out, tfu_chain_free releases it. */
TFU_MUST_USE tfu_code tfu_chain_parse(const char *text, tfu_chain_steps *steps, tfu_error *err);
void tfu_chain_free(tfu_chain_steps *steps);

/* The bytes that the memory of a chain must have, with such inputs, of which the first is the memory. */
TFU_MUST_USE tfu_code tfu_chain_room(const char *text, const tfu_tensor *inputs, int n, size_t *bytes, tfu_error *err);

#endif
