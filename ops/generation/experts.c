/* A mixture of experts, each of which is a gated unit and a product, as decoders have it in the place of their own:
 *
 *   y[r] = residual[r] + sum over s of weights[r, s] * expert(numbers[r, s], x[r])
 *   expert(e, x) = (act(x . gate[e]) * (x . up[e])) . down[e]
 *
 * Kernels are [experts, inputs, outputs]. Without up, gate has the two side by side: the first half of its last axis is
 * activated. A number that no expert has is left out. A residual that is not given is an empty vector. */
#include "ops/generation/experts.h"

#include "activations.h"
#include "tfuse.h"

static tfu_code check_kernel(const char *name, const tfu_shape *kernel, tfu_error *err) {
  TFU_REQUIRE(err, kernel->rank == TFU_UNKNOWN || kernel->rank == 3,
              "%s must be [experts, inputs, outputs], got shape %s", name, tfu_show(kernel).text);
  for (int i = 0; i < kernel->rank; i++)
    TFU_REQUIRE(err, kernel->dim[i] != 0, "%s must have experts, inputs and outputs, got shape %s", name,
                tfu_show(kernel).text);
  return TFU_OK;
}

/* Of the three kernels: what they have in common with each other and with x. */
static tfu_code check_kernels(const tfu_shape *in, tfu_error *err) {
  const tfu_shape *x = &in[TFU_EXPERTS_X], *gate = &in[TFU_EXPERTS_GATE], *up = &in[TFU_EXPERTS_UP],
                  *down = &in[TFU_EXPERTS_DOWN];
  TFU_TRY(check_kernel("gate", gate, err));
  TFU_TRY(check_kernel("down", down, err));
  if (tfu_given(up)) TFU_TRY(tfu_match("up", up, "gate", gate, err));
  TFU_REQUIRE(err, x->rank == TFU_UNKNOWN || x->rank == 2, "x must be [rows, inputs], got shape %s", tfu_show(x).text);
  if (gate->rank == TFU_UNKNOWN) return TFU_OK;
  TFU_REQUIRE(err, x->rank == TFU_UNKNOWN || tfu_may_be(x->dim[1], gate->dim[1]),
              "the last axis of x and the inputs of gate must be of one size, got shapes %s and %s", tfu_show(x).text,
              tfu_show(gate).text);
  const int open = up->rank == TFU_UNKNOWN || (up->rank == 1 && up->dim[0] == TFU_UNKNOWN) || gate->dim[2] < 0;
  const int halves = !open && !tfu_given(up);
  TFU_REQUIRE(err, !halves || gate->dim[2] % 2 == 0, "without up, gate must have two halves of one size, got shape %s",
              tfu_show(gate).text);
  if (open || down->rank == TFU_UNKNOWN) return TFU_OK;
  TFU_REQUIRE(err, tfu_may_be(down->dim[0], gate->dim[0]) && tfu_may_be(down->dim[1], gate->dim[2] / (halves ? 2 : 1)),
              "down must have the experts of gate, and their outputs as its inputs, got shapes %s and %s",
              tfu_show(down).text, tfu_show(gate).text);
  return TFU_OK;
}

TFU_SHAPE_RULE(experts_shape) {
  const tfu_shape *x = &in[TFU_EXPERTS_X], *weights = &in[TFU_EXPERTS_WEIGHTS], *down = &in[TFU_EXPERTS_DOWN];
  TFU_TRY(check_kernels(in, err));
  TFU_REQUIRE(err, weights->rank == TFU_UNKNOWN || weights->rank == 2,
              "weights must be [rows, experts of a row], got shape %s", tfu_show(weights).text);
  TFU_TRY(tfu_match("numbers", &in[TFU_EXPERTS_NUMBERS], "weights", weights, err));
  out[0].rank = TFU_UNKNOWN;
  if (x->rank == TFU_UNKNOWN) return TFU_OK;
  TFU_REQUIRE(err, weights->rank == TFU_UNKNOWN || tfu_may_be(weights->dim[0], x->dim[0]),
              "weights must have the rows of x %s, got shape %s", tfu_show(x).text, tfu_show(weights).text);
  out[0] = *x;
  out[0].dim[1] = down->rank == TFU_UNKNOWN ? TFU_UNKNOWN : down->dim[2];
  if (tfu_given(&in[TFU_EXPERTS_RESIDUAL]))
    TFU_TRY(tfu_match("residual", &in[TFU_EXPERTS_RESIDUAL], "the result", &out[0], err));
  return TFU_OK;
}

/* For one expert after the other: its two factors, what they make and what comes of that, and the sum so far. For
 * routed rows the last two, for each expert of a row. The larger of the two, and what products of two sizes want. */
static size_t more_room(const tfu_call *call) {
  const tfu_shape *x = &call->in[TFU_EXPERTS_X].shape, *down = &call->in[TFU_EXPERTS_DOWN].shape,
                  *weights = &call->in[TFU_EXPERTS_WEIGHTS].shape;
  if (x->rank != 2 || down->rank != 3 || weights->rank != 2 || x->dim[0] < 0 || weights->dim[1] < 0 ||
      down->dim[1] < 0 || down->dim[2] < 0)
    return 2 * tfu_linear.room;
  const size_t size = tfu_dtype_size(call->in[TFU_EXPERTS_X].dtype), rows = (size_t)x->dim[0],
               inner = (size_t)down->dim[1], outputs = (size_t)down->dim[2];
  const size_t each = rows * ((3 * inner + outputs) * size + outputs * sizeof(double)),
               routed = rows * (size_t)weights->dim[1] * (inner + outputs) * size;
  return (each > routed ? each : routed) + 4096 + 2 * tfu_linear.room;
}

const tfu_op tfu_experts = {
    .name = "Experts",
    .doc = "A mixture of gated units: the sum of those experts that each row names, by their weights, and a residual.",
    .in = {"x: T", "weights: T", "numbers: int64", "gate: T", "up: T", "down: T", "residual: T"},
    .out = {"y: T"},
    .attr = {TFU_ACTIVATION_ATTR, TFU_T_FLOATS},
    .shape = experts_shape,
    TFU_KERNELS(experts),
    .capturable = 1,
    .more_room = more_room,
};
