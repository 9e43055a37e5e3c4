/* slope.cuh - the gradient of a reduction, once the state of a result is known (reduce.cuh). A state and dy give two
 * numbers, (p, q), and these give the gradient of every value v that the result is made of:
 *
 *   max, min: p where v is q, else 0; p everywhere where q is NaN       logsumexp: p exp(v - q)
 *   variance, std, l2: p (v - q)                                        prod: p / v, with p as m * 2^q
 *
 * Of logsumexp q is the maximum, for the result has no digits left for the sum where values are large.
 * Of a product with zeros, q is infinite, and p the gradient of the zero where there is one, times the zero's sign; all
 * others have 0. */
#pragma once

#include "kernels/reductions/reduce.cuh"

template <typename R>
struct slope_pair {
  R p, q;
};

/* GROUP is that of the kind's state, all the number of values that a result is made of. */
template <int GROUP, typename R>
__device__ inline slope_pair<R> pair_from(int kind, int64_t all, const state<R> &s, R dy) {
  const R y = s.template result_as<GROUP>(kind, all);
  if constexpr (GROUP == TFU_TOPS) return {dy / (y == y ? s.b : y), y};
  if constexpr (GROUP == TFU_EXPONENTIALS) return {dy / s.b, s.shift()};
  if constexpr (GROUP == TFU_PRODUCTS)
    return {dy * (s.b == 0 ? s.a : s.b == 1 ? scaled(s.a, s.c) : s.a * 0), s.b == 0 ? s.c : infinity<R>()};
  if constexpr (GROUP == TFU_SPREADS) return {dy / (kind == TFU_REDUCE_STD ? (R)all * y : (R)0.5 * (R)all), s.a};
  return {dy / y, 0};
}

template <int GROUP, typename R>
__device__ inline R slope(R v, R p, R q) {
  if constexpr (GROUP == TFU_TOPS) return v == q || q != q ? p : 0;
  if constexpr (GROUP == TFU_EXPONENTIALS) return p * power_of(v, q);
  if constexpr (GROUP == TFU_PRODUCTS) {
    if (q == infinity<R>()) return p * copysign((R)(v == 0), v);
    R e = 0;
    const R m = split(v, e);
    return scaled(p / m, q - e);
  }
  return p * (v - q);
}
