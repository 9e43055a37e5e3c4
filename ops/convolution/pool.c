/* The greatest, or the average, of the positions of x that a window sees, for each channel; and their gradients.
 *
 * x is [batch, depth, height, width, channels]; window.h says what padding means: positions outside of x are not seen,
 * and an average counts only those that are; where padding is "zeros" they are, as 0. size is [depth, height, width, 0]
 * of the result, since a size that comes of another one by a formula is known to no shape rule while a graph is built;
 * in gradients, it is that of x.
 *
 * NaN is greater than all others, and of equal values the first counts. Where it stands in its window, depth first, is
 * `positions`, a byte each (pool.h), wanted where `keep` is given; the gradient goes there, and nowhere where it is one
 * of the zeros around x. */
#include "ops/convolution/pool.h"

#include "tfuse.h"

static int known(const tfu_shape *s) { return s->rank != TFU_UNKNOWN; }

static int64_t words(int64_t channels) {
  return channels == TFU_UNKNOWN ? TFU_UNKNOWN : (channels + TFU_POOL_BYTES - 1) / TFU_POOL_BYTES;
}

static tfu_code check_images(const char *name, const tfu_shape *x, tfu_error *err) {
  TFU_REQUIRE(err, !known(x) || x->rank == 5, "%s must be [batch, depth, height, width, channels], got shape %s", name,
              tfu_show(x).text);
  return TFU_OK;
}

/* [batch, three sizes, channels] as far as they are known. */
static tfu_code sized_like(const tfu_shape *x, const tfu_shape *size, tfu_shape *out, tfu_error *err) {
  TFU_REQUIRE(err, !known(size) || (size->rank == 4 && tfu_may_be(size->dim[3], 0)),
              "size must be [depth, height, width, 0] of the result, got shape %s", tfu_show(size).text);
  *out = (tfu_shape){.rank = 5, .dim = {known(x) ? x->dim[0] : TFU_UNKNOWN}};
  for (int i = 0; i < TFU_POOL_AXES; i++) out->dim[1 + i] = known(size) ? size->dim[i] : TFU_UNKNOWN;
  out->dim[4] = known(x) ? x->dim[4] : TFU_UNKNOWN;
  return TFU_OK;
}

/* Whether one shape is made from the other, as attributes say. */
static tfu_code check_sizes(const char *name, const char *by, const tfu_shape *large, const tfu_shape *small,
                            const tfu_value *attr, tfu_error *err) {
  tfu_pool p;
  TFU_TRY(tfu_pool_read(large, attr, &p, err));
  for (int i = 0; i < TFU_POOL_AXES; i++)
    TFU_REQUIRE(err, small->dim[1 + i] == p.axis[i].out, "%s must say [%lld, %lld, %lld], which come of %s %s, got %s",
                name, (long long)p.axis[0].out, (long long)p.axis[1].out, (long long)p.axis[2].out, by,
                tfu_show(large).text, tfu_show(small).text);
  return TFU_OK;
}

TFU_SHAPE_RULE(average_shape) {
  TFU_TRY(check_images("x", &in[TFU_POOL_X], err));
  TFU_TRY(sized_like(&in[TFU_POOL_X], &in[TFU_POOL_SIZE], &out[TFU_POOL_Y], err));
  return attr ? check_sizes("size", "x", &in[TFU_POOL_X], &out[TFU_POOL_Y], attr, err) : TFU_OK;
}

/* Of the windows that y is made by; where it is empty, there is nothing to keep. */
static tfu_code check_window(const tfu_shape *y, const tfu_value *attr, tfu_error *err) {
  if (tfu_count(y) == 0) return TFU_OK;
  const int64_t d = attr[TFU_POOL_WINDOW].i, h = attr[TFU_POOL_WINDOW + 1].i, w = attr[TFU_POOL_WINDOW + 2].i;
  TFU_REQUIRE(err, d <= TFU_POOL_MOST && h <= TFU_POOL_MOST && w <= TFU_POOL_MOST && d * h * w <= TFU_POOL_MOST,
              "windows of at most %d elements can be kept for a gradient, got %lld * %lld * %lld", (int)TFU_POOL_MOST,
              (long long)d, (long long)h, (long long)w);
  return TFU_OK;
}

TFU_SHAPE_RULE(max_shape) {
  TFU_TRY(average_shape(in, out, attr, err));
  if (attr && tfu_given(&in[TFU_POOL_KEEP])) TFU_TRY(check_window(&out[TFU_POOL_Y], attr, err));
  tfu_shape positions = out[TFU_POOL_Y];
  positions.dim[4] = words(positions.dim[4]);
  out[TFU_POOL_POSITIONS] = tfu_like_if(&positions, &in[TFU_POOL_KEEP]);
  return TFU_OK;
}

TFU_SHAPE_RULE(average_grad_shape) {
  TFU_TRY(check_images("dy", &in[TFU_AVERAGEGRAD_DY], err));
  TFU_TRY(sized_like(&in[TFU_AVERAGEGRAD_DY], &in[TFU_AVERAGEGRAD_SIZE], &out[0], err));
  return attr ? check_sizes("dy", "the size of x,", &out[0], &in[TFU_AVERAGEGRAD_DY], attr, err) : TFU_OK;
}

TFU_SHAPE_RULE(max_grad_shape) {
  const tfu_shape *dy = &in[TFU_MAXGRAD_DY];
  const tfu_shape average[] = {*dy, in[TFU_MAXGRAD_SIZE]};
  TFU_TRY(average_grad_shape(average, out, attr, err));
  if (attr) TFU_TRY(check_window(dy, attr, err));
  if (!known(dy)) return TFU_OK;
  tfu_shape positions = *dy;
  positions.dim[4] = words(dy->dim[4]);
  return tfu_match("positions", &in[TFU_MAXGRAD_POSITIONS], "a byte for each element of dy", &positions, err);
}

const tfu_op tfu_max_pool = {
    .name = "MaxPool",
    .doc =
        "The greatest value in each window; where keep is given, also its position in the window, 8 channels' in a "
        "number.",
    .in = {"x: T", "size: bool", "keep: bool"},
    .out = {"y: T", "positions: int64"},
    .attr = {TFU_POOL_ATTRS, TFU_T_FLOATS},
    .shape = max_shape,
    TFU_KERNELS(max_pool),
    .capturable = 1,
};

const tfu_op tfu_max_pool_grad = {
    .name = "MaxPoolGrad",
    .doc = "Gradient of MaxPool: dy goes where positions says; size is that of x.",
    .in = {"dy: T", "positions: int64", "size: bool"},
    .out = {"dx: T"},
    .attr = {TFU_POOL_ATTRS, TFU_T_FLOATS},
    .shape = max_grad_shape,
    TFU_KERNELS(max_pool_grad),
    .capturable = 1,
};

const tfu_op tfu_average_pool = {
    .name = "AveragePool",
    .doc = "The average of the values in each window that are inside of x, or of all with zeros around it.",
    .in = {"x: T", "size: bool"},
    .out = {"y: T"},
    .attr = {TFU_POOL_ATTRS, TFU_T_FLOATS},
    .shape = average_shape,
    TFU_KERNELS(average_pool),
    .capturable = 1,
};

const tfu_op tfu_average_pool_grad = {
    .name = "AveragePoolGrad",
    .doc = "Gradient of AveragePool: each position of a window gets its share of dy; size is that of x.",
    .in = {"dy: T", "size: bool"},
    .out = {"dx: T"},
    .attr = {TFU_POOL_ATTRS, TFU_T_FLOATS},
    .shape = average_grad_shape,
    TFU_KERNELS(average_pool_grad),
    .capturable = 1,
};
