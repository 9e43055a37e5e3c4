/* recurrence_cpu.h - what a recurrence and its gradient share on the CPU: who computes which, and lines of units. */
#ifndef REAL
#ifndef TFUSE_RECURRENCE_CPU_H_
#define TFUSE_RECURRENCE_CPU_H_

#include "kernels/core/cpu/product_cpu.h"
#include "kernels/recurrent/recurrence.h"

/* Sequences of a task at most, units that formulas take at a time (a line), gates of a cell at most. */
enum { MOST_ROWS = 32, LINE = 128, GATES = 4 };

typedef struct recurrence_job recurrence_job;
/* All steps of m sequences from `first` on. */
typedef void recurrence_rows(const recurrence_job *j, void *space, int64_t first, int m);
/* Strip i of a step's product for m sequences; space is that of recurrence_rows, in the caller's own form. */
typedef void recurrence_strip(const recurrence_job *j, const void *space, int64_t i, int m);

struct recurrence_job {
  tfu_call *call;
  recurrence_sizes size;
  const tfu_activation *act, *gate;
  int backward;
  int64_t inner, outer; /* the packed matrix is [inner, outer], its columns in strips of one register block each */
  int64_t padded;       /* units in whole register blocks */
  int scaled;           /* each gate has an h of its own; where reset_before, the candidate has in any case */
  void *packed;
  recurrence_rows *task;
  int rows;            /* of a task */
  int64_t strips_each; /* that a thread takes of a step's product */
  int64_t tasks;
  size_t bytes; /* of a task */
};

/* Strips first .. end of a step's product, shared with the threads that have no task. */
void tfu_recurrence_strips(const recurrence_job *j, recurrence_strip *strip, const void *space, int64_t first,
                           int64_t end, int m);

#define TFU_SELF "kernels/recurrent/recurrence_cpu.h"
#include "kernels/core/cpu/stamp.h"
#undef TFU_SELF

#endif
#else

/* What a line of units has at hand. */
typedef struct FN(recurrence_line) {
  REAL ones[LINE], zeros[LINE], buffer[LINE];
  REAL pre[GATES][LINE], value[GATES][LINE], slope[GATES][LINE];
} FN(recurrence_line);

static inline void FN(begin_line)(FN(recurrence_line) * l) {
  for (int i = 0; i < LINE; i++) l->ones[i] = 1, l->zeros[i] = (REAL)-0.0; /* x + -0 is x */
}
static inline void FN(apply)(const tfu_activation *act, const FN(recurrence_line) * l, REAL *v, const REAL *x, int n) {
  act->FN(value)(v, x, l->ones, l->zeros, n);
}
static inline void FN(slope_of)(const tfu_activation *act, const FN(recurrence_line) * l, REAL *v, const REAL *x,
                                int n) {
  act->FN(grad)(v, x, l->ones, l->zeros, n);
}

/* n elements of a tensor from `at` on; zeros where it is not given. */
static inline void FN(copy)(REAL *to, const tfu_tensor *t, int64_t at, int n) {
  FN(tfu_copy)(to, tfu_given_data(t), t->dtype, at, n);
}
static inline void FN(put)(const tfu_tensor *t, int64_t at, int n, const REAL *values) {
  FN(tfu_store)(t->data, t->dtype, at, n, values);
}

/* What each gate's h is scaled by, of rows first .. first + m, gate by gate, each with padded units, of which those
 * that are none stay 0. */
void FN(tfu_recurrence_scales)(const recurrence_job *j, REAL *to, int64_t first, int m);

/* The whole call, or its gradient: `task` for all sequences, some at a time. */
tfu_code FN(tfu_recurrence_run)(tfu_call *call, int backward, recurrence_rows *task);
#endif
