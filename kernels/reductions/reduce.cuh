/* reduce.cuh - states: what a reduction knows of the values that it has seen (reduce.h).
 *
 * A state is four numbers, whose meaning depends on the kind. R is the type of arithmetic: float, double, or int64 for
 * both integers. Here the kind is a number of the call and no parameter of the template, so that there is one copy of
 * all that moves data: that serves wide types, odd columns and states. What is most often reduced is in kinds.cuh. */
#pragma once

#include "kernels/core/device/max_sum.cuh"
#include "kernels/reductions/stored.cuh"

template <typename R>
struct is_real {
  enum { value = 1 };
};
template <>
struct is_real<int64_t> {
  enum { value = 0 };
};

__device__ inline float opposite(float v) { return -v; }
__device__ inline double opposite(double v) { return -v; }
__device__ inline int64_t opposite(int64_t v) { return ~v; }
__device__ inline float root(float v) { return sqrtf(v); }
__device__ inline double root(double v) { return sqrt(v); }
template <typename R>
__device__ inline R least_of() {
  return -infinity<R>();
}
template <>
__device__ inline int64_t least_of<int64_t>() {
  return (int64_t)0x8000000000000000;
}
/* The least finite value of a storage type. */
template <typename R>
__device__ inline R least_finite(int from);
template <>
__device__ inline float least_finite<float>(int from) {
  return from == TFU_AS_F32 ? -3.402823466e38f : from == TFU_AS_F16 ? -65504.0f : -3.389531390e38f;
}
template <>
__device__ inline double least_finite<double>(int from) {
  return from == TFU_AS_F64 ? -1.7976931348623157e308 : least_finite<float>(from);
}
template <>
__device__ inline int64_t least_finite<int64_t>(int from) {
  return from == TFU_AS_I32 ? (int64_t)(int32_t)0x80000000 : least_of<int64_t>();
}

/* To two units, for weights; that of doubles exact, and out of line. */
__device__ inline float ratio(float a, float b) { return __fdividef(a, b); }
static __device__ __noinline__ double ratio(double a, double b) { return a / b; }

/* v / n for a number n of values, without the branch that an exact division takes for extreme ones. */
__device__ inline float over(float v, int64_t n) {
  const float by = (float)n, r = ratio(1.0f, by), q = v * r, rest = fmaf(-by, q, v);
  return rest - rest == 0 ? fmaf(rest, r, q) : q; /* NaN where v is infinite */
}
__device__ inline double over(double v, int64_t n) { return v / (double)n; }

/* x = m * 2^e with |m| from 1 up to 2; infinities and NaN are themselves. Not for 0. */
__device__ inline float split(float x, float &e) {
  if (fabsf(x) < 1.17549435e-38f) x *= 16777216.0f, e -= 24;
  const int bits = __float_as_int(x), power = bits >> 23 & 255;
  if (power == 255) return x;
  e += power - 127;
  return __int_as_float((bits & 0x807fffff) | 0x3f800000);
}
__device__ inline double split(double x, double &e) {
  if (fabs(x) < 2.2250738585072014e-308) x *= 18014398509481984.0, e -= 54;
  const long long bits = __double_as_longlong(x);
  const int power = (int)(bits >> 52 & 2047);
  if (power == 2047) return x;
  e += power - 1023;
  return __longlong_as_double((bits & ~(2047ll << 52)) | 1023ll << 52);
}
/* m * 2^e, by two factors, since 2^e alone may be too large or too small. */
__device__ inline float scaled(float m, float e) {
  const int all = (int)fminf(fmaxf(e, -252), 252), half = all / 2;
  return m * __int_as_float((half + 127) << 23) * __int_as_float((all - half + 127) << 23);
}
__device__ inline double scaled(double m, double e) {
  const int all = (int)fmin(fmax(e, -2044), 2044), half = all / 2;
  return m * __hiloint2double((half + 1023) << 20, 0) * __hiloint2double((all - half + 1023) << 20, 0);
}

__device__ inline float power_of(float x, float shift) { return max_sum<float>::power(x, shift, 1); }
__device__ inline double power_of(double x, double shift) { return called_exp(x - shift); }

/* SUMS: a is the sum, of squares for l2; what additions have rounded away is not kept, as chains are short.
 * TOPS: a is the greatest value, NaN if there is any; b counts how often it was there, where that is asked for.
 * PRODUCTS: a * 2^c, so that nothing is too large or too small on the way; b counts zeros, up to 2, of which a has the
 *   signs alone. Of integers a alone, which wraps.
 * EXPONENTIALS: a is the greatest value, b the sum of exp(v - a); of exp(v) where a is infinite, 0 where a is minus
 *   infinity.
 * SPREADS: a + d is the mean, d what a has no digits for, b the sum of squared differences from it, c the number of
 *   values. Sums are of differences from a value that was seen, so that a mean far from 0 costs no digits.
 * PLACES: a is the greatest value above the least finite one, b and c hold its first place. */
template <typename R>
struct state {
  R a, b, c, d;

  static __device__ state none(const reduce_args &k) {
    const bool least = k.group == TFU_TOPS || k.group == TFU_EXPONENTIALS || k.group == TFU_PLACES;
    const bool finite = k.group == TFU_PLACES || !is_real<R>::value;
    return {least ? (finite ? least_finite<R>(k.from) : least_of<R>()) : (R)(k.group == TFU_PRODUCTS), 0, 0};
  }

  /* The first m of M values, 0 < m; v[i] is number first + i * step of those that are reduced. */
  template <int M>
  __device__ void add(const reduce_args &k, R (&v)[M], int m, int64_t first, int64_t step) {
    if (k.turned) {
      UNROLL
      for (int i = 0; i < M; i++) v[i] = opposite(v[i]);
    }
    switch (k.group) {
      case TFU_SUMS: {
        UNROLL
        for (int i = 0; i < M; i++) v[i] = i >= m ? 0 : k.kind == TFU_REDUCE_L2 ? v[i] * v[i] : v[i];
        a += sum_of(v);
        return;
      }
      case TFU_TOPS: {
        state top = {v[0], 0, 0};
        UNROLL
        for (int i = 1; i < M; i++)
          if (i < m && (v[i] > top.a || v[i] != v[i])) top.a = v[i];
        if (k.ties) {
          UNROLL
          for (int i = 0; i < M; i++) top.b += i < m && v[i] == top.a;
        }
        join_tops(top);
        return;
      }
      case TFU_PRODUCTS: {
        ONCE
        for (int i = 0; i < m; i++) {
          if constexpr (!is_real<R>::value) a *= v[0];
          else if (v[0] == 0) b += 1, a *= copysign((R)1, v[0]);
          else a *= split(v[0], c);
          UNROLL
          for (int j = 1; j < M; j++) v[j - 1] = v[j]; /* so that the loop is there once */
        }
        settle();
        return;
      }
      case TFU_EXPONENTIALS:
        if constexpr (is_real<R>::value) {
          UNROLL
          for (int i = 0; i < M; i++) v[i] = i < m ? v[i] : -infinity<R>();
          rise(larger(a, largest_of(v)));
          const R s = shift();
          UNROLL
          for (int i = 0; i < M; i++) v[i] = power_of(v[i], s);
          b += sum_of(v);
        }
        return;
      case TFU_SPREADS:
        if constexpr (is_real<R>::value) {
          const R about = c == 0 ? v[0] : a;
          UNROLL
          for (int i = 0; i < M; i++) v[i] = i < m ? v[i] - about : 0;
          const R mean = sum_of(v) * (m == M ? (R)1 / M : ratio((R)1, (R)m));
          UNROLL
          for (int i = 0; i < M; i++) v[i] = i < m ? v[i] - mean : 0;
          join_spreads({about, dot_of(v, v), (R)m, mean});
        }
        return;
      default: { /* values come in order, but for single ones: those may stand before what was seen */
        int64_t at = place();
        UNROLL
        for (int i = 0; i < M; i++)
          if (i < m && (v[i] > a || (i == 0 && v[i] == a && first < at))) a = v[i], at = first + i * step;
        set_place(at);
      }
    }
  }

  /* Out of line, as few are joined. */
  __device__ void join(const reduce_args &k, const state &o) { *this = joined(k.group, *this, o); }

  /* The result of a kind, of `all` values; that of PLACES is place(). */
  template <int GROUP>
  __device__ R result_as(int kind, int64_t all) const {
    if constexpr (GROUP == TFU_TOPS) return kind == TFU_REDUCE_MIN ? opposite(a) : a;
    else if constexpr (!is_real<R>::value) return kind == TFU_REDUCE_MEAN ? a / all : a;
    else {
      if constexpr (GROUP == TFU_PRODUCTS) return b != 0 ? a * 0 : scaled(a, c);
      if constexpr (GROUP == TFU_EXPONENTIALS) return log_of(b) + shift();
      if constexpr (GROUP == TFU_SPREADS) {
        const R mean = over(b, all);
        return kind == TFU_REDUCE_STD ? root(mean) : mean;
      }
      return kind == TFU_REDUCE_MEAN ? over(a, all) : kind == TFU_REDUCE_L2 ? root(a) : a;
    }
  }
  __device__ R result(const reduce_args &k) const { return finished(k.group, k.kind, k.all, *this); }

  __device__ int64_t place() const {
    if constexpr (sizeof(R) == 8) return *(const int64_t *)&b;
    else return (int64_t)((uint64_t)__float_as_uint(c) << 32 | __float_as_uint(b));
  }
  __device__ void set_place(int64_t at) {
    if constexpr (sizeof(R) == 8) *(int64_t *)&b = at;
    else b = __uint_as_float((uint32_t)at), c = __uint_as_float((uint32_t)(at >> 32));
  }

  /* One state of two. */
  template <int GROUP>
  static __device__ state joined_as(state s, state o) {
    if constexpr (GROUP == TFU_SUMS) s.a += o.a;
    if constexpr (GROUP == TFU_TOPS) s.join_tops(o);
    if constexpr (GROUP == TFU_PRODUCTS) {
      s.a *= o.a, s.b += o.b, s.c += o.c;
      s.settle();
    }
    if constexpr (GROUP == TFU_EXPONENTIALS && is_real<R>::value) {
      const R high = larger(s.a, o.a);
      s.rise(high);
      o.rise(high);
      s.b += o.b;
    }
    if constexpr (GROUP == TFU_SPREADS && is_real<R>::value) s.join_spreads(o);
    if constexpr (GROUP == TFU_PLACES)
      if (o.a > s.a || (o.a == s.a && o.place() < s.place())) s = o;
    return s;
  }

  /* Of EXPONENTIALS: what powers are relative to. */
  __device__ R shift() const { return a - a == 0 ? a : 0; }

  /* Of SPREADS: the mean is a + by. */
  __device__ void move_mean(R by) {
    const R before = a;
    a += by;
    d = by - (a - before);
  }

 private:
  static __device__ __noinline__ R finished(int group, int kind, int64_t all, state s) {
    switch (group) {
      case TFU_TOPS: return s.template result_as<TFU_TOPS>(kind, all);
      case TFU_PRODUCTS: return s.template result_as<TFU_PRODUCTS>(kind, all);
      case TFU_EXPONENTIALS: return s.template result_as<TFU_EXPONENTIALS>(kind, all);
      case TFU_SPREADS: return s.template result_as<TFU_SPREADS>(kind, all);
      default: return s.template result_as<TFU_SUMS>(kind, all);
    }
  }
  static __device__ __noinline__ state joined(int group, state s, state o) {
    switch (group) {
      case TFU_SUMS: return joined_as<TFU_SUMS>(s, o);
      case TFU_TOPS: return joined_as<TFU_TOPS>(s, o);
      case TFU_PRODUCTS: return joined_as<TFU_PRODUCTS>(s, o);
      case TFU_EXPONENTIALS: return joined_as<TFU_EXPONENTIALS>(s, o);
      case TFU_SPREADS: return joined_as<TFU_SPREADS>(s, o);
      default: return joined_as<TFU_PLACES>(s, o);
    }
  }
  __device__ void join_tops(const state &o) {
    if (o.a > a || o.a != o.a) *this = o;
    else if (o.a == a) b += o.b;
  }
  __device__ void join_spreads(const state &o) {
    if (o.c == 0) return;
    if (c == 0) {
      *this = o;
      return move_mean(d);
    }
    const R n = c + o.c, off = (o.a - a) + (o.d - d), weight = ratio(o.c, n);
    move_mean(d + off * weight);
    b += o.b + off * off * (c * weight);
    c = n;
  }
  __device__ void settle() {
    if constexpr (is_real<R>::value) {
      a = split(a, c);
      b = b < 2 ? b : 2;
    }
  }
  __device__ void rise(R high) {
    const R before = a;
    if (high == before) return;
    a = high;
    if (before != -infinity<R>()) b *= power_of(before, shift());
  }
};

/* State number `at` of n, as reduce_args.states holds them. */
template <typename R>
__device__ inline state<R> load_state(const void *from, int words, int64_t n, int64_t at) {
  const R *numbers = (const R *)from + at;
  state<R> s = {numbers[0], 0, 0};
  if (words > 1) s.b = numbers[n];
  if (words > 2) s.c = numbers[2 * n];
  if (words > 3) s.d = numbers[3 * n];
  return s;
}

/* The same state in another type. */
template <typename R, typename F>
__device__ inline state<R> converted(const state<F> &s, int group) {
  state<R> other = {(R)s.a, (R)s.b, (R)s.c};
  if (group == TFU_SPREADS) other.a = (R)((double)s.a + s.d), other.d = (R)((double)s.a + s.d - other.a);
  if (group == TFU_PLACES) other.set_place(s.place());
  return other;
}
