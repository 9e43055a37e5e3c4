/* activation_math.h - every activation of ops/activations.h and its derivative, for CPU and GPU alike.
 *
 * No include guard: this file is read once per arithmetic type. The reader defines REAL (the type), FN(name) (how the
 * functions are called and declared there) and the primitives EXP, EXPM1 and DIV(a, b). Rules of the formulas:
 *   NaN stays NaN, so a comparison is written such that NaN takes the branch that keeps it;
 *   nothing cancels: 1 - sigmoid and 1 - tanh^2 are built from exp(-|x|), the lower tail of gelu from erfc's own form;
 *   nothing overflows where the result is finite.
 * Branches are selects of two computed values, which vectorise. */

#define K(constant) ((REAL)(constant))
#define ABS(v) ((v) < 0 ? -(v) : (v))
#define ACT(name) FUNCTION REAL FN(name)(REAL x)

/* log(1 + u) for u in [0, 1]: 2 atanh(s) with s = u / (2 + u); odd polynomial, relative error 4e-9. */
FUNCTION REAL FN(log1p_unit)(REAL u) {
  if (sizeof(REAL) == sizeof(double)) return LOG1P(u);
  const REAL s = DIV(u, u + 2), z = s * s;
  const REAL p = K(1.000000004) +
                 z * (K(3.333315734e-1) + z * (K(2.001245514e-1) + z * (K(1.398030144e-1) + z * K(1.408916718e-1))));
  return 2 * s * p;
}

/* Phi(-a), the normal distribution's lower tail at a >= 0, from e = exp(-a^2 / 2): e * t * P(t) with t = 1 / (1 + p a).
 * Relative error 3e-8 down to the smallest float, where 1 + erf would have lost every digit. */
FUNCTION REAL FN(normal_tail)(REAL a, REAL e) {
  if (sizeof(REAL) == sizeof(double)) return K(0.5) * ERFC(a * K(0.70710678118654752));
  const REAL t = DIV(1, 1 + K(0.26) * a);
  REAL p = K(3.023015476e-2);
  p = K(-1.514937702e-1) + t * p;
  p = K(2.487319202e-1) + t * p;
  p = K(-1.477879782e-1) + t * p;
  p = K(1.587578873e-1) + t * p;
  p = K(5.196516515e-2) + t * p;
  p = K(1.027886011e-1) + t * p;
  p = K(1.030509844e-1) + t * p;
  p = K(1.037570215e-1) + t * p;
  return e * t * p;
}

FUNCTION REAL FN(logistic)(REAL x) { return DIV(1, 1 + EXP(-x)); }

ACT(linear) { return x; }
ACT(linear_grad) { return x * 0 + 1; } /* NaN in, NaN out */

ACT(relu) { return x < 0 ? 0 : x; }
ACT(relu_grad) { return x > 0 ? K(1) : K(0); }

ACT(leaky_relu) { return x < 0 ? K(0.2) * x : x; }
ACT(leaky_relu_grad) { return x > 0 ? K(1) : K(0.2); }

ACT(elu) { return x > 0 ? x : EXPM1(x); }
ACT(elu_grad) { return x > 0 ? K(1) : EXP(x); }

/* x * Phi(x); the derivative is Phi(x) + x * phi(x), and both share exp(-x^2 / 2). */
ACT(gelu) {
  const REAL a = ABS(x), tail = FN(normal_tail)(a, EXP(K(-0.5) * x * x));
  return x * (x < 0 ? tail : 1 - tail);
}
ACT(gelu_grad) {
  const REAL a = ABS(x), e = EXP(K(-0.5) * x * x), tail = FN(normal_tail)(a, e);
  const REAL slope = e > 0 ? x * e * K(0.39894228040143268) : e; /* e is 0 where x could be infinite */
  return (x < 0 ? tail : 1 - tail) + slope;
}

/* 0.5 x (1 + tanh(u)) = x * logistic(2u), u = sqrt(2/pi) (x + 0.044715 x^3). x^2 is cut off where logistic is 0 or 1.
 */
#define GELU_A 1.5957691216057308   /* 2 sqrt(2/pi) */
#define GELU_B 0.071354816272600248 /* GELU_A * 0.044715 */
FUNCTION REAL FN(cut_square)(REAL x) { return x * x > K(1e6) ? K(1e6) : x * x; }
ACT(gelu_tanh) { return x * FN(logistic)(x * (K(GELU_A) + K(GELU_B) * FN(cut_square)(x))); }
ACT(gelu_tanh_grad) {
  const REAL z = FN(cut_square)(x), u = x * (K(GELU_A) + K(GELU_B) * z), e = EXP(-ABS(u)), r = DIV(1, 1 + e);
  return (u < 0 ? e * r : r) + x * (e * r * r) * (K(GELU_A) + K(3 * GELU_B) * z);
}

ACT(silu) { return x * FN(logistic)(x); }
ACT(silu_grad) {
  const REAL e = EXP(-ABS(x)), r = DIV(1, 1 + e), s = x < 0 ? e * r : r, rest = x < 0 ? r : e * r;
  return s * (1 + x * rest);
}

/* tanh(softplus(x)) = n / (n + 2) with n = e^x (e^x + 2); beyond 20 it is 1. */
ACT(mish) {
  const REAL e = EXP(x > 20 ? K(20) : x), n = e * (e + 2);
  return x * DIV(n, n + 2);
}
ACT(mish_grad) {
  const REAL e = EXP(x > 20 ? K(20) : x), n = e * (e + 2), w = DIV(2, n + 2), t = DIV(n, n + 2);
  return t + x * (w * (1 + t)) * DIV(e, 1 + e);
}

ACT(sigmoid) { return FN(logistic)(x); }
ACT(sigmoid_grad) {
  const REAL e = EXP(-ABS(x)), r = DIV(1, 1 + e);
  return e * r * r;
}

ACT(tanh) { /* beyond 20 it is 1 in double, too */
  const REAL c = x > 20 ? K(20) : x < -20 ? K(-20) : x, m = EXPM1(2 * c);
  return DIV(m, m + 2);
}
ACT(tanh_grad) {
  const REAL e = EXP(-2 * ABS(x)), r = DIV(1, 1 + e);
  return 4 * e * r * r;
}

ACT(softplus) { return (x < 0 ? 0 : x) + FN(log1p_unit)(EXP(-ABS(x))); }
ACT(softplus_grad) { return FN(logistic)(x); }

ACT(hard_swish) {
  const REAL c = x + 3 < 0 ? K(0) : x + 3 > 6 ? K(6) : x + 3;
  return x * c * K(1.0 / 6);
}
ACT(hard_swish_grad) { return x <= -3 ? K(0) : x >= 3 ? K(1) : x * K(1.0 / 3) + K(0.5); }

#undef ACT
#undef ABS
#undef K
#undef GELU_A
#undef GELU_B
