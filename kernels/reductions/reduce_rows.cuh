/* reduce_rows.cuh - what the kernels for contiguous rows share: the lanes of a row join their states, by
 * warp shuffle and then through shared memory. */
#pragma once

#include "kernels/reductions/kinds.cuh"

/* Adds the values of a thread's packs to a kind. Pack i is there if i < packs, and its first value has index first + i
 * * stride. */
template <typename T, typename K, int PACKS>
__device__ inline void add_packs(K &kind, const int4 (&bits)[PACKS], int packs, int first, int stride, int seen) {
  enum { V = packed<T>::N };
  if constexpr (by_packs<K>) return kind.add_packs(bits, first, stride);
  kind.template add<PACKS * V>([&](int i) { return element<T>(bits[i / V], i % V); },
                               [&](int i) { return i / V < packs; },
                               [&](int i) { return first + i / V * stride + i % V; }, packs * V, seen);
}

/* Joins the states of a row's lanes in a fixed order, and gives the result to all of them, or to the first alone. A
 * block may have several rows, each of some lanes of a warp or of some warps. */
template <typename K, bool ALL>
__device__ inline void join_row(typename K::state &s, int lanes) {
  __shared__ typename K::state warps[32];
  ONCE
  for (int offset = (lanes < 32 ? lanes : 32) / 2; offset > 0; offset /= 2) {
    typename K::state o = {};
    UNROLLED(i, K::WORDS) ((float *)&o)[i] = __shfl_xor_sync(0xffffffffu, word_of<float>(s, i), offset);
    /* The lower lane's state comes first for both, so that they get the same bits. */
    const bool low = !(threadIdx.x & offset);
    const typename K::state after = low ? o : s;
    s = low ? s : o;
    s.join(after);
  }
  if (lanes <= 32) return;
  const int warp = threadIdx.x / 32, first = warp & ~((lanes >> 5) - 1);
  if (threadIdx.x % 32 == 0) warps[warp] = s;
  __syncthreads();
  if (!ALL && warp != first) return;
  s = warps[first];
  ONCE
  for (int w = 1; w < lanes >> 5; w++) s.join(warps[first + w]);
}

/* Joins N numbers of a row's lanes by f, in a fixed order, for all of them. PLACE: calls that follow each other have
 * shared memory of their own. */
template <int PLACE, int N, typename F>
__device__ inline void fold_row(float (&v)[N], int lanes, F f) {
  __shared__ float warps[N][32];
  ONCE
  for (int offset = (lanes < 32 ? lanes : 32) / 2; offset > 0; offset /= 2) {
    UNROLLED(i, N) v[i] = f(v[i], __shfl_xor_sync(0xffffffffu, v[i], offset));
  }
  if (lanes <= 32) return;
  const int warp = threadIdx.x / 32, first = warp & ~((lanes >> 5) - 1);
  if (threadIdx.x % 32 == 0) {
    UNROLLED(i, N) warps[i][warp] = v[i];
  }
  __syncthreads();
  UNROLLED(i, N) v[i] = warps[i][first];
  ONCE
  for (int w = 1; w < lanes >> 5; w++) {
    UNROLLED(i, N) v[i] = f(v[i], warps[i][first + w]);
  }
}
