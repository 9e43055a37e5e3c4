/* Images, lines or volumes of another size, and the gradient: linear maps along depth, height and width, one after the
 * other. x is [batch, depth, height, width, channels]; size is [depth, height, width, 0] of the result and, in the
 * gradient, of x. kernels/convolution/resize.h has the formulas. */
#include "ops/convolution/resize.h"

#include "tfuse.h"

static const char *const axes[TFU_RESIZE_AXES] = {"depth", "height", "width"};

/* [batch, three sizes, channels] of `to`, as far as they are known; `from` has the name `name`. */
static tfu_code resized(const char *name, const tfu_shape *from, const tfu_shape *size, tfu_shape *to, tfu_error *err) {
  const int known = from->rank != TFU_UNKNOWN, sized = size->rank != TFU_UNKNOWN;
  TFU_REQUIRE(err, !known || from->rank == 5, "%s must be [batch, depth, height, width, channels], got shape %s", name,
              tfu_show(from).text);
  TFU_REQUIRE(err, !sized || (size->rank == 4 && tfu_may_be(size->dim[3], 0)),
              "size must be [depth, height, width, 0] of the result, got shape %s", tfu_show(size).text);
  *to = (tfu_shape){.rank = 5, .dim = {known ? from->dim[0] : TFU_UNKNOWN}};
  for (int i = 0; i < TFU_RESIZE_AXES; i++) to->dim[1 + i] = sized ? size->dim[i] : TFU_UNKNOWN;
  to->dim[4] = known ? from->dim[4] : TFU_UNKNOWN;
  for (int i = 1; i <= TFU_RESIZE_AXES; i++)
    TFU_REQUIRE(err, to->dim[i] <= TFU_RESIZE_MOST && (!known || from->dim[i] <= TFU_RESIZE_MOST),
                "the %s must be at most 2^24 on both sides, got %lld and %lld", axes[i - 1],
                known ? (long long)from->dim[i] : -1, (long long)to->dim[i]);
  return TFU_OK;
}

static tfu_code check_convention(const tfu_value *attr, tfu_error *err) {
  const int64_t interpolation = attr[TFU_RESIZE_INTERPOLATION].i;
  TFU_REQUIRE(err,
              attr[TFU_RESIZE_CONVENTION].i == TFU_HALF_PIXEL ||
                  (interpolation < TFU_LANCZOS3 && !attr[TFU_RESIZE_ANTIALIAS].b),
              "convention must be half_pixel with antialias and with interpolation lanczos3 and lanczos5");
  return TFU_OK;
}

/* Of nothing there is no value: x must have positions where the result has. */
static tfu_code check_sizes(const tfu_shape *x, const tfu_shape *y, tfu_error *err) {
  for (int i = 1; i <= TFU_RESIZE_AXES; i++)
    TFU_REQUIRE(err, x->dim[i] != 0 || y->dim[i] == 0 || y->dim[i] == TFU_UNKNOWN,
                "x must not be empty along the %s, got shape %s for a size of %lld", axes[i - 1], tfu_show(x).text,
                (long long)y->dim[i]);
  return TFU_OK;
}

TFU_SHAPE_RULE(resize_shape) {
  TFU_TRY(resized("x", &in[TFU_RESIZE_X], &in[TFU_RESIZE_SIZE], &out[0], err));
  if (attr) TFU_TRY(check_convention(attr, err));
  return attr && in->rank != TFU_UNKNOWN ? check_sizes(&in[TFU_RESIZE_X], &out[0], err) : TFU_OK;
}

TFU_SHAPE_RULE(resize_grad_shape) {
  TFU_TRY(resized("dy", &in[TFU_RESIZE_X], &in[TFU_RESIZE_SIZE], &out[0], err));
  if (attr) TFU_TRY(check_convention(attr, err));
  return attr && in->rank != TFU_UNKNOWN ? check_sizes(&out[0], &in[TFU_RESIZE_X], err) : TFU_OK;
}

const tfu_op tfu_resize = {
    .name = "Resize",
    .doc = "x resized along depth, height and width, by the given interpolation.",
    .in = {"x: T", "size: bool"},
    .out = {"y: T"},
    .attr = {TFU_RESIZE_ATTRS, TFU_T_FLOATS},
    .shape = resize_shape,
    TFU_KERNELS(resize),
    .capturable = 1,
    .more_room = tfu_resize_more_room,
};

const tfu_op tfu_resize_grad = {
    .name = "ResizeGrad",
    .doc = "Gradient of Resize: the transposed map; size is that of x.",
    .in = {"dy: T", "size: bool"},
    .out = {"dx: T"},
    .attr = {TFU_RESIZE_ATTRS, TFU_T_FLOATS},
    .shape = resize_grad_shape,
    TFU_KERNELS(resize_grad),
    .capturable = 1,
    .more_room = tfu_resize_grad_more_room,
};
