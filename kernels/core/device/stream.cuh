/* stream.cuh - packs of one or more tensors on a walk, several on their way from memory while one is computed.
 *
 * An H200 hides its memory's latency with about 48 KiB in flight per multiprocessor. Registers for that would cost the
 * occupancy they are meant to replace, so the packs wait in shared memory, where each thread has slots of its own: no
 * barrier is needed. Compute capability 7 has no asynchronous copies: there, packs are loaded when asked for.
 *
 * A pack that is not whole (the tensor ends within it, or it does not begin where packs do) is put together in its
 * slot, element by element. It leaves the slot like any other, so that the arithmetic behind is there once. */
#pragma once

#include "kernels/core/device/shared.cuh"

/* Where element `at` of a walk lies in its tensor. half 0: it is element `at`. Else the tensor has rows of 2 * half
 * elements, of which the walk sees one half; the walk has `half` channels, so a thread's elements are equally far apart
 * there too. */
__device__ inline int64_t place_of(int64_t at, int64_t half) { return half ? at + at / half * half : at; }

/* Elements at .. at + N of a walk, one by one: move(place, k) is called with the place of each that exists, relative to
 * the first. A loop that stays one: it serves what is rare, and its size is paid in every kernel. */
template <int N, typename F>
__device__ inline void one_by_one(const tfu_walk &w, int64_t at, int64_t half, F move) {
  int64_t skipped = 0, end = half ? half - at % half : N; /* of the half: from there the other one is skipped */
  const int n = w.n - at < N ? (int)(w.n - at) : N;
  ONCE
  for (int k = 0; k < n; k++) {
    if (k == end) skipped += half, end += half;
    move(k + skipped, k);
  }
}

/* HALVES has a bit for each tensor that is walked by halves; PARTS says whether packs may come that are not whole. */
template <typename T, int TENSORS, bool PARTS = false, unsigned HALVES = 0>
struct pack_stream {
  /* SLOTS, a power of two: all but one have rows on their way; free is the slot of the row that was read last. */
  enum { N = packed<T>::N, SLOTS = 4 };
  typedef int4 ring[SLOTS][TENSORS][TFU_THREADS];
  enum { SLOT = TENSORS * TFU_THREADS * sizeof(int4) };

  const tfu_walk &walk;
  const int64_t col, half;
  const char *from[TENSORS]; /* the packs to fetch next            */
  int64_t step[TENSORS];     /* bytes to those after them          */
  int ahead;                 /* the row that is fetched next       */
  int whole, rows;           /* rows of whole packs, rows in all   */
  unsigned slots, slot;      /* this thread's place in shared memory, and where in it the next packs go */

  /* Rows blockIdx.y, blockIdx.y + gridDim.y … of the column that starts at element col. shared is the block's own. */
  template <typename X>
  __device__ pack_stream(const tfu_walk &w, int64_t col, const X *const *tensors, int64_t half, ring &shared)
      : walk(w), col(col), half(HALVES ? half : 0), ahead(blockIdx.y), whole(whole_rows<T>(col, w)) {
    const int64_t at = walk_first(w, col);
    rows = PARTS ? w.rows + (w.rows * w.width + col < w.n) : whole;
    UNROLL
    for (int t = 0; t < TENSORS; t++) {
      from[t] = (const char *)((const T *)tensors[t] + place_of(at, by_half(t)));
      step[t] = walk_step(w) * (by_half(t) ? 2 : 1) * (int64_t)sizeof(T);
    }
    slots = (unsigned)__cvta_generic_to_shared(&shared[0][0][threadIdx.x]);
    slot = 0;
#if __CUDA_ARCH__ >= 800
    ONCE
    for (int i = 0; i < SLOTS - 1; i++) fetch();
#endif
  }

  /* A slot of shared memory, one per tensor, that is free until the next row is asked for. */
  __device__ unsigned spare() const { return slots + slot; }

  /* The tensors' packs of the next row. */
  __device__ void next(int4 (&bits)[TENSORS]) {
#if __CUDA_ARCH__ >= 800
    wait_for_copies<SLOTS - 2>();
    const unsigned at = slots + (slot + SLOT) % (SLOTS * SLOT);
    UNROLL
    for (int t = 0; t < TENSORS; t++) bits[t] = load_shared(at + t * (SLOT / TENSORS));
    fetch();
#else
    UNROLL
    for (int t = 0; t < TENSORS; t++) {
      if (!PARTS || ahead < whole) {
        bits[t] = *(const int4 *)from[t];
      } else {
        put_together(t);
        bits[t] = load_shared(spare() + t * (SLOT / TENSORS));
      }
      from[t] += step[t];
    }
    ahead += (int)gridDim.y;
#endif
  }

 private:
  __device__ int64_t by_half(int t) const { return HALVES >> t & 1 ? half : 0; }

  /* Elements beyond the tensor's end read as zero. */
  __device__ void put_together(int t) {
    const T *data = (const T *)from[t];
    const unsigned to = spare() + t * (SLOT / TENSORS);
    store_shared(to, make_int4(0, 0, 0, 0));
    T *elements = (T *)__cvta_shared_to_generic(to);
    one_by_one<N>(walk, ahead * walk.width + col, by_half(t), [&](int64_t place, int k) { elements[k] = data[place]; });
  }

  /* Beyond the last row nothing is fetched; the group is closed all the same, so that groups can be counted. */
  __device__ void fetch() {
    if (ahead < whole) {
      UNROLL
      for (int t = 0; t < TENSORS; t++) copy_pack(slots + slot + t * (SLOT / TENSORS), from[t]);
    } else if (PARTS && ahead < rows) {
      for (int t = 0; t < TENSORS; t++) put_together(t);
    }
    UNROLL
    for (int t = 0; t < TENSORS; t++) from[t] += step[t];
    close_copies();
    ahead += (int)gridDim.y;
    slot = (slot + SLOT) % (SLOTS * SLOT);
  }
};
