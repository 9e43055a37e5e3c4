/* Group normalisation where a block holds all positions of one group, or of two neighbours: one read and one write of
 * memory (see group_norm.cu for the formulas, and for what does not fit).
 *
 * A position has a.parts packs of the block's groups, each of one group. A thread has the same pack of every so many'th
 * position, and alone reads what it has copied to shared memory: only sums need the others. */
#include "kernels/core/device/pack.cuh"
#include "kernels/core/device/shared.cuh"
#include "kernels/rows/group_norm.h"

enum { THREADS = TFU_GROUP_HELD_THREADS, WARPS = THREADS / 32 };

template <typename T>
struct held_position {
  enum { V = packed<T>::N };
  int part, of_group;             /* the thread's pack of a position, and packs of a group                  */
  bool two;                       /* groups, and not one                                                 */
  int64_t sample, group, channel; /* of the pack                                                         */
  int64_t first, step, positions; /* the thread's first position, and positions to its next one                */
  int64_t offset, apart;          /* of the first pack, and to the next, in elements                     */
  unsigned slot;                  /* of shared memory, for the first pack; the next is THREADS packs on  */
  __device__ held_position(const group_norm_args &a) {
    extern __shared__ int4 memory[];
    const unsigned blocks = (unsigned)(a.groups / a.bundle), bundle = blockIdx.x % blocks;
    part = threadIdx.x % a.parts, of_group = a.parts / a.bundle, two = a.bundle == 2;
    sample = blockIdx.x / blocks, group = bundle * a.bundle + part / of_group;
    channel = group * a.group + part % of_group * V;
    first = threadIdx.x / a.parts, step = THREADS / a.parts, positions = a.positions;
    offset = (sample * a.positions + first) * a.channels + channel, apart = step * a.channels;
    slot = (unsigned)__cvta_generic_to_shared(memory + threadIdx.x);
  }
  __device__ void fetch(const void *from, unsigned to) const {
    const T *x = (const T *)from + offset;
    for (int64_t p = first; p < positions; p += step, x += apart, to += THREADS * 16) {
#if __CUDA_ARCH__ >= 800
      copy_pack(to, x);
#else
      store_shared(to, *(const int4 *)x);
#endif
    }
    close_copies();
  }
  /* f(the pack in shared memory, its position in the tensor) of all that the thread has. */
  template <typename F>
  __device__ void each(const F &f) const {
    unsigned at = slot;
    int64_t to = offset;
    _Pragma("unroll 2") for (int64_t p = first; p < positions; p += step, at += THREADS * 16, to += apart) f(at, to);
  }
};

/* The sum over the threads that have packs of the same group, in a fixed order. `room` is used once. */
template <typename T>
__device__ inline float group_total(const held_position<T> &h, float v, float (&room)[WARPS][2]) {
  const int which = h.part / h.of_group; /* of the block's groups */
  UNROLL
  for (int by = 16; by > 0; by /= 2) {
    const float other = __shfl_xor_sync(~0u, v, by);
    if (by != h.of_group || !h.two) v += other; /* else it is the other group's */
  }
  if (threadIdx.x % 32 == which * h.of_group) room[threadIdx.x / 32][which] = v;
  __syncthreads();
  float total = 0;
  UNROLLED(w, WARPS) total += room[w][which];
  return total;
}

template <typename T>
__device__ inline void weights(const void *from, int64_t channel, float absent, float (&w)[packed<T>::N]) {
  UNROLLED(k, packed<T>::N) w[k] = from ? ((const float *)from)[channel + k] : absent;
}

/* About the group's first element, so that a mean far from 0 costs no digits; the squares about the mean. */
template <typename T>
__device__ inline void group_held(const group_norm_args &a) {
  enum { V = packed<T>::N };
  __shared__ float sums[WARPS][2], squares[WARPS][2];
  const held_position<T> h(a);
  h.fetch(a.x, h.slot);
  const float about = (float)((const T *)a.x)[h.sample * a.positions * a.channels + h.group * a.group];
  float gamma[V], beta[V], sum = 0, square = 0;
  weights<T>(a.gamma, h.channel, 1, gamma);
  weights<T>(a.beta, h.channel, 0, beta);
  wait_for_copies<0>();
  h.each([&](unsigned at, int64_t) {
    float v[V], own = 0;
    widen_pack<T>(load_shared(at), v);
    UNROLLED(k, V) own += v[k] - about;
    sum += own;
  });
  const float count = (float)(a.positions * a.group);
  const float mean = group_total(h, sum, sums) / count;
  h.each([&](unsigned at, int64_t) {
    float v[V], own = 0;
    widen_pack<T>(load_shared(at), v);
    UNROLLED(k, V) {
      const float d = v[k] - about - mean;
      own += d * d;
    }
    square += own;
  });
  const float rstd = (float)(1 / sqrt((double)group_total(h, square, squares) / count + (double)a.epsilon));
  h.each([&](unsigned at, int64_t to) {
    float v[V];
    widen_pack<T>(load_shared(at), v);
    UNROLLED(k, V) v[k] = (v[k] - about - mean) * rstd * gamma[k] + beta[k];
    store_bits((T *)a.y + to, narrow_pack<T>(v));
  });
  if (h.first == 0 && h.part % h.of_group == 0) {
    float *stats = (float *)a.stats + 2 * (h.sample * a.groups + h.group);
    stats[0] = about + mean;
    stats[1] = rstd;
  }
}

/* Two blocks of a multiprocessor, as far as shared memory goes: one computes while the other reads. */
#define HELD(function, tag, T) TFU_STAMP((THREADS, 2), function##_##tag, group_norm_args, function<T>)
TFU_SINGLES(HELD, group_held)
