/* attention_pairs.cuh - which pairs of queries and keys count, and what soft cap, bias, mask and dropout do to them. */
#pragma once

#include "kernels/attention/attention_own.h"
#include "kernels/core/device/mma.cuh"
#include "kernels/core/philox.h"

#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f
#define INFINITE __int_as_float(0x7f800000)

__device__ inline float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/* Which keys query i may attend to by its position, as tfu_band() says; in 32 bits, which hold all that can be here. */
struct attention_band {
  int shift, keys, left, right;
  __device__ attention_band(const attention_args &a, const tfu_sequence &s)
      : shift(s.shift), keys(s.keys), left(a.left), right(a.right) {}
  __device__ int first(int i) const { return left < 0 ? 0 : max(i + shift - left, 0); }
  __device__ int end(int i) const { return right < 0 ? keys : min(i + shift + right + 1, keys); }
  __device__ bool has(int i, int j) const { return j >= first(i) && j < end(i); }
};

/* Bias, mask and dropout of a head's pairs. Pairs must be within the tensors. */
template <typename T>
struct attention_pairs {
  const attention_args &a;
  const T *bias;
  const uint8_t *mask;
  int64_t pairs;
  float kept; /* what stays of dropout counts as this */

  __device__ attention_pairs(const attention_args &a, int b, int h)
      : a(a),
        bias(a.bias ? (const T *)a.bias + b * a.bias_step[0] + h * a.bias_step[1] : 0),
        mask(a.mask ? a.mask + b * a.mask_step[0] + h * a.mask_step[1] : 0),
        pairs(tfu_pair(&a, b, h, 0, 0)),
        kept(a.seed ? 1 / (1 - a.rate) : 1) {}

  __device__ acc<T> bias_of(int i, int j) const { return (acc<T>)bias[i * a.bias_step[2] + j * a.bias_step[3]]; }
  __device__ bool masked(int i, int j) const { return mask && !mask[i * a.mask_step[2] + j * a.mask_step[3]]; }
  /* A score in base 2 with its bias, or minus infinity. */
  __device__ float score(float v, int i, int j) const {
    if (bias) v = fmaf(bias_of(i, j), LOG2_E, v);
    return masked(i, j) ? -INFINITE : v;
  }
  /* The pair's element of philox.h. */
  __device__ int64_t element(int i, int j) const { return pairs + (int64_t)i * a.keys + j; }
  __device__ bool stays(int i, int j) const {
    const tfu_bits bits = tfu_philox(element(i, j) >> 3, *a.seed);
    return tfu_lane(&bits, (int)(element(i, j) & 7)) >= tfu_drop_below(a.rate);
  }
};

#if __CUDA_ARCH__ >= 800
/* f(value, row, column) for the results of 16 * M rows by 8 * N columns. */
template <int M, int N, typename F>
__device__ inline void for_results(float (&v)[M][N][4], F f) {
  const int g = lane_id() / 4, t = lane_id() % 4;
  UNROLLED(i, M * N * 4) {
    const int m = i / 4 / N, n = i / 4 % N, k = i % 4;
    f(v[m][n][k], 16 * m + g + k / 2 * 8, 8 * n + 2 * t + k % 2);
  }
}

/* For 16-bit types one instruction, whose relative error of up to 2^-11 is what rounding a score to float16 costs. */
template <typename T>
__device__ inline float tanh_for(float x) {
  if (sizeof(T) == 4) return tanhf(x);
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/* Products of queries and keys as scores in base 2, soft_cap * tanh(score / soft_cap). */
template <typename T, int M, int N>
__device__ inline void cap_scores(float (&v)[M][N][4], const attention_args &a) {
  const float inside = a.scale / a.soft_cap, outside = a.soft_cap * LOG2_E;
  for_results(v, [&](float &x, int, int) { x = outside * tanh_for<T>(x * inside); });
}

/* The derivative of the soft cap at a product of query and key; `inside` is scale / soft_cap. */
template <typename T>
__device__ inline float slope_at(float product, float inside) {
  const float t = tanh_for<T>(product * inside);
  return fmaf(-t, t, 1);
}

/* Products of queries and keys as scores in base 2 with soft cap, bias and mask. Rows are queries from row0 on and
 * columns keys from col0 on; TRANSPOSED, rows are keys. What lies beyond the tensors reads their last values: such
 * pairs do not count.
 */
template <bool TRANSPOSED, typename T, int M, int N>
__device__ inline void finish_scores(float (&v)[M][N][4], const attention_pairs<T> &pairs, float by, int row0,
                                     int col0) {
  const attention_args &a = pairs.a;
  /* Keys are neighbours, or one for all: an int counts their elements. */
  const auto for_values = [&](const auto *data, const int64_t(&step)[4], auto f) {
    for_results(v, [&](float &x, int row, int col) {
      const int query = TRANSPOSED ? col0 + col : row0 + row, key = TRANSPOSED ? row0 + row : col0 + col;
      const auto *of_query = data + (int64_t)min(query, a.queries - 1) * (int)step[2];
      f(x, of_query[min(key, a.keys - 1) * (int)step[3]]);
    });
  };
  if (a.soft_cap > 0) cap_scores<T>(v, a);
  else for_results(v, [&](float &x, int, int) { x *= by; });
  if (pairs.bias) for_values(pairs.bias, a.bias_step, [](float &x, T bias) { x = fmaf((float)bias, LOG2_E, x); });
  if (pairs.mask) for_values(pairs.mask, a.mask_step, [](float &x, uint8_t seen) { x = seen ? x : -INFINITE; });
}

/* Dropout's bits for a warp's results, in memory of its own: RUNS of LENGTH neighbouring elements of philox.h each,
 * which are a query's keys. A counter serves eight elements, and a run may begin and end within one. */
template <int RUNS, int LENGTH>
struct attention_drops {
  enum { COUNTERS = LENGTH / 8 + 1, BYTES = TFU_DROP_BYTES(RUNS, LENGTH) };
  const uint16_t *bits;
  uint32_t below;

  /* start(run) is a run's first element. */
  template <typename F>
  __device__ attention_drops(char *memory, const attention_args &a, F start)
      : bits((const uint16_t *)memory), below(tfu_drop_below(a.rate)) {
    const uint64_t seed = *a.seed;
    __syncwarp();
    ONCE
    for (int i = lane_id(); i < RUNS * COUNTERS; i += 32) {
      const tfu_bits b = tfu_philox((start(i / COUNTERS) >> 3) + i % COUNTERS, seed);
      ((int4 *)memory)[i] = make_int4(b.word[0], b.word[1], b.word[2], b.word[3]);
    }
    __syncwarp();
  }
  __device__ bool stays(int run, int64_t start, int k) const {
    return bits[run * COUNTERS * 8 + (int)(start & 7) + k] >= below;
  }
};
#endif
