/* recurrence.h - a recurrence as host and device see it. */
#ifndef TFUSE_KERNELS_RECURRENCE_H_
#define TFUSE_KERNELS_RECURRENCE_H_

#include <stdint.h>

/* Sequences, steps and units, whether the cell is an LSTM's or a GRU's, and this one is reset before the product of its
 * candidate, units that are kept of a step, and TFU_ACT_…. */
typedef struct recurrence_sizes {
  int64_t batch, steps, units;
  int lstm, reset_before, gates, kept, activation, recurrent_activation;
} recurrence_sizes;

/* One step of all sequences. Tensors are whole, [batch, steps, …]; what is wide is in the type that is computed in. */
typedef struct recurrence_step_args {
  recurrence_sizes size;
  int64_t step;
  const void *gates, *bias, *h; /* bias, h and c: NULL where they are not given */
  const void *c;
  const uint8_t *mask; /* NULL: all steps count */
  const void *product; /* wide, [batch, gates * units]: h . recurrent_kernel; NULL: 0. [gates, batch, units] where */
  const void *scale; /* gates have an h of their own: where scale is given, [batch, gates * units], scaled is that of */
  void *scaled;      /* the next step, [gates, batch, units]; and where the candidate's is reset before, that of it */
  void *state;       /* wide, [batch, units]: c after the step before, then after this one */
  void *y, *kept;    /* kept may be NULL */
} recurrence_step_args;

typedef struct recurrence_back_args {
  recurrence_sizes size;
  int64_t step;
  const void *dy, *dlast, *h, *c, *y, *kept; /* dlast, h and c: NULL where they are not given */
  const uint8_t *mask;
  const void *product; /* wide, [batch, units]: dp of the step after . recurrent_kernel^T; or by gates, as forward */
  const void *scale;
  void *direct, *dstate;   /* wide, [batch, units]: the rest of dh and dc, of the step after and then of this one */
  void *dgates, *dproduct; /* dproduct is NULL where it is dgates */
} recurrence_back_args;

/* to = what the product gives + rest + same, of which the first two are wide; those that are NULL are 0. */
typedef struct recurrence_end_args {
  recurrence_sizes size;
  int64_t count;
  const void *product, *scale, *rest, *same;
  void *to;
} recurrence_end_args;

#ifndef TFU_DEVICE
#include "ops/recurrent/recurrence.h"
#include "tfuse.h"

/* Of a call of either op: `like` is y or dy, kernel is [units, gates * units]. */
static inline recurrence_sizes recurrence_sizes_of(const tfu_call *call, const tfu_tensor *like,
                                                   const tfu_tensor *kernel) {
  const int cell = (int)call->attr[TFU_RECUR_CELL].i;
  return (recurrence_sizes){.batch = like->shape.dim[0],
                            .steps = like->shape.dim[1],
                            .units = kernel->shape.dim[0],
                            .lstm = cell == TFU_CELL_LSTM,
                            .reset_before = cell == TFU_CELL_GRU_RESET_BEFORE,
                            .gates = tfu_cell_gates(cell),
                            .kept = tfu_cell_kept(cell),
                            .activation = (int)call->attr[TFU_RECUR_ACTIVATION].i,
                            .recurrent_activation = (int)call->attr[TFU_RECUR_GATES_ACTIVATION].i};
}
#endif

#endif
