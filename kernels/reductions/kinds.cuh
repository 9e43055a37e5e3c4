/* kinds.cuh - what a thread knows of the values that it has seen, where these are computed in float: a struct for each
 * kind of state (reduce.cuh), for the storage type T. Both are known when the code is compiled, so that a value takes
 * few instructions: at the rate of an H200's memory a multiprocessor has 28 of a lane for a float, 14 for 16 bits.
 *
 * A kind is started once, and takes N values at a time with add: value(i) is number i of them, and real(i) says whether
 * it is there, i a constant. Values that are not there are nothing(), two of them as T stores them, which changes no
 * result. count is how many are there, seen how many came before, and index(i) tells where value i is in its part of a
 * row, i a variable. known(begin) is the state at the end; WORDS numbers of it matter. */
#pragma once

#include "kernels/reductions/reduce.cuh"

/* Element i of a pack, i a constant. */
template <typename T>
__device__ inline float element(int4 bits, int i) {
  const int word = sizeof(T) == 4 ? i : i / 2;
  const unsigned w = word == 0 ? bits.x : word == 1 ? bits.y : word == 2 ? bits.z : bits.w;
  if constexpr (sizeof(T) == 4) return __uint_as_float(w);
  else return i % 2 ? pair_of<T>::widen(w).y : pair_of<T>::widen(w).x;
}
template <typename T>
__device__ inline float single(const void *x, int64_t at) {
  if constexpr (sizeof(T) == 4) return ((const float *)x)[at];
  else return pair_of<T>::widen(((const uint16_t *)x)[at]).x;
}
/* A value as T stores it; twice, where that takes 16 bits. */
template <typename T>
__device__ inline unsigned stored(float value) {
  if constexpr (sizeof(T) == 4) return __float_as_uint(value);
  else return pair_of<T>::narrow(value, value);
}

/* All values made one by f, in four chains. */
template <int N, typename V, typename F>
__device__ inline float folded(V value, F f) {
  float part[4];
  UNROLLED(i, N) part[i % 4] = i < 4 ? value(i) : f(part[i % 4], value(i));
  UNROLL
  for (int i = 1; i < 4; i++)
    if (i < N) part[0] = f(part[0], part[i]);
  return part[0];
}
struct plus {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct most {
  __device__ float operator()(float a, float b) const { return larger(a, b); }
};

/* The values of minima and of their indices count with the opposite sign. */
struct flip_sign {
  unsigned sign = 0;
  __device__ float operator()(float v) const { return __uint_as_float(__float_as_uint(v) ^ sign); }
};

struct one_sum {
  typedef sum_state<float> state;
  enum { GROUP = TFU_SUMS, WORDS = 1 };
  float sum = 0;
  __device__ void start(const reduce_args &) {}
  __device__ unsigned nothing() const { return 0; }
  __device__ state known(int64_t) const { return {sum}; }
};

template <typename T>
struct sums : one_sum {
  template <int N, typename V, typename A, typename P>
  __device__ void add(V value, A, P, int, int) {
    sum += folded<N>(value, plus());
  }
};

template <typename T>
struct squares : one_sum {
  template <int N, typename V, typename A, typename P>
  __device__ void add(V value, A, P, int, int) {
    float part[4] = {0, 0, 0, 0};
    UNROLLED(i, N) part[i % 4] += value(i) * value(i);
    sum += part[0] + part[1] + (part[2] + part[3]);
  }
};

template <typename T>
struct tops {
  typedef top_state<float> state;
  enum { GROUP = TFU_TOPS, WORDS = 1 };
  flip_sign flip;
  float top = -infinity<float>();
  __device__ void start(const reduce_args &a) { flip.sign = a.negated ? 0x80000000u : 0; }
  __device__ unsigned nothing() const { return stored<T>(flip(-infinity<float>())); }
  template <int N, typename V, typename A, typename P>
  __device__ void add(V value, A, P, int, int) {
    top = top_of(top, folded<N>([&](int i) { return flip(value(i)); }, [](float a, float b) { return top_of(a, b); }));
  }
  __device__ state known(int64_t) const { return {top, 0}; }
};

/* Counts how often the greatest value is there, too. */
template <typename T>
struct ties {
  typedef top_state<float> state;
  enum { GROUP = TFU_TOPS, WORDS = 2 };
  flip_sign flip;
  state s = {-infinity<float>(), 0};
  __device__ void start(const reduce_args &a) { flip.sign = a.negated ? 0x80000000u : 0; }
  __device__ unsigned nothing() const { return stored<T>(flip(-infinity<float>())); }
  template <int N, typename V, typename A, typename P>
  __device__ void add(V value, A real, P, int, int) {
    const float top = folded<N>([&](int i) { return flip(value(i)); }, [](float a, float b) { return top_of(a, b); });
    const float as_stored = flip(top);
    int equal = 0;
    UNROLLED(i, N) equal += real(i) && value(i) == as_stored;
    s.join({top, (float)equal});
  }
  __device__ state known(int64_t) const { return s; }
};

/* In double: factors near 1 are rounded to the same side more often than to the other, so that in float the errors of a
 * long product add up. A few floats cannot leave the range of double, and then the power of two is taken out. */
template <typename T>
struct products {
  typedef product_state<float> state;
  enum { GROUP = TFU_PRODUCTS, WORDS = 3 };
  double product = 1; /* of size 1 up to 2, infinite or NaN */
  int power = 0, zeros = 0;
  __device__ void start(const reduce_args &) {}
  __device__ unsigned nothing() const { return stored<T>(1); }
  template <int N, typename V, typename A, typename P>
  __device__ void add(V value, A, P, int, int) {
    UNROLLED(i, N) {
      zeros += value(i) == 0;
      product *= value(i) == 0 ? copysignf(1.0f, value(i)) : value(i);
      if (i % 4 == 3 || i == N - 1) take_power();
    }
  }
  __device__ state known(int64_t) const {
    float p = (float)power;
    return {split((float)product, p), zeros < 2 ? (float)zeros : 2, p};
  }

 private:
  __device__ void take_power() {
    const int bits = __double2hiint(product), up = (bits >> 20 & 2047) - 1023;
    if (up == 1024) return;
    power += up;
    product = __hiloint2double((bits & 0x800fffff) | 0x3ff00000, __double2loint(product));
  }
};

template <typename T>
struct exponentials {
  typedef exponential_state<float> state;
  enum { GROUP = TFU_EXPONENTIALS, WORDS = 2 };
  float top = -infinity<float>(), sum = 0;
  __device__ void start(const reduce_args &) {}
  __device__ unsigned nothing() const { return stored<T>(-infinity<float>()); }
  template <int N, typename V, typename A, typename P>
  __device__ void add(V value, A, P, int, int) {
    const float high = larger(top, folded<N>(value, most()));
    if (high > top) {
      sum *= power(top, finite(high)); /* of minus infinity it is 0 */
      top = high;
    }
    const float shift = finite(top);
    sum += folded<N>([&](int i) { return power(value(i), shift); }, plus());
  }
  __device__ state known(int64_t) const { return {top, sum}; }

 private:
  static __device__ float finite(float v) { return v - v == 0 ? v : 0; }
  static __device__ float power(float v, float shift) {
    return online_softmax<T>::power(v, shift, online_softmax<T>::unit());
  }
};

/* Welford's mean and variance. Of values of 16 bits, until they are known: rest is the sum of differences from mean,
 * that of the first few, and squares that of their squares. This takes fewer instructions than a mean of every few
 * values, and a float has the digits for it. */
template <typename T>
struct spreads {
  typedef spread_state<float> state;
  enum { GROUP = TFU_SPREADS, WORDS = 4, NARROW = sizeof(T) == 2 };
  state s = {0, 0, 0, 0};
  __device__ void start(const reduce_args &) {}
  __device__ unsigned nothing() const { return 0; }
  template <int N, typename V, typename A, typename P>
  __device__ void add(V value, A real, P, int count, int seen) {
    if (count == N)
      add_all<N>(
          value, [](int) { return true; }, N, seen); /* apart: no choice for each value */
    else add_all<N>(value, real, count, seen);
  }
  __device__ state known(int64_t) const {
    state k = s;
    if (!NARROW || k.count == 0) return k;
    const float by = k.rest / k.count, squares = k.squares - by * k.rest;
    k.squares = squares < 0 ? 0 : squares;
    k.move_mean(by);
    return k;
  }

 private:
  template <int N, typename V, typename A>
  __device__ void add_all(V value, A real, int count, int seen) {
    const float each = count == N ? 1.0f / N : ratio(1.0f, (float)count), before = (float)seen;
    if (!seen) s.mean = NARROW ? folded<N>(value, plus()) * each : value(0); /* what is not there is 0 */
    const auto apart = [&](int i) { return real(i) ? value(i) - s.mean : 0; };
    float part[4] = {0, 0, 0, 0};
    s.count = before + (float)count;
    if constexpr (NARROW) {
      UNROLLED(i, N) part[i % 4] += apart(i) * apart(i);
      s.rest += folded<N>(apart, plus());
      s.squares += part[0] + part[1] + (part[2] + part[3]);
      return;
    }
    const float mean = folded<N>(apart, plus()) * each;
    UNROLLED(i, N) {
      const float off = real(i) ? apart(i) - mean : 0;
      part[i % 4] += off * off;
    }
    const float weight = ratio((float)count, s.count), off = mean - s.rest;
    s.squares += part[0] + part[1] + (part[2] + part[3]) + off * off * (before * weight);
    s.move_mean(s.rest + off * weight);
  }
};

#if __CUDA_ARCH__ >= 800
/* The larger ones of two pairs of 16 bits; the number where one is NaN. */
template <typename T>
__device__ inline unsigned larger_pair(unsigned a, unsigned b);
template <>
__device__ inline unsigned larger_pair<f16>(unsigned a, unsigned b) {
  unsigned y;
  asm("max.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
template <>
__device__ inline unsigned larger_pair<bf16>(unsigned a, unsigned b) {
  unsigned y;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
#endif

/* Values come in the order of their indices. Only those above the least finite one count. */
template <typename T>
struct indices {
  typedef index_state<float> state;
#if __CUDA_ARCH__ >= 800
  enum { GROUP = TFU_INDICES, WORDS = 3, BY_PACKS = sizeof(T) == 2 };
#else
  enum { GROUP = TFU_INDICES, WORDS = 3, BY_PACKS = 0 };
#endif
  enum { V = packed<T>::N, PACKS = TFU_BATCH / V };
  flip_sign flip;
  float top;
  int at = -1; /* none yet */
  /* Of 16 bits, by packs: those with the greatest value, which are looked through in the end, and the index of their
   * first value. */
  int4 best[BY_PACKS ? (int)PACKS : 1];
  int step = 0;
  __device__ void start(const reduce_args &a) {
    flip.sign = a.negated ? 0x80000000u : 0;
    top = least_finite<float>(a.from);
  }
  __device__ unsigned nothing() const { return stored<T>(flip(-infinity<float>())); }
  template <int N, typename F, typename A, typename P>
  __device__ void add(F value, A, P index, int, int) {
    const float high = folded<N>([&](int i) { return flip(value(i)); }, most());
    if (!(high > top)) return;
    top = high;
    at = index(first_of<N>(value));
  }
#if __CUDA_ARCH__ >= 800
  /* A batch of a row: all its packs, nothing() in those that are not there. */
  __device__ void add_packs(const int4 (&bits)[PACKS], int first, int stride) {
    const unsigned signs = flip.sign | flip.sign >> 16;
    unsigned high = larger_pair<T>(bits[0].x ^ signs, bits[0].y ^ signs);
    high = larger_pair<T>(high, larger_pair<T>(bits[0].z ^ signs, bits[0].w ^ signs));
    UNROLL
    for (int i = 1; i < PACKS; i++) {
      const unsigned front = larger_pair<T>(bits[i].x ^ signs, bits[i].y ^ signs);
      const unsigned back = larger_pair<T>(bits[i].z ^ signs, bits[i].w ^ signs);
      high = larger_pair<T>(high, larger_pair<T>(front, back));
    }
    const float2 both = pair_of<T>::widen(high);
    const float one = larger(both.x, both.y);
    if (!(one > top)) return;
    top = one;
    at = first;
    step = stride;
    UNROLLED(i, PACKS) best[i] = bits[i];
  }
#endif
  /* Looks for the index, if the lane may be the row's first with its greatest value. All threads of a warp must call
   * it.
   */
  __device__ void settle(int lanes) {
    if constexpr (BY_PACKS) {
      float high = top;
      ONCE
      for (int offset = (lanes < 32 ? lanes : 32) / 2; offset > 0; offset /= 2)
        high = larger(high, __shfl_xor_sync(0xffffffffu, high, offset));
      if (at < 0 || top < high) return;
      const int i = first_of<TFU_BATCH>([&](int i) { return element<T>(best[i / V], i % V); });
      at += i / V * step + i % V;
    }
  }
  __device__ state known(int64_t begin) const {
    state s = {top, 0, 0};
    if (at >= 0) s.set_index(begin + at);
    return s;
  }

 private:
  template <int N, typename F>
  __device__ int first_of(F value) const {
    const float as_stored = flip(top);
    int first = 0;
    UNROLL
    for (int i = N - 1; i >= 0; i--) first = value(i) == as_stored ? i : first;
    return first;
  }
};

/* Whether a kind takes batches of packs, add_packs, and wants settle at the end of a row. */
template <typename K>
constexpr bool by_packs = false;
template <typename T>
constexpr bool by_packs<indices<T>> = indices<T>::BY_PACKS;

/* Writes result number `at` of n, or the state itself. */
template <typename T, typename K>
__device__ inline void store_as(const reduce_args &a, int64_t n, int64_t at, const typename K::state &s) {
  if (!a.y) store_state<float>(a, n, at, s);
  else if constexpr (K::GROUP == TFU_INDICES) store_one(a.y, at, a.to, s.index());
  else store_one(a.y, at, sizeof(T) == 4 ? TFU_AS_F32 : a.to, s.result(a.kind, a.all));
}

/* Stamps KERNEL(name_<kind>_<dtype>, name<T, kind>) for all types and for all kinds, or for those with a gradient that
 * takes few instructions, by the names of the host's variants. */
#define TFU_SLOPES_OF(KERNEL, name, tag, T)           \
  KERNEL(name##_squares_##tag, name<T, squares<T>>)   \
  KERNEL(name##_ties_##tag, name<T, ties<T>>)         \
  KERNEL(name##_exps_##tag, name<T, exponentials<T>>) \
  KERNEL(name##_spreads_##tag, name<T, spreads<T>>)
#define TFU_KINDS_OF(KERNEL, name, tag, T)            \
  TFU_SLOPES_OF(KERNEL, name, tag, T)                 \
  KERNEL(name##_sums_##tag, name<T, sums<T>>)         \
  KERNEL(name##_products_##tag, name<T, products<T>>) \
  KERNEL(name##_tops_##tag, name<T, tops<T>>)         \
  KERNEL(name##_indices_##tag, name<T, indices<T>>)
#define TFU_KINDS_WITH_SLOPES(KERNEL, name) TFU_SINGLES(TFU_SLOPES_OF, KERNEL, name)
#define TFU_KINDS(KERNEL, name) TFU_SINGLES(TFU_KINDS_OF, KERNEL, name)
