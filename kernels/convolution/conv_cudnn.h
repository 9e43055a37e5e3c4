/* conv_cudnn.h - convolutions as graphs for cuDNN. */
#ifndef TFUSE_CONV_CUDNN_H_
#define TFUSE_CONV_CUDNN_H_

#include "kernels/convolution/conv_own.h"
#include "kernels/core/nvidia/graph.h"

/* What the graph of a convolution does to its result, in this order: the one for which cuDNN has kernels ready. A bias
 * is always there where something else is. */
enum { CONV_ADDS_RESIDUAL = 1, CONV_ADDS_BIAS = 2, CONV_RELU = 4 };

/* All that a plan depends on. Compared as bytes, so it has no gaps. */
typedef struct conv_key {
  int32_t pass, dtype, tf32, ordinal, epilogue;
  int32_t batch, groups, c, k;
  int32_t in[CONV_AXES], out[CONV_AXES], window[CONV_AXES];
  int32_t stride[CONV_AXES], dilation[CONV_AXES], before[CONV_AXES];
} conv_key;
_Static_assert(sizeof(conv_key) == 27 * sizeof(int32_t), "a gap would be compared too");

/* Memory of a run; the kernel there is [outputs, spatial axes, channels]. */
enum { CONV_AT_X, CONV_AT_KERNEL, CONV_AT_Y, CONV_AT_BIAS, CONV_AT_RESIDUAL, CONV_SLOTS };

/* The key, where cuDNN may be asked; else why it is not, a static text. */
const char *tfu_conv_key_of(const conv_args *a, conv_pass pass, tfu_dtype dtype, int tf32, int ordinal, conv_key *key);
/* Describes the key's graph in g, which is new. */
void tfu_conv_describe(tfu_graph *g, const conv_key *k);
/* Whether float32 is multiplied as it is. Engines lose different amounts then, and the choice looks at that. */
int tfu_conv_exact(const conv_key *k);
/* Notes of engines that are not to be taken, how many proposals are too few (graph.h), and whether an engine may be
 * taken. */
unsigned tfu_conv_avoid(const conv_key *k);
int tfu_conv_fewest(const conv_key *k);
int tfu_conv_trusts(const conv_key *k, int engine);

/* How far apart keys are, for tuners (tuned.h). */
double tfu_conv_apart(const void *key, const void *other);

/* By cuDNN, with bias, residual and relu in its own epilogue or in a pass after it; call->why says why it is not
 * served. */
TFU_MUST_USE tfu_code tfu_conv_by_cudnn(tfu_call *call, conv_pass pass, tfu_dtype dtype, int tf32, const conv_args *a,
                                        int *served);

/* Queues it on the call's stream, if cuDNN serves it; else *why says why not, a static text. */
TFU_MUST_USE tfu_code tfu_conv_cudnn(tfu_call *call, conv_pass pass, tfu_dtype dtype, int tf32, const conv_args *a,
                                     int *served, const char **why);

#endif
