/* Rotary embedding (ops/elementwise/rope.c): pair i of a head is rotated by position * base^(-i / pairs).
 *
 * x is [tokens][heads][head_dim]. A thread keeps its pairs, and their frequencies, for life: from step to step it goes
 * on by a whole number of heads, or of tokens. */
#include "kernels/elementwise/rope.h"

#include "kernels/core/device/rotation.cuh"
#include "kernels/core/device/stream.cuh"

__device__ inline int64_t position_of(const rope_args &a, int64_t token) {
  const int64_t entry = token >> 31 ? token / a.time : (unsigned)token / (unsigned)a.time; /* 32 bits divide faster */
  const int64_t at = a.kind == 2 ? token : a.kind == 1 ? entry : 0;
  const int64_t p = a.wide ? ((const long long *)a.positions)[at] : ((const int *)a.positions)[at];
  return a.kind == 2 ? p : p + (token - entry * a.time);
}

/* Pairs half a head apart: bits[h][0] is a pack of the first half of a head, bits[h][1] the pack half a head further. A
 * thread has the same pairs of several heads of a token, which are rotated by one angle, and goes on to other tokens.
 */
template <typename T>
__device__ inline void rope_half(const rope_args &a) {
  enum { N = packed<T>::N };
  const int packs = (int)(a.by.half / N);
  const int64_t thread = (int64_t)blockIdx.x * TFU_THREADS + threadIdx.x, first = thread / packs,
                step = (int64_t)gridDim.x * TFU_THREADS / packs, pack = (thread - first * packs) * N;
  angle<T> turns[N];
  UNROLLED(k, N) turns[k] = frequency<T>(a.by, pack + k);
  for (int64_t at = first; at < a.tokens * a.slices; at += step) {
    const int64_t token = at >> 31 ? at / a.slices : (unsigned)at / (unsigned)a.slices, slice = at - token * a.slices;
    const int64_t place = (token * a.heads + slice) * a.head_dim + pack, next = a.slices * a.head_dim;
    int4 bits[TFU_ROPE_HEADS][2];
    UNROLLED(h, TFU_ROPE_HEADS) {
      if (slice + h * a.slices >= a.heads) break;
      bits[h][0] = *(const int4 *)((const T *)a.x + place + h * next);
      bits[h][1] = *(const int4 *)((const T *)a.x + place + h * next + a.by.half);
    }
    acc<T> s[N], c[N];
    const angle<T> position = position_of(a, token);
    UNROLLED(k, N) sine_cosine<T>(turns[k] * position, &s[k], &c[k]);
    UNROLLED(h, TFU_ROPE_HEADS) {
      if (slice + h * a.slices >= a.heads) break;
      acc<T> u[N], v[N];
      widen_pack<T>(bits[h][0], u);
      widen_pack<T>(bits[h][1], v);
      UNROLLED(k, N) rotate<T>(s[k], c[k], u[k], v[k]);
      store_bits((T *)a.y + place + h * next, narrow_pack<T>(u));
      store_bits((T *)a.y + place + h * next + a.by.half, narrow_pack<T>(v));
    }
  }
}
TFU_KERNEL(rope_half, rope_args)

/* Pairs side by side, N / 2 in each pack. */
template <typename T>
__device__ inline void rope_interleaved(const rope_args &a) {
  enum { N = packed<T>::N };
  __shared__ typename pack_stream<T, 1>::ring ring;
  const int64_t col = walk_column<T>(), step = walk_step(a.walk);
  if (col >= a.walk.width) return;
  const int64_t at = walk_first(a.walk, col);
  pack_stream<T, 1> stream(a.walk, col, &a.x, 0, ring);
  angle<T> turns[N / 2];
  UNROLLED(k, N / 2) turns[k] = frequency<T>(a.by, at % a.head_dim / 2 + k);
  const int64_t tokens = step / (a.head_dim * a.heads);
  int64_t token = at / (a.head_dim * a.heads);
  for (; stream.more(); token += tokens) {
    int4 bits[1];
    acc<T> v[N];
    const angle<T> position = position_of(a, token);
    stream.next(bits);
    widen_pack<T>(bits[0], v);
    UNROLLED(k, N / 2) rotate<T>(turns[k] * position, v[2 * k], v[2 * k + 1]);
    store_bits((T *)a.y + stream.at(), narrow_pack<T>(v));
  }
}
TFU_KERNEL(rope_interleaved, rope_args)

/* Any head: a pair at a time. Heads whose first part alone is rotated, or that are no whole number of packs. */
template <typename T>
__device__ inline void rope_part(const rope_args &a) {
  const int64_t pairs = a.head_dim / 2;
  for (int64_t at = (int64_t)blockIdx.x * TFU_THREADS + threadIdx.x; at < a.walk.n;
       at += (int64_t)gridDim.x * TFU_THREADS) {
    const int64_t head = at / pairs, i = at - head * pairs;
    const bool rotates = i < a.by.half;
    const int64_t first = head * a.head_dim + (rotates && !a.interleaved ? i : 2 * i);
    const int64_t second = rotates && !a.interleaved ? first + a.by.half : first + 1;
    acc<T> u = (acc<T>)((const T *)a.x)[first], v = (acc<T>)((const T *)a.x)[second];
    if (rotates) rotate<T>(frequency<T>(a.by, i) * (angle<T>)position_of(a, head / a.heads), u, v);
    ((T *)a.y)[first] = (T)u;
    ((T *)a.y)[second] = (T)v;
  }
}
TFU_KERNEL(rope_part, rope_args)
