/* barriers.cuh - barriers in shared memory (mbarrier), at which threads arrive, and bytes that others send: copies from
 * memory, and values from other blocks of the cluster (st.async). Compute capability 9.0 on; before, these do nothing.
 *
 * A barrier is 64 bits. It has one phase after the other; each ends when all arrivals that it was opened for are there,
 * and all bytes that they expect. Bytes may come before they are expected. */
#pragma once

#include "kernels/core/device/pack.cuh"

#if __CUDA_ARCH__ >= 900
#define FROM_9_0(...) asm volatile(__VA_ARGS__)
#else
#define FROM_9_0(...)
#endif

__device__ inline void open_barrier(unsigned at, int arrivals) {
  FROM_9_0("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}
/* Before others than this thread use the barriers that it has opened. */
__device__ inline void publish_barriers() { FROM_9_0("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void arrive(unsigned at) { FROM_9_0("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(at) : "memory"); }
/* At the same place of another block of the cluster. */
__device__ inline void arrive_in(unsigned block, unsigned at) {
  FROM_9_0(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(at),
      "r"(block)
      : "memory");
}
/* One arrival, which expects so many bytes. */
__device__ inline void expect_bytes(unsigned at, int bytes) {
  FROM_9_0("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
/* Until the phase has ended whose number has this last bit. The second sees what other blocks have sent. */
__device__ inline void wait_for_barrier(unsigned at, unsigned parity) {
  FROM_9_0(
      "{\n.reg .pred ended;\nAGAIN:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n@!ended bra AGAIN;\n}" ::"r"(at),
      "r"(parity)
      : "memory");
}
__device__ inline void wait_for_sent(unsigned at, unsigned parity) {
  FROM_9_0(
      "{\n.reg .pred ended;\nAGAIN:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 ended, [%0], %1;\n@!ended bra AGAIN;\n}" ::"r"(at),
      "r"(parity)
      : "memory");
}

/* So many bytes, a multiple of 16, from memory to shared memory. */
__device__ inline void copy_bulk(unsigned to, const void *from, unsigned bytes, unsigned barrier) {
  FROM_9_0("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
           "l"(from), "r"(bytes), "r"(barrier)
           : "memory");
}
/* A value to another block: `to` and `barrier` are places in this block's shared memory, it goes to the same ones
 * there. */
template <typename V>
__device__ inline void send(unsigned to, unsigned barrier, int block, const V &v) {
#if __CUDA_ARCH__ >= 900
  unsigned place, there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(place) : "r"(to), "r"(block));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(barrier), "r"(block));
  UNROLLED(i, (int)(sizeof(V) / 4))
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(place + i * 4),
                 "r"(((const unsigned *)&v)[i]), "r"(there)
                 : "memory");
#endif
}
