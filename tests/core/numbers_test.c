/* numbers_test.c - float16 and bfloat16 by every pattern, the activations against what they are, and numbers in texts.
 */
#define _GNU_SOURCE
#include <float.h>
#include <math.h>

#include "kernels/core/number.h"
#include "tests/comma_locale.h"

/* ---- float16 and bfloat16 ---- */

static float decode(uint16_t bits, tfu_dtype dtype) {
  if (dtype == TFU_BF16) {
    const uint32_t wide = (uint32_t)bits << 16;
    float f;
    memcpy(&f, &wide, sizeof f);
    return f;
  }
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const float magnitude = exponent == 31  ? (fraction ? NAN : INFINITY)
                          : exponent == 0 ? ldexpf(fraction, -24)
                                          : ldexpf(1024 + fraction, exponent - 25);
  return bits >> 15 ? -magnitude : magnitude;
}

static uint16_t stored(float value, tfu_dtype dtype) {
  uint16_t bits = 0xbad;
  tfu_store_f32(&bits, dtype, 0, 1, &value);
  return bits;
}

/* Every value comes back as itself; what lies between two goes to the nearer one, the middle to the even one. */
static void test_storage(tfu_dtype dtype) {
  const uint16_t infinity = dtype == TFU_F16 ? 0x7c00 : 0x7f80;
  int wrong = 0;
  float buffer[1];
  for (uint32_t bits = 0; bits < 65536; bits++) {
    const uint16_t b = (uint16_t)bits, positive = b & 0x7fff;
    const float want = decode(b, dtype), got = *tfu_load_f32(&b, dtype, 0, 1, buffer);
    if (positive > infinity) {
      wrong += !isnan(got) || !isnan(decode(stored(got, dtype), dtype));
      continue;
    }
    wrong += got != want || stored(got, dtype) != b;
    if (b >= infinity) continue;
    const float next = b + 1 < infinity ? decode(b + 1, dtype) : want + (want - decode(b - 1, dtype));
    const float middle = isinf(next) ? ldexpf(511, 119) : want / 2 + next / 2; /* bfloat16 ends where float does */
    if (middle <= want || middle >= next) continue;                            /* below float's own precision */
    const uint16_t even = b & 1 ? b + 1 : b;
    wrong += stored(middle, dtype) != even || stored(-middle, dtype) != (even | 0x8000);
    wrong += stored(nextafterf(middle, INFINITY), dtype) != b + 1;
    wrong += stored(nextafterf(middle, 0), dtype) != b;
  }
  CHECK_FOR(wrong == 0, "%s", tfu_dtype_name(dtype));
  CHECK(stored(FLT_MAX, dtype) == infinity && stored(-FLT_MAX, dtype) == (infinity | 0x8000));
}

/* The same through a kernel: x + constant, in the bits of the dtype. */
static void test_rounding(void) {
  static const struct {
    tfu_dtype dtype;
    uint16_t x, constant, want;
  } sums[] = {
      {TFU_F16, 0x3c00, 0x1000, 0x3c00},  /* 1 + half a unit: a tie, down to even   */
      {TFU_F16, 0x3c01, 0x1000, 0x3c02},  /* up to even                             */
      {TFU_F16, 0x3c00, 0x1001, 0x3c01},  /* just above the tie                     */
      {TFU_F16, 0x7bff, 0x4c00, 0x7c00},  /* 65504 + 16: a tie, up to infinity      */
      {TFU_F16, 0x7bff, 0x4800, 0x7bff},  /* 65504 + 8                              */
      {TFU_F16, 0xfbff, 0xfbff, 0xfc00},  /* twice the lowest                       */
      {TFU_F16, 0x0001, 0x0001, 0x0002},  /* the smallest there is                  */
      {TFU_F16, 0x7c00, 0x3c00, 0x7c00},  /* infinity                               */
      {TFU_BF16, 0x4380, 0x3f80, 0x4380}, /* 256 + 1: a tie, down to even           */
      {TFU_BF16, 0x4381, 0x3f80, 0x4382}, /* 258 + 1: up to even                    */
      {TFU_BF16, 0x4380, 0x3f81, 0x4381}, /* just above the tie                     */
      {TFU_BF16, 0x7f7f, 0x7b00, 0x7f80}, /* largest + half a unit: up to infinity  */
      {TFU_BF16, 0x7f7f, 0x7a80, 0x7f7f}, /* largest + a quarter                    */
      {TFU_BF16, 0xff80, 0x3f80, 0xff80}, /* -infinity                              */
  };
  for (int i = 0; i < TFU_COUNT(sums) + 3; i++) {
    /* Then the sums that are no number: NaN + 1 in both, and infinity - infinity. */
    const int nan = i - TFU_COUNT(sums);
    uint16_t x = nan == 0 ? 0x7e00 : nan == 1 ? 0x7f81 : 0x7c00, constant = nan == 2 ? 0xfc00 : 0x3c00, y = 0;
    tfu_dtype dtype = nan == 1 ? TFU_BF16 : TFU_F16;
    if (nan < 0) x = sums[i].x, constant = sums[i].constant, dtype = sums[i].dtype;
    run *r = start(&tfu_add_constant);
    r->call.in[0] = (tfu_tensor){&x, dtype, SHAPE(1)};
    r->call.in[1] = (tfu_tensor){&constant, dtype, SCALAR};
    r->call.out[0] = (tfu_tensor){&y, dtype, SHAPE(1)};
    CHECK(finish(r, "test") == TFU_OK);
    CHECK_FOR(nan < 0 ? y == sums[i].want : isnan(decode(y, dtype)), "%s, sum %d, gave %04x", tfu_dtype_name(dtype), i,
              y);
    free(r);
  }
}

/* ---- activations ---- */

static const char *const activation_names[] = {
#define X(name) #name,
    TFU_ACTIVATIONS(X)
#undef X
};

typedef struct point {
  double value, slope;         /* of double */
  double value_f32, slope_f32; /* of float */
} point;

static point at(int act, double x) {
  point p = {x, x, 0, 0};
  float value = (float)x, slope = (float)x;
  tfu_activations[act].value_f64(&p.value, &p.value, &(double){1}, &(double){-0.0}, 1);
  tfu_activations[act].grad_f64(&p.slope, &p.slope, &(double){1}, &(double){-0.0}, 1);
  tfu_activations[act].value_f32(&value, &value, &(float){1}, &(float){-0.0f}, 1);
  tfu_activations[act].grad_f32(&slope, &slope, &(float){1}, &(float){-0.0f}, 1);
  p.value_f32 = value;
  p.slope_f32 = slope;
  return p;
}

/* The derivative is what the value's difference says, in double; float follows double, relatively so in the tails. */
static void test_activations(void) {
  for (int act = 0; act < TFU_ACTS; act++) {
    double value = 0, slope = 0, difference = 0;
    for (int i = -4000; i < 4000; i++) {
      const double x = (i + 0.5) * 0x1p-6, step = 1e-4;
      const point p = at(act, x);
      value = fmax(value, fabs(p.value_f32 - p.value) / (fabs(p.value) + 1e-30)); /* float may cut off below 1e-30 */
      slope = fmax(slope, fabs(p.slope_f32 - p.slope));
      difference = fmax(difference, fabs((at(act, x + step).value - at(act, x - step).value) / (2 * step) - p.slope));
    }
    CHECK_FOR(value < 1e-5 && slope < 1e-6 && difference < 1e-6, "%s: %.1e, %.1e, %.1e", activation_names[act], value,
              slope, difference);
  }
}

static int close_to(double got, double want) { return fabs(got - want) <= 1e-6 * fabs(want); } /* NaN is not */

/* Far out every activation is a line, to the end of the range: nothing overflows, nothing is left over. */
static void test_activation_ends(void) {
  for (int act = 1; act < TFU_ACTS; act++) {
    const int bound = act == TFU_ACT_relu6 ? 6 : act == TFU_ACT_sigmoid || act == TFU_ACT_tanh; /* 0: none */
    int right = 1;
    for (int i = 0; right && i < 2 * 36; i++) {
      const int up = i % 2;
      const double x = (up ? 1 : -1) * pow(10, 3 + i / 2); /* 1e3 … 1e38 */
      const double slope = up ? !bound : act == TFU_ACT_leaky_relu ? 0.2 : 0;
      const double value = slope * x + (up ? bound : act == TFU_ACT_elu || act == TFU_ACT_tanh ? -1 : 0);
      const point p = at(act, x);
      right = close_to(p.value, value) && close_to(p.value_f32, value) && close_to(p.slope, slope) &&
              close_to(p.slope_f32, slope);
      CHECK_FOR(right, "%s at %g: in double %g, slope %g; in float %g, slope %g; not %g, slope %g",
                activation_names[act], x, p.value, p.slope, p.value_f32, p.slope_f32, value, slope);
    }
  }
}

/* ---- texts ---- */

static void test_texts(void) {
  tfu_attr scale = {.name = "scale", .kind = TFU_ATTR_FLOAT};
  tfu_value value;
  tfu_error err;
  char *end;
  set_comma_locale();
  CHECK(tfu_number("0.125 ", &end) == 0.125 && *end == ' ');
  CHECK(tfu_number("1.5e-05", &end) == 1.5e-05 && !*end);
  CHECK(isinf(tfu_number("inf", NULL)) && tfu_number("x", &end) == 0 && *end == 'x');
  CHECK(tfu_attr_text(&scale, "0.125", 5, &value, &err) == TFU_OK && value.f == 0.125f);
}

int main(void) {
  setenv("TFUSE_NUM_THREADS", "3", 1); /* more than one, however many cores there are */
  test_storage(TFU_F16);
  test_storage(TFU_BF16);
  test_rounding();
  test_activations();
  test_activation_ends();
  test_texts();
  return verdict();
}
