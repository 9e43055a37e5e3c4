/* A whole recurrent layer: Recurrence of x . kernel + bias, with tanh and sigmoid as its activations and without a
 * mask. That is what cuDNN has as one function, and where it serves, this op is for it. recurrent_bias is Recurrence's
 * own.
 *
 * kept is an output only where `keep` is given, a mark; what is in it is the business of the kernels. Gradients of
 * biases and first states that are not given are empty vectors, as is that of c where there is none. */
#include "ops/recurrent/rnn.h"

#include "ops/recurrent/recurrence.h"
#include "tfuse.h"

static int64_t axis(const tfu_shape *s, int i) { return s->rank == TFU_UNKNOWN ? TFU_UNKNOWN : s->dim[i]; }

static tfu_code fits(const char *name, const tfu_shape *s, tfu_shape wanted, const char *what, tfu_error *err) {
  return tfu_given(s) ? tfu_match(name, s, what, &wanted, err) : TFU_OK;
}

static tfu_code check_bias(const char *name, const tfu_shape *bias, const tfu_shape *recurrent, tfu_error *err) {
  TFU_REQUIRE(err,
              !tfu_given(bias) || bias->rank == TFU_UNKNOWN ||
                  (bias->rank == 1 && tfu_may_be(bias->dim[0], axis(recurrent, 1))),
              "%s must be a vector with one value per column of recurrent_kernel %s, got shape %s", name,
              tfu_show(recurrent).text, tfu_show(bias).text);
  return TFU_OK;
}

#define MATRIX(rows, cols) ((tfu_shape){.rank = 2, .dim = {(rows), (cols)}})
#define SEQUENCES(batch, steps, units) ((tfu_shape){.rank = 3, .dim = {(batch), (steps), (units)}})

/* Of x and what follows it in both ops. *units is that of the recurrent kernel. */
static tfu_code check(const tfu_shape *in, const tfu_value *attr, int64_t *units, tfu_error *err) {
  const tfu_shape *x = &in[TFU_RNN_X], *recurrent = &in[TFU_RNN_RECURRENT];
  TFU_REQUIRE(err, x->rank == TFU_UNKNOWN || x->rank == 3, "x must be [batch, steps, features], got shape %s",
              tfu_show(x).text);
  TFU_REQUIRE(err, recurrent->rank == TFU_UNKNOWN || recurrent->rank == 2,
              "recurrent_kernel must be [units, gates * units], got shape %s", tfu_show(recurrent).text);
  const int64_t width = axis(recurrent, 1);
  *units = axis(recurrent, 0);
  if (attr && *units != TFU_UNKNOWN) {
    const int gates = tfu_cell_gates((int)attr[TFU_RNN_CELL].i);
    TFU_REQUIRE(err, tfu_may_be(width, gates * *units), "recurrent_kernel must be [units, %d * units], got shape %s",
                gates, tfu_show(recurrent).text);
  }
  const tfu_shape *kernel = &in[TFU_RNN_KERNEL], state = MATRIX(axis(x, 0), *units);
  TFU_REQUIRE(err, kernel->rank == TFU_UNKNOWN || kernel->rank == 2,
              "kernel must be [features, gates * units], got shape %s", tfu_show(kernel).text);
  TFU_REQUIRE(err, tfu_may_be(axis(x, 2), axis(kernel, 0)),
              "the last axis of x and the first of kernel must be of one size, got shapes %s and %s", tfu_show(x).text,
              tfu_show(kernel).text);
  TFU_REQUIRE(err, tfu_may_be(axis(kernel, 1), width),
              "the last axes of kernel and recurrent_kernel must be of one size, got shapes %s and %s",
              tfu_show(kernel).text, tfu_show(recurrent).text);
  TFU_TRY(check_bias("bias", &in[TFU_RNN_BIAS], recurrent, err));
  TFU_TRY(check_bias("recurrent_bias", &in[TFU_RNN_RECURRENT_BIAS], recurrent, err));
  TFU_TRY(fits("h", &in[TFU_RNN_H], state, "[batch, units]", err));
  return fits("c", &in[TFU_RNN_C], state, "[batch, units]", err);
}

static const tfu_shape unknown = {.rank = TFU_UNKNOWN}, none = {.rank = 1};

TFU_SHAPE_RULE(forward_shape) {
  int64_t units;
  TFU_TRY(check(in, attr, &units, err));
  const int64_t batch = axis(&in[TFU_RNN_X], 0), steps = axis(&in[TFU_RNN_X], 1);
  const tfu_shape kept = SEQUENCES(batch, steps, units == TFU_UNKNOWN ? units : TFU_RNN_KEPT_UNITS * units);
  out[TFU_RNN_Y] = SEQUENCES(batch, steps, units);
  out[TFU_RNN_LAST] = !attr ? unknown : attr[TFU_RNN_CELL].i == TFU_CELL_LSTM ? MATRIX(batch, units) : none;
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
  const int64_t batch = axis(from, 0), steps = axis(from, 1);
  const tfu_shape y = SEQUENCES(batch, steps, units);
  TFU_TRY(tfu_match("dy", &in[TFU_RNNGRAD_DY], "[batch, steps, units]", &y, err));
  TFU_TRY(tfu_match("y", &in[TFU_RNNGRAD_Y], "[batch, steps, units]", &y, err));
  TFU_TRY(fits("dlast", &in[TFU_RNNGRAD_DLAST], MATRIX(batch, units), "[batch, units]", err));
  TFU_TRY(tfu_match("kept", &in[TFU_RNNGRAD_KEPT], "what Rnn keeps",
                    &SEQUENCES(batch, steps, units == TFU_UNKNOWN ? units : TFU_RNN_KEPT_UNITS * units), err));
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
