/* gate_scales.cuh - each gate's own h, of recurrent dropout. */
#pragma once

#include "kernels/recurrent/held_factor.cuh"
#include "kernels/recurrent/recurrence_persistent.h"

#if __CUDA_ARCH__ >= 800
/* h times a gate's scales. Those of recurrent dropout are zeros or one number, `by`; each lane then has a bit in shared
 * memory for each that it needs, reads no others, and sums are multiplied by it. */
template <typename T>
struct gate_scales {
  enum {
    LANE = chunk_of<T>::LANE,
    SLICE = PERSISTENT_SLICE(sizeof(T)),
    WORDS = LANE / 4, /* of a lane's chunk: of 16 bits a word for each row, else one for both */
    CHUNKS = PERSISTENT_UNITS / (PERSISTENT_WARPS * chunk_of<T>::ALL)
  };
  struct words {
    unsigned v[WORDS];
  };
  const T *scale; /* of the first of the block's sequences */
  words *of;      /* [tiles][chunks][threads] */
  int gates, units, sequences;
  float by;
  bool one; /* by is the only one but zero */

  __device__ gate_scales(const persistent_args &p, int first, char *memory)
      : scale((const T *)p.scale + first * p.size.gates * p.size.units),
        of((words *)(memory + p.at.scale)),
        gates(p.size.gates),
        units((int)p.size.units),
        sequences(min((int)p.size.batch - first, p.tiles * PERSISTENT_ROWS)) {
    __shared__ float found[PERSISTENT_WARPS];
    by = 0;
    all_scales([&](int, int, float v) { by = fmaxf(by, v); });
    UNROLLED(i, 5) by = fmaxf(by, __shfl_xor_sync(~0u, by, 1 << i));
    if (lane_id() == 0) found[threadIdx.x / 32] = by;
    __syncthreads();
    UNROLLED(i, PERSISTENT_WARPS) by = fmaxf(by, found[i]);
    bool other = false;
    for (int i = threadIdx.x; i < p.tiles * CHUNKS * TFU_THREADS; i += TFU_THREADS) of[i] = words{};
    all_scales([&](int at, int bit, float v) {
      other |= !(v == 0 || v == by);
      if (v != 0) of[at].v[bit / 32] |= 1u << bit % 32;
    });
    one = !__syncthreads_or(other);
  }

  /* Where the lane's elements of a chunk begin. */
  static __device__ int first_of(int chunk) {
    return (threadIdx.x / 32 + chunk * PERSISTENT_WARPS) * chunk_of<T>::ALL + (int)lane_id() % 4 * LANE;
  }
  __device__ int row(int tile, int r) const { return tile * PERSISTENT_ROWS + (int)lane_id() / 4 + 8 * r; }
  /* Bits of 16-bit types: of a row's pairs of elements, the first and, 16 bits on, the second. */
  static __device__ int bit_of(int r, int gate, int e) {
    return WORDS == 1 ? r * 16 + gate * 4 + e : r * 32 + gate * 4 + e / 2 + e % 2 * 16;
  }
  /* f(which of the words, bit, scale) of all that the thread needs. */
  template <typename F>
  __device__ void all_scales(F f) const {
    for (int tile = 0; tile * PERSISTENT_ROWS < sequences; tile++)
      for (int c = 0; c < CHUNKS; c++)
        for (int i = 0; i < 2 * gates; i++) {
          const int r = i % 2, gate = i / 2, row = this->row(tile, r), k = first_of(c);
          if (row >= sequences || k >= units) continue;
          const T *from = scale + ((int64_t)row * gates + gate) * units + k;
          UNROLLED(e, LANE) f((tile * CHUNKS + c) * TFU_THREADS + (int)threadIdx.x, bit_of(r, gate, e), (float)from[e]);
        }
  }

  __device__ float factor_of_sums() const { return one ? by : 1; }

  /* A block's product, of a tile. */
  template <typename B>
  __device__ void multiply(const B &block, const heard_rows<T> &rows, bool wait, int turn, int tile) const {
    if (!one) block.template multiply<false>(rows, by_scales{*this, tile}, wait, turn);
    else if (LANE == 8 && block.is_few(tile))
      block.template multiply<LANE == 8>(rows, by_bits{*this, tile}, wait, turn);
    else block.template multiply<false>(rows, by_bits{*this, tile}, wait, turn);
  }

  /* A chunk of h, of which there is what the bits say. */
  struct masked_chunk {
    words bits;

    __device__ void change(pack_bits (&a)[2], const pack_bits (&from)[2], int n) const {
      if (n * 8 % SLICE) return; /* of the same gate */
      UNROLLED(r, 2)
        UNROLLED(i, 4) {
          const int bit = n * 8 / SLICE * 4 + i;
          unsigned keep; /* the signs of two bytes, each in a half */
          if (bit < 8) asm("prmt.b32 %0, %1, 0, 0xaa88;" : "=r"(keep) : "r"(bits.v[r % WORDS] << (7 - bit % 8)));
          else asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(keep) : "r"(bits.v[r % WORDS] << (7 - bit % 8)));
          a[r].v[i] = from[r].v[i] & keep;
        }
    }
    __device__ void change(split_words (&a)[2], const split_words (&from)[2], int n) const {
      UNROLLED(r, 2)
        UNROLLED(i, 4) {
          const bool there = bits.v[0] >> bit_of(r, n, i) & 1;
          a[r].big[i] = there ? from[r].big[i] : 0;
          a[r].small[i] = there ? from[r].small[i] : 0;
        }
    }
  };
  struct by_bits {
    const gate_scales &all;
    int tile;

    __device__ masked_chunk chunk(int c, int) const {
      return masked_chunk{all.of[(tile * CHUNKS + c) * TFU_THREADS + threadIdx.x]};
    }
  };

  /* A chunk of h, times scales. */
  struct scaled_chunk {
    const gate_scales &all;
    int tile, k;

    __device__ const T *of_gate(int r, int gate) const {
      const int row = all.row(tile, r);
      return row < all.sequences && k < all.units ? all.scale + ((int64_t)row * all.gates + gate) * all.units + k
                                                  : NULL;
    }
    __device__ void change(pack_bits (&a)[2], const pack_bits (&from)[2], int n) const {
      if (n * 8 % SLICE) return;
      UNROLLED(r, 2) {
        const unsigned *own = (const unsigned *)of_gate(r, n * 8 / SLICE);
        if (!own) continue; /* nothing but zeros */
        UNROLLED(i, 4) {
          const float2 x = pair_of<T>::widen(from[r].v[i]), y = pair_of<T>::widen(own[i]);
          a[r].v[i] = pair_of<T>::narrow(x.x * y.x, x.y * y.y);
        }
      }
    }
    __device__ void change(split_words (&a)[2], const split_words (&from)[2], int n) const {
      UNROLLED(r, 2) {
        const float *own = (const float *)of_gate(r, n);
        if (!own) continue;
        UNROLLED(i, 4)
          a[r].set(i, __float_as_uint((__uint_as_float(from[r].big[i]) + __uint_as_float(from[r].small[i])) * own[i]));
      }
    }
  };
  struct by_scales {
    const gate_scales &all;
    int tile;

    __device__ scaled_chunk chunk(int, int k) const { return scaled_chunk{all, tile, k}; }
  };
};

/* One h for all gates. */
template <typename T>
struct no_scales {
  __device__ no_scales(const persistent_args &, int, char *) {}
  __device__ float factor_of_sums() const { return 1; }
  template <typename B>
  __device__ void multiply(const B &block, const heard_rows<T> &rows, bool wait, int turn, int tile) const {
    if (block.is_few(tile)) block.template multiply<true>(rows, no_change(), wait, turn);
    else block.template multiply<false>(rows, no_change(), wait, turn);
  }
};
#endif
