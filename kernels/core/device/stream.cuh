/* stream.cuh - whole packs of one or more tensors, several on their way from memory while one is computed.
 *
 * An H200 hides its memory's latency with about 48 KiB in flight per multiprocessor. Registers for that would cost the
 * occupancy they are meant to replace, so the packs wait in shared memory, where each thread has slots of its own: no
 * barrier is needed. Compute capability 7 has no asynchronous copies: there, packs are loaded when asked for. */
#pragma once

#include "kernels/core/device/pack.cuh"

template <typename T, int TENSORS>
struct pack_stream {
  enum { SLOTS = 4 }; /* a power of two */
  typedef int4 ring[SLOTS][TENSORS][TFU_THREADS];
  enum { SLOT = TENSORS * TFU_THREADS * sizeof(int4) };

  const char *from[TENSORS]; /* the packs to fetch next */
  int64_t step[TENSORS];     /* bytes to those after them */
  int left;                  /* rows still to fetch */
  unsigned slots, slot;      /* this thread's place in shared memory, and where in it the next packs go */

  /* Rows blockIdx.y, blockIdx.y + gridDim.y … below `rows`, of the column that starts at element `first`. The tensors
   * are the walk's own, shared is the block's. */
  template <typename... D>
  __device__ pack_stream(const tfu_walk &w, int64_t first, int rows, ring &shared, const D *...tensors)
      : from{(const char *)((const T *)tensors + first)...} {
    UNROLL
    for (int t = 0; t < TENSORS; t++) step[t] = walk_step(w) * sizeof(T);
    start(rows, shared);
  }

  /* The same for tensors that are not all the walk's own: their first packs, and elements to the next. */
  __device__ pack_stream(int rows, ring &shared, const T *const (&firsts)[TENSORS], const int64_t (&steps)[TENSORS]) {
    UNROLL
    for (int t = 0; t < TENSORS; t++) from[t] = (const char *)firsts[t], step[t] = steps[t] * sizeof(T);
    start(rows, shared);
  }

  /* The tensors' packs of the next row. */
  __device__ void next(int4 (&bits)[TENSORS]) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(SLOTS - 2) : "memory");
    const unsigned at = slots + (slot + SLOT) % (SLOTS * SLOT);
    UNROLL
    for (int t = 0; t < TENSORS; t++)
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(bits[t].x), "=r"(bits[t].y), "=r"(bits[t].z), "=r"(bits[t].w)
                   : "r"(at + t * (SLOT / TENSORS))
                   : "memory");
    fetch();
#else
    UNROLL
    for (int t = 0; t < TENSORS; t++) {
      bits[t] = *(const int4 *)from[t];
      from[t] += step[t];
    }
#endif
  }

 private:
  __device__ void start(int rows, ring &shared) {
    left = rows - (int)blockIdx.y;
    slots = (unsigned)__cvta_generic_to_shared(&shared[0][0][threadIdx.x]);
    slot = 0;
#if __CUDA_ARCH__ >= 800
    UNROLL
    for (int i = 0; i < SLOTS - 1; i++) fetch();
#endif
  }

  /* Beyond the last row nothing is fetched; the group is closed all the same, so that groups can be counted. */
  __device__ void fetch() {
    UNROLL
    for (int t = 0; t < TENSORS; t++) {
      if (left > 0)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(slots + slot + t * (SLOT / TENSORS)),
                     "l"(from[t])
                     : "memory");
      from[t] += step[t];
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    left -= (int)gridDim.y;
    slot = (slot + SLOT) % (SLOTS * SLOT);
  }
};
