/* launches.cuh - launches that follow each other without a gap: the second starts while the first one ends (`follows`
 * of tfu_grid), and waits before it touches memory. From compute capability 9 on; before that, both do nothing. */
#pragma once

/* From here on the next launch may start, once all blocks have come so far. It takes only what they leave free. */
__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Waits until the launch before has ended and all that it wrote is there. Every thread of a kernel that follows calls
 * it first, so that what comes after the kernel comes after both. */
__device__ inline void wait_for_last_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
