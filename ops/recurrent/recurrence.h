/* recurrence.h - arguments and attributes of the recurrences, as kernels see them. */
#ifndef TFUSE_RECURRENCE_H_
#define TFUSE_RECURRENCE_H_

#include "activations.h"

enum { TFU_CELL_LSTM, TFU_CELL_GRU, TFU_CELL_GRU_RESET_BEFORE };
/* Gates of a cell, and units that are kept of each step for the gradient: what activations are taken of, and the LSTM's
 * state c, or h . recurrent_kernel for the candidate of a GRU that is reset after it. */
static inline int tfu_cell_gates(int cell) { return cell == TFU_CELL_LSTM ? 4 : 3; }
static inline int tfu_cell_kept(int cell) { return cell == TFU_CELL_LSTM ? 5 : cell == TFU_CELL_GRU ? 4 : 3; }

/* In this order for both ops. */
enum { TFU_RECUR_CELL, TFU_RECUR_ACTIVATION, TFU_RECUR_GATES_ACTIVATION, TFU_RECUR_TF32 };
#define TFU_RECUR_ATTRS                                                             \
  "cell: {'lstm', 'gru', 'gru_reset_before'} = 'lstm'",                             \
      "activation: {'linear'" TFU_ACTIVATIONS_BUT_LINEAR(TFU_QUOTED_) "} = 'tanh'", \
      "recurrent_activation: {'linear'" TFU_ACTIVATIONS_BUT_LINEAR(TFU_QUOTED_) "} = 'sigmoid'", "tf32: bool = false"

enum {
  TFU_RECUR_GATES,
  TFU_RECUR_KERNEL,
  TFU_RECUR_BIAS,
  TFU_RECUR_H,
  TFU_RECUR_C,
  TFU_RECUR_MASK,
  TFU_RECUR_SCALE,
  TFU_RECUR_KEEP
};
enum { TFU_RECUR_Y, TFU_RECUR_LAST, TFU_RECUR_KEPT };

/* Of the gradient. */
enum {
  TFU_RECGRAD_DY,
  TFU_RECGRAD_DLAST,
  TFU_RECGRAD_KERNEL,
  TFU_RECGRAD_H,
  TFU_RECGRAD_C,
  TFU_RECGRAD_MASK,
  TFU_RECGRAD_SCALE,
  TFU_RECGRAD_Y,
  TFU_RECGRAD_KEPT
};
enum { TFU_RECGRAD_DGATES, TFU_RECGRAD_DPRODUCT, TFU_RECGRAD_DH, TFU_RECGRAD_DC };

#endif
