/* A whole recurrent layer: Recurrence of x . kernel + bias, with tanh and sigmoid as its activations and without a
 * mask. That is what cuDNN has as one function, and where it serves, this op is for it. recurrent_bias is Recurrence's
 * own.
 *
 * kept is an output only where `keep` is given, a mark; what is in it is the business of the kernels. Gradients of
 * biases and first states that are not given are empty vectors, as is that of c where there is none. */
#include "ops/recurrent/rnn.h"

#include "ops/recurrent/checks.h"
#include "tfuse.h"

/* Of x and what follows it in both ops. *units is that of the recurrent kernel. */
static tfu_code check(const tfu_shape *in, const tfu_value *attr, int64_t *units, tfu_error *err) {
  const tfu_shape *x = &in[TFU_RNN_X], *recurrent = &in[TFU_RNN_RECURRENT];
  TFU_TRY(tfu_has_rank("x", x, 3, "[batch, steps, features]", err));
  TFU_TRY(tfu_check_recurrent(recurrent, attr ? &attr[TFU_RNN_CELL] : NULL, err));
  const int64_t width = tfu_axis(recurrent, 1);
  *units = tfu_axis(recurrent, 0);
  const tfu_shape *kernel = &in[TFU_RNN_KERNEL], state = TFU_MATRIX(tfu_axis(x, 0), *units);
  TFU_TRY(tfu_has_rank("kernel", kernel, 2, "[features, gates * units]", err));
  TFU_REQUIRE(err, tfu_may_be(tfu_axis(x, 2), tfu_axis(kernel, 0)),
              "the last axis of x and the first of kernel must be of one size, got shapes %s and %s", tfu_show(x).text,
              tfu_show(kernel).text);
  TFU_REQUIRE(err, tfu_may_be(tfu_axis(kernel, 1), width),
              "the last axes of kernel and recurrent_kernel must be of one size, got shapes %s and %s",
              tfu_show(kernel).text, tfu_show(recurrent).text);
  TFU_TRY(tfu_check_bias("bias", &in[TFU_RNN_BIAS], recurrent, err));
  TFU_TRY(tfu_check_bias("recurrent_bias", &in[TFU_RNN_RECURRENT_BIAS], recurrent, err));
  TFU_TRY(tfu_fits("h", &in[TFU_RNN_H], state, "[batch, units]", err));
  return tfu_fits("c", &in[TFU_RNN_C], state, "[batch, units]", err);
}

TFU_SHAPE_RULE(forward_shape) {
  int64_t units;
  TFU_TRY(check(in, attr, &units, err));
  const int64_t batch = tfu_axis(&in[TFU_RNN_X], 0), steps = tfu_axis(&in[TFU_RNN_X], 1);
  const tfu_shape kept = TFU_SEQUENCES(batch, steps, tfu_times(units, TFU_RNN_KEPT_UNITS));
  out[TFU_RNN_Y] = TFU_SEQUENCES(batch, steps, units);
  out[TFU_RNN_LAST] = !attr ? tfu_unknown : attr[TFU_RNN_CELL].i == TFU_CELL_LSTM ? TFU_MATRIX(batch, units) : tfu_none;
  out[TFU_RNN_KEPT] = tfu_like_if(&kept, &in[TFU_RNN_KEEP]);
  return TFU_OK;
}

const tfu_op tfu_rnn = {
    .name = "Rnn",
    .doc =
        "A recurrent layer with tanh and sigmoid over whole sequences: all states h, the last c of an LSTM and, where "
        "keep is given, what the gradient needs.",
    .in = {"x: T", "kernel: T", "recurrent_kernel: T", "bias: T", "recurrent_bias: T", "h: T", "c: T", "keep: T"},
    .out = {"y: T", "last: T", "kept: T"},
    .attr = {TFU_RNN_ATTRS, TFU_T_FLOATS},
    .shape = forward_shape,
    TFU_KERNELS(rnn),
    .attr_shapes = 1,
};

TFU_SHAPE_RULE(grad_shape) {
  int64_t units;
  const tfu_shape *from = in + TFU_RNNGRAD_X;
  TFU_TRY(check(from, attr, &units, err));
  const int64_t batch = tfu_axis(from, 0), steps = tfu_axis(from, 1);
  const tfu_shape y = TFU_SEQUENCES(batch, steps, units);
  TFU_TRY(tfu_match("dy", &in[TFU_RNNGRAD_DY], "[batch, steps, units]", &y, err));
  TFU_TRY(tfu_match("y", &in[TFU_RNNGRAD_Y], "[batch, steps, units]", &y, err));
  TFU_TRY(tfu_fits("dlast", &in[TFU_RNNGRAD_DLAST], TFU_MATRIX(batch, units), "[batch, units]", err));
  TFU_TRY(tfu_match("kept", &in[TFU_RNNGRAD_KEPT], "what Rnn keeps",
                    &TFU_SEQUENCES(batch, steps, tfu_times(units, TFU_RNN_KEPT_UNITS)), err));
  for (int i = 0; i < TFU_RNN_KEEP; i++) out[i] = from[i];
  return TFU_OK;
}

const tfu_op tfu_rnn_grad = {
    .name = "RnnGrad",
    .doc = "Gradient of Rnn: of all its inputs that are given.",
    .in = {"dy: T", "dlast: T", "x: T", "kernel: T", "recurrent_kernel: T", "bias: T", "recurrent_bias: T", "h: T",
           "c: T", "y: T", "kept: T"},
    .out = {"dx: T", "dkernel: T", "drecurrent_kernel: T", "dbias: T", "drecurrent_bias: T", "dh: T", "dc: T"},
    .attr = {TFU_RNN_ATTRS, TFU_T_FLOATS},
    .shape = grad_shape,
    TFU_KERNELS(rnn_grad),
    .attr_shapes = 1,
};
