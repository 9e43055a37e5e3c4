/* States on the CPU: of lines and of columns (reduce_cpu.h). */
#ifndef REAL
#ifdef __aarch64__
#include <arm_neon.h>
#endif

#include "kernels/reductions/reduce_cpu.h"

int tfu_reduce_group(int kind, tfu_dtype dtype) {
  if (dtype >= TFU_FLOATS)
    return kind <= TFU_REDUCE_MEAN ? TFU_WHOLE_SUMS : kind == TFU_REDUCE_PROD ? TFU_WHOLE_PRODUCTS : TFU_WHOLE_TOPS;
  return tfu_float_group(kind);
}

tfu_state tfu_state_none(int group, tfu_dtype dtype) {
  if (group == TFU_WHOLE_TOPS) return (tfu_state){.i = (uint64_t)(dtype == TFU_I32 ? INT32_MIN : INT64_MIN)};
  if (group == TFU_WHOLE_SUMS || group == TFU_WHOLE_PRODUCTS) return (tfu_state){.i = group == TFU_WHOLE_PRODUCTS};
  return (tfu_state){.a = group == TFU_TOPS || group == TFU_EXPONENTIALS ? -INFINITY : group == TFU_PRODUCTS};
}

/* The state's exponentials relative to a larger value. */
static double lowered(tfu_state s, double high) {
  return s.a == -INFINITY || s.a == high ? s.b : s.b * exp(s.a - high);
}

/* Makes a number from 1 up to 2 of a; infinities and NaN stay. Below 2^-1022 there is none: factors are settled before.
 */
static inline void settle(tfu_state *s) {
  uint64_t bits;
  memcpy(&bits, &s->a, sizeof bits);
  const int power = (int)(bits >> 52 & 2047);
  if (power == 2047) return;
  s->c += power - 1023;
  bits = (bits & ~((uint64_t)2047 << 52)) | (uint64_t)1023 << 52;
  memcpy(&s->a, &bits, sizeof bits);
}

/* One more factor. Of a zero, a has the sign. */
static inline void multiply(tfu_state *s, double v) {
  if (v == 0) {
    s->b++;
    s->a *= copysign(1, v);
    return;
  }
  if (fabs(v) < 0x1p-500) v *= 0x1p500, s->c -= 500;
  s->a *= v;
  settle(s);
}

typedef uint32_t bits_type_f32;
typedef uint64_t bits_type_f64;
typedef int32_t signed_type_f32;
typedef int64_t signed_type_f64;

void tfu_state_join(int group, tfu_state *s, tfu_state o) {
  switch (group) {
    case TFU_SUMS: s->a += o.a; return;
    case TFU_TOPS:
      if (o.a > s->a || o.a != o.a) *s = o;
      else if (o.a == s->a) s->b += o.b;
      return;
    case TFU_PRODUCTS:
      *s = (tfu_state){.a = s->a * o.a, .b = s->b + o.b, .c = s->c + o.c};
      settle(s);
      return;
    case TFU_EXPONENTIALS: {
      const double high = s->a > o.a ? s->a : o.a;
      *s = (tfu_state){.a = high, .b = lowered(*s, high) + lowered(o, high)};
      return;
    }
    case TFU_SPREADS: {
      if (o.c == 0) return;
      const double n = s->c + o.c, off = o.a - s->a, weight = o.c / n;
      *s = (tfu_state){.a = s->a + off * weight, .b = s->b + o.b + off * off * (s->c * weight), .c = n};
      return;
    }
    case TFU_WHOLE_SUMS: s->i += o.i; return;
    case TFU_WHOLE_PRODUCTS: s->i *= o.i; return;
    default: s->i = (int64_t)o.i > (int64_t)s->i ? o.i : s->i;
  }
}

double tfu_state_result(int kind, tfu_state s, int64_t n) {
  switch (kind) {
    case TFU_REDUCE_MEAN: return s.a / (double)n;
    case TFU_REDUCE_MIN: return -s.a;
    case TFU_REDUCE_PROD: return s.b != 0 ? s.a * 0 : ldexp(s.a, (int)fmin(fmax(s.c, -5000), 5000));
    case TFU_REDUCE_LSE: return log(s.b) + (isfinite(s.a) ? s.a : 0);
    case TFU_REDUCE_VARIANCE: return s.b / (double)n;
    case TFU_REDUCE_STD: return sqrt(s.b / (double)n);
    case TFU_REDUCE_L2: return sqrt(s.a);
    default: return s.a;
  }
}

#define TFU_SELF "kernels/reductions/reduce_states_cpu.c"
#include "kernels/core/cpu/stamp.h"

#else

/* The bits of a value, and those of 2^e and of infinity. */
enum { FN(MANTISSA) = sizeof(REAL) == sizeof(float) ? 23 : 52, FN(BIAS) = sizeof(REAL) == sizeof(float) ? 127 : 1023 };
#define POWER(e) ((FN(bits_type))((e) + FN(BIAS)) << FN(MANTISSA))
static const FN(bits_type) FN(SIGN) = (FN(bits_type))1 << (sizeof(REAL) * 8 - 1);

/* A value's bits without the sign. */
static inline FN(signed_type) FN(size_of)(REAL v) {
  FN(bits_type) bits;
  memcpy(&bits, &v, sizeof bits);
  return (FN(signed_type))(bits & ~FN(SIGN));
}

/* Some values side by side, of gcc's vectors: it makes none by itself of a choice that NaN takes part in. */
typedef REAL FN(values) __attribute__((vector_size(16), aligned(sizeof(REAL)), may_alias));
typedef FN(signed_type) FN(masks) __attribute__((vector_size(16)));

/* The larger of each two, NaN where one is. */
static inline FN(values) FN(larger)(FN(values) x, FN(values) best) {
#ifdef __aarch64__
  return FN(vmaxq)(x, best);
#else
  const FN(masks) taken = ((x > best) | (x != x)) & (best == best);
  return (FN(values))(((FN(masks))x & taken) | ((FN(masks))best & ~taken));
#endif
}

REAL FN(tfu_top)(const REAL *v, int n, int negated, int *nan) {
  enum { EACH = 16 / sizeof(REAL) };
  const REAL sign = negated ? -1 : 1;
  REAL top = -(REAL)INFINITY;
  int i = 0;
  *nan = 0;
  if (n >= 4 * EACH) { /* four chains: as many comparisons are on their way */
    FN(values) b0 = (FN(values)){0} + top, b1 = b0, b2 = b0, b3 = b0;
    for (; i + 4 * EACH <= n; i += 4 * EACH) {
      const FN(values) *x = (const FN(values) *)(v + i);
      b0 = FN(larger)(x[0] * sign, b0);
      b1 = FN(larger)(x[1] * sign, b1);
      b2 = FN(larger)(x[2] * sign, b2);
      b3 = FN(larger)(x[3] * sign, b3);
    }
    b0 = FN(larger)(FN(larger)(b0, b1), FN(larger)(b2, b3));
    for (int k = 0; k < EACH; k++) {
      top = b0[k] > top ? b0[k] : top;
      *nan |= b0[k] != b0[k];
    }
    if (*nan) i = 0; /* numbers may be hidden behind it */
  }
  for (; i < n; i++) {
    top = v[i] * sign > top ? v[i] * sign : top;
    *nan |= v[i] != v[i];
  }
  return top;
}

/* a[i] = the larger of a[i] and v[i] * sign, NaN where one is. */
static inline void FN(raise_tops)(REAL *a, const REAL *v, REAL sign, int n) {
  enum { EACH = 16 / sizeof(REAL) };
  int i = 0;
  for (; i + EACH <= n; i += EACH) {
    FN(values) *top = (FN(values) *)(a + i);
    *top = FN(larger)(*(const FN(values) *)(v + i) * sign, *top);
  }
  for (; i < n; i++) {
    const REAL y = v[i] * sign;
    if (y > a[i] || y != y) a[i] = y;
  }
}

/* Multiplies by n factors, which are a multiple of LANES and at most 32 for each lane: where all are from 2^-28 to
 * 2^28, those of a lane have a product that is a double for sure. */
static inline void FN(multiply_some)(tfu_state *s, const REAL *v, int n) {
  enum { LANES = 8 };
  FN(signed_type) least = (FN(signed_type))POWER(0), most = (FN(signed_type))POWER(0);
  for (int i = 0; i < n; i++) {
    const FN(signed_type) size = FN(size_of)(v[i]);
    least = size < least ? size : least;
    most = size > most ? size : most;
  }
  if (least < (FN(signed_type))POWER(-28) || most > (FN(signed_type))POWER(28)) {
    for (int i = 0; i < n; i++) multiply(s, v[i]);
    return;
  }
  double lane[LANES];
  for (int k = 0; k < LANES; k++) lane[k] = 1;
  for (int i = 0; i < n; i += LANES)
    for (int k = 0; k < LANES; k++) lane[k] *= v[i + k];
  for (int k = 0; k < LANES; k++) {
    s->a *= lane[k];
    settle(s);
  }
}

static tfu_state FN(product)(const REAL *v, int n) {
  enum { MANY = 256, FEW = 32 };
  tfu_state s = tfu_state_none(TFU_PRODUCTS, TFU_F32);
  int i = 0;
  for (; i + MANY <= n; i += MANY) FN(multiply_some)(&s, v + i, MANY);
  for (; i + FEW <= n; i += FEW) FN(multiply_some)(&s, v + i, FEW);
  for (; i < n; i++) multiply(&s, v[i]);
  return s;
}

tfu_state FN(tfu_line_state)(int kind, int negated, int ties, const REAL *v, int n) {
  const REAL sign = negated ? -1 : 1;
  switch (tfu_reduce_group(kind, TFU_F32)) {
    case TFU_TOPS: {
      int nan;
      const REAL top = FN(tfu_top)(v, n, negated, &nan);
      if (nan) return (tfu_state){.a = NAN};
      return (tfu_state){.a = top, .b = ties ? TFU_SUM(n, (REAL)(v[i] * sign == top)) : 0};
    }
    case TFU_PRODUCTS: return FN(product)(v, n);
    case TFU_EXPONENTIALS: {
      REAL e[TFU_CHUNK];
      int nan;
      const REAL top = FN(tfu_top)(v, n, 0, &nan), shift = top == -(REAL)INFINITY ? 0 : top;
      if (nan || top == (REAL)INFINITY) return (tfu_state){.a = top, .b = nan ? NAN : INFINITY};
      TFU_VECTORISED(i, n) e[i] = FN(exp_of)(v[i] - shift);
      return (tfu_state){.a = top, .b = TFU_SUM(n, e[i])};
    }
    case TFU_SPREADS: {
      const REAL mean = (REAL)(TFU_SUM(n, v[i]) / n);
      const double left = TFU_SUM(n, v[i] - mean); /* what rounding the mean has left over */
      const double squares = TFU_SUM(n, (v[i] - mean) * (v[i] - mean)) - left * left / n;
      return (tfu_state){.a = mean + left / n, .b = squares < 0 ? 0 : squares, .c = n}; /* where REAL has no squares */
    }
    default: return (tfu_state){.a = kind == TFU_REDUCE_L2 ? TFU_SUM(n, v[i] * v[i]) : TFU_SUM(n, v[i])};
  }
}

/* The rows of a block, one after the other. */
#define EACH_ROW(v) \
  const REAL *v;    \
  for (int r = 0; r < rows && (v = FN(tfu_load)(x->data, x->dtype, at + r * stride, n, buffer), 1); r++)

void FN(tfu_column_states)(int kind, int negated, int ties, const tfu_tensor *x, int64_t at, int64_t stride, int rows,
                           int n, tfu_state *s) {
  REAL a[TFU_COLUMNS], b[TFU_COLUMNS], buffer[TFU_COLUMNS];
  const REAL sign = negated ? -1 : 1;
  const int group = tfu_reduce_group(kind, TFU_F32), squares = kind == TFU_REDUCE_L2;
  for (int i = 0; i < n; i++) a[i] = group == TFU_TOPS || group == TFU_EXPONENTIALS ? -(REAL)INFINITY : 0;
  memset(b, 0, (size_t)n * sizeof *b);
  switch (group) {
    case TFU_PRODUCTS: {
      EACH_ROW(v) for (int i = 0; i < n; i++) { multiply(&s[i], v[i]); }
      return;
    }
    case TFU_TOPS: {
      {
        EACH_ROW(v) FN(raise_tops)(a, v, sign, n);
      }
      if (!ties) break;
      EACH_ROW(v) {
        TFU_VECTORISED(i, n) b[i] += (REAL)(v[i] * sign == a[i]);
      }
      break;
    }
    case TFU_EXPONENTIALS: {
      {
        EACH_ROW(v) {
          TFU_VECTORISED(i, n) a[i] = v[i] > a[i] ? v[i] : a[i];
        }
      }
      REAL shift[TFU_COLUMNS];
      for (int i = 0; i < n; i++) shift[i] = a[i] == -(REAL)INFINITY ? 0 : a[i];
      EACH_ROW(v) {
        TFU_VECTORISED(i, n) b[i] += FN(exp_of)(v[i] - shift[i]);
      }
      for (int i = 0; i < n; i++) {
        if (a[i] != (REAL)INFINITY) continue;
        b[i] = (REAL)INFINITY;
        for (int r = 0; r < rows; r++) {
          const REAL *one = FN(tfu_load)(x->data, x->dtype, at + r * stride + i, 1, buffer);
          if (*one != *one) b[i] = (REAL)NAN;
        }
      }
      break;
    }
    case TFU_SPREADS: { /* relative to the first row: far from 0, a mean in REAL would be too coarse */
      REAL base[TFU_COLUMNS];
      memcpy(base, FN(tfu_load)(x->data, x->dtype, at, n, buffer), (size_t)n * sizeof *base);
      {
        EACH_ROW(v) {
          TFU_VECTORISED(i, n) a[i] += v[i] - base[i];
        }
      }
      for (int i = 0; i < n; i++) a[i] /= (REAL)rows;
      EACH_ROW(v) {
        TFU_VECTORISED(i, n) b[i] += (v[i] - base[i] - a[i]) * (v[i] - base[i] - a[i]);
      }
      for (int i = 0; i < n; i++)
        tfu_state_join(group, &s[i], (tfu_state){.a = (double)base[i] + a[i], .b = b[i], .c = rows});
      return;
    }
    default: {
      EACH_ROW(v) {
        if (squares) {
          TFU_VECTORISED(i, n) a[i] += v[i] * v[i];
        } else {
          TFU_VECTORISED(i, n) a[i] += v[i];
        }
      }
    }
  }
  if (group == TFU_SUMS) {
    for (int i = 0; i < n; i++) s[i].a += a[i];
  } else if (group == TFU_TOPS && !ties) {
    for (int i = 0; i < n; i++)
      if (a[i] > s[i].a || a[i] != a[i]) s[i].a = a[i];
  } else {
    for (int i = 0; i < n; i++) tfu_state_join(group, &s[i], (tfu_state){.a = a[i], .b = b[i], .c = rows});
  }
}
#undef EACH_ROW
#undef POWER
#endif
