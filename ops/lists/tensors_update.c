/* One step of an optimizer over lists of tensors, in the order in which Keras computes it:
 *
 *   g = gradient / scale, clipped;  w = weight - weight * decay * rate;  then the rule, with t = step + 1:
 *   sgd       w -= g * rate
 *   momentum  m = m * momentum - g * rate;  w += m
 *   nesterov  the same m;  w += m * momentum - g * rate
 *   adam      m += (g - m) * (1 - b1);  v += (g * g - v) * (1 - b2);
 *             w -= m * rate * sqrt(1 - b2^t) / (1 - b1^t) / (sqrt(v) + epsilon)
 *   amsgrad   the same with h = max(h, v) in v's place
 *   lion      w -= rate * sign(m * b1 + g * (1 - b1));  m = m * b2 + g * (1 - b2)
 *   lamb      m and v as adam;  u = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + epsilon);
 *             w -= |w| / |u| * rate * u, the ratio 1 where either norm is 0
 *
 * hyper holds decay, clip, b1 (momentum), b2, 1 - b1, 1 - b2, epsilon, and 1 where clip bounds the values. Otherwise
 * clip bounds the norm: norm is what TensorsNorm gives, the one of all tensors or one for each, empty for no clipping.
 * scale is empty for 1. slots are those of one kind for all weights, then those of the next.
 *
 * Where `squares` is set, a gradient is twice as long as its weight along the first axis. Its first half is g, a sum of
 * what came for each row; its second half is the sum of the squares of that, and stands for g * g in the rules. Both
 * are divided by the scale and clipped already, as neither can be from here on.
 *
 * What is new may lie where the gradients do, if it is weights, or where the old weights and slots do: a kernel reads
 * all that belongs to an element before it writes any of it, and lamb, which walks twice, writes no weight in the first
 * walk and computes nothing from gradients or old slots in the second. */
#include "ops/lists/rules.h"
#include "tfuse.h"

static const int slots_of[TFU_RULE_COUNT] = {
#define X(name, slots) [TFU_RULE_##name] = slots,
    TFU_RULES(X)
#undef X
};

/* `times`: how often as long as the weights along the first axis. */
static tfu_code same_shapes(const char *name, const tfu_list *list, const tfu_list *weights, int times,
                            tfu_error *err) {
  for (int i = 0; i < list->n; i++) {
    const tfu_shape *a = &list->at[i].shape, *w = &weights->at[i % weights->n].shape;
    int same = a->rank == w->rank && (times == 1 || w->rank > 0);
    for (int d = 0; same && d < a->rank; d++) same = a->dim[d] == w->dim[d] * (d ? 1 : times);
    TFU_REQUIRE(err, same, "%s %d must have the shape of its weight, %s%s, got %s", name, i, tfu_show(w).text,
                times > 1 ? ", twice as long along the first axis" : "", tfu_show(a).text);
  }
  return TFU_OK;
}

static tfu_code sized(const char *name, const tfu_shape *s, int n, tfu_error *err) {
  TFU_REQUIRE(err, tfu_count(s) == n, "%s must have %d values, got shape %s", name, n, tfu_show(s).text);
  return TFU_OK;
}

/* What is not given is an empty vector; an empty matrix would be read as a number. */
static tfu_code optional(const char *name, const tfu_shape *s, int most, tfu_error *err) {
  const int vector = s->rank == 1 && (s->dim[0] == 0 || s->dim[0] == most);
  TFU_REQUIRE(err, s->rank == 0 || vector, "%s must be a single number or a vector of 0 or %d values, got shape %s",
              name, most, tfu_show(s).text);
  return TFU_OK;
}

static tfu_code rule(tfu_lists *l, const tfu_value *attr, tfu_error *err) {
  const tfu_list *in = l->in, *weights = &in[TFU_UPDATE_WEIGHTS], *slots = &in[TFU_UPDATE_SLOTS];
  const int wanted = slots_of[attr[TFU_UPDATE_RULE].i] * weights->n, squares = attr[TFU_UPDATE_SQUARES].b;
  const tfu_dtype real = tfu_real(weights->at->dtype);
  TFU_REQUIRE(err, in[TFU_UPDATE_RATE].at->dtype == real,
              "rate, hyper, norm and scale must be %s where weights are %s, got %s", tfu_dtype_name(real),
              tfu_dtype_name(weights->at->dtype), tfu_dtype_name(in[TFU_UPDATE_RATE].at->dtype));
  TFU_REQUIRE(err, slots->n == wanted, "the rule wants %d slots for %d weights, got %d", wanted, weights->n, slots->n);
  TFU_TRY(same_shapes("gradient", &in[TFU_UPDATE_GRADIENTS], weights, squares ? 2 : 1, err));
  TFU_TRY(same_shapes("slot", slots, weights, 1, err));
  TFU_TRY(sized("rate", &in[TFU_UPDATE_RATE].at->shape, 1, err));
  TFU_TRY(sized("step", &in[TFU_UPDATE_STEP].at->shape, 1, err));
  TFU_TRY(sized("hyper", &in[TFU_UPDATE_HYPER].at->shape, TFU_HYPERS, err));
  TFU_TRY(optional("norm", &in[TFU_UPDATE_NORM].at->shape, weights->n, err));
  TFU_TRY(optional("scale", &in[TFU_UPDATE_SCALE].at->shape, 1, err));
  TFU_REQUIRE(err,
              !squares || !(tfu_given(&in[TFU_UPDATE_NORM].at->shape) || tfu_given(&in[TFU_UPDATE_SCALE].at->shape)),
              "norm and scale must be empty where gradients come with the sums of squares");
  TFU_REQUIRE(err, !squares || in[TFU_UPDATE_GRADIENTS].at->dtype == weights->at->dtype,
              "gradients that come with the sums of squares must be of the weights' type, %s, got %s",
              tfu_dtype_name(weights->at->dtype), tfu_dtype_name(in[TFU_UPDATE_GRADIENTS].at->dtype));
  for (int i = 0; i < weights->n + slots->n; i++) l->shapes[i] = weights->at[i % weights->n].shape;
  return TFU_OK;
}

const tfu_op tfu_tensors_update = {
    .name = "TensorsUpdate",
    .doc = "One step of an optimizer over lists of tensors: new weights and new slots.",
    .in = {"gradients: N * G", "weights: N * T", "slots: M * T", "rate: S", "step: int64", "hyper: S", "norm: S",
           "scale: S"},
    .out = {"new_weights: N * T", "new_slots: M * T"},
    .attr = {TFU_RULE_ATTR, "squares: bool = false", "N: int >= 1", "M: int >= 0", TFU_T_FLOATS,
             "G: {float, half, bfloat16, double}", TFU_S_REALS},
    .lists = rule,
    TFU_KERNELS(tensors_update),
    .in_place = 1, /* new weights where the gradients were, which nobody reads after a step */
};
