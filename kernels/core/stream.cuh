/* stream.cuh - whole packs of one or more tensors, several on their way from memory while one is computed.
 *
 * An H200 hides its memory's latency with about 48 KiB in flight per multiprocessor. Registers for that would cost the
 * occupancy they are meant to replace, so the packs wait in shared memory, where each thread has slots of its own: no
 * barrier is needed. Before compute capability 8.0, which has no asynchronous copies, packs are loaded when asked for.
 */
#pragma once

#include "kernels/core/pack.cuh"

template <typename T, int TENSORS>
struct pack_stream {
  enum { SLOTS = 4 }; /* a power of two */
  typedef int4 ring[SLOTS][TENSORS][TFU_THREADS];

  const tfu_walk &walk;
  const T *data[TENSORS];
  int4 (*slots)[TENSORS][TFU_THREADS];
  int64_t ahead; /* the first element of the pack to fetch next */
  int slot;      /* where it goes */

  /* Starts at element `first`; data are tensors of the walk, shared is the block's own. */
  template <typename... D>
  __device__ pack_stream(const tfu_walk &w, int64_t first, ring &shared, const D *...tensors)
      : walk(w), data{(const T *)tensors...}, slots(shared), ahead(first), slot(0) {
#if __CUDA_ARCH__ >= 800
    UNROLL for (int i = 0; i < SLOTS - 1; i++) fetch();
#endif
  }

  /* The tensors' packs at `at`; to be called for every whole pack in turn. */
  __device__ void next(int64_t at, int4 (&bits)[TENSORS]) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(SLOTS - 2) : "memory");
    UNROLL for (int t = 0; t < TENSORS; t++) bits[t] = slots[(slot + 1) % SLOTS][t][threadIdx.x];
    fetch();
#else
    UNROLL for (int t = 0; t < TENSORS; t++) bits[t] = *(const int4 *)(data[t] + at);
#endif
  }

 private:
  /* A pack that is not whole is left out; its group is closed all the same, so that groups can be counted. */
  __device__ void fetch() {
    if (is_whole<T>(ahead, walk)) UNROLL for (int t = 0; t < TENSORS; t++) {
        const unsigned to = (unsigned)__cvta_generic_to_shared(&slots[slot][t][threadIdx.x]);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(data[t] + ahead) : "memory");
      }
    asm volatile("cp.async.commit_group;" ::: "memory");
    ahead += walk_step(walk);
    slot = (slot + 1) % SLOTS;
  }
};
