/* any_rows.cuh - the walk over rows that begin, end or reach anywhere, prefetched to shared memory. */
#pragma once

#include "kernels/core/device/row_team.cuh"

/* Any rows: of any length, beginning anywhere. Packs wait in shared memory, and stay there for later looks where there
 * is room for a block's share of a row. Parts of packs are moved by loops over the thread's slot there, so that all
 * arithmetic is on packs.
 *
 * Where tensors are aligned, packs are those of the tensor and not of the row: a row that begins within a pack shares
 * it with the row before, and any_place says which of its elements are the row's own. Elsewhere packs begin with the
 * row, and are put together element by element. A tile is here one pack of every lane: a thread's packs of a row are
 * pack lane + tile * lanes of its block's share, for r.tiles tiles. The ring is [r.slots][tensors][threads] packs, a
 * slot for each tile. It is filled as far as it is free, across the ends of looks and rows: where a row fits (r.keep),
 * its slots become free with its last look, else each look fetches it anew and frees a slot with every tile. */
template <typename T, int TENSORS>
struct any_rows : row_team<OVER_BLOCK> {
  enum { N = packed<T>::N };
  static constexpr bool fixed = false;

  __device__ any_rows(const tfu_row_plan &rows, const T *const (&tensors)[TENSORS]) : row_team<OVER_BLOCK>(rows) {
    extern __shared__ int4 ring[];
    UNROLLED(t, TENSORS) from[t] = tensors[t];
    mine = (unsigned)__cvta_generic_to_shared(ring + threadIdx.x);
    pack_bytes = blockDim.x * 16;
    free = r.slots;
    fetch_from(row);
  }

  __device__ bool keeps() const { return r.keep; }
  __device__ int column(int) const { return 0; }
  __device__ bool has(int) const { return false; }

  template <bool FIRST, bool LAST, typename F>
  __device__ void look(F f) {
    const int shift = shift_of(row), end = active() ? end_of(shift) : 0;
    unsigned slot = oldest;
    ONCE
    for (int tile = 0; tile < r.tiles; tile++) {
      ONCE
      for (; free > 0; free--) fetch();
      if (FIRST || !r.keep) wait_for_copies(--ahead);
      const int p = pack_of(tile);
      if (p < end) {
        int4 bits[TENSORS];
        at = mine + slot;
        UNROLLED(t, TENSORS)
          if (t < r.tensors) bits[t] = load_shared(at + t * pack_bytes);
        f(place_of(p, shift), 0, bits);
      }
      if (LAST || !r.keep) free++;
      slot = after(slot);
    }
    if (LAST || !r.keep) oldest = slot;
  }

  /* Inside a look. For the looks to come at a row that is kept: */
  __device__ void replace(int, int4 bits) const { store_shared(at, bits); }
  /* Writes the row's own elements of a pack; `to` points at the row's first element. The first tensor's pack is lost to
   * later looks, unless it is what is written. */
  template <typename R>
  __device__ void store(T *to, const any_place &p, const R (&v)[N]) const {
    const int4 bits = narrow_pack<T>(v);
    if (p.whole && r.aligned) return store_bits(to + p.first, bits);
    store_shared(at, bits);
    ONCE
    for (int k = 0; k < N; k++)
      if (p.owns(k)) to[p.first + k] = elements(at)[k];
  }
  /* The pack of a row in memory that store() has written to; elements that are not the row's own are anything. */
  __device__ int4 written(const T *row, const any_place &p) const {
    ONCE
    for (int k = 0; k < N; k++)
      if (p.owns(k)) elements(at)[k] = row[p.first + k];
    return load_shared(at);
  }

 private:
  const T *from[TENSORS];
  /* The thread's place in slot 0, the bytes from one tensor's pack to the next, and the place that a look is at. */
  unsigned mine, pack_bytes, at = 0;
  unsigned oldest = 0, fetch_slot = 0; /* the current row's first tile, and where the next to come goes: in bytes */
  int free;                            /* slots that nothing is in or on its way to */
  int ahead = 0;                       /* tiles fetched or on their way that no look has waited for */
  int fetch_tile = 0, fetch_look = 0;
  int64_t fetch_row, fetch_start; /* the row to fetch from, and the first element of its first pack */
  int fetch_end;                  /* its packs */

  __device__ static T *elements(unsigned slot) { return (T *)__cvta_shared_to_generic(slot); }
  __device__ unsigned after(unsigned slot) const {
    const unsigned tile = r.tensors * pack_bytes;
    return slot + tile == r.slots * tile ? 0 : slot + tile;
  }
  /* Elements before the row that share its first pack. */
  __device__ int shift_of(int64_t row) const { return r.odd ? (int)(row * r.cols & (N - 1)) : 0; }
  /* Where the block's packs of a row end. */
  __device__ int end_of(int shift) const {
    const int packs = (int)((shift + r.cols + N - 1) / N), share = ((int)blockIdx.x + 1) * r.share;
    return packs < share ? packs : share;
  }
  __device__ int pack_of(int tile) const { return (int)blockIdx.x * r.share + tile * r.lanes + lane; }
  __device__ any_place place_of(int p, int shift) const {
    const int64_t first = (int64_t)p * N - shift, left = r.cols - first;
    const int begin = first < 0 ? shift : 0, end = left < N ? (int)left : N;
    return {first, (1u << end) - (1u << begin), begin == 0 && end == N};
  }

  __device__ void fetch_from(int64_t row) {
    const int shift = shift_of(row);
    fetch_row = row;
    fetch_start = row * r.cols - shift;
    fetch_end = row < r.rows ? end_of(shift) : 0;
  }
  /* The next tile on its way, as in held_rows. Where rows are not kept, each look fetches them again. */
  __device__ void fetch() {
    const int p = pack_of(fetch_tile);
    if (p < fetch_end) copy(fetch_start + (int64_t)p * N, mine + fetch_slot);
    close_copies();
    ahead++;
    fetch_slot = after(fetch_slot);
    if (++fetch_tile < r.tiles) return;
    fetch_tile = 0;
    if (!r.keep && ++fetch_look < r.looks) return;
    fetch_look = 0;
    fetch_from(fetch_row + step());
  }
  /* Packs that reach beyond a row are read all the same, as far as the tensor reaches. */
  __device__ void copy(int64_t start, unsigned to) const {
    const int64_t left = r.rows * r.cols - start;
    const int count = left < N ? (int)left : N;
#if __CUDA_ARCH__ >= 800
    if (r.aligned) {
      UNROLLED(t, TENSORS)
        if (t < r.tensors) copy_pack(to + t * pack_bytes, from[t] + start, count * (int)sizeof(T));
      return;
    }
#endif
    ONCE
    for (int k = 0; k < count; k++) {
      UNROLLED(t, TENSORS)
        if (t < r.tensors) elements(to + t * pack_bytes)[k] = from[t][start + k];
    }
  }
};
