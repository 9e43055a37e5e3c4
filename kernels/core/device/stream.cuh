/* stream.cuh - packs of one or more tensors on a walk, prefetched: several are on their way while one is computed.
 *
 * An H200 hides its memory's latency with about 48 KiB in flight per multiprocessor. Registers for that would cost the
 * occupancy they are meant to replace, so the packs wait in shared memory, where each thread has slots of its own: no
 * barrier is needed. Compute capability 7 has no asynchronous copies: there, packs are loaded when asked for.
 *
 * A pack that is not whole (the tensor ends within it, or it does not begin where packs do) is put together in its
 * slot when it is asked for, element by element. It leaves the slot like any other, so that the arithmetic after is
 * there once. */
#pragma once

#include "kernels/core/device/shared.cuh"

/* A tensor that is walked by halves has rows of 2 * half elements, of which the walk sees one half. The walk then has
 * `half` channels, so that at % half is the same for all elements of a thread; the place of element `at` in the tensor
 * is at + at / half * half = 2 * at - at % half. */

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

  /* How many rows the stream has fetched when it gives one: that one, and those on their way. */
#if __CUDA_ARCH__ >= 800
  enum { LEAD = SLOTS };
#else
  enum { LEAD = 1 };
#endif

  const tfu_walk &walk;
  const int64_t half;
  const T *tensor[TENSORS];
  int64_t fetched, rest; /* the element that is fetched next, and how far it lies after the beginning of its half */
  int ahead;             /* the row that is fetched next                                                        */
  int whole, rows;       /* rows of whole packs, rows in all                                                    */
  unsigned slots, slot;  /* this thread's place in shared memory, and where in it the next packs go             */

  /* Rows blockIdx.y, blockIdx.y + gridDim.y … of the column that starts at element col. shared is the block's own. */
  template <typename X>
  __device__ pack_stream(const tfu_walk &w, int64_t col, const X *const *tensors, int64_t half, ring &shared)
      : walk(w), half(HALVES ? half : 0), fetched(walk_first(w, col)), ahead(blockIdx.y), whole(whole_rows<T>(col, w)) {
    rows = PARTS ? w.rows + (w.rows * w.width + col < w.n) : whole;
    rest = HALVES && half ? fetched % half : 0;
    UNROLLED(t, TENSORS) tensor[t] = (const T *)tensors[t];
    slots = (unsigned)__cvta_generic_to_shared(&shared[0][0][threadIdx.x]);
    slot = 0;
#if __CUDA_ARCH__ >= 800
    UNROLLED(i, SLOTS - 1) fetch();
#endif
  }

  /* Whether there is a next row. */
  __device__ bool more() const { return ahead - (LEAD - 1) * (int)gridDim.y < rows; }
  /* Of the row that next() gave: whether all its packs are whole, and its first element. Counted from what is fetched
   * next, these take no registers of their own. */
  __device__ bool is_whole() const { return ahead - LEAD * (int)gridDim.y < whole; }
  __device__ int64_t at() const { return fetched - LEAD * walk_step(walk); }

  /* A slot of shared memory, one per tensor, that is free until the next row is asked for. */
  __device__ unsigned spare() const { return slots + slot; }

  /* The tensors' packs of the next row. */
  __device__ void next(int4 (&bits)[TENSORS]) {
#if __CUDA_ARCH__ >= 800
    wait_for_copies<SLOTS - 2>();
    const unsigned from = slots + (slot + SLOT) % (SLOTS * SLOT);
    if (PARTS && ahead - (LEAD - 1) * (int)gridDim.y >= whole)
      put_together(from, fetched - (LEAD - 1) * walk_step(walk));
    UNROLLED(t, TENSORS) bits[t] = load_shared(from + t * (SLOT / TENSORS));
    fetch();
#else
    const bool is_part = PARTS && ahead >= whole;
    if (is_part) put_together(spare(), fetched);
    UNROLLED(t, TENSORS)
      bits[t] = is_part ? load_shared(spare() + t * (SLOT / TENSORS)) : *(const int4 *)place(t, fetched);
    step();
#endif
  }

 private:
  __device__ int64_t by_half(int t) const { return HALVES >> t & 1 ? half : 0; }
  __device__ const T *place(int t, int64_t at) const { return tensor[t] + (by_half(t) ? 2 * at - rest : at); }
  __device__ void step() { ahead += (int)gridDim.y, fetched += walk_step(walk); }

  /* The tensors' packs that begin at element `at`, into a slot. Elements beyond the tensor's end read as zero. */
  __device__ void put_together(unsigned slot, int64_t at) {
    UNROLL
    for (int t = 0; t < TENSORS; t++, slot += SLOT / TENSORS) {
      const T *data = place(t, at);
      T *elements = (T *)__cvta_shared_to_generic(slot);
      store_shared(slot, make_int4(0, 0, 0, 0));
      one_by_one<N>(walk, at, by_half(t), [&](int64_t place, int k) { elements[k] = data[place]; });
    }
  }

  /* Beyond the last row of whole packs nothing is fetched; the group is closed all the same, so that groups can be
   * counted. */
  __device__ void fetch() {
    if (ahead < whole) {
      UNROLLED(t, TENSORS) copy_pack(slots + slot + t * (SLOT / TENSORS), place(t, fetched));
    }
    close_copies();
    step();
    slot = (slot + SLOT) % (SLOTS * SLOT);
  }
};
