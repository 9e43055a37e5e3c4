/* rows.cuh - the device side of rows.h: a kernel's walk over its rows, and what a row's threads agree on.
 *
 *   typename rows<T, PACKS, TENSORS>::walk walk(a.rows, {x, ...}, {row stride, ...});
 *   for (; walk.more(); walk.next()) { walk.look<true, false>(f); ... walk.look<false, true>(f); }
 *   walk.finish();
 *
 * Each look calls f(place, i, bits) for every pack of the thread's row that is the thread's own. The first look of a
 * row waits for the packs, the last one is done with them. Rows beyond the end have no packs; their threads still take
 * part in what a warp or block does together. With PACKS > 0 a thread has up to so many packs of a row, i is which, and
 * they stay in its registers; with PACKS = 0 a row may be anything, i is 0, and packs stay in shared memory where there
 * is room. */
#pragma once

#include "kernels/core/pack.cuh"
#include "kernels/core/rows.h"

/* On loops whose length is not known: a copy of the body per step would only fill the instruction cache. */
#define ONCE _Pragma("unroll 1")

/* Where a pack of N elements stands in its row: element k of it is column first + k, and the row's own if
 * begin <= k < end. In odd rows the packs at the ends reach into the neighbouring rows. */
struct any_place {
  int64_t first;
  int begin, end;
  bool whole; /* all are the row's own */
  __device__ bool owns(int k) const { return whole || (k >= begin && k < end); }
};
struct whole_place {
  int first;
  static constexpr bool whole = true;
  __device__ bool owns(int) const { return true; }
};

__device__ inline void cluster_barrier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}

/* Sixteen bytes on their way to shared memory; of those beyond `bytes`, zeros. */
__device__ inline void copy_pack(unsigned to, const void *from, int bytes) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
#endif
}
__device__ inline void copy_pack(unsigned to, const void *from) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#endif
}
__device__ inline void close_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int AT_MOST>
__device__ inline void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(AT_MOST) : "memory");
#endif
}
/* Waits until at most n of this thread's groups of copies are on their way. n is no constant, the instruction's is. */
__device__ inline void wait_for_copies(int n) {
  if (n >= 8) wait_for_copies<8>();
  else if (n >= 4) wait_for_copies<4>();
  else if (n >= 2) wait_for_copies<2>();
  else if (n == 1) wait_for_copies<1>();
  else wait_for_copies<0>();
}

__device__ inline int4 load_shared(unsigned from) {
  int4 bits;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
               : "r"(from)
               : "memory");
  return bits;
}
__device__ inline void store_shared(unsigned to, int4 bits) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(bits.x), "r"(bits.y), "r"(bits.z), "r"(bits.w)
               : "memory");
}

/* f(offset) for the offsets of an exchange between `width` lanes of a warp, a power of two. */
template <typename F>
__device__ inline void for_offsets(int width, F f) {
  UNROLL
  for (int offset = 16; offset > 0; offset /= 2)
    if (offset < width) f(offset);
}

/* Values that are added up: an array, or one. */
struct add_up {
  template <typename R>
  __device__ void lanes(R &v, int width) const {
    for_offsets(width, [&](int offset) { v += __shfl_xor_sync(0xffffffffu, v, offset); });
    __syncwarp();
  }
};
template <typename R>
struct two {
  R a, b;
};
struct add_two {
  template <typename R>
  __device__ void lanes(two<R> &v, int width) const {
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
  template <typename R>
  __device__ void lanes(two<R> &v, int width) const {
    for_offsets(width, [&](int offset) {
      const R other = __shfl_xor_sync(0xffffffffu, v.a, offset), total = v.a + other, part = total - v.a;
      v.b += __shfl_xor_sync(0xffffffffu, v.b, offset) - ((v.a - (total - part)) + (other - part));
      v.a = total;
    });
    __syncwarp();
  }
};

/* The threads of a row. */
struct row_team {
  const tfu_row_plan &r;
  int row; /* the current one */
  int lane;

  __device__ row_team(const tfu_row_plan &rows) : r(rows) {
    lane = threadIdx.x & (r.lanes - 1);
    sub = threadIdx.x / r.lanes;
    per_block = blockDim.x / r.lanes;
    row = (int)blockIdx.y * per_block + sub;
    first_of_block = row - sub;
  }
  __device__ bool more() const { return first_of_block < r.rows; }
  __device__ bool active() const { return row < r.rows; }
  __device__ int step() const { return (int)gridDim.y * per_block; }
  __device__ void next() { row += step(), first_of_block += step(); }
  /* Whether this thread speaks for the row. */
  __device__ bool leads() const { return lane == 0 && blockIdx.x == 0; }
  /* Which of the rows that all blocks take at a time is this thread's. */
  __device__ int seat() const { return (int)blockIdx.y * per_block + sub; }
  /* A block must not leave while others of its cluster may still look into its memory. */
  __device__ void finish() const {
    if (r.cluster > 1) cluster_barrier();
  }

  /* The values of all the row's threads, joined: join.lanes(v, width) joins those of `width` lanes of a warp. Every
   * thread gets the same bits. */
  template <typename J, typename V>
  __device__ V agree(V v, J join = J()) {
    if (r.lanes >= 32) join.lanes(v, 32);
    else join.lanes(v, r.lanes);
    if (r.lanes <= 32) return v;
    __shared__ V warps[2][32], blocks[2];
    turn ^= 1;
    if (threadIdx.x % 32 == 0) warps[turn][threadIdx.x / 32] = v;
    __syncthreads();
    const int count = r.lanes / 32;
    v = warps[turn][threadIdx.x & (count - 1)];
    join.lanes(v, count);
    if (r.cluster == 1) return v;
    if (threadIdx.x == 0) blocks[turn] = v;
    cluster_barrier();
    v = remote(&blocks[turn], threadIdx.x & (r.cluster - 1));
    join.lanes(v, r.cluster);
    return v;
  }

 protected:
  int sub, per_block, turn = 0, first_of_block;

  /* The same variable in the shared memory of another block of the cluster. */
  template <typename V>
  __device__ static V remote(const V *v, int rank) {
    V out = *v;
#if __CUDA_ARCH__ >= 900
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"((unsigned)__cvta_generic_to_shared(v)), "r"(rank));
    UNROLL
    for (int i = 0; i < (int)(sizeof(V) / 4); i++)
      asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(((unsigned *)&out)[i]) : "r"(there + i * 4) : "memory");
#endif
    return out;
  }
};

/* Rows of whole, aligned packs, at most PACKS of them per thread: in registers, with the next rows on their way to
 * shared memory, where each thread has slots of its own. */
template <typename T, int PACKS, int TENSORS, bool CHUNKS>
struct held_rows : row_team {
  enum { N = packed<T>::N, SLOTS = TFU_HELD_SLOTS };
  typedef whole_place place;
  static constexpr bool fixed = true; /* a thread's columns are the same in every row */

  __device__ held_rows(const tfu_row_plan &rows, const T *const (&tensors)[TENSORS], const int64_t (&strides)[TENSORS])
      : row_team(rows) {
    extern __shared__ int4 ring[];
    const int first = (int)blockIdx.x * r.share + lane;
    const int end = ((int)blockIdx.x + 1) * r.share < r.packs ? ((int)blockIdx.x + 1) * r.share : r.packs;
    column_of_first = first * N;
    room = end - first;
    slots = (unsigned)__cvta_generic_to_shared(ring + threadIdx.x);
    UNROLL
    for (int t = 0; t < TENSORS; t++) {
      from[t] = (const char *)(tensors[t] + (int64_t)row * strides[t] + column_of_first);
      jump[t] = step() * strides[t] * (int64_t)sizeof(T);
    }
    fetch_row = row;
#if __CUDA_ARCH__ >= 800
    UNROLL
    for (int i = 0; i < SLOTS - 1; i++) fetch();
#endif
  }

  __device__ bool keeps() const { return true; }
  __device__ bool has(int i) const { return i * r.lanes < room; } /* in rows of one chunk */
  /* The first column of the thread's pack i. */
  __device__ int column(int i) const { return column_of_first + i * r.lanes * N; }
  __device__ void replace(int i, int4 pack) { bits[0][i] = pack; }

  template <bool FIRST, bool LAST, typename F>
  __device__ void look(F f) {
    if constexpr (CHUNKS) {
      static_assert(FIRST && LAST, "a row that comes in chunks is looked at once");
      ONCE
      for (int chunk = 0; chunk < r.chunks; chunk++) {
        receive();
        visit(f, column_of_first + chunk * PACKS * r.lanes * N, room - chunk * PACKS * r.lanes);
      }
    } else {
      if (FIRST) receive();
      visit(f, column_of_first, room);
    }
  }

 private:
  int4 bits[TENSORS][PACKS];
  const char *from[TENSORS];
  int64_t jump[TENSORS];
  int fetch_row, room, column_of_first; /* packs from the thread's first to the end of its share */
  int fetch_chunk = 0;
  unsigned slots, slot = 0;

  /* Apart, so that the common case has no branches: all of the threads' packs are there. */
  template <typename F>
  __device__ void visit(F f, int column, int room) {
    if (!active()) return;
    if (room > (PACKS - 1) * r.lanes) {
      UNROLL
      for (int i = 0; i < PACKS; i++) visit_pack(f, column, i);
    } else {
      UNROLL
      for (int i = 0; i < PACKS - 1; i++)
        if (i * r.lanes < room) visit_pack(f, column, i);
    }
  }
  template <typename F>
  __device__ void visit_pack(F f, int column, int i) {
    int4 packs[TENSORS];
    UNROLL
    for (int t = 0; t < TENSORS; t++) packs[t] = bits[t][i];
    f(whole_place{column + i * r.lanes * N}, i, packs);
  }

  __device__ unsigned place_of(unsigned slot, int t, int i) const {
    return slots + (((slot * r.tensors + t) * PACKS) + i) * (blockDim.x * 16);
  }

  /* The next row, or chunk of one, on its way. Its group is closed even where nothing is left to fetch, so that groups
   * can be counted. */
  __device__ void fetch() {
    const int left = CHUNKS ? room - fetch_chunk * PACKS * r.lanes : room;
    if (fetch_row < r.rows) {
      UNROLL
      for (int t = 0; t < TENSORS; t++) {
        UNROLL
        for (int i = 0; i < PACKS; i++)
          if (t < r.tensors && i * r.lanes < left) copy_pack(place_of(slot, t, i), from[t] + i * r.lanes * 16);
      }
    }
    close_copies();
    slot = slot + 1 == SLOTS ? 0 : slot + 1;
    advance();
  }
  __device__ void advance() {
    const int chunk_bytes = PACKS * r.lanes * 16;
    if (CHUNKS && ++fetch_chunk < r.chunks) {
      UNROLL
      for (int t = 0; t < TENSORS; t++) from[t] += chunk_bytes;
      return;
    }
    UNROLL
    for (int t = 0; t < TENSORS; t++) from[t] += CHUNKS ? jump[t] - (r.chunks - 1) * chunk_bytes : jump[t];
    fetch_chunk = 0;
    fetch_row += step();
  }

  __device__ void receive() {
#if __CUDA_ARCH__ >= 800
    wait_for_copies<SLOTS - 2>();
    const unsigned oldest = slot + 1 == SLOTS ? 0 : slot + 1;
    UNROLL
    for (int t = 0; t < TENSORS; t++) {
      UNROLL
      for (int i = 0; i < PACKS; i++)
        if (t < r.tensors) bits[t][i] = load_shared(place_of(oldest, t, i)); /* what is not there is not looked at */
    }
    fetch();
#else
    const int left = CHUNKS ? room - fetch_chunk * PACKS * r.lanes : room;
    UNROLL
    for (int t = 0; t < TENSORS; t++) {
      UNROLL
      for (int i = 0; i < PACKS; i++)
        if (active() && t < r.tensors && i * r.lanes < left) bits[t][i] = *(const int4 *)(from[t] + i * r.lanes * 16);
    }
    advance();
#endif
  }
};

/* Any rows: of any length, beginning anywhere. Packs wait in shared memory, and stay there for later looks where there
 * is room for a block's share of a row. */
template <typename T, int TENSORS>
struct any_rows : row_team {
  enum { N = packed<T>::N };
  typedef any_place place;
  static constexpr bool fixed = false;

  __device__ any_rows(const tfu_row_plan &rows, const T *const (&tensors)[TENSORS], const int64_t (&strides)[TENSORS])
      : row_team(rows) {
    extern __shared__ int4 ring[];
    UNROLL
    for (int t = 0; t < TENSORS; t++) from[t] = tensors[t], stride[t] = strides[t];
    mine = (unsigned)__cvta_generic_to_shared(ring + threadIdx.x);
    pack_bytes = blockDim.x * 16;
    fetch_row = row;
    ONCE
    for (int i = 0; i < r.slots; i++) fetch();
  }

  __device__ bool keeps() const { return r.keep; }
  __device__ int column(int) const { return 0; }
  __device__ bool has(int) const { return false; }

  template <bool FIRST, bool LAST, typename F>
  __device__ void look(F f) {
    const int shift = shift_of(row), packs = active() ? packs_of(shift) : 0;
    unsigned slot = oldest;
    ONCE
    for (int tile = 0; tile < r.tiles; tile++) {
      if (FIRST || !r.keep) wait_for_copies(--ahead);
      const int p = pack_of(tile);
      if (in_share(p, packs)) {
        int4 bits[TENSORS];
        UNROLL
        for (int t = 0; t < TENSORS; t++)
          if (t < r.tensors) bits[t] = load_shared(mine + slot + t * pack_bytes);
        at = mine + slot;
        f(place_of(p, shift), 0, bits);
      }
      if (LAST || !r.keep) fetch();
      slot = after(slot);
    }
    if (LAST || !r.keep) oldest = slot;
  }

  /* Inside a look: for the looks to come at a row that is kept. */
  __device__ void replace(int, int4 bits) const { store_shared(at, bits); }

 private:
  const T *from[TENSORS];
  int64_t stride[TENSORS];
  int fetch_row;
  unsigned mine, pack_bytes, at = 0;
  unsigned oldest = 0, fetch_slot = 0; /* the current row's first tile, and where the next to come goes: in bytes */
  int ahead = 0;                       /* tiles fetched or on their way that no look has waited for */
  int fetch_tile = 0, fetch_look = 0;

  __device__ unsigned after(unsigned slot) const {
    const unsigned tile = r.tensors * pack_bytes;
    return slot + tile == r.slots * tile ? 0 : slot + tile;
  }
  /* Elements before the row that share its first pack. */
  __device__ int shift_of(int row) const { return r.odd ? (int)(row * r.cols & (N - 1)) : 0; }
  __device__ int packs_of(int shift) const { return (int)((shift + r.cols + N - 1) / N); }
  __device__ int pack_of(int tile) const { return (int)blockIdx.x * r.share + tile * r.lanes + lane; }
  __device__ bool in_share(int p, int packs) const { return p < packs && p < ((int)blockIdx.x + 1) * r.share; }
  __device__ any_place place_of(int p, int shift) const {
    const int64_t first = (int64_t)p * N - shift, left = r.cols - first;
    const int begin = first < 0 ? shift : 0, end = left < N ? (int)left : N;
    return {first, begin, end, begin == 0 && end == N};
  }

  /* The next tile on its way, as in held_rows. Where rows are not kept, each look fetches them again. */
  __device__ void fetch() {
    if (fetch_row < r.rows) {
      const int shift = shift_of(fetch_row), p = pack_of(fetch_tile);
      UNROLL
      for (int t = 0; t < TENSORS; t++)
        if (t < r.tensors && in_share(p, packs_of(shift)))
          copy(t, (int64_t)p * N - shift, mine + fetch_slot + t * pack_bytes);
    }
    close_copies();
    ahead++;
    fetch_slot = after(fetch_slot);
    if (++fetch_tile < r.tiles) return;
    fetch_tile = 0;
    if (!r.keep && ++fetch_look < r.looks) return;
    fetch_look = 0;
    fetch_row += step();
  }

  __device__ void copy(int t, int64_t first, unsigned to) const {
    const int64_t start = (int64_t)fetch_row * stride[t] + first,
                  left = r.aligned ? r.rows * stride[t] - start : r.cols - first;
#if __CUDA_ARCH__ >= 800
    if (r.aligned) return copy_pack(to, from[t] + start, left < N ? (int)left * (int)sizeof(T) : 16);
#endif
    T *slot = (T *)__cvta_shared_to_generic(to);
    ONCE
    for (int k = 0; k < N; k++) slot[k] = k < left && start + k >= 0 ? from[t][start + k] : (T)0.0f;
  }
};

/* CHUNKS: held rows may come in chunks, for kernels that look once. */
template <typename T, int PACKS, int TENSORS, bool CHUNKS = false>
struct rows {
  typedef held_rows<T, PACKS, TENSORS, CHUNKS> walk;
};
template <typename T, int TENSORS, bool CHUNKS>
struct rows<T, 0, TENSORS, CHUNKS> {
  typedef any_rows<T, TENSORS> walk;
};

/* The sum of a pack: by halves, which keeps chains of additions short. */
template <typename R, int N>
__device__ inline R sum_of(const R (&v)[N]) {
  R sum[N];
  UNROLL
  for (int k = 0; k < N; k++) sum[k] = v[k];
  UNROLL
  for (int half = N / 2; half > 0; half /= 2) {
    UNROLL
    for (int k = 0; k < N / 2; k++)
      if (k < half) sum[k] += sum[k + half];
  }
  return sum[0];
}

/* The sum of products of two packs, in four chains. */
template <typename R, int N>
__device__ inline R dot_of(const R (&a)[N], const R (&b)[N]) {
  enum { CHAINS = N < 4 ? N : 4 };
  R sum[CHAINS];
  UNROLL
  for (int k = 0; k < N; k++) sum[k % CHAINS] = k < CHAINS ? a[k] * b[k] : a[k] * b[k] + sum[k % CHAINS];
  return sum_of(sum);
}

/* The row's elements of a pack as numbers; what is not the row's own is `otherwise`. */
template <typename T, typename P, typename R, int N>
__device__ inline void widen_place(const P &p, int4 bits, R otherwise, R (&v)[N]) {
  widen_pack<T>(bits, v);
  if (p.whole) return;
  UNROLL
  for (int k = 0; k < N; k++) v[k] = p.owns(k) ? v[k] : otherwise;
}

/* Writes the row's own elements of a pack; row points at the row's first element. */
template <typename T, typename R, int N>
__device__ inline void store_place(T *row, const whole_place &p, int, const R (&v)[N]) {
  store_bits(row + p.first, narrow_pack<T>(v));
}
template <typename T, typename R, int N>
__device__ inline void store_place(T *row, const any_place &p, int aligned, const R (&v)[N]) {
  if (p.whole && aligned) return store_bits(row + p.first, narrow_pack<T>(v));
  UNROLL
  for (int k = 0; k < N; k++)
    if (p.owns(k)) row[p.first + k] = (T)v[k];
}

/* Values that belong to the columns of a pack: one per column, in the arithmetic type. */
template <typename P, typename R, int N>
__device__ inline void load_columns(const R *data, const P &p, R otherwise, R (&v)[N]) {
  if (data && p.whole && ((uintptr_t)(data + p.first) % 16) == 0) {
    UNROLL
    for (int k = 0; k < N; k += 16 / sizeof(R)) {
      const int4 bits = *(const int4 *)(data + p.first + k);
      R part[16 / sizeof(R)];
      widen_pack<R>(bits, part);
      UNROLL
      for (int j = 0; j < (int)(16 / sizeof(R)); j++) v[k + j] = part[j];
    }
    return;
  }
  UNROLL
  for (int k = 0; k < N; k++) v[k] = data && p.owns(k) ? data[p.first + k] : otherwise;
}

/* Adds up, over the rows of a block, the COUNT values that each thread has, in a fixed order; the first row's threads
 * get the sums. value(j) is a reference to the thread's value j, j a constant. Takes the ring's place in shared memory.
 */
template <typename R, int COUNT, typename F>
__device__ inline void join_sums(int lanes, F value) {
  extern __shared__ int4 ring[];
  if (lanes > 32) return;
  R *room = (R *)ring;
  UNROLL
  for (int j = 0; j < COUNT; j++)
    for (int offset = lanes; offset < 32; offset *= 2) value(j) += __shfl_xor_sync(0xffffffffu, value(j), offset);
  __syncthreads();
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
  UNROLL
  for (int j = 0; j < COUNT; j++)
    if (lane < lanes) room[(warp * COUNT + j) * lanes + lane] = value(j);
  __syncthreads();
  if (threadIdx.x >= lanes) return;
  UNROLL
  for (int j = 0; j < COUNT; j++) {
    ONCE
    for (int w = 1; w < warps; w++) value(j) += room[(w * COUNT + j) * lanes + lane];
  }
}

/* Packs that a thread may have in registers, for `elements` of them or fewer. */
template <typename T>
constexpr int packs_of_elements(int elements) {
  return elements / packed<T>::N < 4 ? elements / packed<T>::N : 4;
}

/* Stamps function<T, PACKS>(args) for short rows (one pack per thread), for others whose threads have up to `elements`,
 * and for any: function_short_f32, function_long_f32, function_any_f32, … Of the long ones, `blocks` of 512 threads
 * shall fit on a multiprocessor: registers are worth less than threads, until sums over rows fill them. */
#define TFU_ROW_KERNEL_AS_(bounds, label, args, ...) \
  extern "C" __global__ void __launch_bounds__ bounds label(const args a) { __VA_ARGS__(a); }
#define TFU_HELD_ROW_KERNEL_(function, args, elements, blocks, label, T)    \
  TFU_ROW_KERNEL_AS_((256), function##_short_##label, args, function<T, 1>) \
  TFU_ROW_KERNEL_AS_((512, blocks), function##_long_##label, args, function<T, packs_of_elements<T>(elements)>)
#define TFU_HELD_ROW_KERNEL(function, args, elements, blocks)        \
  TFU_HELD_ROW_KERNEL_(function, args, elements, blocks, f32, float) \
  TFU_HELD_ROW_KERNEL_(function, args, elements, blocks, f16, f16)   \
  TFU_HELD_ROW_KERNEL_(function, args, elements, blocks, bf16, bf16) \
  TFU_HELD_ROW_KERNEL_(function, args, elements, blocks, f64, double)
#define TFU_ROW_KERNEL(function, args, elements, blocks)                  \
  TFU_HELD_ROW_KERNEL(function, args, elements, blocks)                   \
  TFU_ROW_KERNEL_AS_((256), function##_any_f32, args, function<float, 0>) \
  TFU_ROW_KERNEL_AS_((256), function##_any_f16, args, function<f16, 0>)   \
  TFU_ROW_KERNEL_AS_((256), function##_any_bf16, args, function<bf16, 0>) \
  TFU_ROW_KERNEL_AS_((256), function##_any_f64, args, function<double, 0>)
