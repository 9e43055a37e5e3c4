/* reduce.cuh - states: what a reduction knows of the values that it has seen (reduce.h), a struct for each kind.
 *
 * R is the type of arithmetic: float, double, or int64 for both integers. All members are numbers of type R, at most
 * TFU_STATE_WORDS of them. add takes the first m of M values, 0 < m, of which v[i] is number first + i * step of those
 * that are reduced; join takes another state, whose values come after; result is that of a kind, of `all` values. */
#pragma once

#include "kernels/core/device/online_softmax.cuh"
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

__device__ inline float power_of(float x, float shift) { return online_softmax<float>::power(x, shift, 1); }
__device__ inline double power_of(double x, double shift) { return called_exp(x - shift); }

template <typename R>
struct sum_state {
  R sum; /* of squares for l2; what additions have rounded away is not kept, as chains are short */

  template <int M>
  __device__ void add(const reduce_args &k, R (&v)[M], int m, int64_t, int64_t) {
    UNROLLED(i, M) v[i] = i >= m ? 0 : k.kind == TFU_REDUCE_L2 ? v[i] * v[i] : v[i];
    sum += sum_of(v);
  }
  __device__ void join(const sum_state &o) { sum += o.sum; }
  __device__ R result(int kind, int64_t all) const {
    if constexpr (!is_real<R>::value) return kind == TFU_REDUCE_MEAN ? sum / all : sum;
    else return kind == TFU_REDUCE_MEAN ? over(sum, all) : kind == TFU_REDUCE_L2 ? root(sum) : sum;
  }
};

template <typename R>
struct top_state {
  R top;   /* the greatest value, NaN if there is any             */
  R times; /* that it was there, where that is asked for (k.ties) */

  template <int M>
  __device__ void add(const reduce_args &k, R (&v)[M], int m, int64_t, int64_t) {
    top_state o = {v[0], 0};
    UNROLL
    for (int i = 1; i < M; i++)
      if (i < m && (v[i] > o.top || v[i] != v[i])) o.top = v[i];
    if (k.ties) {
      UNROLLED(i, M) o.times += i < m && v[i] == o.top;
    }
    join(o);
  }
  __device__ void join(const top_state &o) {
    if (o.top > top || o.top != o.top) *this = o;
    else if (o.top == top) times += o.times;
  }
  __device__ R result(int kind, int64_t) const { return kind == TFU_REDUCE_MIN ? opposite(top) : top; }
};

/* mantissa * 2^power, so that nothing is too large or too small on the way. Of integers the mantissa is all, and wraps.
 */
template <typename R>
struct product_state {
  R mantissa; /* from 1 up to 2, with the signs of zeros, too */
  R zeros;    /* up to 2, which are no factors                */
  R power;

  template <int M>
  __device__ void add(const reduce_args &, R (&v)[M], int m, int64_t, int64_t) {
    ONCE
    for (int i = 0; i < m; i++) {
      if constexpr (!is_real<R>::value) mantissa *= v[0];
      else if (v[0] == 0) zeros += 1, mantissa *= copysign((R)1, v[0]);
      else mantissa *= split(v[0], power);
      UNROLL
      for (int j = 1; j < M; j++) v[j - 1] = v[j]; /* so that the loop is there once */
    }
    settle();
  }
  __device__ void join(const product_state &o) {
    mantissa *= o.mantissa, zeros += o.zeros, power += o.power;
    settle();
  }
  __device__ R result(int, int64_t) const {
    if constexpr (!is_real<R>::value) return mantissa;
    else return zeros != 0 ? mantissa * 0 : scaled(mantissa, power);
  }

 private:
  __device__ void settle() {
    if constexpr (is_real<R>::value) {
      mantissa = split(mantissa, power);
      zeros = zeros < 2 ? zeros : 2;
    }
  }
};

/* Online softmax, whose sum is of exp(v) where the maximum is infinite, and 0 where it is minus infinity. */
template <typename R>
struct exponential_state {
  R max, sum;

  template <int M>
  __device__ void add(const reduce_args &, R (&v)[M], int m, int64_t, int64_t) {
    UNROLLED(i, M) v[i] = i < m ? v[i] : -infinity<R>();
    rise(larger(max, largest_of(v)));
    const R s = shift();
    UNROLLED(i, M) v[i] = power_of(v[i], s);
    sum += sum_of(v);
  }
  __device__ void join(exponential_state o) {
    const R high = larger(max, o.max);
    rise(high);
    o.rise(high);
    sum += o.sum;
  }
  __device__ R result(int, int64_t) const { return log_of(sum) + shift(); }
  /* What powers are relative to. */
  __device__ R shift() const { return max - max == 0 ? max : 0; }

 private:
  __device__ void rise(R high) {
    const R before = max;
    if (high == before) return;
    max = high;
    if (before != -infinity<R>()) sum *= power_of(before, shift());
  }
};

/* Mean and variance by Welford, two of them joined by Chan. Sums are of differences from a value that was seen, so that
 * a mean far from 0 costs no digits. Numbers are in the order of TFU_SPREAD_… (reduce.h). */
template <typename R>
struct spread_state {
  R mean, squares; /* squared differences from it */
  R count;
  R rest; /* what the mean has no digits for: it is mean + rest */

  template <int M>
  __device__ void add(const reduce_args &, R (&v)[M], int m, int64_t, int64_t) {
    const R about = count == 0 ? v[0] : mean;
    UNROLLED(i, M) v[i] = i < m ? v[i] - about : 0;
    const R off = sum_of(v) * (m == M ? (R)1 / M : ratio((R)1, (R)m));
    UNROLLED(i, M) v[i] = i < m ? v[i] - off : 0;
    join({about, dot_of(v, v), (R)m, off});
  }
  __device__ void join(const spread_state &o) {
    if (o.count == 0) return;
    if (count == 0) {
      *this = o;
      return move_mean(rest);
    }
    const R n = count + o.count, off = (o.mean - mean) + (o.rest - rest), weight = ratio(o.count, n);
    move_mean(rest + off * weight);
    squares += o.squares + off * off * (count * weight);
    count = n;
  }
  __device__ R result(int kind, int64_t all) const {
    const R variance = over(squares, all);
    return kind == TFU_REDUCE_STD ? root(variance) : variance;
  }
  /* The mean is mean + by. */
  __device__ void move_mean(R by) {
    const R before = mean;
    mean += by;
    rest = by - (mean - before);
  }
};

/* The greatest value above the least finite one, and the bits of its first index: in one number, or in two of float. */
template <typename R>
struct index_state {
  R top, low, high;

  /* Values come in order, but for single ones: those may stand before what was seen. */
  template <int M>
  __device__ void add(const reduce_args &, R (&v)[M], int m, int64_t first, int64_t step) {
    int64_t at = index();
    UNROLLED(i, M)
      if (i < m && (v[i] > top || (i == 0 && v[i] == top && first < at))) top = v[i], at = first + i * step;
    set_index(at);
  }
  __device__ void join(const index_state &o) {
    if (o.top > top || (o.top == top && o.index() < index())) *this = o;
  }
  __device__ int64_t index() const {
    if constexpr (sizeof(R) == 8) return *(const int64_t *)&low;
    else return (int64_t)((uint64_t)__float_as_uint(high) << 32 | __float_as_uint(low));
  }
  __device__ void set_index(int64_t at) {
    if constexpr (sizeof(R) == 8) *(int64_t *)&low = at;
    else low = __uint_as_float((uint32_t)at), high = __uint_as_float((uint32_t)(at >> 32));
  }
};

/* Any of them. The kind is a number of the call and no parameter of the template, so that there is one copy of all that
 * moves data: that serves wide types, odd columns and states. What is most often reduced is in kinds.cuh. */
template <typename R>
union state {
  R word[TFU_STATE_WORDS];
  sum_state<R> sums;
  top_state<R> tops;
  product_state<R> products;
  exponential_state<R> exponentials;
  spread_state<R> spreads;
  index_state<R> indices;

  static __device__ state none(const reduce_args &k) {
    const bool least = k.group == TFU_TOPS || k.group == TFU_EXPONENTIALS || k.group == TFU_INDICES;
    const bool finite = k.group == TFU_INDICES || !is_real<R>::value;
    return {{least ? (finite ? least_finite<R>(k.from) : least_of<R>()) : (R)(k.group == TFU_PRODUCTS)}};
  }
  template <int M>
  __device__ void add(const reduce_args &k, R (&v)[M], int m, int64_t first, int64_t step) {
    if (k.negated) {
      UNROLLED(i, M) v[i] = opposite(v[i]);
    }
    if (k.group == TFU_INDICES) indices.add(k, v, m, first, step);
    else as_kind(k.group, [&](auto own) { (this->*own).add(k, v, m, first, step); });
  }
  /* Out of line, as few are joined. */
  __device__ void join(const reduce_args &k, const state &o) { *this = joined(k.group, *this, o); }
  /* That of indices is their index(). */
  __device__ R result(const reduce_args &k) const { return finished(k.group, k.kind, k.all, *this); }

 private:
  /* f(which member it is). Integers have neither exponentials nor spreads. */
  template <typename F>
  static __device__ inline void as_kind(int group, F f) {
    switch (group) {
      case TFU_SUMS: return f(&state::sums);
      case TFU_TOPS: return f(&state::tops);
      case TFU_PRODUCTS: return f(&state::products);
    }
    if constexpr (is_real<R>::value) {
      if (group == TFU_EXPONENTIALS) f(&state::exponentials);
      else if (group == TFU_SPREADS) f(&state::spreads);
    }
  }
  static __device__ __noinline__ R finished(int group, int kind, int64_t all, state s) {
    R y = 0;
    as_kind(group, [&](auto own) { y = (s.*own).result(kind, all); });
    return y;
  }
  static __device__ __noinline__ state joined(int group, state s, state o) {
    if (group == TFU_INDICES) s.indices.join(o.indices);
    else as_kind(group, [&](auto own) { (s.*own).join(o.*own); });
    return s;
  }
};

/* Number i of a state, i a constant; 0 beyond its last. */
template <typename R, typename S>
__device__ inline R word_of(const S &s, int i) {
  return i < (int)(sizeof(S) / sizeof(R)) ? ((const R *)&s)[i] : 0;
}

/* State number `at` of n, as reduce_args.states holds them. */
template <typename R>
__device__ inline state<R> load_state(const void *from, int words, int64_t n, int64_t at) {
  state<R> s;
  UNROLLED(i, TFU_STATE_WORDS) s.word[i] = i < words ? ((const R *)from)[i * n + at] : 0;
  return s;
}
template <typename R, typename S>
__device__ inline void store_state(const reduce_args &a, int64_t n, int64_t at, const S &s) {
  UNROLLED(i, TFU_STATE_WORDS)
    if (i < a.words) ((R *)a.states)[i * n + at] = word_of<R>(s, i);
}

/* The same state in another type. */
template <typename R, typename F>
__device__ inline state<R> converted(const state<F> &s, int group) {
  state<R> other = {{(R)s.word[0], (R)s.word[1], (R)s.word[2]}};
  if (group == TFU_SPREADS) {
    const double mean = (double)s.spreads.mean + s.spreads.rest;
    other.spreads.mean = (R)mean, other.spreads.rest = (R)(mean - other.spreads.mean);
  }
  if (group == TFU_INDICES) other.indices.set_index(s.indices.index());
  return other;
}
