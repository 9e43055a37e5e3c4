/* chain.h - a chain: ops that run one after the other as one op, on a GPU as one CUDA graph.
 *
 * Its text has a line for each op, here of three:
 *
 *   norm t0 t1 = i2 i3 - | mode=rms epsilon=1e-06
 *   linear t2 = t0 i4 - | activation=none
 *   rope i5 = t2:4x1x32x64 i6 | …
 *
 * Before '=' are the op's outputs, behind it its inputs, behind '|' all its attributes but types. i2 is input 2 of the
 * chain, t0 is temporary 0, and - is what is not given. A shape behind a name, sizes with x between them, says how
 * the elements are seen. An output that is an input of the chain is written in place. A temporary is as large as the
 * largest that is kept in it, and lies in input 0, the chain's memory. */
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
} tfu_step;

typedef struct tfu_chain_steps {
  tfu_step *step;
  int n;
} tfu_chain_steps;

/* Reads a text. Whatever comes out, tfu_chain_free releases it. */
TFU_MUST_USE tfu_code tfu_chain_parse(const char *text, tfu_chain_steps *steps, tfu_error *err);
void tfu_chain_free(tfu_chain_steps *steps);

/* The type of an argument of a row, "y: T", of which `type` is the text behind the colon, by that of in[0] and, where
 * another input is declared of the same type, by that input's. */
tfu_dtype tfu_declared_type(const tfu_op *op, const char *argument, const tfu_tensor *in);

#endif
