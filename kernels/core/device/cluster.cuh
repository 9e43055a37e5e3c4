/* cluster.cuh - the end of a cluster of blocks that read each other's shared memory. */
#pragma once

/* Before a block leaves whose memory others read, or writes there again. Nothing else is handed over: what was stored
 * before need not have arrived, and a barrier that waits for it takes 0.3 us longer. */
__device__ inline void leave_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}
