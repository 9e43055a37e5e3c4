/* row_team.cuh - the threads that share a row: where they are, and how they agree on a value: by warp shuffle, then
 * through shared memory, then through that of a cluster (mbarrier, st.async). docs/design.md#words says what a
 * team and a seat are. A share is the packs of a row that one block takes; a very long row is split into parts. */
#pragma once

#include "kernels/core/device/barriers.cuh"
#include "kernels/core/device/shared.cuh"
#include "kernels/core/gpu/rows.h"

/* Where a pack of elements stands in its row: element k of it is column first + k, and the row's own if bit k is set.
 * In odd rows the packs at the ends reach into the neighbouring rows. */
struct any_place {
  int64_t first;
  unsigned own;
  bool whole; /* all are the row's own */
  __device__ bool owns(int k) const { return own >> k & 1; }
  template <int N>
  __device__ int count() const {
    return __popc(own);
  }
};
struct whole_place {
  int first;
  static constexpr bool whole = true;
  __device__ bool owns(int) const { return true; }
  template <int N>
  __device__ int count() const {
    return N;
  }
};

/* Of all blocks of a cluster: it waits for everything that they have stored before. Where values are exchanged again
 * and again, they are sent instead (barriers.cuh). */
__device__ inline void cluster_barrier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}

/* Waits until at most n of this thread's groups of copies are on their way. The instruction takes constants only: so it
 * is the next of these below n, and the wait may be a little longer than it had to be. */
__device__ inline void wait_for_copies(int n) {
  if (n >= 8) wait_for_copies<8>();
  else if (n >= 4) wait_for_copies<4>();
  else if (n >= 2) wait_for_copies<2>();
  else if (n == 1) wait_for_copies<1>();
  else wait_for_copies<0>();
}

/* What is read once shall not drive from the first cache what is read again. */
__device__ inline int4 load_once(const void *from) {
  int4 bits;
  asm volatile("ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
               : "l"(from)
               : "memory");
  return bits;
}

/* The width of a whole warp, known to the compiler. */
struct whole_warp {};

/* f(offset) for the offsets of an exchange between `width` lanes of a warp, a power of two. */
template <typename F>
__device__ inline void for_offsets(whole_warp, F f) {
  UNROLL
  for (int offset = 16; offset > 0; offset /= 2) f(offset);
}
template <typename F>
__device__ inline void for_offsets(int width, F f) {
  ONCE
  for (int offset = width / 2; offset > 0; offset /= 2) f(offset);
}

/* Values that are added up: one, or two. */
struct add_up {
  template <typename R, typename W>
  __device__ void lanes(R &v, W width) const {
    for_offsets(width, [&](int offset) { v += __shfl_xor_sync(0xffffffffu, v, offset); });
    __syncwarp();
  }
};
template <typename R>
struct two {
  R a, b;
};
struct add_two {
  template <typename R, typename W>
  __device__ void lanes(two<R> &v, W width) const {
    for_offsets(width, [&](int offset) {
      v.a += __shfl_xor_sync(0xffffffffu, v.a, offset);
      v.b += __shfl_xor_sync(0xffffffffu, v.b, offset);
    });
    __syncwarp();
  }
};

/* A sum and what its additions have rounded away so far. Where one lane has nearly all of it, every addition rounds all
 * of it again: so that is carried along. The sum is v.a - v.b. */
struct add_carefully {
  template <typename R, typename W>
  __device__ void lanes(two<R> &v, W width) const {
    for_offsets(width, [&](int offset) {
      const R other = __shfl_xor_sync(0xffffffffu, v.a, offset), total = v.a + other, part = total - v.a;
      v.b += __shfl_xor_sync(0xffffffffu, v.b, offset) - ((v.a - (total - part)) + (other - part));
      v.a = total;
    });
    __syncwarp();
  }
};

/* How far a team may reach. Rows that are split are those of a team that may reach over a cluster. */
enum { OVER_WARP, OVER_BLOCK, OVER_CLUSTER };

/* The threads of a row, and their way from row to row.
 *
 * Blocks side by side in the grid, along x, have shares of the same row: those of a cluster, or, where columns do not
 * depend on each other, any number. Along y they have different rows. A row of at most a warp's lanes has that many
 * neighbouring threads of a block, and the block has several rows at a time; one of more lanes has the whole block. The
 * grid takes step() rows at a time, and a thread's own are seat(), seat() + step(), … */
template <int REACH>
struct row_team {
  const tfu_row_plan &r;
  int64_t row; /* the current one */
  int lane;

  __device__ row_team(const tfu_row_plan &rows) : r(rows) {
    const int bits = __ffs(r.lanes) - 1;
    lane = threadIdx.x & (r.lanes - 1);
    sub = threadIdx.x >> bits;
    per_block = blockDim.x >> bits;
    row = (int64_t)blockIdx.y * per_block + sub;
    first_of_block = row - sub;
    if (REACH < OVER_CLUSTER || r.cluster == 1) return;
    if (threadIdx.x == 0) open_barrier(arrival(0), 1), open_barrier(arrival(1), 1), publish_barriers();
    cluster_barrier();
  }
  /* Whether the block has a row left. Threads whose own row is beyond the end (not active) go on as long as others of
   * the block have one, since shuffles and barriers need all of them. */
  __device__ bool more() const { return first_of_block < r.rows; }
  __device__ bool active() const { return row < r.rows; }
  __device__ int step() const { return (int)gridDim.y * per_block; }
  __device__ void next() { row += step(), first_of_block += step(); }
  /* Of a real row, and which of the two launches for split rows it is, or TFU_WHOLE. */
  __device__ int parts() const { return REACH == OVER_CLUSTER ? r.parts : 1; }
  __device__ int pass() const { return REACH == OVER_CLUSTER ? r.pass : TFU_WHOLE; }
  /* The real row that the current one is part of. Parts are so long that their number fits in 32 bits. */
  __device__ int64_t real_row() const { return real_row(row); }
  __device__ int64_t real_row(int64_t row) const { return parts() == 1 ? row : (unsigned)row / (unsigned)parts(); }
  /* Whether this thread speaks for the row. */
  __device__ bool is_leader() const { return lane == 0 && blockIdx.x == 0; }
  /* Which of the rows that all blocks take at a time is this thread's. */
  __device__ int seat() const { return (int)blockIdx.y * per_block + sub; }
  /* In a split row: f(found) for some of its parts by each lane, all of them by every warp. */
  template <typename V, typename F>
  __device__ void for_parts(F f) const {
    const V *found = (const V *)r.found + real_row() * r.parts;
    ONCE
    for (int i = threadIdx.x % 32; active() && i < r.parts; i += 32) f(found[i]);
  }
  /* The sum of what the parts gave, in a fixed order. */
  template <typename V, typename F>
  __device__ auto sum_parts(F of) const {
    decltype(of(V())) sum = 0;
    for_parts<V>([&](const V &v) { sum += of(v); });
    add_up().lanes(sum, whole_warp());
    return sum;
  }
  /* A block must not leave while others of its cluster may still look into its memory. */
  __device__ void finish() const {
    if (REACH == OVER_CLUSTER && r.cluster > 1) cluster_barrier();
  }

  /* The values of all the row's threads, joined: join.lanes(v, width) joins those of `width` lanes of a warp. Every
   * thread gets the same bits.
   *
   * First the lanes of a warp join theirs, by shuffles. Then each warp leaves its value in shared memory, and every
   * warp joins all of these; the same again with the blocks of a cluster, each of which sends its value to all. There
   * are two places for each value, used in turn: a fast warp may then leave its next value while a slow one still reads
   * this one, and one barrier is enough. For the same reason a block sends the value after next only when all others
   * have sent the next, and so are done with this one. */
  template <typename J, typename V>
  __device__ V all_reduce(V v, J join = J()) {
    if (REACH > OVER_WARP && r.lanes >= 32) join.lanes(v, whole_warp());
    else join.lanes(v, r.lanes);
    if (REACH == OVER_WARP || r.lanes <= 32) return v;
    __shared__ V warps[2][32], blocks[2][TFU_MOST_CLUSTER];
    const int parity = agreed & 1, phase = agreed >> 1 & 1;
    agreed++;
    if (threadIdx.x % 32 == 0) warps[parity][threadIdx.x / 32] = v;
    __syncthreads();
    const int count = r.lanes / 32;
    v = warps[parity][threadIdx.x & (count - 1)];
    join.lanes(v, count);
    if (REACH == OVER_BLOCK || r.cluster == 1) return v;
    if (threadIdx.x == 0) expect_bytes(arrival(parity), r.cluster * (int)sizeof(V));
    if (threadIdx.x < r.cluster)
      send((unsigned)__cvta_generic_to_shared(&blocks[parity][blockIdx.x]), arrival(parity), threadIdx.x, v);
    wait_for_sent(arrival(parity), phase);
    v = blocks[parity][threadIdx.x & (r.cluster - 1)];
    join.lanes(v, r.cluster);
    return v;
  }

 protected:
  /* Which of the block's rows is the thread's, how many it has at a time, and how often all_reduce() was called. */
  int sub, per_block, agreed = 0;
  int64_t first_of_block;

  /* Where values come from the blocks of a cluster, in turn. */
  static __device__ unsigned arrival(int parity) {
    __shared__ uint64_t arrivals[2];
    return (unsigned)__cvta_generic_to_shared(&arrivals[parity]);
  }
};
