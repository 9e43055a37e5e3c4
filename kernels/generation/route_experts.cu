/* route_experts on the GPU: a warp for each row. Probabilities are computed anew for each expert that is taken, which
 * is the first of those that come after the one before: there are few experts, and no memory for them has to be found.
 */
#include "kernels/core/device/pack.cuh"
#include "kernels/generation/route.h"

__device__ inline float e_to(float x) { return ::expf(x); }
__device__ inline double e_to(double x) { return ::exp(x); }

template <typename T>
__device__ inline void route_experts(const route_args &a) {
  typedef acc<T> R;
  const int lane = threadIdx.x % 32;
  const int64_t row = (int64_t)blockIdx.x * (ROUTE_THREADS / 32) + threadIdx.x / 32;
  if (row >= a.rows) return; /* the whole warp */
  const T *logits = (const T *)a.logits + row * a.experts;
  R most = (R)__int_as_float(0xff800000), sum = 0;
  for (int64_t i = lane; i < a.experts; i += 32) most = max(most, (R)logits[i]);
  for (int step = 16; step; step /= 2) most = max(most, __shfl_xor_sync(~0u, most, step));
  for (int64_t i = lane; i < a.experts; i += 32) sum += e_to((R)logits[i] - most);
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);

  const int none = 0x7fffffff;
  R last = 0, all = 0;
  int last_at = -1;
  T *weights = (T *)a.weights + row * a.top_k;
  for (int s = 0; s < a.top_k; s++) {
    R best = 0;
    int at = none;
    for (int64_t e = lane; e < a.experts; e += 32) {
      const int i = (int)e;
      const R p = (R)(T)(e_to((R)logits[i] - most) / sum);
      if (last_at >= 0 && !ROUTE_IS_BEFORE(last, last_at, p, i)) continue;
      if (at == none || ROUTE_IS_BEFORE(p, i, best, at)) best = p, at = i;
    }
    for (int step = 16; step; step /= 2) {
      const R p = __shfl_xor_sync(~0u, best, step);
      const int i = __shfl_xor_sync(~0u, at, step);
      if (i != none && (at == none || ROUTE_IS_BEFORE(p, i, best, at))) best = p, at = i;
    }
    if (s % 32 == lane) { /* which reads the weight again below */
      a.numbers[row * a.top_k + s] = at;
      weights[s] = (T)best;
    }
    last = best, last_at = at, all += best;
  }
  if (!a.normalized) return;
  for (int s = lane; s < a.top_k; s += 32) weights[s] = (T)((R)weights[s] / all);
}
#define ROUTE_OF_(function, args, tag, T) TFU_STAMP((ROUTE_THREADS), function##_##tag, args, function<T>)
TFU_TYPES(ROUTE_OF_, route_experts, route_args)
