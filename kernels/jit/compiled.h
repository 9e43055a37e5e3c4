/* compiled.h - kernels that were compiled at run time: found in memory, in the user's cache, or made; and launched. */
#ifndef TFUSE_COMPILED_H_
#define TFUSE_COMPILED_H_

#include "kernels/core/gpu/cuda.h"
#include "ops/jit/jit.h"

/* All that the code depends on beside the headers. Compared by its bytes: begin with jit_variant_of. */
typedef struct jit_variant {
  const char *source, *name; /* of tfu_intern */
  int kind, capability;
  int inputs, outputs;
  unsigned char in[TFU_JIT_MOST_RAW], out[TFU_JIT_MOST_RAW]; /* tfu_dtype */
  /* Of elementwise and rows: kernels/jit/jit_tensors.cuh and the two walks say what they are. */
  int n, single, moves, axes, small, threads, unroll, lanes, packs;
  int quick; /* all results are rounded to 16 bits: division, roots and exponentials need not be exact */
} jit_variant;
void jit_variant_of(const tfu_call *call, int capability, jit_variant *variant);

typedef struct jit_compiled jit_compiled;

/* The text that is compiled, to be freed, and the name of its kernel; NULL without memory. */
char *jit_text(const jit_variant *variant, char *entry, size_t room);

TFU_MUST_USE tfu_code jit_compiled_get(const jit_variant *variant, jit_compiled **compiled, tfu_error *err);

typedef struct jit_launch {
  int64_t grid[3], block[3], shared;
} jit_launch;
/* Launches with the parameters, and says in the call what ran. Limits of GPU and kernel are checked before. */
TFU_MUST_USE tfu_code jit_start(tfu_call *call, jit_compiled *compiled, const jit_launch *launch, void **parameters);
/* Bytes of parameter i; 0: there is none; -1: the driver cannot tell. */
int jit_parameter(const jit_compiled *compiled, int i);

/* Why kernels cannot be compiled here, or "". */
TFU_EXPORT const char *tfu_jit_status(void);
/* Writes what is known of compiled variant `number` of a kernel, as name=value with tabs between; whether there is one.
 */
TFU_EXPORT int tfu_jit_info(const char *name, const char *source, int number, char *text, size_t size);

#endif
