/* x times a number for each image and channel, and its gradient in one pass over memory: a thread keeps its channels,
 * so their scale and their sums of dy * x stay in registers while it goes through the positions of an image. */
#include "kernels/convolution/scale_channels.h"

#include "kernels/core/device/pack.cuh"

enum { AHEAD = TFU_SCALE_AHEAD };

/* N elements that lie side by side: a pack, or one alone. */
template <typename T, int N>
struct word_of {
  typedef int4 type;
  static __device__ void widen(const int4 &bits, acc<T> (&v)[N]) { widen_pack<T>(bits, v); }
  static __device__ int4 narrow(const acc<T> (&v)[N]) { return narrow_pack<T>(v); }
};
template <typename T>
struct word_of<T, 1> {
  typedef T type;
  static __device__ void widen(const T &bits, acc<T> (&v)[1]) { v[0] = (acc<T>)bits; }
  static __device__ T narrow(const acc<T> (&v)[1]) { return (T)v[0]; }
};

/* Where a thread is: its word, and the positions that it begins and ends at. */
struct walker {
  int64_t word, first, end;
  int row;
  bool works; /* threads beyond the last row or word only help to add up */
  __device__ walker(const scale_channels_args &a) {
    const int64_t part = blockIdx.x / a.tiles, tile = blockIdx.x - part * a.tiles;
    row = threadIdx.x / a.lanes;
    word = tile * a.lanes + (threadIdx.x - row * a.lanes);
    works = row < a.rows && word < a.words;
    end = min((part + 1) * a.part, a.positions);
    first = works ? part * a.part + row : end;
  }
};

/* each(position, words of the tensors there) for the thread's positions of an image. */
template <typename T, int N, int TENSORS, typename F>
__device__ inline void for_places(const scale_channels_args &a, const walker &w, const T *const (&from)[TENSORS],
                                  F each) {
  typedef typename word_of<T, N>::type word;
  for (int64_t p = w.first; p < w.end; p += AHEAD * a.rows) {
    word held[TENSORS][AHEAD];
    UNROLLED(u, AHEAD) {
      UNROLLED(t, TENSORS)
        if (p + u * a.rows < w.end) held[t][u] = *(const word *)(from[t] + (p + u * a.rows) * a.channels);
    }
    UNROLLED(u, AHEAD) {
      if (p + u * a.rows >= w.end) break;
      acc<T> v[TENSORS][N];
      UNROLLED(t, TENSORS) word_of<T, N>::widen(held[t][u], v[t]);
      each((p + u * a.rows) * a.channels, v);
    }
  }
}

template <typename T, int N>
__device__ inline void scale_channels(const scale_channels_args &a) {
  typedef typename word_of<T, N>::type word;
  const walker w(a);
  if (!w.works) return;
  for (int64_t image = blockIdx.y; image < a.images; image += gridDim.y) {
    const int64_t base = image * a.positions * a.channels + w.word * N;
    const T *const from[1] = {(const T *)a.x + base};
    T *const to = (T *)a.y + base;
    acc<T> s[N];
    word_of<T, N>::widen(*(const word *)((const T *)a.scale + image * a.channels + w.word * N), s);
    for_places<T, N>(a, w, from, [&](int64_t at, acc<T>(&v)[1][N]) {
      UNROLLED(k, N) v[0][k] = a.drop && s[k] == 0 ? 0 : v[0][k] * s[k];
      *(word *)(to + at) = word_of<T, N>::narrow(v[0]);
    });
  }
}

/* What the threads of a word have, added up for the first of them: always the upper half of the rows to the lower. */
template <typename R, int N>
__device__ inline void sum_rows(const scale_channels_args &a, const walker &w, R (&sums)[N][TFU_THREADS], R (&sum)[N]) {
  __syncthreads(); /* what the image before has left was read */
  UNROLLED(k, N) sums[k][threadIdx.x] = sum[k];
  for (int rows = a.rows; rows > 1;) {
    const int half = (rows + 1) / 2;
    __syncthreads();
    if (w.row + half < rows) {
      UNROLLED(k, N) sums[k][threadIdx.x] += sums[k][threadIdx.x + half * a.lanes];
    }
    rows = half;
  }
  __syncthreads();
  UNROLLED(k, N) sum[k] = sums[k][threadIdx.x];
}

template <typename T, int N>
__device__ inline void scale_channels_grad(const scale_channels_args &a) {
  typedef typename word_of<T, N>::type word;
  __shared__ acc<T> sums[N][TFU_THREADS];
  const walker w(a);
  const int64_t part = blockIdx.x / a.tiles;
  for (int64_t image = blockIdx.y; image < a.images; image += gridDim.y) {
    const int64_t base = image * a.positions * a.channels + w.word * N, channel = image * a.channels + w.word * N;
    const T *const from[2] = {(const T *)a.dy + base, (const T *)a.x + base};
    T *const to = (T *)a.y + base;
    acc<T> s[N], sum[N];
    UNROLLED(k, N) sum[k] = 0;
    if (w.works) word_of<T, N>::widen(*(const word *)((const T *)a.scale + channel), s);
    for_places<T, N>(a, w, from, [&](int64_t at, acc<T>(&v)[2][N]) {
      UNROLLED(k, N) {
        sum[k] += v[0][k] * v[1][k];
        v[0][k] *= s[k];
      }
      *(word *)(to + at) = word_of<T, N>::narrow(v[0]);
    });
    sum_rows(a, w, sums, sum);
    if (!w.works || w.row) continue;
    if (a.dscale) {
      *(word *)((T *)a.dscale + channel) = word_of<T, N>::narrow(sum);
    } else {
      UNROLLED(k, N) ((acc<T> *)a.partial)[part * a.images * a.channels + channel + k] = sum[k];
    }
  }
}

#define PACKS(name, tag, T) TFU_KERNEL_AS_(name##_packs_##tag, scale_channels_args, name<T, packed<T>::N>)
#define SINGLES(name, tag, T) TFU_KERNEL_AS_(name##_singles_##tag, scale_channels_args, name<T, 1>)
TFU_TYPES(PACKS, scale_channels)
TFU_TYPES(SINGLES, scale_channels)
TFU_TYPES(PACKS, scale_channels_grad)
TFU_TYPES(SINGLES, scale_channels_grad)
