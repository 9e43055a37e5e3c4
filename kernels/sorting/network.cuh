/* network.cuh - a bitonic network: rows of up to 32 words for each lane of a warp, or of a block, sorted in registers
 * by comparing in pairs, by warp shuffle between lanes.
 *
 * Words are keys, or keys with their indices below, which makes all differ and the order stable. Word i of a lane is
 * number lane * ITEMS + i. Runs of two, four, … are merged: first each word is compared with the one as far from the
 * other end of both runs, then with those half as far, a quarter, … The lesser goes to the lower number. Rows are read
 * in any order, and written through shared memory, where a gap after each lane's words keeps lanes on different banks.
 */
#pragma once

#include "kernels/sorting/radix.cuh"

extern __shared__ int4 shared_memory[];

template <typename W>
__device__ inline void in_order(W &a, W &b) {
  const W least = a < b ? a : b, most = a < b ? b : a;
  a = least, b = most;
}

/* The last steps of a merge, once every word is in its lane. */
template <typename W, int ITEMS>
__device__ inline void merge_in_lane(W (&w)[ITEMS]) {
  UNROLL
  for (int by = ITEMS / 2; by > 0; by /= 2)
    UNROLLED(i, ITEMS)
      if (!(i & by)) in_order(w[i], w[i | by]);
}

template <typename W, int ITEMS>
__device__ inline void sort_in_lane(W (&w)[ITEMS]) {
  UNROLL
  for (int run = 2; run <= ITEMS; run *= 2) {
    UNROLLED(i, ITEMS)
      if ((i ^ (run - 1)) > i) in_order(w[i], w[i ^ (run - 1)]);
    UNROLL
    for (int by = run / 4; by > 0; by /= 2)
      UNROLLED(i, ITEMS)
        if (!(i & by)) in_order(w[i], w[i | by]);
  }
}

/* Each word, or that of the lane so far away if it should be here. Lanes of other warps are met in shared memory. */
template <bool FLIP, typename W, int ITEMS>
__device__ inline void meet_in_line(W (&w)[ITEMS], int away, bool low, W *line) {
  const int lane = threadIdx.x;
  UNROLLED(i, ITEMS) line[lane * (ITEMS + 1) + i] = w[i];
  __syncthreads();
  UNROLLED(i, ITEMS) {
    const W other = line[(lane ^ away) * (ITEMS + 1) + (FLIP ? ITEMS - 1 - i : i)];
    w[i] = (w[i] < other) == low ? w[i] : other;
  }
  __syncthreads();
}

/* Sorts the words of so many lanes: those of a warp, or of the block. */
template <bool BLOCK, typename W, int ITEMS>
__device__ inline void sort_lanes(W (&w)[ITEMS], int count, W *line) {
  const int lane = threadIdx.x;
  sort_in_lane(w);
  ONCE
  for (int lanes = 2; lanes <= count; lanes *= 2) {
    const bool low = !(lane & (lanes / 2));
    if (BLOCK && lanes > 32) {
      meet_in_line<true>(w, lanes - 1, low, line);
    } else {
      UNROLLED(i, ITEMS / 2) {
        const W a = __shfl_xor_sync(~0u, w[ITEMS - 1 - i], lanes - 1), b = __shfl_xor_sync(~0u, w[i], lanes - 1);
        w[i] = (w[i] < a) == low ? w[i] : a;
        w[ITEMS - 1 - i] = (w[ITEMS - 1 - i] < b) == low ? w[ITEMS - 1 - i] : b;
      }
    }
    ONCE
    for (int by = lanes / 4; by > 0; by /= 2) {
      const bool lower = !(lane & by);
      if (BLOCK && by >= 32) {
        meet_in_line<false>(w, by, lower, line);
        continue;
      }
      UNROLLED(i, ITEMS) {
        const W other = __shfl_xor_sync(~0u, w[i], by);
        w[i] = (w[i] < other) == lower ? w[i] : other;
      }
    }
    merge_in_lane(w);
  }
}

/* Words of 64 bits have a key of 32 above the index, those of 32 bits one of 16. */
__device__ inline uint32_t composed(uint32_t key, int index, uint32_t) { return (key & 0xffff0000u) | (uint32_t)index; }
__device__ inline uint64_t composed(uint32_t key, int index, uint64_t) { return (uint64_t)key << 32 | (uint32_t)index; }
__device__ inline uint32_t key_of(uint32_t word) { return word & 0xffff0000u; }
__device__ inline uint32_t key_of(uint64_t word) { return (uint32_t)(word >> 32); }
__device__ inline uint32_t index_of(uint32_t word) { return word & 0xffffu; }
__device__ inline uint32_t index_of(uint64_t word) { return (uint32_t)word; }

/* Every so many'th number from the first on, as far as there are any, all read before one is used. */
template <typename B, typename W, int ITEMS>
__device__ inline void read_row(const void *from, int64_t first, int left, int lanes, W (&w)[ITEMS]) {
  UNROLLED(i, ITEMS) w[i] = lanes * i < left ? (W)((const B *)from)[first + lanes * i] : 0;
}

/* A row belongs to a warp or, with BLOCK, to the block. */
template <typename W, int ITEMS, bool BLOCK>
__device__ inline void sort_network(const radix_args &a) {
  const int lanes = BLOCK ? blockDim.x : 32, lane = threadIdx.x % lanes;
  const int own = threadIdx.x / lanes, rows = blockDim.x / lanes; /* that a block has at one time */
  W *line = (W *)shared_memory + own * lanes * (ITEMS + 1);
  /* All warps take part in every step, so that the compiler knows of none that stays behind. */
  ONCE
  for (int64_t at_once = (int64_t)blockIdx.x * rows; at_once < a.rows; at_once += (int64_t)gridDim.x * rows) {
    const int64_t row = at_once + own;
    const int n = row < a.rows ? (int)a.cols : 0;
    const int64_t first = row * a.cols + lane;
    W w[ITEMS];
    if (sizeof(W) == 8 && !a.indices) read_row<uint64_t>(a.from, first, n - lane, lanes, w);
    else if (a.of_16_bits) read_row<uint16_t>(a.from, first, n - lane, lanes, w);
    else read_row<uint32_t>(a.from, first, n - lane, lanes, w);
    UNROLLED(i, ITEMS) {
      const uint32_t bits = a.of_16_bits ? (uint32_t)w[i] << 16 : (uint32_t)w[i];
      const W word = a.indices        ? composed(tfu_to_key_32(bits, a.order), lanes * i + lane, (W)0)
                     : sizeof(W) == 8 ? (W)tfu_to_key_64(w[i], a.order)
                                      : (W)tfu_to_key_32(bits, a.order);
      w[i] = lanes * i + lane < n ? word : ~(W)0;
    }
    sort_lanes<BLOCK>(w, lanes, line);
    UNROLLED(i, ITEMS) line[lane * (ITEMS + 1) + i] = w[i];
    BLOCK ? __syncthreads() : __syncwarp();
    _Pragma("unroll 4") for (int at = lane; at < n; at += lanes) {
      const W word = line[at + at / ITEMS];
      const int64_t to = row * a.cols + at;
      if (!a.indices) {
        if (a.decode) store_key(a.keys, to, a.of_16_bits, a.order, word);
        else ((W *)a.keys)[to] = word;
        continue;
      }
      a.indices[to] = a.carried ? a.carried[row * a.cols + index_of(word)] : index_of(word);
      if (!a.keys) continue;
      if (a.decode) {
        store_key(a.keys, to, a.of_16_bits, a.order, key_of(word));
      } else { /* what is below a key of 16 bits is made again */
        const uint32_t bits = tfu_from_key_32(key_of(word), a.order);
        ((uint32_t *)a.keys)[to] = a.of_16_bits ? tfu_to_key_32(bits & 0xffff0000u, a.order) : key_of(word);
      }
    }
    BLOCK ? __syncthreads() : __syncwarp();
  }
}

#define NETWORK_KERNEL(name, tag, bounds, ...) \
  TFU_STAMP(bounds, sort_network_##name##_##tag, radix_args, sort_network<__VA_ARGS__>)
#define NETWORK_KERNELS(tag, W)                                \
  NETWORK_KERNEL(4, tag, (TFU_NETWORK_THREADS), W, 4, false)   \
  NETWORK_KERNEL(8, tag, (TFU_NETWORK_THREADS), W, 8, false)   \
  NETWORK_KERNEL(16, tag, (TFU_NETWORK_THREADS), W, 16, false) \
  NETWORK_KERNEL(block, tag, (TFU_NETWORK_BLOCK, 12 / sizeof(W)), W, TFU_NETWORK_ITEMS, true)
NETWORK_KERNELS(b32, uint32_t)
NETWORK_KERNELS(b64, uint64_t)
