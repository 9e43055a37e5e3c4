/* attention_softmax.cuh - online softmax of rows whose scores come in tiles (kernels/core/device/online_softmax.cuh):
 * where a larger score comes, the output so far is scaled down like the sum. */
#pragma once

#include "kernels/attention/attention_pairs.cuh"
#include "kernels/core/device/online_softmax.cuh"

#if __CUDA_ARCH__ >= 800
/* Of 16 * M rows, in the accumulators' layout (mma.cuh): [m][k] is row 16 m + 8 k + lane / 4, which four lanes share.
 * The largest score is the same in all four, the sums are those of each lane's own columns. */
template <int M>
struct online_softmax_rows {
  float high[M][2], sum[M][2];
  __device__ online_softmax_rows() {
    UNROLLED(m, M) {
      high[m][0] = high[m][1] = -INFINITE;
      sum[m][0] = sum[m][1] = 0;
    }
  }

  /* Scores become weights, 2 to the power of score * factor less the row's largest. */
  template <int N, int C>
  __device__ void add(float (&p)[M][N][4], float (&out)[M][C][4], float factor) {
    float top[M][2];
    bool rises = false;
    UNROLLED(i, 2 * M) {
      const int m = i / 2, k = i % 2;
      float v = high[m][k];
      UNROLLED(n, N) v = fmaxf(v, fmaxf(p[m][n][2 * k], p[m][n][2 * k + 1]));
      v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 1));
      top[m][k] = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 2));
      rises |= top[m][k] != high[m][k];
    }
    if (__any_sync(0xffffffffu, rises)) {
      UNROLLED(i, 2 * M) {
        const int m = i / 2, k = i % 2;
        const float down =
            softmax_down(high[m][k], top[m][k], [&](float from, float to) { return exp2_of((from - to) * factor); });
        high[m][k] = top[m][k];
        sum[m][k] *= down;
        UNROLLED(n, C) out[m][n][2 * k] *= down, out[m][n][2 * k + 1] *= down;
      }
    }
    UNROLLED(i, 2 * M) {
      const int m = i / 2, k = i % 2;
      const float shift = softmax_shift(high[m][k]) * factor;
      UNROLLED(n, N) {
        p[m][n][2 * k] = exp2_of(fmaf(p[m][n][2 * k], factor, -shift));
        p[m][n][2 * k + 1] = exp2_of(fmaf(p[m][n][2 * k + 1], factor, -shift));
        sum[m][k] += p[m][n][2 * k] + p[m][n][2 * k + 1];
      }
    }
  }

  /* A row's sum over all its lanes. */
  __device__ float total(int m, int k) const {
    float v = sum[m][k];
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
  }
};
#endif
