/* channels_cpu.h - elementwise formulas with weights and sums per channel, on the CPU. kernels/core/channels.h has what
 * a formula is, and TFU_CHANNELS. An op that wants its own loop over a tile gives that to tfu_channels_cpu.
 *
 * Rows are joined until they fill a tile (a row of 3 channels would starve the vector unit), and weights are spread out
 * to the length of a joined row, so every loop runs over plain vectors. */
#ifndef TFUSE_CHANNELS_CPU_H_
#define TFUSE_CHANNELS_CPU_H_

#include <tgmath.h>

#include "kernels/core/channels.h"
#include "kernels/core/cpu/cpu.h"

/* n elements of each tensor, result and weight, and where their sums grow; sums[0] is NULL where none is wanted. `at`
 * is the place of the first in the tensors. */
#define TFU_CHANNEL_TILE_(REAL, tag)                             \
  typedef struct tfu_channel_tile_##tag {                        \
    const REAL *x[TFU_CHANNEL_TENSORS], *w[TFU_CHANNEL_WEIGHTS]; \
    REAL *y[TFU_CHANNEL_RESULTS];                                \
    double *sums[TFU_CHANNEL_SUMS];                              \
    int n;                                                       \
    int64_t at;                                                  \
    const void *with;                                            \
  } tfu_channel_tile_##tag;                                      \
  typedef void tfu_channel_loop_##tag(const tfu_channel_tile_##tag *);
TFU_CHANNEL_TILE_(float, f32)
TFU_CHANNEL_TILE_(double, f64)

/* All tensors of a run, and its loops: in the order of an op's row, but they need not be a call's own. */
typedef struct tfu_channels_run {
  const tfu_channels *op;
  const tfu_tensor *x, *w, *y, *sums;
  tfu_channel_loop_f32 *loop_f32;
  tfu_channel_loop_f64 *loop_f64;
  const void *with; /* for the loops */
} tfu_channels_run;
#pragma GCC visibility push(default)
TFU_MUST_USE tfu_code tfu_channels_cpu(tfu_call *call, const tfu_channels_run *run);
/* The same on the call's own tensors. */
TFU_MUST_USE tfu_code tfu_channels_cpu_call(tfu_call *call, const tfu_channels *op, tfu_channel_loop_f32 *loop_f32,
                                            tfu_channel_loop_f64 *loop_f64, const void *with);
#pragma GCC visibility pop

#define TFU_CHANNELS_LOOP_(stem, REAL_, tag, tensors, weights, results, adds, ...)                       \
  static inline void stem##_element_##tag(const REAL_ *x, const REAL_ *w, REAL_ *y, REAL_ *s) {          \
    typedef REAL_ REAL;                                                                                  \
    (void)sizeof(REAL), (void)x, (void)w, (void)y, (void)s;                                              \
    __VA_ARGS__                                                                                          \
  }                                                                                                      \
  static void stem##_loop_##tag(const tfu_channel_tile_##tag *t) {                                       \
    const int summing = adds > 0 && t->sums[0];                                                          \
    TFU_VECTORISE                                                                                        \
    for (int i = 0; i < t->n; i++) {                                                                     \
      REAL_ x[TFU_CHANNEL_TENSORS], w[TFU_CHANNEL_WEIGHTS], y[TFU_CHANNEL_RESULTS], s[TFU_CHANNEL_SUMS]; \
      for (int k = 0; k < tensors; k++) x[k] = t->x[k][i];                                               \
      for (int k = 0; k < weights; k++) w[k] = t->w[k][i];                                               \
      stem##_element_##tag(x, w, y, s);                                                                  \
      for (int k = 0; k < results; k++) t->y[k][i] = y[k];                                               \
      for (int k = 0; k < adds && summing; k++) t->sums[k][i] += s[k];                                   \
    }                                                                                                    \
  }
#define TFU_CHANNELS(stem, tensors, weights, stored, results, sums, ...) \
  TFU_CHANNELS_WITH(stem, tensors, weights, stored, results, sums, 0, __VA_ARGS__)
#define TFU_CHANNELS_WITH(stem, tensors, weights, stored, results, sums, attributes, ...)          \
  TFU_CHANNELS_LOOP_(stem, float, f32, tensors, weights + attributes, results, sums, __VA_ARGS__)  \
  TFU_CHANNELS_LOOP_(stem, double, f64, tensors, weights + attributes, results, sums, __VA_ARGS__) \
  tfu_code tfu_##stem##_cpu(tfu_call *call) {                                                      \
    const tfu_channels own = TFU_CHANNELS_OP(tensors, weights, results, sums);                     \
    const tfu_channels op = tfu_channels_with(call, own, attributes);                              \
    return tfu_channels_cpu_call(call, &op, stem##_loop_f32, stem##_loop_f64, NULL);               \
  }

#endif
