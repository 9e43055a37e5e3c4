/* The loss of softmax(x) over the last axis, one value per row, with lse = log of the sum of exp(x). Against
 * probabilities t:
 *
 *   loss = sum of t' * (lse - x) + z_loss * lse^2,  t' = (1 - smoothing) * t + smoothing / classes,
 *   dx = dloss * ((sum of t' + 2 * z_loss * lse) * softmax(x) - t'),  dt = dloss * (1 - smoothing) * (lse - x);
 *
 * against integer labels, the same for t = 1 at the label and 0 elsewhere. There, rows whose label is `ignore` have no
 * loss and no gradient; a label that is no class is an error on the CPU, and on the GPU has loss NaN and no gradient.
 *
 * stats keeps (maximum, sum of exp(x - maximum)) of each row, and with probabilities the sum of t'. lse alone, rounded,
 * would cost the softmax its last digits. All but x and t is in the arithmetic type, so that 16-bit logits lose
 * nothing. */
#include "tfuse.h"

TFU_SHAPE_RULE(dense_shape) {
  TFU_TRY(tfu_has_rows("x", &in[0], err));
  TFU_TRY(tfu_match("targets", &in[1], "x", &in[0], err));
  out[0] = tfu_leading(&in[0]);
  out[1] = tfu_append(&out[0], 3);
  return TFU_OK;
}

const tfu_op tfu_cross_entropy = {
    .name = "CrossEntropy",
    .doc = "Loss of softmax(x) over the last axis against probabilities; also what the gradient needs of each row.",
    .in = {"x: T", "targets: T"},
    .out = {"loss: S", "stats: S"},
    .attr = {"smoothing: float = 0.0", "z_loss: float = 0.0", TFU_T_FLOATS, TFU_S_REALS},
    .shape = dense_shape,
    TFU_KERNELS(cross_entropy),
    .capturable = 1,
};

TFU_SHAPE_RULE(dense_grad_shape) {
  TFU_TRY(tfu_has_rows("x", &in[0], err));
  TFU_TRY(tfu_match("targets", &in[1], "x", &in[0], err));
  const tfu_shape rows = tfu_leading(&in[0]), stats = tfu_append(&rows, 3);
  TFU_TRY(tfu_match("stats", &in[2], "the rows of x with three values each", &stats, err));
  TFU_TRY(tfu_match("dloss", &in[3], "the rows of x", &rows, err));
  out[0] = in[0];
  out[1] = in[4];
  if (tfu_given(&in[4])) TFU_TRY(tfu_match("dtargets_for", &in[4], "targets", &in[1], err));
  return TFU_OK;
}

const tfu_op tfu_cross_entropy_grad = {
    .name = "CrossEntropyGrad",
    .doc = "Gradient of CrossEntropy; dtargets_for is targets again where their gradient is wanted.",
    .in = {"x: T", "targets: T", "stats: S", "dloss: S", "dtargets_for: T"},
    .out = {"dx: T", "dtargets: T"},
    .attr = {"smoothing: float = 0.0", "z_loss: float = 0.0", TFU_T_FLOATS, TFU_S_REALS},
    .shape = dense_grad_shape,
    TFU_KERNELS(cross_entropy_grad),
    .capturable = 1,
    .in_place = 1,
};

/* ---- integer labels ---- */

TFU_SHAPE_RULE(sparse_shape) {
  TFU_TRY(tfu_has_rows("x", &in[0], err));
  const tfu_shape rows = tfu_leading(&in[0]);
  TFU_TRY(tfu_match("labels", &in[1], "the rows of x", &rows, err));
  out[0] = rows;
  out[1] = tfu_append(&rows, 2);
  return TFU_OK;
}

#define ATTRIBUTES                                                                                            \
  "smoothing: float = 0.0", "z_loss: float = 0.0", "ignore: int = -9223372036854775808", "L: {int32, int64}", \
      TFU_T_FLOATS, TFU_S_REALS

const tfu_op tfu_sparse_cross_entropy = {
    .name = "SparseCrossEntropy",
    .doc = "Loss of softmax(x) over the last axis against integer labels; also what the gradient needs of each row.",
    .in = {"x: T", "labels: L"},
    .out = {"loss: S", "stats: S"},
    .attr = {ATTRIBUTES},
    .shape = sparse_shape,
    TFU_KERNELS(sparse_cross_entropy),
    .capturable = 1,
};

TFU_SHAPE_RULE(sparse_grad_shape) {
  tfu_shape forward[2];
  TFU_TRY(sparse_shape(in, forward, attr, err));
  TFU_TRY(tfu_match("stats", &in[2], "the rows of x with two values each", &forward[1], err));
  TFU_TRY(tfu_match("dloss", &in[3], "the rows of x", &forward[0], err));
  out[0] = in[0];
  return TFU_OK;
}

const tfu_op tfu_sparse_cross_entropy_grad = {
    .name = "SparseCrossEntropyGrad",
    .doc = "Gradient of SparseCrossEntropy.",
    .in = {"x: T", "labels: L", "stats: S", "dloss: S"},
    .out = {"dx: T"},
    .attr = {ATTRIBUTES},
    .shape = sparse_grad_shape,
    TFU_KERNELS(sparse_cross_entropy_grad),
    .capturable = 1,
    .in_place = 1,
};
