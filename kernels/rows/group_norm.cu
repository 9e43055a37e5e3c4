/* Group normalisation over many places (ops/rows/group_norm.c): what belongs to a group is scattered, so a sample's
 * channels are summed first, each by itself, then joined into groups; a second walk over x writes the result.
 *
 * Backward, with n = (x - mean) * rstd and g = dy * gamma: the sums of dy * n and dy over places give dgamma and dbeta,
 * and, weighted by gamma and joined into groups, the means in dx = rstd * (g - mean(g) - n * mean(g * n)). */
#include "kernels/rows/group_norm.h"

#include "kernels/core/device/pack.cuh"

/* A thread's V channels of a place; V is a pack, or 1 where channels do not fill packs. */
template <typename T, int V>
struct channels_of {
  int64_t sample, first, place, end, step; /* the channels, and the places to visit */
  __device__ channels_of(const group_norm_args &a) {
    const int per_block = TFU_THREADS / a.lanes;
    sample = blockIdx.x / a.chunks;
    const int64_t chunk = blockIdx.x % a.chunks;
    first = ((int64_t)blockIdx.y * a.lanes + threadIdx.x % a.lanes) * V;
    place = chunk * a.chunk + threadIdx.x / a.lanes;
    end = (chunk + 1) * a.chunk < a.places ? (chunk + 1) * a.chunk : a.places;
    step = per_block;
    if (threadIdx.x / a.lanes >= per_block || first >= a.channels) place = end;
  }
  __device__ int64_t at(const group_norm_args &a, int64_t place) const {
    return (sample * a.places + place) * a.channels + first;
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

/* What is known of a thread's channels: group statistics and weights. */
template <typename R, int V>
struct channel_facts {
  R mean[V], rstd[V], gamma[V];
  __device__ channel_facts(const group_norm_args &a, int64_t sample, int64_t first) {
    const int64_t groups = a.channels / a.group;
    UNROLL
    for (int k = 0; k < V; k++) {
      const int64_t c = first + k < a.channels ? first + k : 0, g = sample * groups + c / a.group;
      mean[k] = ((const R *)a.stats)[2 * g];
      rstd[k] = ((const R *)a.stats)[2 * g + 1];
      gamma[k] = a.gamma ? ((const R *)a.gamma)[c] : 1;
    }
  }
};

/* Adds up what the places of a block have found and leaves it for the chunk. */
template <typename R, int V>
__device__ inline void leave_sums(const group_norm_args &a, int64_t first, R (&one)[V], R (&two)[V]) {
  __shared__ R room[2][TFU_THREADS];
  const int per_block = TFU_THREADS / a.lanes;
  R *partial = (R *)a.partial + (int64_t)blockIdx.x * 2 * a.channels + first;
  UNROLL
  for (int k = 0; k < V; k++) {
    __syncthreads();
    room[0][threadIdx.x] = one[k];
    room[1][threadIdx.x] = two[k];
    __syncthreads();
    if (threadIdx.x >= a.lanes || first + k >= a.channels) continue;
    double total[2] = {0, 0};
    for (int i = 0; i < per_block; i++)
      for (int q = 0; q < 2; q++) total[q] += room[q][threadIdx.x + i * a.lanes];
    one[k] = (R)total[0];
    two[k] = (R)total[1];
    partial[k] = one[k];
    partial[a.channels + k] = two[k];
  }
}

/* Sums of d = x - x at the first place, and of d^2, of which the variance is a difference: a small one only where the
 * first place is far from all others. */
template <typename T, int V>
__device__ inline void group_sums(const group_norm_args &a) {
  typedef acc<T> R;
  const channels_of<T, V> c(a);
  R first[V] = {};
  row_sum<R, false> sum[V], squares[V];
  if (c.place < c.end) load((const T *)a.x + c.at(a, 0), first);
  for (int64_t p = c.place; p < c.end; p += c.step) {
    R x[V];
    load((const T *)a.x + c.at(a, p), x);
    UNROLL
    for (int k = 0; k < V; k++) {
      const R d = x[k] - first[k];
      sum[k] += d;
      squares[k] += d * d;
    }
  }
  R sums[V], squared[V];
  UNROLL
  for (int k = 0; k < V; k++) sums[k] = sum[k].sum, squared[k] = squares[k].sum;
  leave_sums(a, c.first, sums, squared);
}

template <typename T, int V>
__device__ inline void group_apply(const group_norm_args &a) {
  typedef acc<T> R;
  const channels_of<T, V> c(a);
  if (c.place >= c.end) return;
  const channel_facts<R, V> f(a, c.sample, c.first);
  R beta[V];
  UNROLL
  for (int k = 0; k < V; k++) beta[k] = a.beta ? ((const R *)a.beta)[c.first + k] : 0;
  for (int64_t p = c.place; p < c.end; p += c.step) {
    R x[V];
    load((const T *)a.x + c.at(a, p), x);
    UNROLL
    for (int k = 0; k < V; k++) x[k] = (x[k] - f.mean[k]) * f.rstd[k] * f.gamma[k] + beta[k];
    store((T *)a.y + c.at(a, p), x);
  }
}

template <typename T, int V>
__device__ inline void group_grad_sums(const group_norm_args &a) {
  typedef acc<T> R;
  const channels_of<T, V> c(a);
  R to_gamma[V] = {}, to_beta[V] = {};
  const channel_facts<R, V> f(a, c.sample, c.first);
  for (int64_t p = c.place; p < c.end; p += c.step) {
    R x[V], dy[V];
    load((const T *)a.x + c.at(a, p), x);
    load((const T *)a.dy + c.at(a, p), dy);
    UNROLL
    for (int k = 0; k < V; k++) {
      to_gamma[k] += dy[k] * ((x[k] - f.mean[k]) * f.rstd[k]);
      to_beta[k] += dy[k];
    }
  }
  leave_sums(a, c.first, to_gamma, to_beta);
}

template <typename T, int V>
__device__ inline void group_grad_apply(const group_norm_args &a) {
  typedef acc<T> R;
  const channels_of<T, V> c(a);
  if (c.place >= c.end) return;
  const channel_facts<R, V> f(a, c.sample, c.first);
  R mean_n[V], mean_g[V];
  UNROLL
  for (int k = 0; k < V; k++) {
    const int64_t g = c.sample * (a.channels / a.group) + (c.first + k) / a.group;
    mean_n[k] = ((const R *)a.means)[2 * g];
    mean_g[k] = ((const R *)a.means)[2 * g + 1];
  }
  for (int64_t p = c.place; p < c.end; p += c.step) {
    R x[V], dy[V];
    load((const T *)a.x + c.at(a, p), x);
    load((const T *)a.dy + c.at(a, p), dy);
    UNROLL
    for (int k = 0; k < V; k++)
      x[k] = f.rstd[k] * (dy[k] * f.gamma[k] - mean_g[k] - (x[k] - f.mean[k]) * f.rstd[k] * mean_n[k]);
    store((T *)a.y + c.at(a, p), x);
  }
}

/* The sum of the block's values, in double and in a fixed order; thread 0 has it. */
__device__ inline double block_sum(double v) {
  __shared__ double room[TFU_THREADS];
  __syncthreads();
  room[threadIdx.x] = v;
  __syncthreads();
  for (int half = TFU_THREADS / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) room[threadIdx.x] += room[threadIdx.x + half];
    __syncthreads();
  }
  return room[0];
}

/* One block per sample and group: mean and rstd from the sums of its channels. */
template <typename T>
__device__ inline void group_join(const group_norm_args &a) {
  typedef acc<T> R;
  const int64_t groups = a.channels / a.group, sample = blockIdx.x / groups, group = blockIdx.x % groups;
  const double count = (double)a.places * a.group;
  double mean = 0, square = 0;
  for (int pass = 0; pass < 2; pass++) {
    double total = 0;
    for (int64_t i = threadIdx.x; i < a.group; i += TFU_THREADS) {
      const int64_t c = group * a.group + i;
      double sum = 0, squares = 0;
      for (int64_t k = 0; k < a.chunks; k++) {
        const R *from = (const R *)a.partial + (sample * a.chunks + k) * 2 * a.channels + c;
        sum += from[0];
        squares += from[a.channels];
      }
      const double first = (double)(R)((const T *)a.x)[sample * a.places * a.channels + c],
                   own = first + sum / a.places;
      total += pass == 0 ? own * a.places : squares - sum * sum / a.places + a.places * (own - mean) * (own - mean);
    }
    *(pass == 0 ? &mean : &square) = block_sum(total) / count;
  }
  if (threadIdx.x) return;
  ((R *)a.stats)[2 * blockIdx.x] = (R)mean;
  ((R *)a.stats)[2 * blockIdx.x + 1] = (R)(1 / sqrt(square + (double)a.epsilon));
}
TFU_KERNEL(group_join, group_norm_args)

template <typename T>
__device__ inline void group_grad_join(const group_norm_args &a) {
  typedef acc<T> R;
  const int64_t groups = a.channels / a.group, sample = blockIdx.x / groups, group = blockIdx.x % groups;
  double of_n = 0, of_g = 0;
  for (int64_t i = threadIdx.x; i < a.group * a.chunks; i += TFU_THREADS) {
    const int64_t c = group * a.group + i % a.group;
    const R *from = (const R *)a.partial + (sample * a.chunks + i / a.group) * 2 * a.channels + c;
    const double gamma = a.gamma ? (double)((const R *)a.gamma)[c] : 1;
    of_n += gamma * from[0];
    of_g += gamma * from[a.channels];
  }
  const double count = (double)a.places * a.group;
  of_n = block_sum(of_n) / count;
  of_g = block_sum(of_g) / count;
  if (threadIdx.x) return;
  ((R *)a.means)[2 * blockIdx.x] = (R)of_n;
  ((R *)a.means)[2 * blockIdx.x + 1] = (R)of_g;
}
TFU_KERNEL(group_grad_join, group_norm_args)

#define STAMP(function)                                                \
  template <typename T>                                                \
  __device__ inline void function##_packs(const group_norm_args &a) {  \
    function<T, packed<T>::N>(a);                                      \
  }                                                                    \
  template <typename T>                                                \
  __device__ inline void function##_single(const group_norm_args &a) { \
    function<T, 1>(a);                                                 \
  }                                                                    \
  TFU_KERNEL(function##_packs, group_norm_args)                        \
  TFU_KERNEL(function##_single, group_norm_args)
STAMP(group_sums)
STAMP(group_apply)
STAMP(group_grad_sums)
STAMP(group_grad_apply)
