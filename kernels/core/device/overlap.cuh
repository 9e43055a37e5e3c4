/* overlap.cuh - programmatic dependent launch: a kernel begins while those before it on the stream still run.
 *
 * Where a launch asks for it (tfu_grid.overlap), the kernel runs ahead until wait_for_those_before(): until then it may
 * read what no kernel before it in the same graph writes, and write nothing. Launched in the common way, both do
 * nothing. */
#pragma once

/* The next kernel may begin as soon as all blocks of this one have come here. */
__device__ inline void start_those_after() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Until all that was queued before has ended, and can be read. */
__device__ inline void wait_for_those_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
