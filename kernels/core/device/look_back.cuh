/* look_back.cuh - decoupled look-back: how a tile learns what lies before it from the tiles before, in the same launch.
 *
 * CUDA does not promise that blocks start in the order of their numbers. So a block that waits for others takes the
 * number of its tile as a ticket when it begins: tiles with lower numbers then have blocks that run already, or have
 * ended, and the lowest that is still there waits for nobody. Tickets are counted from zero, and what tiles tell each
 * other is zero at first: the host clears both on the stream before every launch, also in a graph that is replayed.
 *
 * All that a tile tells is in the word that says that it is there, and such a word is written and read by one access.
 * So no fence is needed: accesses are relaxed, and seen by all blocks of the GPU. */
#pragma once

#include "kernels/core/device/pack.cuh"

/* The number of this block's tile. Called by the whole block once, which comes together here. */
__device__ inline unsigned take_ticket(uint32_t *tickets) {
  __shared__ unsigned ticket;
  if (threadIdx.x == 0) ticket = atomicAdd(tickets, 1u);
  __syncthreads();
  return ticket;
}

/* A word of 4 bytes that is not zero where a tile has told it. PTX has volatile accesses as relaxed ones. */
__device__ inline void tell_word(uint32_t *to, unsigned v) { *(volatile uint32_t *)to = v; }
__device__ inline unsigned hear_word(const uint32_t *from) { return *(const volatile uint32_t *)from; }

/* A state of any size: in words of 8 bytes, each beside a flag in one access of 16 bytes. */
template <typename S>
struct told_state {
  enum { WORDS = (sizeof(S) + 7) / 8 };
  ulonglong2 word[WORDS];

  __device__ void tell(const S &s) {
    unsigned long long bits[WORDS] = {};
    memcpy(bits, &s, sizeof s);
    UNROLLED(i, WORDS)
      asm volatile("{.reg .b128 all; mov.b128 all, {%1, %2}; st.relaxed.gpu.global.b128 [%0], all;}" ::"l"(&word[i]),
                   "l"(bits[i]), "l"(1ull)
                   : "memory");
  }
  __device__ S wait() const {
    unsigned long long bits[WORDS], told;
    UNROLLED(i, WORDS) do {
        asm volatile("{.reg .b128 all; ld.relaxed.gpu.global.b128 all, [%2]; mov.b128 {%0, %1}, all;}"
                     : "=l"(bits[i]), "=l"(told)
                     : "l"(&word[i])
                     : "memory");
      } while (!told);
    S s;
    memcpy(&s, bits, sizeof s);
    return s;
  }
};
