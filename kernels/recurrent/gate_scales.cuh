/* gate_scales.cuh - each gate's own h, of recurrent dropout, in types of 16 bits. */
#pragma once

#include "kernels/recurrent/held_factor.cuh"
#include "kernels/recurrent/recurrence_persistent.h"

#if __CUDA_ARCH__ >= 800
/* h times a gate's scales. Those of recurrent dropout are zeros or one number, `by`; the block then has a bit for each
 * in shared memory, reads no others, and multiplies sums by it. */
template <typename T>
struct gate_scales {
  enum { CHANGES = 1, LANE = chunk_of<T>::LANE, SLICE = PERSISTENT_SLICE(sizeof(T)) };
  const T *scale; /* of the first of the block's sequences */
  /* [sequences][gates][packs], with a gap after each sequence, so that banks differ. Of a pack, bits i and 8 + i are
   * the elements of its word i. */
  uint16_t *of;
  int gates, units, sequences, apart;
  float by;
  bool one;   /* by is the only one but zero */
  int row[2]; /* the lane's, of the block's sequences */

  __device__ gate_scales(const persistent_args &p, int first, char *memory)
      : scale((const T *)p.scale + first * p.size.gates * p.size.units),
        of((uint16_t *)(memory + p.at.scale)),
        gates(p.size.gates),
        units((int)p.size.units),
        sequences(min((int)p.size.batch - first, p.tiles * PERSISTENT_ROWS)) {
    __shared__ float found[PERSISTENT_WARPS];
    const int packs = gates * units / LANE;
    apart = packs + PERSISTENT_GAP / sizeof(uint16_t);
    by = 0;
    for (int i = threadIdx.x; i < sequences * packs * LANE; i += TFU_THREADS) by = fmaxf(by, (float)scale[i]);
    UNROLLED(i, 5) by = fmaxf(by, __shfl_xor_sync(~0u, by, 1 << i));
    if (lane_id() == 0) found[threadIdx.x / 32] = by;
    __syncthreads();
    UNROLLED(i, PERSISTENT_WARPS) by = fmaxf(by, found[i]);
    bool other = false;
    for (int i = threadIdx.x; i < sequences * packs; i += TFU_THREADS) {
      unsigned some = 0;
      UNROLLED(e, LANE) {
        const float v = (float)scale[i * LANE + e];
        other |= !(v == 0 || v == by);
        if (v != 0) some |= 1u << (e / 2 + e % 2 * 8);
      }
      of[i / packs * apart + i % packs] = (uint16_t)some;
    }
    one = !__syncthreads_or(other);
  }

  __device__ void take(int tile) {
    UNROLLED(r, 2) row[r] = tile * PERSISTENT_ROWS + (int)lane_id() / 4 + 8 * r;
  }
  __device__ float factor_of_sums() const { return one ? by : 1; }

  __device__ void change(pack_bits (&a)[2], const pack_bits (&from)[2], int tile, int k) const {
    if (tile * 8 % SLICE || k >= units) return; /* of the same gate; nothing but zeros */
    const int gate = tile * 8 / SLICE;
    UNROLLED(r, 2) {
      if (row[r] >= sequences) continue;
      if (one) {
        const unsigned some = of[row[r] * apart + (gate * units + k) / LANE];
        UNROLLED(i, 4) {
          unsigned keep; /* the signs of two bytes, each in a half */
          asm("prmt.b32 %0, %1, 0, 0x9988;" : "=r"(keep) : "r"(some << (7 - i)));
          a[r].v[i] = from[r].v[i] & keep;
        }
      } else {
        const unsigned *own = (const unsigned *)(scale + (row[r] * gates + gate) * units + k);
        UNROLLED(i, 4) {
          const float2 x = pair_of<T>::widen(from[r].v[i]), y = pair_of<T>::widen(own[i]);
          a[r].v[i] = pair_of<T>::narrow(x.x * y.x, x.y * y.y);
        }
      }
    }
  }
};

struct no_scales : no_change {
  __device__ no_scales(const persistent_args &, int, char *) {}
  __device__ void take(int) {}
  __device__ float factor_of_sums() const { return 1; }
};
#endif
