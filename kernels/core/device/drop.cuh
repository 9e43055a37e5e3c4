/* drop.cuh - dropout on a pack: which of its elements stay, by philox.h. */
#pragma once

#include "kernels/core/device/pack.cuh"
#include "kernels/core/philox.h"

struct dropping {
  uint64_t seed;
  uint32_t below;
  float scale; /* of what stays */
  bool on;
  __device__ dropping(const void *seed, float rate)
      : seed(seed ? *(const uint64_t *)seed : 0), below(tfu_drop_below(rate)), scale(1 / (1 - rate)), on(seed != 0) {}

  /* The tensor's elements at .. at + N. */
  template <typename R, int N>
  __device__ void operator()(int64_t at, R (&v)[N]) const {
    apply(lanes<N>(at), v);
  }
  /* Those of a whole pack, which does not begin between two counters, but where N is 4 perhaps in the middle of one. */
  template <typename R, int N>
  __device__ void whole(int64_t at, R (&v)[N]) const {
    tfu_bits bits = tfu_philox(at >> 3, seed);
    UNROLLED(i, N / 2) bits.word[i] = N < 8 && at & 4 ? bits.word[i + 8 / 2 - N / 2] : bits.word[i];
    apply(bits, v);
  }

 private:
  /* Element k's 16 bits are lane k. */
  template <typename R, int N>
  __device__ void apply(const tfu_bits &bits, R (&v)[N]) const {
    UNROLLED(k, N) v[k] = tfu_lane(&bits, k) < below ? (R)0 : v[k] * (R)scale;
  }
  /* Element at's 16 bits lowest. A pack that begins between two counters takes the end of one and the start of the
   * next: 256 bits, shifted down by single and double words and by half a word. */
  template <int N>
  __device__ tfu_bits lanes(int64_t at) const {
    const int skip = (int)(at & 7);
    tfu_bits low = tfu_philox(at >> 3, seed);
    if (skip == 0) return low;
    tfu_bits high = low;
    if (skip + N > 8) high = tfu_philox((at >> 3) + 1, seed);
    uint32_t w[8] = {low.word[0],  low.word[1],  low.word[2],  low.word[3],
                     high.word[0], high.word[1], high.word[2], high.word[3]};
    UNROLLED(i, 6) w[i] = skip & 4 ? w[i + 2] : w[i];
    UNROLLED(i, 5) w[i] = skip & 2 ? w[i + 1] : w[i];
    UNROLLED(i, 4) low.word[i] = skip & 1 ? __funnelshift_r(w[i], w[i + 1], 16) : w[i];
    return low;
  }
};
