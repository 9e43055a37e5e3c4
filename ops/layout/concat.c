/* y = all of x, one tensor after the other along an axis, as tf.concat has it; and back: a tensor in parts along an
 * axis, which is the gradient of the first, as the first is of it. Where axis is negative, it counts from the end. */
#include "tfuse.h"

/* The axis of a tensor, counted from 0. */
static tfu_code axis_of(const char *name, const tfu_shape *x, const tfu_value *attr, int *axis, tfu_error *err) {
  const int64_t given = attr[0].i;
  TFU_REQUIRE(err, x->rank > 0, "%s must have an axis, got a single number: tf.stack makes a vector of such", name);
  TFU_REQUIRE(err, given >= -x->rank && given < x->rank, "axis must be from %d to %d for %s %s, got %lld", -x->rank,
              x->rank - 1, name, tfu_show(x).text, (long long)given);
  *axis = (int)(given < 0 ? given + x->rank : given);
  return TFU_OK;
}

static tfu_code concat_rule(tfu_lists *l, const tfu_value *attr, tfu_error *err) {
  const tfu_tensor *x = l->in[0].at;
  int axis = 0;
  TFU_TRY(axis_of("values[0]", &x[0].shape, attr, &axis, err));
  tfu_shape *y = &l->shapes[0];
  *y = x[0].shape;
  for (int i = 1; i < l->in[0].n; i++) {
    const tfu_shape *own = &x[i].shape;
    TFU_REQUIRE(err, own->rank == y->rank, "values[%d] must have as many axes as values[0] %s, got shape %s", i,
                tfu_show(&x[0].shape).text, tfu_show(own).text);
    for (int a = 0; a < y->rank; a++)
      TFU_REQUIRE(err, a == axis || own->dim[a] == y->dim[a],
                  "values[%d] must have the sizes of values[0] %s but along axis %d, got shape %s", i,
                  tfu_show(&x[0].shape).text, axis, tfu_show(own).text);
    y->dim[axis] += own->dim[axis];
  }
  return TFU_OK;
}

const tfu_op tfu_concat = {
    .name = "Concat",
    .doc = "Tensors one after the other along an axis.",
    .in = {"x: N * T"},
    .out = {"y: T"},
    .attr = {"axis: int", "N: int >= 1", "T: {float, half, bfloat16, double, int32, int64, bool}"},
    .lists = concat_rule,
    TFU_KERNELS(concat),
    .capturable = 1,
};

static tfu_code split_rule(tfu_lists *l, const tfu_value *attr, tfu_error *err) {
  const tfu_shape *x = &l->in[0].at->shape;
  const tfu_list *sizes = &l->in[1];
  int64_t all = 0;
  int axis = 0;
  TFU_TRY(axis_of("x", x, attr, &axis, err));
  for (int i = 0; i < sizes->n; i++) {
    const tfu_shape *own = &sizes->at[i].shape;
    TFU_REQUIRE(err, own->rank == 2 && own->dim[1] == 0, "sizes[%d] must have the shape [size, 0], got %s", i,
                tfu_show(own).text);
    l->shapes[i] = *x;
    l->shapes[i].dim[axis] = own->dim[0];
    all += own->dim[0];
  }
  TFU_REQUIRE(err, all == x->dim[axis], "sizes must be those of all of x %s along axis %d, got %lld together",
              tfu_show(x).text, axis, (long long)all);
  return TFU_OK;
}

const tfu_op tfu_concat_split = {
    .name = "ConcatSplit",
    .doc = "A tensor in parts along an axis, of the first axes' sizes of sizes, which are [size, 0].",
    .in = {"x: T", "sizes: N * bool"},
    .out = {"y: N * T"},
    .attr = {"axis: int", "N: int >= 1", "T: {float, half, bfloat16, double, int32, int64, bool}"},
    .lists = split_rule,
    TFU_KERNELS(concat_split),
    .capturable = 1,
};
