/* selective_scan.h - a selective scan as host and device see it.
 *
 * Channels of a group are cut into strips, since all of a strip share b and c. Steps are cut into segments: the
 * gradient needs the states before every step, and has kept those before every segment, from which it computes the
 * others again. Where strips are too few, pieces of whole segments are gone over twice: first for what each takes
 * states to, and then from the states that those before it lead to. A step takes h to exp(delta a) h + …, so a piece
 * takes it to exp(a sum of delta) h + …: totals are that sum, and where h = 0 ends. */
#ifndef TFUSE_KERNELS_SELECTIVE_SCAN_H_
#define TFUSE_KERNELS_SELECTIVE_SCAN_H_

#include <stdint.h>

/* On the GPU: channels of a strip, and threads of a block; and steps of a segment, and of those that the gradient holds
 * in registers at one time, for values of so many bytes. */
#define TFU_SELECT_STRIP 128
#define TFU_SELECT_STEPS 8
#define TFU_SELECT_HELD 4
#define TFU_SELECT_STEPS_OF(bytes) (TFU_SELECT_STEPS * 4 / (int)(bytes))
#define TFU_SELECT_HELD_OF(bytes) (TFU_SELECT_HELD * 4 / (int)(bytes))

#define TFU_SELECT_SLOTS 16 /* states of a channel, some of which may be none */
#define TFU_SELECT_ROWS (TFU_SELECT_SLOTS + 1)

typedef struct selective_args {
  const void *x, *delta, *a, *b, *c, *skip, *initial; /* skip and initial may be NULL */
  void *y, *last;
  const void *dy, *dlast; /* of the gradient, as all that follows; dlast may be NULL */
  void *dx, *ddelta, *da, *db, *dc, *dskip, *dinitial;
  int64_t batch, length, channels, groups, states;
  int64_t strips;   /* of a group */
  int64_t segments; /* of a sequence */
  void *kept;       /* [batch, segments, SLOTS values of each channel of all strips]: states before each segment */
  void *factors;    /* [strips, batch, length, groups, 2 SLOTS]: what each strip gives to db and dc */
  void *weights;    /* [pieces, batch, ROWS, channels]: what each piece gives to da, and last to dskip */
  int64_t piece;    /* segments of a piece */
  int pieces, find; /* find: only totals are wanted, */
  int packs;        /* rows of x and the like, of b and of c are whole packs */
  void *totals;     /* [pieces, batch, ROWS, channels]: where h = 0 ends, and last the sum of delta */
} selective_args;

#ifndef TFU_DEVICE
#include "kernels/core/arithmetic.h"
#include "ops/scans/selective_scan.h"
#include "tfuse.h"

_Static_assert(TFU_SELECT_SLOTS == TFU_SELECT_STATES, "there is a slot for each state");

/* Of a call of either op, in strips of so many channels and segments of so many steps. */
static inline selective_args tfu_selective_of(const tfu_call *call, int64_t strip, int64_t steps) {
  const int back = call->op == &tfu_selective_scan_grad;
  const tfu_tensor *in = call->in, *from = back ? in + TFU_SELGRAD_X : in, *out = call->out;
  const tfu_shape *x = &from[TFU_SELECT_X].shape, *b = &from[TFU_SELECT_B].shape;
  selective_args a = {.x = from[TFU_SELECT_X].data,
                      .delta = from[TFU_SELECT_DELTA].data,
                      .a = from[TFU_SELECT_A].data,
                      .b = from[TFU_SELECT_B].data,
                      .c = from[TFU_SELECT_C].data,
                      .skip = tfu_given_data(&from[TFU_SELECT_SKIP]),
                      .initial = tfu_given_data(&from[TFU_SELECT_INITIAL]),
                      .batch = x->dim[0],
                      .length = x->dim[1],
                      .channels = x->dim[2],
                      .groups = b->dim[2],
                      .states = b->dim[3],
                      .strips = divide_up(x->dim[2] / b->dim[2], strip),
                      .segments = divide_up(x->dim[1], steps),
                      .pieces = 1};
  a.piece = a.segments;
  if (!back) {
    a.y = out[TFU_SELECT_Y].data, a.last = out[TFU_SELECT_LAST].data;
    return a;
  }
  a.dy = in[TFU_SELGRAD_DY].data, a.dlast = tfu_given_data(&in[TFU_SELGRAD_DLAST]);
  a.dx = out[TFU_SELECT_X].data, a.ddelta = out[TFU_SELECT_DELTA].data, a.da = out[TFU_SELECT_A].data;
  a.db = out[TFU_SELECT_B].data, a.dc = out[TFU_SELECT_C].data;
  a.dskip = tfu_given_data(&out[TFU_SELECT_SKIP]), a.dinitial = tfu_given_data(&out[TFU_SELECT_INITIAL]);
  return a;
}

/* Values of the arithmetic type that the gradient has in scratch: kept, factors, weights. */
static inline int64_t tfu_selective_kept(const selective_args *a, int64_t strip) {
  return a->batch * a->segments * TFU_SELECT_SLOTS * a->groups * a->strips * strip;
}
static inline int64_t tfu_selective_factors(const selective_args *a) {
  return a->strips * a->batch * a->length * a->groups * 2 * TFU_SELECT_SLOTS;
}
static inline int64_t tfu_selective_weights(const selective_args *a) {
  return a->pieces * a->batch * TFU_SELECT_ROWS * a->channels;
}
#endif

#endif
