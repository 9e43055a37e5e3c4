/* thread_rows.cuh - the walk over rows so short that each is a thread's own; the next tile of them is prefetched. */
#pragma once

#include "kernels/core/device/row_team.cuh"

/* Short rows that are no whole packs, of tensors that begin on 16 bytes: one for each thread. A tile is here the rows
 * of a block, which lie side by side and are r.share whole packs. It comes to shared memory pack by pack, whosever rows
 * these belong to, while the threads work on the tile before. The ring is [TFU_THREAD_ROWS_SLOTS][tensors][r.share + 1]
 * packs: the last is never filled, so that a look may read beyond the last row.
 *
 * A look takes N elements at a time, from the word on in which the row begins: of 16-bit types that word may belong to
 * the row before, too, and any_place says which elements are the row's own. What is stored takes the place of what was
 * read, and the tile leaves as it has come, pack by pack. */
template <typename T, int TENSORS>
struct thread_rows : row_team<OVER_WARP> {
  enum { N = packed<T>::N, PER_WORD = 4 / sizeof(T) };
  static constexpr bool fixed = false;

  __device__ thread_rows(const tfu_row_plan &rows, const T *const (&tensors)[TENSORS]) : row_team<OVER_WARP>(rows) {
    extern __shared__ int4 ring[];
    UNROLLED(t, TENSORS) from[t] = tensors[t];
    slots = (unsigned)__cvta_generic_to_shared(ring);
    fetch_row = first_of_block;
    if (threadIdx.x == 0) written() = nullptr;
    ONCE
    for (int i = 0; i < TFU_THREAD_ROWS_SLOTS; i++) fetch();
  }

  __device__ bool keeps() const { return true; }
  __device__ int column(int) const { return 0; }
  __device__ bool has(int) const { return false; }
  template <typename J, typename V>
  __device__ V all_reduce(V v, J = J()) const {
    return v;
  }

  /* After the barrier every thread's copies of the tile have come. */
  template <bool FIRST, bool LAST, typename F>
  __device__ void look(F f) {
    if (FIRST) {
      wait_for_copies<TFU_THREAD_ROWS_SLOTS - 1>();
      __syncthreads();
    }
    if (!active()) return;
    const int cols = (int)r.cols, begin = threadIdx.x * cols, shift = begin & (PER_WORD - 1);
    at = tile() + (begin - shift) * (int)sizeof(T);
    ONCE
    for (int first = -shift; first < cols; first += N, at += 16) {
      int4 bits[TENSORS];
      UNROLLED(t, TENSORS)
        if (t < r.tensors) bits[t] = load_words(at + t * tensor_bytes());
      const int own = first < 0 ? shift : 0, end = cols - first < N ? cols - first : N;
      f(any_place{first, (1u << end) - (1u << own), own == 0 && end == N}, 0, bits);
    }
  }

  /* Element of the thread's row. */
  __device__ T element(int tensor, int column) const {
    const unsigned begin = (threadIdx.x * (int)r.cols + column) * (int)sizeof(T);
    return *(const T *)__cvta_shared_to_generic(tile() + tensor * tensor_bytes() + begin);
  }

  /* Inside a look: writes the row's own elements of the pack; `to` points at the row's first element. There is one
   * tensor to write to, and the first one's elements are lost to later looks. */
  template <typename R>
  __device__ void store(T *to, const any_place &p, const R (&v)[N]) const {
    const int4 bits = narrow_pack<T>(v);
    const unsigned words[4] = {(unsigned)bits.x, (unsigned)bits.y, (unsigned)bits.z, (unsigned)bits.w};
    if (threadIdx.x == 0) written() = to;
    UNROLLED(w, 4) {
      const unsigned own = p.own >> w * PER_WORD & ((1u << PER_WORD) - 1);
      if (own == (1u << PER_WORD) - 1) store_word(at + w * 4, words[w]);
      else if (PER_WORD == 2 && own == 1) store_half(at + w * 4, words[w]);
      else if (PER_WORD == 2 && own == 2) store_half(at + w * 4 + 2, words[w] >> 16);
    }
  }

  /* After the barrier every thread is done with the tile. Its packs leave, and come, by the same threads. */
  __device__ void next() {
    __syncthreads();
    T *to = written();
    if (to)
      for_packs(first_of_block, [&](int p, int count) {
        const unsigned pack = tile() + p * 16;
        if (count == N) return store_bits(to + p * N, load_shared(pack));
        ONCE
        for (int k = 0; k < count; k++) to[p * N + k] = ((const T *)__cvta_shared_to_generic(pack))[k];
      });
    fetch();
    row_team<OVER_WARP>::next();
  }

 private:
  const T *from[TENSORS];
  unsigned slots, at = 0; /* the ring; where a look is */
  int slot = 0;           /* of the current tile, and of the next to fetch while that is not yet there */
  int64_t fetch_row;      /* the first of the tile to fetch */

  /* Where the tile begins that thread 0, which has a row wherever the block has one, has stored to; NULL: nowhere. */
  static __device__ T *&written() {
    __shared__ T *tile;
    return tile;
  }
  __device__ unsigned tensor_bytes() const { return (r.share + 1) * 16; }
  __device__ unsigned tile() const { return slots + slot * r.tensors * tensor_bytes(); }

  /* f(pack, elements of it) for the thread's packs of the tile that begins with a row, as far as the tensor reaches. */
  template <typename F>
  __device__ void for_packs(int64_t row, F f) const {
    const int64_t left = (r.rows - row) * r.cols;
    ONCE
    for (int p = threadIdx.x; p < r.share; p += blockDim.x) {
      if (p * N >= left) return;
      f(p, left - p * N < N ? (int)(left - p * N) : N);
    }
  }
  /* The next tile on its way to the current slot, which is then another one. Its group is closed even where nothing is
   * left to fetch, so that groups can be counted. */
  __device__ void fetch() {
    const int64_t start = fetch_row * r.cols;
    for_packs(fetch_row, [&](int p, int count) {
      UNROLLED(t, TENSORS)
        if (t < r.tensors) copy(tile() + t * tensor_bytes() + p * 16, from[t] + start + p * N, count);
    });
    close_copies();
    fetch_row += step();
    slot = slot + 1 == TFU_THREAD_ROWS_SLOTS ? 0 : slot + 1;
  }
  static __device__ void copy(unsigned to, const T *from, int count) {
#if __CUDA_ARCH__ >= 800
    copy_pack(to, from, count * (int)sizeof(T));
#else
    if (count == N) return store_shared(to, *(const int4 *)from);
    ONCE
    for (int k = 0; k < count; k++) ((T *)__cvta_shared_to_generic(to))[k] = from[k];
#endif
  }
};
