/* activation_math.h - every activation of ops/activations.h and its derivative, for CPU and GPU alike.
 *
 * No include guard: this file is read once per precision. The reader defines REAL (the type), BITS (64, 32, or 16 where
 * the result is rounded to 16 bits and short polynomials do), FUNCTION and FN(name) (how a function is declared and
 * called), and the primitives abs_of, positive_of (x, or 0 below it; NaN stays), exp_of and expm1_of (of x <= 0 or NaN;
 * what they give for others is not used), gauss_of (exp(-x^2 / 2)), tanh_of, divide (by what lies between 1 and 1e20)
 * and, for 64 bits, log1p_of and erfc_of. Rules of the formulas: NaN stays NaN: a comparison is written such that NaN
 * takes the branch that keeps it, unless a factor brings it back, for then the plain order (v < c ? v : c) costs the
 * CPU two instructions, not ten; nothing cancels: 1 - sigmoid and 1 - tanh^2 are built from exp(-|x|), the lower tail
 * of gelu from erfc's own form; nothing overflows where the result is finite. Branches are selects of two computed
 * values, which vectorise. */

#define K(constant) ((REAL)(constant))
#define ABS(v) FN(abs_of)(v)
#define ACT(name) FUNCTION REAL FN(name)(REAL x)

/* log(1 + u) for u in [0, 1]: 2 atanh(s) with s = u / (2 + u); odd polynomial, relative error 4e-9, short 7e-6. */
FUNCTION REAL FN(log1p_unit)(REAL u) {
  if (BITS == 64) return FN(log1p_of)(u);
  const REAL s = FN(divide)(u, u + 2), z = s * s;
  if (BITS == 16) return 2 * s * (K(1.000007196) + z * (K(3.321898209e-1) + z * K(2.264851573e-1)));
  const REAL p = K(2.001245514e-1) + z * (K(1.398030144e-1) + z * K(1.408916718e-1));
  return 2 * s * (K(1.000000004) + z * (K(3.333315734e-1) + z * p));
}

/* Phi(-a), the normal distribution's lower tail at a >= 0, from e = exp(-a^2 / 2): e * t * P(t) with t = 1 / (1 + p a).
 * Relative error 3e-8 (short: 8e-5) down to the smallest float, where 1 + erf would have lost every digit. */
FUNCTION REAL FN(normal_tail)(REAL a, REAL e) {
  if (BITS == 64) return K(0.5) * FN(erfc_of)(a * K(0.70710678118654752));
  if (BITS == 16) {
    const REAL t = FN(divide)(1, 1 + K(0.26) * a); /* zero for infinity */
    const REAL q = K(1.202596888e-1) + t * (K(4.453608241e-3) + t * K(1.704737110e-1));
    return e * t * (K(1.037637742e-1) + t * (K(1.010892743e-1) + t * q));
  }
  const REAL t = FN(divide)(1, 1 + K(0.26) * (a < 100 ? a : K(100)));
  REAL p = K(-1.514937702e-1) + t * K(3.023015476e-2);
  p = K(2.487319202e-1) + t * p;
  p = K(-1.477879782e-1) + t * p;
  p = K(1.587578873e-1) + t * p;
  p = K(5.196516515e-2) + t * p;
  p = K(1.027886011e-1) + t * p;
  p = K(1.030509844e-1) + t * p;
  p = K(1.037570215e-1) + t * p;
  return e * t * p;
}

/* With 16 bits exp_of takes any x, and nothing is lost where it overflows: the result is then below 1e-38. */
FUNCTION REAL FN(logistic)(REAL x) {
  if (BITS == 16) return FN(divide)(1, 1 + FN(exp_of)(-x));
  const REAL e = FN(exp_of)(-ABS(x)), r = FN(divide)(1, 1 + e);
  return x < 0 ? e * r : r;
}

ACT(linear) { return x; }
ACT(linear_grad) {
  (void)x;
  return 1;
}

ACT(relu) { return FN(positive_of)(x); }
ACT(relu_grad) { return x > 0 ? K(1) : K(0); }

ACT(relu6) {
  const REAL up = FN(positive_of)(x);
  return x > 6 ? K(6) : up;
}
ACT(relu6_grad) { return (x > 0) & (x < 6) ? K(1) : K(0); }

ACT(leaky_relu) { return x > 0 ? x : K(0.2) * x; }
ACT(leaky_relu_grad) { return x > 0 ? K(1) : K(0.2); }

ACT(elu) {
  const REAL below = FN(expm1_of)(x);
  return x > 0 ? x : below;
}
ACT(elu_grad) {
  const REAL below = FN(exp_of)(x);
  return x > 0 ? K(1) : below;
}

/* x * Phi(x); the derivative is Phi(x) + x * phi(x), and both share exp(-x^2 / 2). */
ACT(gelu) {
  const REAL tail = FN(normal_tail)(ABS(x), FN(gauss_of)(x));
  return x * (x < 0 ? tail : 1 - tail);
}
ACT(gelu_grad) {
  const REAL e = FN(gauss_of)(x), tail = FN(normal_tail)(ABS(x), e);
  const REAL slope = e > 0 ? x * e : e; /* e is 0 where x could be infinite */
  return (x < 0 ? tail : 1 - tail) + slope * K(0.39894228040143268);
}

/* 0.5 x (1 + tanh(u)) = x * logistic(2u), u = sqrt(2/pi) (x + 0.044715 x^3). x^2 is cut off where logistic is 0 or 1.
 */
#define GELU_A 1.5957691216057308   /* 2 sqrt(2/pi) */
#define GELU_B 0.071354816272600248 /* GELU_A * 0.044715 */
FUNCTION REAL FN(cut_square)(REAL x) { return x * x < K(1e6) ? x * x : K(1e6); }
ACT(gelu_tanh) { return x * FN(logistic)(x * (K(GELU_A) + K(GELU_B) * FN(cut_square)(x))); }
ACT(gelu_tanh_grad) {
  const REAL z = FN(cut_square)(x), u = x * (K(GELU_A) + K(GELU_B) * z);
  if (BITS == 16) { /* the sum rounds away what 1 - s loses near s = 1 */
    const REAL s = FN(logistic)(u);
    return s + x * (s - s * s) * (K(GELU_A) + K(3 * GELU_B) * z);
  }
  const REAL e = FN(exp_of)(-ABS(u)), r = FN(divide)(1, 1 + e);
  return (u < 0 ? e * r : r) + x * (e * r * r) * (K(GELU_A) + K(3 * GELU_B) * z);
}

ACT(silu) { return x * FN(logistic)(x); }
ACT(silu_grad) {
  if (BITS == 16) {
    const REAL s = FN(logistic)(x);
    return s + x * (s - s * s);
  }
  const REAL e = FN(exp_of)(-ABS(x)), r = FN(divide)(1, 1 + e), s = x < 0 ? e * r : r, rest = x < 0 ? r : e * r;
  return s * (1 + x * rest);
}

/* tanh(softplus(x)) = n / (n + 2) with n = e^x (e^x + 2). With e = exp(-|x|), and both sides times e^2 where x > 0, it
 * is top / (top + rest), where nothing can overflow. */
ACT(mish) {
  const REAL e = FN(exp_of)(-ABS(x)), top = x < 0 ? e * (e + 2) : 1 + 2 * e, rest = x < 0 ? K(2) : 2 * e * e;
  return x * FN(divide)(top, top + rest);
}
ACT(mish_grad) {
  const REAL e = FN(exp_of)(-ABS(x)), top = x < 0 ? e * (e + 2) : 1 + 2 * e, rest = x < 0 ? K(2) : 2 * e * e;
  const REAL r = FN(divide)(1, top + rest), t = top * r, logistic = (x < 0 ? e : K(1)) * FN(divide)(1, 1 + e);
  return t + x * (rest * r * (1 + t)) * logistic;
}

ACT(sigmoid) { return FN(logistic)(x); }
ACT(sigmoid_grad) {
  const REAL e = FN(exp_of)(-ABS(x)), r = FN(divide)(1, 1 + e);
  return e * r * r;
}

ACT(tanh) { return FN(tanh_of)(x); }
ACT(tanh_grad) {
  const REAL e = FN(exp_of)(-2 * ABS(x)), r = FN(divide)(2, 1 + e);
  return e * r * r;
}

ACT(softplus) { return FN(positive_of)(x) + FN(log1p_unit)(FN(exp_of)(-ABS(x))); }
ACT(softplus_grad) { return FN(logistic)(x); }

ACT(hard_swish) {
  const REAL up = x + 3 > 0 ? x + 3 : K(0), c = up < 6 ? up : K(6);
  return x * (c * K(1.0 / 6));
}
ACT(hard_swish_grad) { return x <= -3 ? K(0) : x >= 3 ? K(1) : x * K(1.0 / 3) + K(0.5); }

#undef ACT
#undef ABS
#undef K
#undef GELU_A
#undef GELU_B
