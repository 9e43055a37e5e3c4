/* cluster.cuh - the beginning and the end of a cluster of blocks that reach into each other's shared memory. */
#pragma once

/* This block has begun, and has opened its barriers; then it waits until all blocks have. Each once. */
__device__ inline void enter_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ inline void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

/* Before a block leaves whose memory others read, or writes there again. Nothing else is handed over: what was stored
 * before need not have arrived, and this barrier does not wait for it. */
__device__ inline void leave_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}
