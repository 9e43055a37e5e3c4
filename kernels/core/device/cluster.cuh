/* cluster.cuh - the end of a cluster of blocks that read each other's shared memory. */
#pragma once

/* Before a block leaves whose memory others read, or writes there again. Nothing else is handed over: what was stored
 * before need not have arrived, and this barrier does not wait for it. */
__device__ inline void leave_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}
