/* any_rows.cuh - the walk over rows that begin, end or reach anywhere. */
#pragma once

#include "kernels/core/device/row_team.cuh"

/* Any rows: of any length, beginning anywhere. Packs wait in shared memory, and stay there for later looks where there
 * is room for a block's share of a row. */
template <typename T, int TENSORS>
struct any_rows : row_team<OVER_BLOCK> {
  enum { N = packed<T>::N };
  static constexpr bool fixed = false;

  __device__ any_rows(const tfu_row_plan &rows, const T *const (&tensors)[TENSORS], const int64_t (&strides)[TENSORS])
      : row_team<OVER_BLOCK>(rows) {
    extern __shared__ int4 ring[];
    UNROLL
    for (int t = 0; t < TENSORS; t++) from[t] = tensors[t], stride[t] = strides[t];
    mine = (unsigned)__cvta_generic_to_shared(ring + threadIdx.x);
    pack_bytes = blockDim.x * 16;
    fetch_row = row;
    ONCE
    for (int i = 0; i < r.slots; i++) fetch();
  }

  __device__ void leave() {
    look<false, true>([](const auto &, int, const int4(&)[TENSORS]) {});
  }
  __device__ bool keeps() const { return r.keep; }
  __device__ int column(int) const { return 0; }
  __device__ bool has(int) const { return false; }

  template <bool FIRST, bool LAST, typename F>
  __device__ void look(F f) {
    const int shift = shift_of(row), packs = active() ? packs_of(shift) : 0;
    unsigned slot = oldest;
    ONCE
    for (int tile = 0; tile < r.tiles; tile++) {
      if (FIRST || !r.keep) wait_for_copies(--ahead);
      const int p = pack_of(tile);
      if (in_share(p, packs)) {
        int4 bits[TENSORS];
        UNROLL
        for (int t = 0; t < TENSORS; t++)
          if (t < r.tensors) bits[t] = load_shared(mine + slot + t * pack_bytes);
        at = mine + slot;
        f(place_of(p, shift), 0, bits);
      }
      if (LAST || !r.keep) fetch();
      slot = after(slot);
    }
    if (LAST || !r.keep) oldest = slot;
  }

  /* Inside a look: for the looks to come at a row that is kept. */
  __device__ void replace(int, int4 bits) const { store_shared(at, bits); }

 private:
  const T *from[TENSORS];
  int64_t stride[TENSORS];
  int64_t fetch_row;
  unsigned mine, pack_bytes, at = 0;
  unsigned oldest = 0, fetch_slot = 0; /* the current row's first tile, and where the next to come goes: in bytes */
  int ahead = 0;                       /* tiles fetched or on their way that no look has waited for */
  int fetch_tile = 0, fetch_look = 0;

  __device__ unsigned after(unsigned slot) const {
    const unsigned tile = r.tensors * pack_bytes;
    return slot + tile == r.slots * tile ? 0 : slot + tile;
  }
  /* Elements before the row that share its first pack. */
  __device__ int shift_of(int64_t row) const { return r.odd ? (int)(row * r.cols & (N - 1)) : 0; }
  __device__ int packs_of(int shift) const { return (int)((shift + r.cols + N - 1) / N); }
  __device__ int pack_of(int tile) const { return (int)blockIdx.x * r.share + tile * r.lanes + lane; }
  __device__ bool in_share(int p, int packs) const { return p < packs && p < ((int)blockIdx.x + 1) * r.share; }
  __device__ any_place place_of(int p, int shift) const {
    const int64_t first = (int64_t)p * N - shift, left = r.cols - first;
    const int begin = first < 0 ? shift : 0, end = left < N ? (int)left : N;
    return {first, begin, end, begin == 0 && end == N};
  }

  /* The next tile on its way, as in held_rows. Where rows are not kept, each look fetches them again. */
  __device__ void fetch() {
    if (fetch_row < r.rows) {
      const int shift = shift_of(fetch_row), p = pack_of(fetch_tile);
      UNROLL
      for (int t = 0; t < TENSORS; t++)
        if (t < r.tensors && in_share(p, packs_of(shift)))
          copy(t, (int64_t)p * N - shift, mine + fetch_slot + t * pack_bytes);
    }
    close_copies();
    ahead++;
    fetch_slot = after(fetch_slot);
    if (++fetch_tile < r.tiles) return;
    fetch_tile = 0;
    if (!r.keep && ++fetch_look < r.looks) return;
    fetch_look = 0;
    fetch_row += step();
  }

  __device__ void copy(int t, int64_t first, unsigned to) const {
    const int64_t start = fetch_row * stride[t] + first, left = r.aligned ? r.rows * stride[t] - start : r.cols - first;
#if __CUDA_ARCH__ >= 800
    if (r.aligned) return copy_pack(to, from[t] + start, left < N ? (int)left * (int)sizeof(T) : 16);
#endif
    T *slot = (T *)__cvta_shared_to_generic(to);
    ONCE
    for (int k = 0; k < N; k++) slot[k] = k < left && start + k >= 0 ? from[t][start + k] : (T)0.0f;
  }
};
