/* channels.h - elementwise formulas, with weights per channel and sums per channel.
 *
 *   TFU_CHANNELS(rational, 1, 2, S, 1, 0, { y[0] = w[0] * x[0] / (1 + fabs(w[1] * x[0])); })
 *
 * makes the kernel of the op Rational(x, a, b) on the CPU and on the GPU: the line stands in STEM.h, which STEM_cpu.c,
 * STEM_gpu.c and STEM.cu read after kernels/core/{cpu,gpu,device}/channels… of their own. Its arguments:
 *
 * - stem: the op's name in small letters.
 * - tensors: how many inputs have the shape of the first. They come first in the op's row.
 * - weights: how many inputs come after them. Each has one value per channel, which is the last axis; or is one number;
 *   or an empty vector for "not given", which reads as 0.
 * - stored: how weights are stored: T like the tensors, or S, float32 beside 16 bits.
 * - results: how many outputs have the shape of the first input. They come first.
 * - sums: how many outputs come after them: sums over all elements of a channel, or of all where the output is one
 *   number; in a fixed order. An empty vector is not wanted.
 * - { … }: the formula of one element. It sets y[0] … and s[0] …, which is what the element adds to the sums, from
 *   x[0] … and w[0] …. All are REAL, which is float, or double for float64. Functions are those of <tgmath.h>.
 *
 * TFU_CHANNELS_WITH has one more number before the formula: how many attributes it reads, floats, which are the op's
 * first ones. They come after the weights: w[weights] is the first. `stored` is S then, or they would be rounded to T.
 *
 * An element is read before it is written, so the first result may be the first tensor's memory (tfu_op.in_place). */
#ifndef TFUSE_CHANNELS_H_
#define TFUSE_CHANNELS_H_

/* At most. */
enum { TFU_CHANNEL_TENSORS = 4, TFU_CHANNEL_WEIGHTS = 5, TFU_CHANNEL_RESULTS = 2, TFU_CHANNEL_SUMS = 4 };

typedef struct tfu_channels {
  int tensors, weights, results, sums;
  float absent[TFU_CHANNEL_WEIGHTS]; /* what a weight that is not given reads as */
} tfu_channels;

#define TFU_CHANNELS_OP(tensors, weights, results, sums) \
  {                                                      \
    tensors, weights, results, sums, { 0 }               \
  }

#ifndef TFU_DEVICE
#include "tfuse.h"

/* To a kernel, an attribute is a weight that is not given and reads as the attribute's value. */
static inline tfu_channels tfu_channels_with(tfu_call *call, tfu_channels op, int attributes) {
  for (int i = 0; i < attributes; i++, op.weights++) {
    op.absent[op.weights] = call->attr[i].f;
    call->in[op.tensors + op.weights] = (tfu_tensor){.shape = {.rank = 1}};
  }
  return op;
}
#endif

/* TFU_MAP1(square, x, (x * x)): a formula of one tensor, whose elements it names; TFU_MAP2 has two. */
#define TFU_MAP1(stem, a, formula)    \
  TFU_CHANNELS(stem, 1, 0, T, 1, 0, { \
    const REAL *const in_ = x;        \
    REAL *const out_ = y;             \
    {                                 \
      const REAL a = in_[0];          \
      out_[0] = formula;              \
    }                                 \
  })
#define TFU_MAP2(stem, a, b, formula)    \
  TFU_CHANNELS(stem, 2, 0, T, 1, 0, {    \
    const REAL *const in_ = x;           \
    REAL *const out_ = y;                \
    {                                    \
      const REAL a = in_[0], b = in_[1]; \
      out_[0] = formula;                 \
    }                                    \
  })

#endif
