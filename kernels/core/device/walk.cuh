/* walk.cuh - the loop of elementwise kernels: packs come in, values go through a formula, packs go out. */
#pragma once

#include "kernels/core/device/stream.cuh"

/* IN tensors are read, OUT are written. HALVES has a bit for each that is walked by halves (stream.cuh), those written
 * after those read. */
template <typename T, int IN, int OUT, unsigned HALVES = 0>
struct pack_walk {
  enum { N = packed<T>::N };
  typedef pack_stream<T, IN, true, HALVES &((1u << IN) - 1)> stream_type;
  typedef typename stream_type::ring ring; /* to be declared __shared__ */
  typedef acc<T> (&inputs)[IN][N];
  typedef acc<T> (&outputs)[OUT ? OUT : 1][N];

  const tfu_walk &walk;
  const int64_t half, rest; /* rest: how far the thread's elements lie after the beginning of their half */
  stream_type stream;

  /* Begins to fetch; col is the thread's own and lies within the walk. */
  __device__ pack_walk(const tfu_walk &w, int64_t col, const void *const *x, int64_t half, ring &shared)
      : walk(w),
        half(HALVES ? half : 0),
        rest(HALVES && half ? walk_first(w, col) % half : 0),
        stream(w, col, x, half, shared) {}

  /* each(at, left, x, y) makes y from x, elements at .. at + N of the walk, of which the first `left` exist; fewer than
   * N do only in a thread's last pack. */
  template <typename F>
  __device__ void run(void *const *out, F each) {
    while (stream.more()) {
      int4 bits[IN];
      acc<T> x[IN][N], y[OUT ? OUT : 1][N];
      stream.next(bits);
      UNROLLED(t, IN) widen_pack<T>(bits[t], x[t]);
      const int64_t at = stream.at(), left = walk.n - at;
      each(at, left < N ? (int)left : N, x, y);
      UNROLLED(t, OUT) {
        const bool by_half = HALVES >> (IN + t) & 1;
        T *to = (T *)out[t] + (by_half && half ? 2 * at - rest : at);
        const int4 results = narrow_pack<T>(y[t]);
        if (stream.is_whole()) store_bits(to, results);
        else store_some(to, at, by_half ? half : 0, results);
      }
    }
  }

  /* While run() is at a pack: the one in its place of another tensor of the walk, which was not fetched ahead. */
  __device__ int4 beside(const void *tensor, int64_t at) const {
    const T *const from = (const T *)tensor + at;
    if (stream.is_whole()) return *(const int4 *)from;
    T *elements = (T *)__cvta_shared_to_generic(stream.spare());
    store_shared(stream.spare(), make_int4(0, 0, 0, 0));
    one_by_one<N>(walk, at, 0, [&](int64_t place, int k) { elements[k] = from[place]; });
    return load_shared(stream.spare());
  }

  /* A column's weights: one per channel, one for all (count 1), or `absent` (none). Those of several channels are packs
   * of memory, or put together in the thread's spare slot. */
  template <typename W>
  __device__ void load_weights(const W *data, int64_t count, int64_t channel, W absent, acc<T> (&v)[N]) {
    enum { M = packed<W>::N }; /* fewer than N where weights are wider than the tensors */
    if (count < 2) {
      const acc<T> one = count ? (acc<T>)*data : (acc<T>)absent;
      UNROLLED(k, N) v[k] = one;
      return;
    }
    const bool whole = count % N == 0 && (uintptr_t)data % 16 == 0;
    W *elements = (W *)__cvta_shared_to_generic(stream.spare());
    UNROLL
    for (int first = 0; first < N; first += M) {
      acc<T> part[M];
      if (!whole) {
        ONCE
        for (int k = 0; k < M; k++) {
          elements[k] = data[channel];
          if (++channel == count) channel = 0;
        }
      }
      widen_pack<W>(whole ? *(const int4 *)(data + channel + first) : load_shared(stream.spare()), part);
      UNROLLED(k, M) v[first + k] = part[k];
    }
  }

 private:
  __device__ void store_some(T *to, int64_t at, int64_t own, int4 bits) const {
    const T *elements = (const T *)__cvta_shared_to_generic(stream.spare());
    store_shared(stream.spare(), bits);
    one_by_one<N>(walk, at, own, [&](int64_t place, int k) { to[place] = elements[k]; });
  }
};
