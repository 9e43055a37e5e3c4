/* y = act(x . w + bias) + residual, where w, [inputs, outputs], is kept in 8 or 4 bits:
 *
 *   w[i][o] = (kernel[i][o] - zero[g][o]) * scale[g][o] / input_scale[i],  g = i / group, or groups[i] where given
 *
 * or, where `divide`, (kernel - zero) / scale. Without `group` all rows of w are one group. What is not given is an
 * empty vector: then zero is 0, and input_scale 1. int8 is signed, uint8 is not; so are the halves of bytes that 4 bits
 * are. `order` says how kernel, scale and zero lie:
 *
 *   rows     kernel [inputs, outputs], scale and zero [groups, outputs], or scale [outputs] of one group
 *   columns  kernel [outputs, inputs], scale and zero [outputs, groups], or scale [outputs] of one group
 *   tiles    kernel [tiles across, tiles down, bytes], scale [groups, 2, outputs], no zero: see below
 *
 * With 4 bits, two neighbouring outputs share a byte, the lower half being the first: of rows and columns, kernel has
 * ceil(outputs / 2) where 8 bits have `outputs`.
 *
 * Where `quantize_rows`, x is rounded to 8 bits as well, each row by itself, s = 127 / (max|x| + 1e-7):
 *
 *   y = act(round(x * s) . w / s + bias) + residual
 *
 * tiles is the order in which GPUs read fastest: of a tile of 16 rows and 64 columns of w, each thread of a warp has
 * its part of the factors of tensor cores side by side (kernels/products/quantized_kernel.h has the formula), and 4
 * bits are 0 to 15, 8 bits -128 to 127, whatever they were. So scale has two numbers for a column of a group, for w =
 * (kernel - scale[g][1]) * scale[g][0]. It always multiplies. There are whole tiles alone: inputs is a multiple of 16.
 *
 * The gradient is dpre = dy * act'(pre), dx = dpre . w^T, as if x were not rounded, and dbias, the sums of dpre over
 * the rows, where bias is given. (That of residual is dy.) */
#include "ops/products/quantized_linear.h"

enum { UNKNOWN = TFU_UNKNOWN };

static int64_t dim(const tfu_shape *s, int axis) { return s->rank == UNKNOWN ? UNKNOWN : s->dim[axis]; }

/* How many bytes of the kernel hold `outputs` of one row. */
static int64_t bytes_of(int64_t outputs, int64_t bits) {
  return outputs == UNKNOWN ? UNKNOWN : bits == 4 ? outputs / 2 + outputs % 2 : outputs;
}

static tfu_code check_numbers(const tfu_value *attr, tfu_error *err) {
  const int64_t bits = attr[TFU_QUANT_BITS].i, group = attr[TFU_QUANT_GROUP].i;
  TFU_REQUIRE(err, bits == 8 || bits == 4, "bits must be 8 or 4, got %lld", (long long)bits);
  TFU_REQUIRE(err, group >= 0, "group must be rows of the kernel, or 0 where all are one group, got %lld",
              (long long)group);
  return TFU_OK;
}

/* The sizes of w, from kernel and scale. */
static tfu_code read_sizes(const tfu_shape *in, const tfu_value *attr, int64_t *inputs, int64_t *outputs,
                           tfu_error *err) {
  const tfu_shape *kernel = &in[TFU_QUANT_KERNEL], *scale = &in[TFU_QUANT_SCALE];
  const int64_t order = attr[TFU_QUANT_ORDER].i, bits = attr[TFU_QUANT_BITS].i;
  const int tiles = order == TFU_QUANT_TILES;
  TFU_REQUIRE(err, kernel->rank == UNKNOWN || kernel->rank == 2 + tiles,
              "kernel in the order of %s must be %s, got shape %s",
              tiles                        ? "tiles"
              : order == TFU_QUANT_BY_ROWS ? "rows"
                                           : "columns",
              tiles                        ? "[tiles across, tiles down, bytes]"
              : order == TFU_QUANT_BY_ROWS ? "[inputs, outputs]"
                                           : "[outputs, inputs]",
              tfu_show(kernel).text);
  TFU_REQUIRE(err, scale->rank == UNKNOWN || scale->rank == 2 + tiles || (scale->rank == 1 && !tiles),
              "scale must be %s, got shape %s",
              tiles                        ? "[groups, 2, outputs]"
              : order == TFU_QUANT_BY_ROWS ? "[outputs] or [groups, outputs]"
                                           : "[outputs] or [outputs, groups]",
              tfu_show(scale).text);
  *outputs = scale->rank == UNKNOWN ? UNKNOWN : order == TFU_QUANT_BY_COLUMNS ? scale->dim[0] : tfu_cols(scale);
  if (tiles) {
    TFU_REQUIRE(err, tfu_may_be(dim(scale, 1), 2), "scale of tiles must be [groups, 2, outputs], got shape %s",
                tfu_show(scale).text);
    const int64_t across =
        *outputs == UNKNOWN ? UNKNOWN : (*outputs + TFU_QUANT_TILE_COLUMNS - 1) / TFU_QUANT_TILE_COLUMNS;
    TFU_REQUIRE(err, tfu_may_be(dim(kernel, 0), across) && tfu_may_be(dim(kernel, 2), tfu_quant_tile_bytes(bits)),
                "kernel, tiles of %lld bits, must be [%lld, tiles down, %lld] for a scale of shape %s, got shape %s",
                (long long)bits, (long long)across, (long long)tfu_quant_tile_bytes(bits), tfu_show(scale).text,
                tfu_show(kernel).text);
    *inputs = dim(kernel, 1) == UNKNOWN ? UNKNOWN : kernel->dim[1] * TFU_QUANT_TILE_ROWS;
    return TFU_OK;
  }
  const int axis = order == TFU_QUANT_BY_ROWS; /* of the outputs */
  TFU_REQUIRE(err, tfu_may_be(dim(kernel, axis), bytes_of(*outputs, bits)),
              "kernel of %lld bits must have %lld bytes for the %lld outputs of scale, got shapes %s and %s",
              (long long)bits, (long long)bytes_of(*outputs, bits), (long long)*outputs, tfu_show(kernel).text,
              tfu_show(scale).text);
  *inputs = dim(kernel, !axis);
  return TFU_OK;
}

static tfu_code check_groups(const tfu_shape *in, const tfu_value *attr, int64_t inputs, tfu_error *err) {
  const tfu_shape *scale = &in[TFU_QUANT_SCALE], *zero = &in[TFU_QUANT_ZERO];
  const int64_t group = attr[TFU_QUANT_GROUP].i, order = attr[TFU_QUANT_ORDER].i;
  const int64_t found = scale->rank == 1 ? 1 : dim(scale, order == TFU_QUANT_BY_COLUMNS);
  const int64_t wanted = group == 0 ? 1 : inputs == UNKNOWN ? UNKNOWN : (inputs + group - 1) / group;
  if (order == TFU_QUANT_TILES) {
    TFU_REQUIRE(err, !tfu_given(zero), "tiles have zero within scale, got zero of shape %s", tfu_show(zero).text);
    TFU_REQUIRE(err, !tfu_given(&in[TFU_QUANT_GROUPS]),
                "tiles have groups of neighbouring rows alone, got groups of shape %s",
                tfu_show(&in[TFU_QUANT_GROUPS]).text);
    TFU_REQUIRE(err, !attr[TFU_QUANT_DIVIDE].b, "the scale of tiles multiplies: divide must be false, got true");
  } else if (tfu_given(zero)) {
    TFU_TRY(tfu_match("zero", zero, "scale", scale, err));
  }
  if (tfu_given(&in[TFU_QUANT_GROUPS])) {
    TFU_REQUIRE(err, found != 0 || inputs == 0, "groups must have scales, got scale of shape %s", tfu_show(scale).text);
    return TFU_OK;
  }
  TFU_REQUIRE(err, tfu_may_be(found, wanted),
              "%lld inputs in groups of %lld must have %lld groups of scales, got scale of shape %s", (long long)inputs,
              (long long)(group ? group : inputs), (long long)wanted, tfu_show(scale).text);
  return TFU_OK;
}

tfu_code tfu_quant_vector(const char *name, const tfu_shape *v, const char *per, int64_t size, tfu_error *err) {
  if (v->rank == UNKNOWN || !tfu_given(v)) return TFU_OK;
  TFU_REQUIRE(err, v->rank == 1 && tfu_may_be(v->dim[0], size),
              "%s must be a vector with one value per %s, %lld, got shape %s", name, per, (long long)size,
              tfu_show(v).text);
  return TFU_OK;
}

/* All but x and what is [outputs]: of both ops. */
static tfu_code check_kernel(const tfu_shape *in, const tfu_value *attr, int64_t *inputs, int64_t *outputs,
                             tfu_error *err) {
  TFU_TRY(check_numbers(attr, err));
  TFU_TRY(read_sizes(in, attr, inputs, outputs, err));
  TFU_TRY(check_groups(in, attr, *inputs, err));
  TFU_TRY(tfu_quant_vector("input_scale", &in[TFU_QUANT_INPUT_SCALE], "input", *inputs, err));
  return tfu_quant_vector("groups", &in[TFU_QUANT_GROUPS], "input", *inputs, err);
}

/* Fails unless the last axis of x, of two or more, is of that size; y is like x, with another last axis. */
static tfu_code replace_last(const char *name, const tfu_shape *x, int64_t from, int64_t to, tfu_shape *y,
                             tfu_error *err) {
  TFU_REQUIRE(err, x->rank == UNKNOWN || x->rank >= 2, "%s must have two dimensions or more, got shape %s", name,
              tfu_show(x).text);
  *y = *x;
  if (x->rank == UNKNOWN) return TFU_OK;
  TFU_REQUIRE(err, tfu_may_be(tfu_cols(x), from),
              "the last axis of %s must be of size %lld, as kernel and scale have it, got shape %s", name,
              (long long)from, tfu_show(x).text);
  y->dim[y->rank - 1] = to;
  return TFU_OK;
}

/* Without attributes there is nothing to tell. */
static tfu_code unknown(const tfu_shape *x, tfu_shape *y) {
  *y = *x;
  if (y->rank > 0) y->dim[y->rank - 1] = UNKNOWN;
  return TFU_OK;
}

TFU_SHAPE_RULE(forward_shape) {
  const tfu_shape *x = &in[TFU_QUANT_X], *residual = &in[TFU_QUANT_RESIDUAL];
  int64_t inputs, outputs;
  if (!attr) return unknown(x, out);
  TFU_TRY(check_kernel(in, attr, &inputs, &outputs, err));
  TFU_TRY(replace_last("x", x, inputs, outputs, out, err));
  TFU_TRY(tfu_quant_vector("bias", &in[TFU_QUANT_BIAS], "output", outputs, err));
  return tfu_given(residual) ? tfu_match("residual", residual, "x . kernel", out, err) : TFU_OK;
}

TFU_SHAPE_RULE(grad_shape) {
  const tfu_shape *dy = &in[TFU_QUANT_DY], *pre = &in[TFU_QUANT_PRE];
  int64_t inputs, outputs;
  out[TFU_QUANT_DBIAS] = in[TFU_QUANT_BIAS];
  if (!attr) return unknown(dy, out);
  TFU_TRY(check_kernel(in, attr, &inputs, &outputs, err));
  TFU_TRY(replace_last("dy", dy, outputs, inputs, out, err));
  TFU_TRY(tfu_quant_vector("bias", &in[TFU_QUANT_BIAS], "output", outputs, err));
  if (tfu_given(pre)) TFU_TRY(tfu_match("pre", pre, "dy", dy, err));
  TFU_REQUIRE(err, attr[TFU_QUANT_ACTIVATION].i == TFU_ACT_linear || tfu_given(pre),
              "pre must be given where the activation is not linear, got shape %s", tfu_show(pre).text);
  return TFU_OK;
}

static size_t more_room(const tfu_call *call) {
  const tfu_shape *x = &call->in[TFU_QUANT_X].shape;
  tfu_shape in[TFU_MAX_ARGS];
  tfu_error err;
  int64_t inputs, outputs;
  for (int i = 0; i < TFU_MAX_ARGS; i++) in[i] = call->in[i].shape;
  if (x->rank < 1 || !tfu_known(x, 0) || read_sizes(in, call->attr, &inputs, &outputs, &err) || inputs < 0 ||
      outputs < 0)
    return TFU_NO_ROOM;
  if (!inputs || !outputs) return 0;
  return tfu_quant_room(tfu_count(x) / inputs, inputs, outputs, tfu_dtype_size(call->in[TFU_QUANT_X].dtype),
                        call->attr[TFU_QUANT_ROWS].b);
}

#define KERNEL "kernel: Q", "scale: K", "zero: Q", "input_scale: T", "groups: float"

const tfu_op tfu_quantized_linear = {
    .name = "QuantizedLinear",
    .doc = "act(x . kernel + bias) + residual over the last axis of x, with a kernel of 8 or 4 bits.",
    .in = {"x: T", KERNEL, "bias: T", "residual: T"},
    .out = {"y: T"},
    .attr = {TFU_QUANT_ATTRS},
    .shape = forward_shape,
    TFU_KERNELS(quantized_linear),
    .attr_shapes = 1,
    .capturable = 1,
    .room = TFU_LINEAR_ROOM,
    .more_room = more_room,
};

const tfu_op tfu_quantized_linear_grad = {
    .name = "QuantizedLinearGrad",
    .doc = "Gradient of QuantizedLinear: dx, and dbias where bias is given.",
    .in = {"dy: T", KERNEL, "bias: T", "pre: T"},
    .out = {"dx: T", "dbias: T"},
    .attr = {TFU_QUANT_ATTRS},
    .shape = grad_shape,
    TFU_KERNELS(quantized_linear_grad),
    .attr_shapes = 1,
};
