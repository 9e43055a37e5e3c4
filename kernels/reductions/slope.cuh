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

/* From the state of a kind whose results are made of `all` values each. */
template <typename R>
__device__ inline slope_pair<R> pair_from(int kind, int64_t all, const top_state<R> &s, R dy) {
  const R y = s.result(kind, all);
  return {dy / (y == y ? s.times : y), y};
}
template <typename R>
__device__ inline slope_pair<R> pair_from(int, int64_t, const exponential_state<R> &s, R dy) {
  return {dy / s.sum, s.shift()};
}
template <typename R>
__device__ inline slope_pair<R> pair_from(int, int64_t, const product_state<R> &s, R dy) {
  const R m = s.zeros == 0 ? s.mantissa : s.zeros == 1 ? scaled(s.mantissa, s.power) : s.mantissa * 0;
  return {dy * m, s.zeros == 0 ? s.power : infinity<R>()};
}
template <typename R>
__device__ inline slope_pair<R> pair_from(int kind, int64_t all, const spread_state<R> &s, R dy) {
  return {dy / (kind == TFU_REDUCE_STD ? (R)all * s.result(kind, all) : (R)0.5 * (R)all), s.mean};
}
template <typename R>
__device__ inline slope_pair<R> pair_from(int kind, int64_t all, const sum_state<R> &s, R dy) {
  return {dy / s.result(kind, all), 0};
}

/* GROUP is that of the kind's state. */
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
