/* scan_linear.h - a linear recurrence as host and device see it: columns along the middle axis of [outer, length,
 * inner], forward or as its gradient.
 *
 * A step takes s to a s + b. Forward, s is h, and b is b; y is s after the step. Of the gradient s is a_{i+1} g_{i+1},
 * and b is a_i dy_i; g_i is dy_i + s before the step, and at the end s is dinitial. Of complex numbers the gradient has
 * the conjugates of a and h. */
#ifndef TFUSE_KERNELS_SCAN_LINEAR_H_
#define TFUSE_KERNELS_SCAN_LINEAR_H_

#include <stdint.h>

#define TFU_LINEAR_THREADS 256
#define TFU_LINEAR_AHEAD 8 /* positions that a warp has of a round, where columns lie side by side */
#define TFU_LINEAR_BYTES 8 /* that a lane has side by side there */

typedef struct scan_linear_args {
  const void *a, *b, *initial, *h; /* b is dy of the gradient, which alone has h, all states */
  void *y, *da, *dinitial;         /* y is db of the gradient; initial and dinitial may be NULL */
  int64_t columns, length, inner;  /* columns of all outer positions                         */
  int64_t chunk;                   /* positions of a chunk                                   */
  int lanes;                       /* that share a row, of the last axis                     */
  int chunks, back, flipped, find; /* flipped: from the end on; find: only totals are wanted */
  void *totals;                    /* [chunks, columns] pairs of what the chunk takes s to   */
} scan_linear_args;

#ifndef TFU_DEVICE
#include "tfuse.h"

/* Of a call of either op. */
static inline scan_linear_args tfu_scan_linear_of(const tfu_call *call) {
  const int back = call->op == &tfu_scan_linear_grad;
  const tfu_tensor *in = call->in, *out = call->out;
  const tfu_shape *shape = &in[0].shape;
  const int axis = (int)(call->attr[0].i < 0 ? call->attr[0].i + shape->rank : call->attr[0].i);
  scan_linear_args a = {.a = in[back].data,
                        .b = in[!back].data,
                        .initial = tfu_given_data(&in[2 + back]),
                        .h = back ? in[2].data : NULL,
                        .y = out[back].data,
                        .da = back ? out[0].data : NULL,
                        .dinitial = back ? tfu_given_data(&out[2]) : NULL,
                        .columns = 1,
                        .length = shape->dim[axis],
                        .inner = 1,
                        .chunk = shape->dim[axis],
                        .chunks = 1,
                        .back = back,
                        .flipped = (call->attr[1].b != 0) != back};
  for (int i = 0; i < shape->rank; i++) a.columns *= i == axis ? 1 : shape->dim[i];
  for (int i = axis + 1; i < shape->rank; i++) a.inner *= shape->dim[i];
  return a;
}
#endif

#endif
