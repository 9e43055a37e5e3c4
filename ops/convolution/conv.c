/* Convolution, and the two products that its gradient is made of. With x [batch, in…, channels], a kernel
 * [window…, channels / groups, outputs] and y [batch, out…, outputs] of one to three spatial axes:
 *
 *   Conv        y[n, o, k] = act(sum over r, c of x[n, o * stride - before + r * dilation, c] kernel[r, c, k]
 *                                + bias[k] + residual[n, o, k]),  act being relu or nothing
 *   ConvData    x[n, i, c] = sum over r, k of y[n, o, k] kernel[r, c, k], where i = o * stride - before + r * dilation
 *   ConvFilter  kernel[r, c, k] = sum over n, o of x[n, o * stride - before + r * dilation, c] y[n, o, k]
 *
 * A float32 kernel beside data of 16 bits is rounded to these before it is multiplied, as a cast would do it.
 * What lies outside a tensor is 0. Of several groups, each has its own channels and outputs; how many there are follows
 * from the channels of x and of the kernel. Each of the three is linear in either factor, and the other two are its
 * gradients. A transposed convolution is ConvData.
 *
 * The sizes of a result that do not follow from the inputs' shapes alone are those of `sizes`, an input without
 * elements whose last axis is 0. `padding` says whether `before` is as given; half of what y reaches beyond x, as
 * TensorFlow's SAME says; or all that a window reaches, so that none sees what comes later (causal). */
#include "ops/convolution/conv.h"

#include "tfuse.h"

/* Size `axis` of a shape; from the end where it is negative. Unknown where the rank is. */
static int64_t size(const tfu_shape *s, int axis) {
  return s->rank == TFU_UNKNOWN ? TFU_UNKNOWN : s->dim[axis < 0 ? s->rank + axis : axis];
}

static tfu_code check_rank(const char *name, const tfu_shape *s, const char *axes, int rank, int more, tfu_error *err) {
  if (s->rank == TFU_UNKNOWN) return TFU_OK;
  TFU_REQUIRE(err, s->rank >= 3 + more && s->rank <= 5 + more && (rank == TFU_UNKNOWN || s->rank == rank + more),
              "%s must be %s with one to three spatial axes%s, got shape %s", name, axes,
              rank == TFU_UNKNOWN ? "" : ", as many as the others have", tfu_show(s).text);
  return TFU_OK;
}

/* Of the sizes of a tensor with `missing` axes fewer than x: rank, and a 0 at the end. */
static tfu_code check_sizes(const tfu_shape *sizes, const char *axes, int rank, int missing, tfu_error *err) {
  TFU_TRY(check_rank("sizes", sizes, axes, rank, 1 - missing, err));
  TFU_REQUIRE(err, tfu_may_be(size(sizes, -1), 0), "sizes must have a last axis of size 0, got shape %s",
              tfu_show(sizes).text);
  return TFU_OK;
}

static tfu_code check_groups(int64_t channels, const tfu_shape *kernel, tfu_error *err) {
  const int64_t own = size(kernel, -2), outputs = size(kernel, -1);
  if (channels == TFU_UNKNOWN || own == TFU_UNKNOWN || channels == own) return TFU_OK;
  TFU_REQUIRE(
      err, own > 0 && channels > 0 && channels % own == 0,
      "the channels of x must be those of kernel, or as many for each of several groups, got %lld and kernel %s",
      (long long)channels, tfu_show(kernel).text);
  TFU_REQUIRE(
      err, outputs == TFU_UNKNOWN || outputs % (channels / own) == 0,
      "the outputs of kernel %s must be a multiple of its groups, of which x with %lld channels has %lld, got %lld",
      tfu_show(kernel).text, (long long)channels, (long long)(channels / own), (long long)outputs);
  return TFU_OK;
}

static tfu_code check_numbers(const tfu_value *attr, int axes, tfu_error *err) {
  static const struct {
    int which;
    const char *name;
  } numbers[] = {{TFU_CONV_STRIDES, "strides"}, {TFU_CONV_DILATION, "dilation"}};
  for (int i = 0; attr && i < TFU_COUNT(numbers); i++)
    for (int axis = 0; axis < axes; axis++)
      TFU_REQUIRE(err, tfu_axis_number(attr[numbers[i].which].i, axis),
                  "%s must be at least 1 along every axis, got %lld in all", numbers[i].name,
                  (long long)attr[numbers[i].which].i);
  return TFU_OK;
}

static int known_rank(const tfu_shape *a, const tfu_shape *b) { return a->rank == TFU_UNKNOWN ? b->rank : a->rank; }

/* [first, the spatial sizes of `from` from axis `begin` on, last] */
static tfu_shape image(int rank, int64_t first, const tfu_shape *from, int begin, int64_t last) {
  tfu_shape s = {.rank = rank};
  if (rank == TFU_UNKNOWN) return s;
  s.dim[0] = first;
  for (int i = 1; i < rank - 1; i++) s.dim[i] = size(from, begin + i - 1);
  s.dim[rank - 1] = last;
  return s;
}

static const char x_axes[] = "[batch, spatial axes, channels]", y_axes[] = "[batch, spatial axes, outputs]",
                  kernel_axes[] = "[spatial axes, channels of a group, outputs]";

TFU_SHAPE_RULE(forward_shape) {
  const tfu_shape *x = &in[TFU_CONV_X], *kernel = &in[TFU_CONV_KERNEL], *bias = &in[TFU_CONV_BIAS];
  const tfu_shape *residual = &in[TFU_CONV_RESIDUAL], *sizes = &in[TFU_CONV_SIZES];
  const int64_t outputs = size(kernel, -1);
  TFU_TRY(check_rank("x", x, x_axes, TFU_UNKNOWN, 0, err));
  const int rank = known_rank(x, kernel);
  TFU_TRY(check_rank("kernel", kernel, kernel_axes, rank, 0, err));
  TFU_TRY(check_sizes(sizes, "[spatial axes of the result, 0]", rank, 2, err));
  TFU_TRY(check_groups(size(x, -1), kernel, err));
  TFU_TRY(check_numbers(attr, rank - 2, err));
  if (bias->rank != TFU_UNKNOWN && tfu_given(bias))
    TFU_REQUIRE(err, bias->rank == 1 && tfu_may_be(bias->dim[0], outputs),
                "bias must be a vector with one value per output, the last axis of kernel %s, got shape %s",
                tfu_show(kernel).text, tfu_show(bias).text);
  out[0] = image(rank, size(x, 0), sizes, 0, outputs);
  return tfu_given(residual) ? tfu_match("residual", residual, "the convolution", &out[0], err) : TFU_OK;
}

tfu_code tfu_conv_shape(const tfu_shape *x, const tfu_shape *kernel, const tfu_shape *sizes, tfu_shape *y,
                        const tfu_value *attr, tfu_error *err) {
  const tfu_shape none = {.rank = 1};
  const tfu_shape in[] = {[TFU_CONV_X] = *x,
                          [TFU_CONV_KERNEL] = *kernel,
                          [TFU_CONV_BIAS] = none,
                          [TFU_CONV_RESIDUAL] = none,
                          [TFU_CONV_SIZES] = *sizes};
  return forward_shape(in, y, attr, err);
}

const tfu_op tfu_conv = {
    .name = "Conv",
    .doc =
        "relu(x convolved with kernel + bias + residual), or the same without relu; sizes has the result's spatial "
        "axes.",
    .in = {"x: T", "kernel: K", "bias: T", "residual: T", "sizes: bool"},
    .out = {"y: T"},
    .attr = {TFU_CONV_ATTRS, "relu: bool = false", TFU_T_FLOATS, TFU_K_KEPT},
    .shape = forward_shape,
    TFU_KERNELS(conv),
    .capturable = 1,
    .room = TFU_CONV_ROOM,
    .more_room = tfu_conv_more_room,
};

TFU_SHAPE_RULE(data_shape) {
  const tfu_shape *y = &in[TFU_CONV_DATA_Y], *kernel = &in[TFU_CONV_DATA_KERNEL], *sizes = &in[TFU_CONV_DATA_SIZES];
  TFU_TRY(check_rank("y", y, y_axes, TFU_UNKNOWN, 0, err));
  const int rank = known_rank(y, kernel);
  TFU_TRY(check_rank("kernel", kernel, kernel_axes, rank, 0, err));
  TFU_TRY(check_sizes(sizes, "[spatial axes of the result, channels, 0]", rank, 1, err));
  TFU_REQUIRE(err, tfu_may_be(size(y, -1), size(kernel, -1)),
              "the last axis of y and of kernel must be of one size, got shapes %s and %s", tfu_show(y).text,
              tfu_show(kernel).text);
  TFU_TRY(check_groups(size(sizes, -2), kernel, err));
  TFU_TRY(check_numbers(attr, rank - 2, err));
  out[0] = image(rank, size(y, 0), sizes, 0, size(sizes, -2));
  return TFU_OK;
}

const tfu_op tfu_conv_data = {
    .name = "ConvData",
    .doc =
        "Gradient of a convolution with respect to its input: y spread by kernel; sizes has the result's spatial axes "
        "and channels.",
    .in = {"y: T", "kernel: K", "sizes: bool"},
    .out = {"x: T"},
    .attr = {TFU_CONV_ATTRS, TFU_T_FLOATS, TFU_K_KEPT},
    .shape = data_shape,
    TFU_KERNELS(conv_data),
    .capturable = 1,
    .room = TFU_CONV_ROOM,
    .more_room = tfu_conv_data_more_room,
};

TFU_SHAPE_RULE(filter_shape) {
  const tfu_shape *x = &in[TFU_CONV_FILTER_X], *y = &in[TFU_CONV_FILTER_Y], *sizes = &in[TFU_CONV_FILTER_SIZES];
  TFU_TRY(check_rank("x", x, x_axes, TFU_UNKNOWN, 0, err));
  const int rank = known_rank(x, y);
  TFU_TRY(check_rank("y", y, y_axes, rank, 0, err));
  TFU_TRY(check_sizes(sizes, "[spatial axes, channels of a group, outputs, 0]", rank, 0, err));
  TFU_REQUIRE(err, tfu_may_be(size(x, 0), size(y, 0)), "y must have the batch of x %s, got shape %s", tfu_show(x).text,
              tfu_show(y).text);
  out[0] = *sizes;
  if (out[0].rank != TFU_UNKNOWN) out[0].rank--;
  TFU_REQUIRE(err, tfu_may_be(size(y, -1), size(&out[0], -1)),
              "sizes must have the outputs of y %s before its last axis, got shape %s", tfu_show(y).text,
              tfu_show(sizes).text);
  TFU_TRY(check_groups(size(x, -1), &out[0], err));
  return check_numbers(attr, rank - 2, err);
}

const tfu_op tfu_conv_filter = {
    .name = "ConvFilter",
    .doc =
        "Gradient of a convolution of x with respect to its kernel, for y, that of its result; sizes has the kernel's "
        "shape.",
    .in = {"x: T", "y: T", "sizes: bool"},
    .out = {"kernel: K"},
    .attr = {TFU_CONV_ATTRS, TFU_T_FLOATS, TFU_K_KEPT},
    .shape = filter_shape,
    TFU_KERNELS(conv_filter),
    .capturable = 1,
    .room = TFU_CONV_ROOM,
    .more_room = tfu_conv_filter_more_room,
};
