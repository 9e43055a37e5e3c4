/* core_test.c - the C core without TensorFlow: shape rules, attributes, calls and traces, images. */
#include <dlfcn.h>

#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/driver.h"
#include "tests/check.h"

static const tfu_op *const ops[] = {
#define X(stem) &tfu_##stem,
#include "ops.def"
#undef X
};

/* ---- shapes ---- */

/* Accepted: the outputs' shapes. Rejected: the message. */
static const struct rule {
  const tfu_op *op;
  tfu_shape in[4];
  tfu_shape out[3];
  const char *message;
} rules[] = {
    {&tfu_square, {SHAPE(2, 3)}, {SHAPE(2, 3)}, NULL},
    {&tfu_square, {SCALAR}, {SCALAR}, NULL},
    {&tfu_square, {SHAPE(_, 0)}, {SHAPE(_, 0)}, NULL},
    {&tfu_square, {ANY}, {ANY}, NULL},
    {&tfu_square_grad, {SHAPE(2, _), SHAPE(_, 3)}, {SHAPE(_, 3)}, NULL},
    {&tfu_square_grad, {ANY, SHAPE(2)}, {SHAPE(2)}, NULL},
    {&tfu_square_grad, {SHAPE(2), ANY}, {ANY}, NULL},
    {&tfu_square_grad, {SHAPE(2), SHAPE(3)}, {}, "dy must have the shape of x, [3], got [2]"},
    {&tfu_square_grad, {SCALAR, SHAPE(_)}, {}, "dy must have the shape of x, [?], got []"},

    {&tfu_add_constant, {SHAPE(2, _), SCALAR}, {SHAPE(2, _)}, NULL},
    {&tfu_add_constant, {SCALAR, SCALAR}, {SCALAR}, NULL},
    {&tfu_add_constant, {ANY, ANY}, {ANY}, NULL},
    {&tfu_add_constant, {SHAPE(2), SHAPE(1)}, {}, "constant must be a single number (shape []), got shape [1]"},
    {&tfu_add_constant, {ANY, SHAPE(_, 2)}, {}, "constant must be a single number (shape []), got shape [?, 2]"},

    {&tfu_scale_bias_act, {SHAPE(2, 3), SHAPE(3), SHAPE(3)}, {SHAPE(2, 3)}, NULL},
    {&tfu_scale_bias_act, {SHAPE(2, 3), SHAPE(0), SHAPE(0)}, {SHAPE(2, 3)}, NULL},
    {&tfu_scale_bias_act, {SHAPE(2, 3), SCALAR, SHAPE(_)}, {SHAPE(2, 3)}, NULL},
    {&tfu_scale_bias_act, {SHAPE(_, _), SHAPE(3), SHAPE(4)}, {SHAPE(_, _)}, NULL}, /* found out at run time */
    {&tfu_scale_bias_act, {SCALAR, SCALAR, SHAPE(0)}, {SCALAR}, NULL},
    {&tfu_scale_bias_act, {ANY, SHAPE(3), ANY}, {ANY}, NULL},
    {&tfu_scale_bias_act, {SHAPE(5, 0), SHAPE(0), SHAPE(0)}, {SHAPE(5, 0)}, NULL},
    {&tfu_scale_bias_act,
     {SHAPE(_, 3), SHAPE(4), SHAPE(0)},
     {},
     "scale must have 3 values, one per channel (last axis) of x [?, 3], got 4"},
    {&tfu_scale_bias_act,
     {SHAPE(2, 3), SHAPE(0), SHAPE(1)},
     {},
     "bias must have 3 values, one per channel (last axis) of x [2, 3], got 1"},
    {&tfu_scale_bias_act,
     {SHAPE(2, 3), SHAPE(2, 3), SHAPE(0)},
     {},
     "scale must be a vector with one value per channel of x, got shape [2, 3]"},
    {&tfu_scale_bias_act,
     {ANY, ANY, SCALAR},
     {},
     "bias must be a vector with one value per channel of x, got shape []"},
    {&tfu_scale_bias_act,
     {SCALAR, SHAPE(1), SHAPE(0)},
     {},
     "x must have at least one dimension to have a value of scale for each channel, got a single number"},
    {&tfu_scale_bias_act_grad, {SHAPE(2, 3), SHAPE(2, 3), SHAPE(3), SHAPE(0)}, {SHAPE(2, 3), SHAPE(3), SHAPE(0)}, NULL},
    {&tfu_scale_bias_act_grad, {ANY, SHAPE(_, 3), SCALAR, SHAPE(_)}, {SHAPE(_, 3), SCALAR, SHAPE(_)}, NULL},
    {&tfu_scale_bias_act_grad, {ANY, ANY, ANY, ANY}, {ANY, ANY, ANY}, NULL},
    {&tfu_scale_bias_act_grad,
     {SHAPE(2, 4), SHAPE(2, 3), SHAPE(3), SHAPE(0)},
     {},
     "dy must have the shape of x, [2, 3], got [2, 4]"},

    {&tfu_sort, {SHAPE(_, 3)}, {SHAPE(_, 3)}, NULL},
    {&tfu_argsort, {SCALAR}, {}, "values must have at least one dimension, got a single number"},
    {&tfu_top_k, {SHAPE(2, _), SHAPE(4, 0)}, {SHAPE(2, 4), SHAPE(2, 4)}, NULL},
    {&tfu_top_k, {ANY, SHAPE(4, 0)}, {ANY, ANY}, NULL},
    {&tfu_top_k, {SHAPE(2, 3), ANY}, {SHAPE(2, _), SHAPE(2, _)}, NULL},
    {&tfu_top_k,
     {SHAPE(2, 3), SHAPE(4, 0)},
     {},
     "k must be at most 3, the size of the last axis of input [2, 3], got 4"},
    {&tfu_top_k, {SHAPE(2, 3), SHAPE(4)}, {}, "k must be [k, 0], got [4]"},
    {&tfu_unsort, {SHAPE(2, 3), SHAPE(2, 3), SHAPE(2, 5)}, {SHAPE(2, 5)}, NULL},
    {&tfu_unsort, {SHAPE(2, 3), SHAPE(2, 4), SHAPE(2, 5)}, {}, "dy must have the shape of indices, [2, 4], got [2, 3]"},
    {&tfu_unsort,
     {SHAPE(2, 3), SHAPE(2, 3), SHAPE(4, 5)},
     {},
     "the rows of indices must have the shape of the rows of values, [4], got [2]"},
    {&tfu_unique, {SHAPE(7)}, {SHAPE(7), SHAPE(7), SHAPE(7)}, NULL},
    {&tfu_unique, {SHAPE(2, 3)}, {}, "x must be a vector, got shape [2, 3]"},
    {&tfu_bincount, {SHAPE(_, 3), SHAPE(9, 0)}, {SHAPE(_, 9)}, NULL},
    {&tfu_bincount, {SHAPE(3), SHAPE(9)}, {}, "bins must be [size, 0], got [9]"},
    {&tfu_weighted_bincount, {SHAPE(3), SHAPE(3), SHAPE(_, 0)}, {SHAPE(_)}, NULL},
    {&tfu_weighted_bincount, {SHAPE(3), SHAPE(4), SHAPE(9, 0)}, {}, "weights must have the shape of ids, [4], got [3]"},
    {&tfu_weighted_bincount_grad, {SHAPE(2, 9), SHAPE(2, _)}, {SHAPE(2, _)}, NULL},
    {&tfu_weighted_bincount_grad,
     {SHAPE(2, 9), SHAPE(3, 4)},
     {},
     "all but the last axis of dsums must have the shape of ids there, [3], got [2]"},
    {&tfu_histogram, {SHAPE(2, 3), SHAPE(2), SHAPE(9, 0)}, {SHAPE(9)}, NULL},
    {&tfu_histogram, {SHAPE(2, 3), SHAPE(3), SHAPE(9, 0)}, {}, "range must be two values, got shape [3]"},
    {&tfu_histogram, {SHAPE(2, 3), SHAPE(2), SHAPE(0, 0)}, {}, "bins must be at least one, got none"},
    {&tfu_scale_bias_act_grad,
     {SHAPE(2, 3), SHAPE(2, 3), SHAPE(3), SHAPE(2)},
     {},
     "bias must have 3 values, one per channel (last axis) of x [2, 3], got 2"},
};

static void test_shape_rules(void) {
  for (int i = 0; i < TFU_COUNT(rules); i++) {
    const struct rule *r = &rules[i];
    tfu_shape out[TFU_MAX_ARGS];
    tfu_error err = {""};
    const tfu_code code = r->op->shape(r->in, out, NULL, &err);
    CHECK_FOR(code == (r->message ? TFU_INVALID : TFU_OK), "%s, rule %d", r->op->name, i);
    if (r->message) CHECK_TEXT(err.text, r->message);
    for (int k = 0; !r->message && r->op->out[k]; k++)
      CHECK_FOR(same_shape(&out[k], &r->out[k]), "%s, rule %d, output %d", r->op->name, i, k);
  }
}

static void test_given_per_channel(void) {
  const tfu_shape none = SHAPE(0), three = SHAPE(3), x = SHAPE(2, 3), empty = SHAPE(5, 0), partly = SHAPE(2, _),
                  any = ANY;
  tfu_error err = {""};
  CHECK(tfu_given_per_channel(&x, "scale", &three, &err) == TFU_OK);
  CHECK(tfu_given_per_channel(&empty, "scale", &none, &err) == TFU_OK);
  CHECK(tfu_given_per_channel(&partly, "scale", &none, &err) == TFU_OK); /* there may be no channels */
  CHECK(tfu_given_per_channel(&any, "scale", &none, &err) == TFU_OK);
  CHECK(tfu_given_per_channel(&x, "scale", &none, &err) == TFU_INVALID);
  CHECK_TEXT(err.text, "scale must be given, one value per channel (last axis) of x [2, 3], got none");
}

/* What holds for every row, those to come included. */
static void test_rows(void) {
  for (int i = 0; i < TFU_COUNT(ops); i++) {
    const tfu_op *op = ops[i];
    tfu_shape in[TFU_MAX_ARGS], out[TFU_MAX_ARGS];
    tfu_error err;
    for (int k = 0; k < TFU_MAX_ARGS; k++) in[k] = (tfu_shape)ANY;
    CHECK_FOR(!op->shape != !op->lists, "%s", op->name); /* one rule, of either kind */
    if (op->shape) CHECK_FOR(op->shape(in, out, NULL, &err) == TFU_OK, "%s", op->name);
    CHECK_FOR(op->cpu && op->gpu && op->doc && (op->in[0] || op->stateful) && op->out[0], "%s", op->name);
    CHECK_FOR(tfu_args(op->in) <= TFU_MAX_ARGS && tfu_args(op->out) <= TFU_MAX_ARGS, "%s", op->name);
    for (int k = 0; op->attr[k]; k++) {
      tfu_attr a;
      char word[64] = "";
      CHECK_FOR(tfu_attr_parse(op->attr[k], &a), "%s", op->attr[k]);
      if (a.kind != TFU_ATTR_ENUM) continue;
      CHECK_FOR(sscanf(strchr(a.choices, '='), "= '%63[^']'", word) == 1, "%s", op->attr[k]);
      CHECK_FOR(tfu_attr_enum(&a, word, strlen(word)) >= 0, "%s", word); /* the default is one of the choices */
    }
  }
}

static void test_show(void) {
  tfu_shape widest = {.rank = TFU_MAX_RANK};
  for (int i = 0; i < TFU_MAX_RANK; i++) widest.dim[i] = INT64_MAX;
  const tfu_shape_text text = tfu_show(&widest);
  CHECK(strlen(text.text) == 8 * 19 + 7 * 2 + 2 && text.text[strlen(text.text) - 1] == ']');
  CHECK_TEXT(tfu_show(&(tfu_shape)SHAPE(2, _, 3)).text, "[2, ?, 3]");
  CHECK_TEXT(tfu_show(&(tfu_shape)SHAPE(0)).text, "[0]");
  CHECK_TEXT(tfu_show(&(tfu_shape)SCALAR).text, "[]");
  CHECK_TEXT(tfu_show(&(tfu_shape)ANY).text, "unknown rank");
}

static void test_counts(void) {
  const tfu_shape scalar = SCALAR, cube = SHAPE(2, 3, 5), empty = SHAPE(4, 0), none = SHAPE(0, 4);
  CHECK(tfu_count(&scalar) == 1 && tfu_rows(&scalar) == 1 && tfu_cols(&scalar) == 1);
  CHECK(tfu_count(&cube) == 30 && tfu_rows(&cube) == 6 && tfu_cols(&cube) == 5);
  CHECK(tfu_count(&empty) == 0 && tfu_rows(&empty) == 4 && tfu_cols(&empty) == 0);
  CHECK(tfu_count(&none) == 0 && tfu_rows(&none) == 0 && tfu_cols(&none) == 4);
  static const struct {
    const char *name, *tag;
    size_t size;
  } dtypes[TFU_FLOATS] = {{"float32", "f32", 4}, {"float16", "f16", 2}, {"bfloat16", "bf16", 2}, {"float64", "f64", 8}};
  for (int i = 0; i < TFU_FLOATS; i++) {
    CHECK_TEXT(tfu_dtype_name(i), dtypes[i].name);
    CHECK_TEXT(tfu_dtype_tag(i), dtypes[i].tag);
    CHECK(tfu_dtype_size(i) == dtypes[i].size);
  }
  for (int i = 0; i < TFU_DTYPES; i++) { /* kernels are named by tags */
    CHECK_FOR(tfu_dtype_name(i) && tfu_dtype_tag(i) && tfu_dtype_size(i) >= 1 && tfu_dtype_size(i) <= 16, "%d", i);
    for (int other = 0; other < i; other++)
      CHECK_FOR(strcmp(tfu_dtype_name(i), tfu_dtype_name(other)) && strcmp(tfu_dtype_tag(i), tfu_dtype_tag(other)),
                "%d and %d", i, other);
  }
}

static void test_errors(void) {
  tfu_error err;
  CHECK(tfu_fail(&err, TFU_INTERNAL, "%d of %s", 2, "x") == TFU_INTERNAL);
  CHECK_TEXT(err.text, "2 of x");
  CHECK_TEXT(tfu_show_error(&tfu_square, &err).text, "Square: 2 of x");
  CHECK(tfu_fail(&err, TFU_INVALID, "%5000d", 1) == TFU_INVALID && strlen(err.text) == sizeof err.text - 1);
  CHECK(strlen(tfu_show_error(&tfu_square, &err).text) == strlen("Square: ") + strlen(err.text));
}

/* A tensor as a framework shows it, whose numbers of dtypes are these. */
static void test_view(void) {
  static const int numbers[] = {[TFU_F32] = 7, [TFU_F16] = 3, [TFU_BF16] = 9};
  const int64_t dims[TFU_MAX_RANK + 1] = {4, 5, 6};
  tfu_tensor t;
  tfu_error err;
  CHECK(tfu_view("x: T", &err, 3, dims, 9, numbers, TFU_COUNT(numbers), &t, &err) == TFU_OK);
  CHECK(t.data == &err && t.dtype == TFU_BF16 && same_shape(&t.shape, &(tfu_shape)SHAPE(4, 5, 6)));
  CHECK(tfu_view("x: T", &err, 3, dims, 0, numbers, TFU_COUNT(numbers), &t, &err) == TFU_UNIMPLEMENTED);
  CHECK_TEXT(err.text, "x: T has dtype number 0, which is not supported");
  CHECK(tfu_view("x: T", &err, TFU_MAX_RANK + 1, dims, 7, numbers, TFU_COUNT(numbers), &t, &err) == TFU_INVALID);
  CHECK_TEXT(err.text, "x: T has 9 dimensions, at most 8 are supported: reshape it");
}

/* ---- attributes ---- */

static void test_attributes(void) {
  static const struct {
    const char *text, *name;
    tfu_attr_kind kind;
  } good[] = {
      {"T: {float, half, bfloat16, double}", "T", TFU_ATTR_DTYPE},
      {"epsilon: float = 1e-6", "epsilon", TFU_ATTR_FLOAT},
      {"axis: int", "axis", TFU_ATTR_INT},
      {"groups: int >= 1 = 1", "groups", TFU_ATTR_INT},
      {" causal :bool = false", "causal", TFU_ATTR_BOOL},
      {"mode:{'a','b'} = 'b'", "mode", TFU_ATTR_ENUM},
      {TFU_ACTIVATION_ATTR, "activation", TFU_ATTR_ENUM},
      {"source: string = ''", "source", TFU_ATTR_STRING},
      {"In: list({float, half}) >= 1", "In", TFU_ATTR_TYPES},
  };
  static const char *const bad[] = {
      "",           "epsilon",         "epsilon:", "epsilon: strings", "e: floats",
      "n: integer", "s: lists(float)", ": float",  "epsilon = 1",      "a_name_of_more_than_thirty_one_letters: float"};
  tfu_attr a;
  for (int i = 0; i < TFU_COUNT(good); i++) {
    CHECK_FOR(tfu_attr_parse(good[i].text, &a) && a.kind == good[i].kind, "%s", good[i].text);
    CHECK_TEXT(a.name, good[i].name);
  }
  for (int i = 0; i < TFU_COUNT(bad); i++) CHECK_FOR(!tfu_attr_parse(bad[i], &a), "%s", bad[i]);

  CHECK(tfu_attr_parse("mode: {'a', 'bc', 'b'} = 'd'", &a));
  CHECK(tfu_attr_enum(&a, "a", 1) == 0 && tfu_attr_enum(&a, "bc", 2) == 1 && tfu_attr_enum(&a, "b", 1) == 2);
  CHECK(tfu_attr_enum(&a, "bcx", 2) == 1); /* the word need not end with a zero */
  CHECK(tfu_attr_enum(&a, "d", 1) == -1);  /* not among the choices, only after them */
  CHECK(tfu_attr_enum(&a, "", 0) == -1 && tfu_attr_enum(&a, ", ", 2) == -1 && tfu_attr_enum(&a, "abc", 3) == -1);
  CHECK(tfu_attr_parse(TFU_ACTIVATION_ATTR, &a));
#define X(name) CHECK(tfu_attr_enum(&a, #name, strlen(#name)) == TFU_ACT_##name);
  TFU_ACTIVATIONS(X)
#undef X
}

/* ---- calls ---- */

static void test_infer(void) {
  const int64_t big = (int64_t)1 << 40;
  static const struct {
    int64_t dim[3];
    int64_t elements; /* -1: too many */
  } sizes[] = {{{3, 5, 7}, 105},
               {{(int64_t)1 << 30, (int64_t)1 << 20, 1}, (int64_t)1 << 50},
               {{(int64_t)1 << 30, (int64_t)1 << 30, 1}, -1}, /* elements can be counted, bytes cannot */
               {{(int64_t)1 << 32, (int64_t)1 << 32, 1}, -1},
               {{(int64_t)1 << 32, (int64_t)1 << 32, 2}, -1}, /* wraps around to zero */
               {{INT64_MAX, INT64_MAX, INT64_MAX}, -1},
               {{0, INT64_MAX, INT64_MAX}, 0},
               {{INT64_MAX, INT64_MAX, 0}, 0}};
  run *r = start(&tfu_square);
  tfu_shape out[TFU_MAX_ARGS];
  int64_t elements;
  for (int i = 0; i < TFU_COUNT(sizes); i++) {
    r->call.in[0].shape = (tfu_shape)SHAPE(sizes[i].dim[0], sizes[i].dim[1], sizes[i].dim[2]);
    const tfu_code code = tfu_infer(&r->call, out, &elements);
    CHECK(code == (sizes[i].elements < 0 ? TFU_EXHAUSTED : TFU_OK));
    CHECK(code != TFU_OK || elements == sizes[i].elements);
  }
  r->call.in[0].shape = (tfu_shape)SHAPE(big, big);
  CHECK(tfu_infer(&r->call, out, &elements) == TFU_EXHAUSTED);
  CHECK_TEXT(r->err.text, "output y: T of shape [1099511627776, 1099511627776] is larger than any memory");

  r->call.op = &tfu_scale_bias_act_grad; /* all outputs count */
  for (int i = 0; i < 2; i++) r->call.in[i].shape = (tfu_shape)SHAPE(2, 3);
  r->call.in[2].shape = (tfu_shape)SCALAR;
  r->call.in[3].shape = (tfu_shape)SHAPE(3);
  CHECK(tfu_infer(&r->call, out, &elements) == TFU_OK && elements == 6 + 1 + 3);
  r->call.in[3].shape = (tfu_shape)SHAPE(4);
  CHECK(tfu_infer(&r->call, out, &elements) == TFU_INVALID);
  free(r);
}

/* ---- lists ---- */

/* Gives every list of the op this many tensors. */
static void set_lengths(tfu_call *call, int n) {
  for (int i = 0; call->op->lists && call->op->attr[i]; i++) {
    tfu_attr a;
    if (tfu_attr_parse(call->op->attr[i], &a) && a.kind == TFU_ATTR_INT) call->attr[i].i = n;
  }
}

static void test_lists(void) {
  float x[3][4] = {{3, 0, 0, 0}, {0}, {0, 0, 4, 0}}, norms[3], norm;
  unsigned char finite = 2;
  run *r = start(&tfu_tensors_norm);
  tfu_lists lists;
  tfu_shape unused[TFU_MAX_ARGS];
  int64_t elements;
  CHECK(tfu_lists_open(&r->call, &lists) == TFU_OK && lists.inputs == 0 && lists.outputs == 3);
  tfu_lists_close(&r->call);
  set_lengths(&r->call, 3);
  CHECK(tfu_lists_open(&r->call, &lists) == TFU_OK && lists.in[0].n == 3 && lists.inputs == 3 && lists.outputs == 3);
  for (int i = 0; i < 3; i++) lists.in[0].at[i] = (tfu_tensor){x[i], TFU_F32, SHAPE(i == 1 ? 0 : 4)};
  CHECK(tfu_infer(&r->call, unused, &elements) == TFU_OK && elements == 1 + 3 + 1);
  CHECK_TEXT(tfu_input_name(&r->call, 2), "x: N * T");
  CHECK_TEXT(tfu_output_name(&r->call, 1), "norms: S");
  lists.out[0].at[0] = (tfu_tensor){&norm, TFU_F32, SCALAR};
  lists.out[1].at[0] = (tfu_tensor){norms, TFU_F32, SHAPE(3)};
  lists.out[2].at[0] = (tfu_tensor){&finite, TFU_BOOL, SCALAR};
  CHECK(tfu_execute(&r->call, "test", 0) == TFU_OK);
  CHECK(norm == 5 && norms[0] == 3 && norms[1] == 0 && norms[2] == 4 && finite == 1);
  tfu_lists_close(&r->call);
  while (r->n > 0) free(r->held[--r->n]);
  free(r);
}

/* ---- traces ---- */

/* For ctypes, so in no header. */
int64_t tfu_trace_read(int captured, int64_t index, int64_t *number, char *text, size_t size);
void *tfu_trace_stream(void);

static void test_trace(void) {
  float x[6] = {1, 2, 3, 4, 5, 6}, y[6];
  char text[512] = "x";
  int64_t number;
  const int64_t before = tfu_trace_read(0, -1, &number, text, sizeof text);
  CHECK_TEXT(text, "");

  run *r = start(&tfu_square);
  r->call.in[0] = (tfu_tensor){x, TFU_F32, SHAPE(2, 3)};
  r->call.out[0] = (tfu_tensor){y, TFU_F32, SHAPE(2, 3)};
  CHECK(finish(r, "a route") == TFU_OK && y[0] == 1 && y[5] == 36);
  CHECK(tfu_trace_read(0, before, &number, text, sizeof text) == before + 1);
  CHECK_TEXT(text, "Square\ta route\tCPU\tloop\tfloat32\t[2, 3]\t");
  CHECK(tfu_trace_read(0, before, &number, text, 9) == before + 1);
  CHECK_TEXT(text, "Square\ta");
  CHECK(tfu_trace_read(0, before, &number, text, 0) == before + 1);
  CHECK(tfu_trace_read(0, before + 1, &number, text, sizeof text) == before + 1);
  CHECK_TEXT(text, "");

  for (int i = 0; i < 64; i++) CHECK(finish(r, "another") == TFU_OK);
  CHECK(tfu_trace_read(0, before, &number, text, sizeof text) == before + 65);
  CHECK_TEXT(text, ""); /* pushed out */
  tfu_trace_read(0, before + 1, &number, text, sizeof text);
  CHECK_TEXT(text, "Square\tanother\tCPU\tloop\tfloat32\t[2, 3]\t");
  CHECK(!tfu_trace_stream());

  const int64_t captured = tfu_trace_read(1, -1, &number, text, sizeof text); /* kept apart */
  r->call.captured = 1;
  CHECK(finish(r, "a graph") == TFU_OK && tfu_trace_read(0, -1, &number, text, sizeof text) == before + 65);
  CHECK(tfu_trace_read(1, captured, &number, text, sizeof text) == captured + 1);
  CHECK_TEXT(text, "Square\ta graph\tCPU\tloop\tfloat32\t[2, 3]\t");
  CHECK(number == before + captured + 65); /* of all */
  free(r);

  r = start(&tfu_scale_bias_act_grad); /* an error leaves no trace */
  r->most = 0;
  for (int i = 0; i < 4; i++) r->call.in[i] = (tfu_tensor){x, TFU_F32, SHAPE(6)};
  for (int i = 0; i < 3; i++) r->call.out[i] = (tfu_tensor){y, TFU_F32, SHAPE(6)};
  CHECK(finish(r, "fails") == TFU_EXHAUSTED && tfu_trace_read(0, -1, &number, text, sizeof text) == before + 65);
  free(r);
}

/* ---- images and the driver ---- */

static void test_images(void) {
  static const unsigned char code[1];
  static const tfu_image images[] = {{70, 0, code, 1},
                                     {80, 0, code, 1},
                                     {90, 0, code, 1},
                                     {100, 0, code, 1},
                                     {120, 0, code, 1},
                                     {90, 1, code, 1},
                                     {0}};
  static const tfu_image minors[] = {{86, 0, code, 1}, {80, 0, code, 1}, {0}}, none[] = {{0}};
  static const int want[][2] = {{60, -1}, {70, 0},  {75, 0},  {80, 1},  {86, 1},  {89, 1}, {90, 2},
                                {100, 3}, {103, 3}, {110, 5}, {120, 4}, {121, 4}, {130, 5}};
  for (int i = 0; i < TFU_COUNT(want); i++) {
    CHECK_FOR(tfu_image_for(images, want[i][0]) == want[i][1], "capability %d", want[i][0]);
  }
  /* The newest minor that the device has, in whatever order they stand. */
  CHECK(tfu_image_for(minors, 80) == 1 && tfu_image_for(minors, 86) == 0 && tfu_image_for(minors, 89) == 0);
  CHECK(tfu_image_for(minors, 90) == -1 && tfu_image_for(none, 90) == -1);

  tfu_error err;
  CHECK(tfu_no_image(minors, 90, &err) == TFU_UNIMPLEMENTED);
  CHECK_TEXT(err.text,
             "a GPU of compute capability 9.0 is not served by this library, which has sm_86, sm_80: build it "
             "where the GPU is (./run build), or for all GPUs (./run wheel)");
  CHECK(tfu_no_image(none, 80, &err) == TFU_UNIMPLEMENTED && strstr(err.text, "which has none: build it"));
  CHECK(tfu_no_image(images, 61, &err) == TFU_UNIMPLEMENTED && strstr(err.text, "7.0 is the oldest that can be"));
}

static void test_no_driver(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library) {
    printf("libcuda.so.1 is here: what happens without it is not tested\n");
    return;
  }
  const char *want = "the NVIDIA driver lacks libcuda.so.1: install driver 525 or later";
  const tfu_driver *driver;
  tfu_device device;
  tfu_error err = {""};
  CHECK(tfu_driver_get(&driver, &err) == TFU_PRECONDITION);
  CHECK_TEXT(err.text, want);
  err.text[0] = 0;
  CHECK(tfu_device_now(&device, &err) == TFU_PRECONDITION);
  CHECK_TEXT(err.text, want);
  for (int i = 0; i < TFU_COUNT(ops); i++) {
    if (ops[i] == &tfu_report || ops[i] == &tfu_unstage || ops[i] == &tfu_chain)
      continue; /* without what was opened before, or a text, they end earlier */
    float data[16] = {0};
    run *r = start(ops[i]);
    tfu_lists lists;
    set_lengths(&r->call, 1);
    for (int k = 0; k < TFU_COUNT(r->call.attr); k++) r->call.attr[k].i = 1; /* windows and strides that there are */
    CHECK(tfu_lists_open(&r->call, &lists) == TFU_OK);
    int inputs, outputs;
    tfu_tensor *in = tfu_inputs(&r->call, &inputs), *out = tfu_outputs(&r->call, &outputs);
    tfu_tensor some = {data, TFU_F32, SHAPE(1, 4)};
    for (int axis = 2; axis < TFU_COUNT(some.shape.dim); axis++) some.shape.dim[axis] = 1; /* launches divide by some */
    for (int k = 0; k < inputs; k++) in[k] = some;
    for (int k = 0; k < outputs; k++) out[k] = some;
    CHECK_FOR(tfu_execute(&r->call, "none", 1) == TFU_PRECONDITION, "%s", ops[i]->name);
    CHECK_TEXT(r->err.text, want);
    tfu_lists_close(&r->call);
    while (r->n > 0) free(r->held[--r->n]);
    free(r);
  }
}

int main(void) {
  test_shape_rules();
  test_given_per_channel();
  test_rows();
  test_show();
  test_counts();
  test_errors();
  test_view();
  test_attributes();
  test_infer();
  test_lists();
  test_trace();
  test_images();
  test_no_driver();
  return verdict();
}
