/* rows_test.c - the CPU kernels that work row by row: small results known by hand, special values, what is refused. */
#include <math.h>

#include "tests/check.h"

/* One call on small float32 data. Inputs are listed; outputs are sized by the op's shape rule. */
typedef struct value {
  tfu_shape shape;
  tfu_dtype dtype;
  const void *data;
} value;

#define F(shape, ...)                               \
  {                                                 \
    shape, TFU_F32, (const float[]) { __VA_ARGS__ } \
  }
#define I(shape, ...)                                 \
  {                                                   \
    shape, TFU_I32, (const int32_t[]) { __VA_ARGS__ } \
  }
#define B(shape, ...)                                  \
  {                                                    \
    shape, TFU_BOOL, (const uint8_t[]) { __VA_ARGS__ } \
  }
#define SEED(number)                              \
  {                                               \
    SCALAR, TFU_I64, (const int64_t[]) { number } \
  }
#define NOT_GIVEN \
  { SHAPE(0), TFU_F32, NULL }
#define NO_SEED \
  { SHAPE(0), TFU_I64, NULL }

typedef struct example {
  const tfu_op *op;
  value in[TFU_MAX_ARGS];
  tfu_value attr[TFU_MAX_ATTRS];
  const char *error; /* a part of the message, where it must fail */
  float out[TFU_MAX_ARGS][12];
} example;

#define INF INFINITY
static const example examples[] = {
    /* softmax of log 1, 2, 5: eighths; what a mask takes away counts as nothing */
    {&tfu_softmax,
     {F(SHAPE(1, 3), 0, 0.69314718f, 1.60943791f), NOT_GIVEN},
     {{.f = 1}, {.b = 0}},
     NULL,
     {{0.125f, 0.25f, 0.625f}}},
    {&tfu_softmax,
     {F(SHAPE(1, 3), 0, 0.69314718f, 1.60943791f), NOT_GIVEN},
     {{.f = 1}, {.b = 1}},
     NULL,
     {{-2.07944154f, -1.38629436f, -0.470003629f}}},
    {&tfu_softmax,
     {F(SHAPE(2, 2), 1, 3, 5, 7), B(SHAPE(2, 1), 1, 0)},
     {{.f = 0}, {.b = 0}},
     NULL,
     {{0.5f, 0.5f, 0, 0}}},
    {&tfu_softmax,
     {F(SHAPE(2, 2), 1, 3, 5, 7), B(SHAPE(2), 0, 0)},
     {{.f = 1}, {.b = 1}},
     NULL,
     {{-INF, -INF, -INF, -INF}}},
    {&tfu_softmax, {F(SHAPE(2, 2), 1, 3, 5, 7), F(SHAPE(1, 2), 0, -INF)}, {{.f = 1}, {.b = 0}}, NULL, {{1, 0, 1, 0}}},
    {&tfu_softmax,
     {F(SHAPE(3, 2), INF, 1, -INF, -INF, NAN, 1), NOT_GIVEN},
     {{.f = 1}, {.b = 0}},
     NULL,
     {{NAN, NAN, NAN, NAN, NAN, NAN}}},
    {&tfu_softmax,
     {F(SHAPE(1, 2), 1, 3), I(SHAPE(2), 1, 0)},
     {{.f = 1}},
     "mask must be bool or float32 like x, got int32",
     {{0}}},
    {&tfu_softmax_grad, {F(SHAPE(1, 2), 3, 1), F(SHAPE(1, 2), 0.5f, 0.5f)}, {{.f = 2}, {.b = 0}}, NULL, {{1, -1}}},
    {&tfu_softmax_grad, {F(SHAPE(1, 2), 3, 7), F(SHAPE(1, 2), 0, -INF)}, {{.f = 1}, {.b = 1}}, NULL, {{-7, 0}}},

    /* rows 1, 3 and 2, 2: mean 2, deviation 1 and 0 */
    {&tfu_norm,
     {F(SHAPE(2, 2), 1, 3, 2, 2), NOT_GIVEN, F(SHAPE(2), 2, 4), F(SHAPE(2), 1, 1), NO_SEED},
     {{.i = 0}, {.f = 0.25f}},
     NULL,
     {{1 - 1.78885438f, 1 + 3.57770876f, 1, 1}, {0}, {2, 0.894427191f, 2, 2}}},
    {&tfu_norm,
     {F(SHAPE(1, 2), 1, -1), F(SHAPE(1, 2), 2, 5), NOT_GIVEN, NOT_GIVEN, NO_SEED},
     {{.i = 1}, {.f = 0}},
     NULL,
     {{0.848528137f, 1.13137085f}, {3, 4}, {0, 0.282842712f}}},
    {&tfu_norm_grad,
     {F(SHAPE(2, 2), 1, 2, 5, 1), F(SHAPE(2, 2), 1, 1, 1, 1), F(SHAPE(2, 2), 1, 3, 3, 1), F(SHAPE(2), 1, 1),
      F(SHAPE(2), 0, 0), F(SHAPE(2, 2), 2, 1, 2, 1), NO_SEED},
     {{.i = 0}},
     NULL,
     {{1, 1, 1, 1}, {0}, {-1 + 5, 2 - 1}, {6, 3}}},
    {&tfu_norm,
     {F(SHAPE(1, 2), 1, 3), NOT_GIVEN, {SHAPE(2), TFU_F64, (const double[]){1, 1}}, NOT_GIVEN, NO_SEED},
     {{.i = 0}},
     "gamma must be float32 where x is float32, got float64",
     {{0}}},

    /* one group of both channels and places, then a group for each channel */
    {&tfu_group_norm,
     {F(SHAPE(1, 2, 1, 2), 1, 3, 3, 1), F(SHAPE(2), 1, 2), NOT_GIVEN},
     {{.f = 0}},
     NULL,
     {{-1, 2, 1, -2}, {2, 1}}},
    {&tfu_group_norm,
     {F(SHAPE(1, 2, 2, 1), 1, 4, 3, 8), NOT_GIVEN, F(SHAPE(2), 0, 1)},
     {{.f = 0}},
     NULL,
     {{-1, 0, 1, 2}, {2, 1, 6, 0.5f}}},
    {&tfu_group_norm_grad,
     {F(SHAPE(1, 2, 2, 1), 1, 3, 2, 5), F(SHAPE(1, 2, 2, 1), 1, 4, 3, 8), F(SHAPE(2), 1, 1), F(SHAPE(2), 0, 0),
      F(SHAPE(1, 2, 2), 2, 1, 6, 0.5f)},
     {{0}},
     NULL,
     {{0, 0, 0, 0}, {1, 2}, {3, 8}}},

    /* e^x = 1, 3: lse = log 4 */
    {&tfu_sparse_cross_entropy,
     {F(SHAPE(2, 2), 0, 1.09861229f, 0, 1.09861229f), I(SHAPE(2), 1, -7)},
     {{.f = 0}, {.f = 0}, {.i = -7}},
     NULL,
     {{0.287682072f, 0}, {1.09861229f, 1.33333333f, 1.09861229f, 1.33333333f}}},
    {&tfu_sparse_cross_entropy_grad,
     {F(SHAPE(2, 2), 0, 1.09861229f, 0, 1.09861229f), I(SHAPE(2), 1, 2),
      F(SHAPE(2, 2), 1.09861229f, 1.33333333f, 1.09861229f, 1.33333333f), F(SHAPE(2), 4, 4)},
     {{.f = 0}, {.f = 0}, {.i = INT64_MIN}},
     NULL,
     {{1, -1, 0, 0}}},
    {&tfu_sparse_cross_entropy,
     {F(SHAPE(2, 2), 0, 0, 0, 0), I(SHAPE(2), 0, 2)},
     {{.f = 0}, {.f = 0}, {.i = -1}},
     "labels must be in [0, 2) to be classes, got 2 at row 1",
     {{0}}},
    {&tfu_sparse_cross_entropy,
     {F(SHAPE(1, 2), 0, 0), F(SHAPE(1), 0)},
     {{0}},
     "labels must be int32 or int64, got float32",
     {{0}}},
    {&tfu_cross_entropy,
     {F(SHAPE(1, 2), 0, 1.09861229f), F(SHAPE(1, 2), 0.5f, 0.5f)},
     {{.f = 0}, {.f = 1}},
     NULL,
     {{0.836988216f + 1.92181206f}, {1.09861229f, 1.33333333f, 1}}},
    {&tfu_cross_entropy, {F(SHAPE(1, 2), 3, -INF), F(SHAPE(1, 2), 1, 0)}, {{.f = 0}, {.f = 0}}, NULL, {{0}, {3, 1, 1}}},
    {&tfu_cross_entropy_grad,
     {F(SHAPE(1, 2), 0, 1.09861229f), F(SHAPE(1, 2), 1, 0), F(SHAPE(1, 3), 1.09861229f, 1.33333333f, 1), F(SHAPE(1), 4),
      F(SHAPE(1, 2), 1, 0)},
     {{.f = 0.5f}, {.f = 0}},
     NULL,
     {{1 - 3, 3 - 1}, {2 * 1.38629436f, 2 * 0.287682072f}}},

    {&tfu_gated, {F(SHAPE(2, 1), -1, 2), F(SHAPE(2, 1), 5, 6)}, {{.i = TFU_ACT_relu}}, NULL, {{0, 12}}},
    {&tfu_gated, {F(SHAPE(2, 4), -1, 2, 5, 6, 1, 3, 7, 8), NOT_GIVEN}, {{.i = TFU_ACT_relu}}, NULL, {{0, 12, 7, 24}}},
    {&tfu_gated_grad,
     {F(SHAPE(2, 2), 1, 2, 3, 4), F(SHAPE(2, 4), -1, 2, 5, 6, 1, 3, 7, 8), NOT_GIVEN},
     {{.i = TFU_ACT_relu}},
     NULL,
     {{0, 12, 0, 4, 21, 32, 3, 12}}},

    /* nothing dropped; everything dropped */
    {&tfu_dropout, {F(SHAPE(3), 1, 2, 3), SEED(1)}, {{.f = 0}}, NULL, {{1, 2, 3}}},
    {&tfu_dropout, {F(SHAPE(3), 1, INF, NAN), SEED(1)}, {{.f = 1}}, NULL, {{0, 0, 0}}},

    /* position 0 stays; a quarter turn is cos 0, sin 1: position 1 times pi / 2 */
    {&tfu_rope,
     {F(SHAPE(1, 2, 1, 2), 1, 2, 3, 4), F(SHAPE(1, 2, 1, 2), 5, 6, 7, 8), I(SCALAR, 0), NOT_GIVEN},
     {{.f = 10}, {.i = 0}, {.i = 0}, {.b = 0}, {.f = 1.57079633f}},
     NULL,
     {{1, 2, -4, 3}, {5, 6, -8, 7}}},
    {&tfu_rope,
     {F(SHAPE(1, 1, 1, 4), 1, 2, 3, 4), NOT_GIVEN, I(SHAPE(1), 1), NOT_GIVEN},
     {{.f = 10}, {.i = 1}, {.i = 2}, {.b = 1}, {.f = 1.57079633f}},
     NULL,
     {{2, -1, 3, 4}}},
    /* frequencies instead of powers: a quarter turn and a half */
    {&tfu_rope,
     {F(SHAPE(1, 1, 1, 4), 1, 2, 3, 4), NOT_GIVEN, I(SHAPE(1), 1), F(SHAPE(2), 0.5f, 1)},
     {{.f = 10}, {.i = 1}, {.i = 0}, {.b = 0}, {.f = 3.14159265f}},
     NULL,
     {{-2, 1, -3, -4}}},
    {&tfu_rope,
     {F(SHAPE(1, 1, 1, 2), 1, 2), NOT_GIVEN, F(SCALAR, 1), NOT_GIVEN},
     {{.f = 10}},
     "positions must be int32 or int64, got float32",
     {{0}}},
};

static int close_to(float got, float want) {
  return got == want || (isnan(got) && isnan(want)) || fabsf(got - want) <= 4e-7f * (1 + fabsf(want));
}

static void test_examples(void) {
  for (int e = 0; e < TFU_COUNT(examples); e++) {
    const example *x = &examples[e];
    run *r = start(x->op);
    tfu_shape in[TFU_MAX_ARGS], out[TFU_MAX_ARGS];
    float results[TFU_MAX_ARGS][12];
    for (int i = 0; x->op->in[i]; i++) {
      r->call.in[i] = (tfu_tensor){(void *)(intptr_t)x->in[i].data, x->in[i].dtype, x->in[i].shape};
      in[i] = x->in[i].shape;
    }
    memcpy(r->call.attr, x->attr, sizeof x->attr);
    CHECK_FOR(x->op->shape(in, out, x->attr, &r->err) == TFU_OK, "%s: %s", x->op->name, r->err.text);
    for (int i = 0; x->op->out[i]; i++) r->call.out[i] = (tfu_tensor){results[i], TFU_F32, out[i]};
    const tfu_code code = finish(r, "test");
    if (x->error) CHECK_FOR(code == TFU_INVALID && strstr(r->err.text, x->error), "%s: %s", x->op->name, r->err.text);
    else CHECK_FOR(code == TFU_OK, "example %d, %s: %s", e, x->op->name, r->err.text);
    for (int i = 0; code == TFU_OK && x->op->out[i]; i++)
      for (int k = 0; k < tfu_count(&out[i]); k++)
        CHECK_FOR(close_to(results[i][k], x->out[i][k]), "example %d, %s: output %d[%d] is %.9g, not %.9g", e,
                  x->op->name, i, k, results[i][k], x->out[i][k]);
    free(r);
  }
}

/* Rows longer than what a task holds at a time, in 16 bits and in place: ones give 1 / n, and minus infinity for a
 * whole stretch of a row gives nothing. */
static void test_long_rows(void) {
  enum { ROWS = 3, COLS = 20000, DEAD = 9000 };
  static uint16_t x[ROWS * COLS];
  for (int i = 0; i < ROWS * COLS; i++) x[i] = i % COLS < DEAD ? 0xff80 : 0x3f80; /* bfloat16: -inf, 1 */
  run *r = start(&tfu_softmax);
  r->call.in[0] = r->call.out[0] = (tfu_tensor){x, TFU_BF16, SHAPE(ROWS, COLS)};
  r->call.in[1] = (tfu_tensor){NULL, TFU_BOOL, SHAPE(0)};
  r->call.attr[0].f = 1;
  CHECK(finish(r, "test") == TFU_OK);
  const uint16_t share = 0x38bf; /* 1 / 11000, rounded */
  for (int i = 0; i < ROWS * COLS; i++) CHECK_FOR(x[i] == (i % COLS < DEAD ? 0 : share), "element %d: %x", i, x[i]);
  free(r);
}

int main(void) {
  test_examples();
  test_long_rows();
  return verdict();
}
