/* A recurrent layer over whole sequences, from its gates' inputs on, gates_t = x_t . kernel + bias, which one product
 * makes of all steps at once:
 *
 *   p_t = h_{t-1} . recurrent_kernel + bias
 *   LSTM: i, f, g, o are parts of gates_t + p_t;  c_t = s(f) c_{t-1} + s(i) a(g);  h_t = s(o) a(c_t)
 *   GRU:  z, r of gates_t + p_t;  g = gates_t + s(r) p_t of the third part;  h_t = s(z) h_{t-1} + (1 - s(z)) a(g)
 *
 * with a = activation and s = recurrent_activation; that is Keras's order of gates, and its reset_after=True. With its
 * reset_after=False, cell gru_reset_before, the third part of p_t is of s(r) h_{t-1} in the place of h_{t-1}, and g =
 * gates_t + p_t. y is all h_t. A step that the mask has not leaves h and c as they are. h and c begin with 0 where they
 * are not given. Where scale is given, [batch, gates * units], each gate's part of p_t is of its own h, times what
 * scale has of the gate, as recurrent dropout wants it.
 *
 * kept is an output only where `keep` is given, a mark: of each step the parts before their activations, then c_t of
 * the LSTM, or the third part of p_t of a GRU that is reset after it. The gradient has dgates, and dp where that is
 * another (of that GRU; else an empty vector): that of recurrent_kernel is h_{t-1}^T . dp_t, summed over all steps, one
 * product more. */
#include "ops/recurrent/recurrence.h"

#include "ops/recurrent/checks.h"
#include "tfuse.h"

TFU_SHAPE_RULE(forward_shape) {
  const tfu_shape *gates = &in[TFU_RECUR_GATES], *kernel = &in[TFU_RECUR_KERNEL], *bias = &in[TFU_RECUR_BIAS];
  TFU_TRY(tfu_has_rank("gates", gates, 3, "[batch, steps, gates * units]", err));
  TFU_TRY(tfu_check_recurrent(kernel, attr ? &attr[TFU_RECUR_CELL] : NULL, err));
  const int64_t batch = tfu_axis(gates, 0), steps = tfu_axis(gates, 1), units = tfu_axis(kernel, 0),
                width = tfu_axis(kernel, 1);
  TFU_REQUIRE(err, tfu_may_be(tfu_axis(gates, 2), width),
              "the last axes of gates and recurrent_kernel must be of one size, got shapes %s and %s",
              tfu_show(gates).text, tfu_show(kernel).text);
  TFU_TRY(tfu_check_bias("bias", bias, kernel, err));
  TFU_TRY(tfu_fits("h", &in[TFU_RECUR_H], TFU_MATRIX(batch, units), "[batch, units]", err));
  TFU_TRY(tfu_fits("c", &in[TFU_RECUR_C], TFU_MATRIX(batch, units), "[batch, units]", err));
  TFU_TRY(tfu_fits("mask", &in[TFU_RECUR_MASK], TFU_MATRIX(batch, steps), "[batch, steps]", err));
  TFU_TRY(tfu_fits("scale", &in[TFU_RECUR_SCALE], TFU_MATRIX(batch, width), "[batch, gates * units]", err));
  out[TFU_RECUR_Y] = TFU_SEQUENCES(batch, steps, units);
  out[TFU_RECUR_LAST] = out[TFU_RECUR_KEPT] = tfu_unknown;
  if (!attr) return TFU_OK;
  const int cell = (int)attr[TFU_RECUR_CELL].i;
  TFU_REQUIRE(err, cell == TFU_CELL_LSTM || in[TFU_RECUR_C].rank == TFU_UNKNOWN || !tfu_given(&in[TFU_RECUR_C]),
              "a GRU has no state c, got one of shape %s", tfu_show(&in[TFU_RECUR_C]).text);
  const tfu_shape kept = TFU_SEQUENCES(batch, steps, tfu_times(units, tfu_cell_kept(cell)));
  const tfu_shape last = TFU_MATRIX(batch, units);
  out[TFU_RECUR_LAST] = cell == TFU_CELL_LSTM ? last : tfu_none;
  out[TFU_RECUR_KEPT] = tfu_like_if(&kept, &in[TFU_RECUR_KEEP]);
  return TFU_OK;
}

const tfu_op tfu_recurrence = {
    .name = "Recurrence",
    .doc =
        "An LSTM or GRU over whole sequences, from x . kernel + bias on: all states h, the last c of an LSTM and, "
        "where keep is given, what the gradient needs.",
    .in = {"gates: T", "recurrent_kernel: T", "bias: T", "h: T", "c: T", "mask: bool", "scale: T", "keep: T"},
    .out = {"y: T", "last: T", "kept: T"},
    .attr = {TFU_RECUR_ATTRS, TFU_T_FLOATS},
    .shape = forward_shape,
    TFU_KERNELS(recurrence),
    .attr_shapes = 1,
};

TFU_SHAPE_RULE(grad_shape) {
  const tfu_shape *dy = &in[TFU_RECGRAD_DY], *kernel = &in[TFU_RECGRAD_KERNEL], *kept = &in[TFU_RECGRAD_KEPT];
  TFU_TRY(tfu_has_rank("dy", dy, 3, "[batch, steps, units]", err));
  TFU_TRY(tfu_check_recurrent(kernel, attr ? &attr[TFU_RECUR_CELL] : NULL, err));
  const int64_t batch = tfu_axis(dy, 0), steps = tfu_axis(dy, 1), units = tfu_axis(dy, 2);
  TFU_REQUIRE(err, tfu_may_be(tfu_axis(kernel, 0), units),
              "the last axis of dy and the first of recurrent_kernel must be of one size, got shapes %s and %s",
              tfu_show(dy).text, tfu_show(kernel).text);
  TFU_TRY(tfu_match("y", &in[TFU_RECGRAD_Y], "dy", dy, err));
  TFU_TRY(tfu_fits("dlast", &in[TFU_RECGRAD_DLAST], TFU_MATRIX(batch, units), "[batch, units]", err));
  TFU_TRY(tfu_fits("h", &in[TFU_RECGRAD_H], TFU_MATRIX(batch, units), "[batch, units]", err));
  TFU_TRY(tfu_fits("c", &in[TFU_RECGRAD_C], TFU_MATRIX(batch, units), "[batch, units]", err));
  TFU_TRY(tfu_fits("mask", &in[TFU_RECGRAD_MASK], TFU_MATRIX(batch, steps), "[batch, steps]", err));
  TFU_TRY(
      tfu_fits("scale", &in[TFU_RECGRAD_SCALE], TFU_MATRIX(batch, tfu_axis(kernel, 1)), "[batch, gates * units]", err));
  out[TFU_RECGRAD_DGATES] = TFU_SEQUENCES(batch, steps, tfu_axis(kernel, 1));
  out[TFU_RECGRAD_DH] = TFU_MATRIX(batch, units);
  out[TFU_RECGRAD_DPRODUCT] = out[TFU_RECGRAD_DC] = tfu_unknown;
  if (!attr) return TFU_OK;
  const int cell = (int)attr[TFU_RECUR_CELL].i;
  const tfu_shape wanted = TFU_SEQUENCES(batch, steps, tfu_times(units, tfu_cell_kept(cell)));
  TFU_TRY(tfu_match("kept", kept, "what Recurrence keeps", &wanted, err));
  out[TFU_RECGRAD_DPRODUCT] = cell == TFU_CELL_GRU ? out[TFU_RECGRAD_DGATES] : tfu_none;
  out[TFU_RECGRAD_DC] = cell == TFU_CELL_LSTM ? out[TFU_RECGRAD_DH] : tfu_none;
  return TFU_OK;
}

const tfu_op tfu_recurrence_grad = {
    .name = "RecurrenceGrad",
    .doc =
        "Gradient of Recurrence: of the gates' inputs, of h . recurrent_kernel + bias where that is another, and of "
        "the first states.",
    .in = {"dy: T", "dlast: T", "recurrent_kernel: T", "h: T", "c: T", "mask: bool", "scale: T", "y: T", "kept: T"},
    .out = {"dgates: T", "dproduct: T", "dh: T", "dc: T"},
    .attr = {TFU_RECUR_ATTRS, TFU_T_FLOATS},
    .shape = grad_shape,
    TFU_KERNELS(recurrence_grad),
    .attr_shapes = 1,
};
