/* States on the CPU: of lines and of columns (reduce_cpu.h). */
#ifndef REAL
#include "kernels/reductions/reduce_cpu.h"

int tfu_reduce_group(int kind, tfu_dtype dtype) {
  if (dtype >= TFU_FLOATS)
    return kind <= TFU_REDUCE_MEAN ? TFU_WHOLE_SUMS : kind == TFU_REDUCE_PROD ? TFU_WHOLE_PRODUCTS : TFU_WHOLE_TOPS;
  switch (kind) {
    case TFU_REDUCE_MAX:
    case TFU_REDUCE_MIN: return TFU_TOPS;
    case TFU_REDUCE_PROD: return TFU_PRODUCTS;
    case TFU_REDUCE_LSE: return TFU_EXPONENTIALS;
    case TFU_REDUCE_VARIANCE:
    case TFU_REDUCE_STD: return TFU_SPREADS;
    default: return TFU_SUMS;
  }
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

static void settle(tfu_state *s) {
  int e;
  s->a = frexp(s->a, &e); /* infinities and NaN stay, and leave e as it may be */
  if (isfinite(s->a)) s->c += e;
}

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

enum { FN(TOGETHER) = sizeof(REAL) == sizeof(float) ? 4 : 1 }; /* values whose product a double holds for sure */

/* The greatest of n values, NaN if there is any. Each lane is a maximum of its own, so that the loop becomes vectors.
 */
static REAL FN(top)(const REAL *v, int n, REAL sign) {
  REAL lane[TFU_LANES], top = -(REAL)INFINITY;
  const int whole = n - n % TFU_LANES;
  for (int k = 0; k < TFU_LANES; k++) lane[k] = top;
  for (int base = 0; base < whole; base += TFU_LANES)
    for (int k = 0; k < TFU_LANES; k++) {
      const REAL x = v[base + k] * sign, larger = x > lane[k] ? x : lane[k];
      lane[k] = x != x ? x : larger;
    }
  for (int k = 0; k < TFU_LANES && whole; k++) top = lane[k] > top || lane[k] != lane[k] ? lane[k] : top;
  for (int i = whole; i < n; i++) top = v[i] * sign > top || v[i] != v[i] ? v[i] * sign : top;
  return top;
}

static tfu_state FN(product)(const REAL *v, int n) {
  tfu_state s = tfu_state_none(TFU_PRODUCTS, TFU_F32);
  for (int first = 0; first < n; first += FN(TOGETHER)) {
    for (int i = first; i < n && i < first + FN(TOGETHER); i++)
      if (v[i] == 0) s.b++;
      else s.a *= (double)v[i];
    settle(&s);
  }
  return s;
}

/* A sum of exponentials of which one is infinite. */
static double FN(unbounded)(const REAL *v, int64_t stride, int n) {
  for (int i = 0; i < n; i++)
    if (v[i * stride] != v[i * stride]) return NAN;
  return INFINITY;
}

tfu_state FN(tfu_line_state)(int kind, int turned, const REAL *v, int n) {
  const REAL sign = turned ? -1 : 1;
  switch (tfu_reduce_group(kind, TFU_F32)) {
    case TFU_TOPS: {
      const REAL top = FN(top)(v, n, sign);
      return (tfu_state){.a = top, .b = TFU_SUM(n, (REAL)(v[i] * sign == top))};
    }
    case TFU_PRODUCTS: return FN(product)(v, n);
    case TFU_EXPONENTIALS: {
      REAL e[TFU_CHUNK];
      const REAL top = FN(top)(v, n, 1), shift = top == -(REAL)INFINITY ? 0 : top;
      if (top == (REAL)INFINITY) return (tfu_state){.a = top, .b = FN(unbounded)(v, 1, n)};
      if (top != top) return (tfu_state){.a = 0, .b = NAN};
      TFU_VECTORISE
      for (int i = 0; i < n; i++) e[i] = FN(exp_of)(v[i] - shift);
      return (tfu_state){.a = top, .b = TFU_SUM(n, e[i])};
    }
    case TFU_SPREADS: {
      const REAL mean = (REAL)(TFU_SUM(n, v[i]) / n);
      const double left = TFU_SUM(n, v[i] - mean); /* what rounding the mean has left over */
      return (tfu_state){
          .a = mean + left / n, .b = TFU_SUM(n, (v[i] - mean) * (v[i] - mean)) - left * left / n, .c = n};
    }
    default: return (tfu_state){.a = kind == TFU_REDUCE_L2 ? TFU_SUM(n, v[i] * v[i]) : TFU_SUM(n, v[i])};
  }
}

/* The rows of a block, one after the other. */
#define EACH_ROW(v) \
  const REAL *v;    \
  for (int r = 0; r < rows && (v = FN(tfu_load)(x->data, x->dtype, at + r * stride, n, buffer), 1); r++)

void FN(tfu_column_states)(int kind, int turned, const tfu_tensor *x, int64_t at, int64_t stride, int rows, int n,
                           tfu_state *s) {
  REAL a[TFU_TILE], b[TFU_TILE], buffer[TFU_TILE];
  const REAL sign = turned ? -1 : 1;
  const int group = tfu_reduce_group(kind, TFU_F32), squares = kind == TFU_REDUCE_L2;
  for (int i = 0; i < n; i++) a[i] = group == TFU_TOPS || group == TFU_EXPONENTIALS ? -(REAL)INFINITY : 0;
  memset(b, 0, sizeof b);
  switch (group) {
    case TFU_PRODUCTS: {
      EACH_ROW(v) for (int i = 0; i < n; i++) {
        if (v[i] == 0) s[i].b++;
        else s[i].a *= (double)v[i];
        if (r % FN(TOGETHER) == FN(TOGETHER) - 1 || r == rows - 1) settle(&s[i]);
      }
      return;
    }
    case TFU_TOPS: {
      {
        EACH_ROW(v) {
          TFU_VECTORISE
          for (int i = 0; i < n; i++) {
            const REAL y = v[i] * sign, larger = y > a[i] ? y : a[i];
            a[i] = y != y ? y : larger;
          }
        }
      }
      EACH_ROW(v) {
        TFU_VECTORISE
        for (int i = 0; i < n; i++) b[i] += (REAL)(v[i] * sign == a[i]);
      }
      break;
    }
    case TFU_EXPONENTIALS: {
      {
        EACH_ROW(v) {
          TFU_VECTORISE
          for (int i = 0; i < n; i++) a[i] = v[i] > a[i] ? v[i] : a[i];
        }
      }
      REAL shift[TFU_TILE];
      for (int i = 0; i < n; i++) shift[i] = a[i] == -(REAL)INFINITY ? 0 : a[i];
      EACH_ROW(v) {
        TFU_VECTORISE
        for (int i = 0; i < n; i++) b[i] += FN(exp_of)(v[i] - shift[i]);
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
    case TFU_SPREADS: {
      {
        EACH_ROW(v) {
          TFU_VECTORISE
          for (int i = 0; i < n; i++) a[i] += v[i];
        }
      }
      for (int i = 0; i < n; i++) a[i] /= (REAL)rows;
      EACH_ROW(v) {
        TFU_VECTORISE
        for (int i = 0; i < n; i++) b[i] += (v[i] - a[i]) * (v[i] - a[i]);
      }
      break;
    }
    default: {
      EACH_ROW(v) {
        if (squares) {
          TFU_VECTORISE
          for (int i = 0; i < n; i++) a[i] += v[i] * v[i];
        } else {
          TFU_VECTORISE
          for (int i = 0; i < n; i++) a[i] += v[i];
        }
      }
    }
  }
  for (int i = 0; i < n; i++) tfu_state_join(group, &s[i], (tfu_state){.a = a[i], .b = b[i], .c = rows});
}
#undef EACH_ROW
#endif
