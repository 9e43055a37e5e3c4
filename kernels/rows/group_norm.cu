/* Group normalisation over many positions (ops/rows/group_norm.c): what belongs to a group is scattered, so a sample's
 * channels are summed first, each by itself, then joined into groups; a second walk over x writes the result.
 *
 * x is [samples, positions, channels], and a group some neighbouring channels. The grid of both walks: along x, a block
 * for each chunk of each sample's positions; along y, as many as a position has channels for. A block's threads are
 * `lanes` side by side, each with V channels, and the rows of lanes below each other take the chunk's positions in
 * turn: neighbours read what lies side by side, and what belongs to a channel stays in registers.
 *
 * Backward, with n = (x - mean) * rstd and g = dy * gamma: the sums of dy * n and dy over positions give dgamma and
 * dbeta, and, weighted by gamma and joined into groups, the means in dx = rstd * (g - mean(g) - n * mean(g * n)). */
#include "kernels/rows/group_norm.h"

#include "kernels/core/device/pack.cuh"

/* A thread's V channels of a position; V is a pack, or 1 where channels do not fill packs and for doubles. */
template <typename T, int V>
struct channels_of {
  int64_t sample, first, position, end, step; /* the channels, and the positions to visit */
  __device__ channels_of(const group_norm_args &a) {
    const int per_block = TFU_THREADS / a.lanes;
    sample = blockIdx.x / (unsigned)a.chunks;
    const int64_t chunk = blockIdx.x % (unsigned)a.chunks;
    first = ((int64_t)blockIdx.y * a.lanes + threadIdx.x % a.lanes) * V;
    position = chunk * a.chunk + threadIdx.x / a.lanes;
    end = (chunk + 1) * a.chunk < a.positions ? (chunk + 1) * a.chunk : a.positions;
    step = per_block;
    if (threadIdx.x / a.lanes >= per_block || first >= a.channels) position = end;
  }
  __device__ int64_t at(const group_norm_args &a, int64_t position) const {
    return (sample * a.positions + position) * a.channels + first;
  }
};

template <typename T, typename R>
__device__ inline void load(const T *from, R (&v)[packed<T>::N]) {
  widen_pack<T>(*(const int4 *)from, v);
}
template <typename T, typename R>
__device__ inline void load(const T *from, R (&v)[1]) {
  v[0] = (R)*from;
}
template <typename T, typename R>
__device__ inline void store(T *to, const R (&v)[packed<T>::N]) {
  store_bits(to, narrow_pack<T>(v));
}
template <typename T, typename R>
__device__ inline void store(T *to, const R (&v)[1]) {
  *to = (T)v[0];
}

/* The pairs of numbers, one for each sample and group, that belong to the V channels from `first` on. */
template <typename R, int V>
__device__ inline void load_pairs(const void *pairs, const group_norm_args &a, int64_t sample, int64_t first,
                                  R (&one)[V], R (&two)[V]) {
  const int64_t group = first / a.group;
  const R *at = (const R *)pairs + 2 * (sample * a.groups + group);
  int64_t left = (group + 1) * a.group - first; /* channels to the end of the group */
  UNROLLED(k, V) {
    one[k] = at[0];
    two[k] = at[1];
    if (--left == 0 && k + 1 < V) left = a.group, at += 2;
  }
}

/* What is known of a thread's channels: group statistics and weights. */
template <typename R, int V>
struct channel_facts {
  R mean[V], rstd[V], gamma[V];
  __device__ channel_facts(const group_norm_args &a, int64_t sample, int64_t first) {
    if (first >= a.channels) first = 0;
    load_pairs(a.stats, a, sample, first, mean, rstd);
    UNROLLED(k, V) gamma[k] = a.gamma ? ((const R *)a.gamma)[first + k] : 1;
  }
};

/* Adds up two quantities over the block's threads that have the same channels, and leaves the sums of the chunk in
 * a.partial, [samples][chunks][2][channels]. Behind the barrier, thread i takes sum k = i / lanes of lane i % lanes. */
template <typename R, int V>
__device__ inline void leave_sums(const group_norm_args &a, const R (&one)[V], const R (&two)[V]) {
  __shared__ R room[2 * V][TFU_THREADS];
  const int per_block = TFU_THREADS / a.lanes;
  UNROLLED(k, V) {
    room[k][threadIdx.x] = one[k];
    room[V + k][threadIdx.x] = two[k];
  }
  __syncthreads();
  ONCE
  for (int i = threadIdx.x; i < 2 * V * a.lanes; i += TFU_THREADS) {
    const int k = i / a.lanes, lane = i % a.lanes;
    const int64_t channel = ((int64_t)blockIdx.y * a.lanes + lane) * V + k % V;
    if (channel >= a.channels) continue;
    double total = 0;
#pragma unroll 4
    for (int position = 0; position < per_block; position++) total += room[k][lane + position * a.lanes];
    ((R *)a.partial)[((int64_t)blockIdx.x * 2 + k / V) * a.channels + channel] = (R)total;
  }
}

/* Sums of d = x - x at the first position, and of d^2, of which the variance is a difference: a small one only where
 * the first position is far from all others. */
template <typename T, int V>
__device__ inline void group_sums(const group_norm_args &a) {
  typedef acc<T> R;
  const channels_of<T, V> c(a);
  R first[V] = {};
  row_sum<R, false> sum[V], squares[V];
  if (c.position < c.end) load((const T *)a.x + c.at(a, 0), first);
  for (int64_t p = c.position; p < c.end; p += c.step) {
    R x[V];
    load((const T *)a.x + c.at(a, p), x);
    UNROLLED(k, V) {
      const R d = x[k] - first[k];
      sum[k] += d;
      squares[k] += d * d;
    }
  }
  R sums[V], squared[V];
  UNROLLED(k, V) sums[k] = sum[k].sum, squared[k] = squares[k].sum;
  leave_sums(a, sums, squared);
}

template <typename T, int V>
__device__ inline void group_apply(const group_norm_args &a) {
  typedef acc<T> R;
  const channels_of<T, V> c(a);
  if (c.position >= c.end) return;
  const channel_facts<R, V> f(a, c.sample, c.first);
  R beta[V];
  UNROLLED(k, V) beta[k] = a.beta ? ((const R *)a.beta)[c.first + k] : 0;
  for (int64_t p = c.position; p < c.end; p += c.step) {
    R x[V];
    load((const T *)a.x + c.at(a, p), x);
    UNROLLED(k, V) x[k] = (x[k] - f.mean[k]) * f.rstd[k] * f.gamma[k] + beta[k];
    store((T *)a.y + c.at(a, p), x);
  }
}

template <typename T, int V>
__device__ inline void group_grad_sums(const group_norm_args &a) {
  typedef acc<T> R;
  const channels_of<T, V> c(a);
  R to_gamma[V] = {}, to_beta[V] = {};
  const channel_facts<R, V> f(a, c.sample, c.first);
  for (int64_t p = c.position; p < c.end; p += c.step) {
    R x[V], dy[V];
    load((const T *)a.x + c.at(a, p), x);
    load((const T *)a.dy + c.at(a, p), dy);
    UNROLLED(k, V) {
      to_gamma[k] += dy[k] * ((x[k] - f.mean[k]) * f.rstd[k]);
      to_beta[k] += dy[k];
    }
  }
  leave_sums(a, to_gamma, to_beta);
}

template <typename T, int V>
__device__ inline void group_grad_apply(const group_norm_args &a) {
  typedef acc<T> R;
  const channels_of<T, V> c(a);
  if (c.position >= c.end) return;
  const channel_facts<R, V> f(a, c.sample, c.first);
  R mean_n[V], mean_g[V];
  load_pairs(a.means, a, c.sample, c.first, mean_n, mean_g);
  for (int64_t p = c.position; p < c.end; p += c.step) {
    R x[V], dy[V];
    load((const T *)a.x + c.at(a, p), x);
    load((const T *)a.dy + c.at(a, p), dy);
    UNROLLED(k, V) x[k] = f.rstd[k] * (dy[k] * f.gamma[k] - mean_g[k] - (x[k] - f.mean[k]) * f.rstd[k] * mean_n[k]);
    store((T *)a.y + c.at(a, p), x);
  }
}

/* The sum of the block's values, in double and in a fixed order; thread 0 has it. */
__device__ inline double block_sum(double v) {
  __shared__ double room[TFU_THREADS];
  __syncthreads();
  room[threadIdx.x] = v;
  __syncthreads();
  ONCE
  for (int half = TFU_THREADS / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) room[threadIdx.x] += room[threadIdx.x + half];
    __syncthreads();
  }
  return room[0];
}

/* One block per sample and group: mean and rstd from the sums of its channels, which the threads take in turn. The mean
 * comes first. Then the squares about it: of a channel, those about its own mean, which the sums of d and d^2 give, and
 * for each position what that mean is off. */
template <typename T>
__device__ inline void group_join(const group_norm_args &a) {
  typedef acc<T> R;
  const int64_t sample = blockIdx.x / a.groups, group = blockIdx.x % a.groups;
  const double count = (double)a.positions * a.group;
  double mean = 0, square = 0;
  ONCE
  for (int pass = 0; pass < 2; pass++) {
    double total = 0;
    ONCE
    for (int64_t i = threadIdx.x; i < a.group; i += TFU_THREADS) {
      const int64_t c = group * a.group + i;
      double sum = 0, squares = 0;
#pragma unroll 4
      for (int64_t k = 0; k < a.chunks; k++) {
        const R *from = (const R *)a.partial + (sample * a.chunks + k) * 2 * a.channels + c;
        sum += from[0];
        squares += from[a.channels];
      }
      const double first = (double)(R)((const T *)a.x)[sample * a.positions * a.channels + c],
                   own = first + sum / a.positions;
      total +=
          pass == 0 ? own * a.positions : squares - sum * sum / a.positions + a.positions * (own - mean) * (own - mean);
    }
    *(pass == 0 ? &mean : &square) = block_sum(total) / count;
  }
  if (threadIdx.x) return;
  ((R *)a.stats)[2 * blockIdx.x] = (R)mean;
  ((R *)a.stats)[2 * blockIdx.x + 1] = (R)(1 / sqrt(square + (double)a.epsilon));
}
TFU_KERNEL(group_join, group_norm_args)

/* One block per sample and group: the means of g * n and g, from the channels' sums times gamma. */
template <typename R>
__device__ inline void group_grad_join(const group_norm_args &a) {
  const int64_t sample = blockIdx.x / a.groups, group = blockIdx.x % a.groups;
  /* The group has group * chunks pairs of sums, number chunk * group + channel, and thread t takes t, t + TFU_THREADS,
   * … Its number and the step are split into chunk and channel once, so that the loop has no division. */
  const int size = a.group < TFU_THREADS ? (int)a.group : TFU_THREADS;
  const int chunks = a.group > TFU_THREADS ? 0 : TFU_THREADS / size, channels = TFU_THREADS - chunks * size;
  int64_t chunk = threadIdx.x / size, channel = threadIdx.x % size;
  double of_n = 0, of_g = 0;
  for (int64_t i = threadIdx.x; i < a.group * a.chunks; i += TFU_THREADS) {
    const int64_t c = group * a.group + channel;
    const R *from = (const R *)a.partial + (sample * a.chunks + chunk) * 2 * a.channels + c;
    const double gamma = a.gamma ? (double)((const R *)a.gamma)[c] : 1;
    of_n += gamma * from[0];
    of_g += gamma * from[a.channels];
    channel += channels;
    chunk += chunks;
    if (channel >= a.group) channel -= a.group, chunk++;
  }
  const double count = (double)a.positions * a.group;
  of_n = block_sum(of_n) / count;
  of_g = block_sum(of_g) / count;
  if (threadIdx.x) return;
  ((R *)a.means)[2 * blockIdx.x] = (R)of_n;
  ((R *)a.means)[2 * blockIdx.x + 1] = (R)of_g;
}
TFU_KERNEL_AS_(group_grad_join_f32, group_norm_args, group_grad_join<float>) /* of all that is computed in float */
TFU_KERNEL_AS_(group_grad_join_f64, group_norm_args, group_grad_join<double>)

/* Doubles are all taken one by one: few would notice, and all would have to load what it takes. */
#define PACKS(function, tag, T) TFU_KERNEL_AS_(function##_packs_##tag, group_norm_args, function<T, packed<T>::N>)
#define SINGLE(function, tag, T) TFU_KERNEL_AS_(function##_single_##tag, group_norm_args, function<T, 1>)
#define STAMP(function) TFU_SINGLES(PACKS, function) TFU_TYPES(SINGLE, function)
STAMP(group_sums)
STAMP(group_apply)
STAMP(group_grad_sums)
STAMP(group_grad_apply)
