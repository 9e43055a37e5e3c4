/* rows.cuh - the device side of rows.h: a kernel's walk over its rows, and what a row's threads agree on.
 * docs/design.md#words says what team, look and seat mean. Held rows stay in registers; any rows begin anywhere.
 * found is what the parts of a split row have found, which a second launch joins.
 *
 *   typename rows<T, PACKS, TENSORS>::walk walk(a.rows, {x, ...});
 *   for (; walk.more(); walk.next()) { walk.look<true, false>(f); ... walk.look<false, true>(f); }
 *   walk.finish();
 *
 * Each look calls f(place, i, bits) for every pack of the thread's row that is the thread's own; bits[t] is tensor t's.
 * The two constants of a look say whether it is the first at its row, which waits for the packs, and whether it is the
 * last, which is done with them. Rows beyond the end have no packs; their threads still take part in what a warp or
 * block does together. With PACKS > 0 a thread has up to so many packs of a row, i is which, and they stay in its
 * registers; with PACKS = 0 a row may be anything, i is 0, and packs stay in shared memory where there is room; with
 * PACKS = RING they always do. With PACKS = THREAD a row is a thread's own. */
#pragma once

#include "kernels/core/device/any_rows.cuh"
#include "kernels/core/device/held_rows.cuh"
#include "kernels/core/device/ring_rows.cuh"
#include "kernels/core/device/thread_rows.cuh"

enum { RING = -1, THREAD = -2 };

/* CHUNKS: held rows may come in chunks, for kernels that look once. AHEAD: the next rows wait in shared memory; without
 * it the kernel must be TFU_ALONE, so that the plan has no memory for them either. */
template <typename T, int PACKS, int TENSORS, bool CHUNKS = false, bool AHEAD = true>
struct rows {
  typedef held_rows<T, PACKS, TENSORS, CHUNKS, AHEAD> walk;
};
template <typename T, int TENSORS, bool CHUNKS, bool AHEAD>
struct rows<T, 0, TENSORS, CHUNKS, AHEAD> {
  typedef any_rows<T, TENSORS> walk;
};
template <typename T, int TENSORS, bool CHUNKS, bool AHEAD>
struct rows<T, RING, TENSORS, CHUNKS, AHEAD> {
  typedef ring_rows<T, TENSORS> walk;
};
template <typename T, int TENSORS, bool CHUNKS, bool AHEAD>
struct rows<T, THREAD, TENSORS, CHUNKS, AHEAD> {
  typedef thread_rows<T, TENSORS> walk;
};

/* The sum of a pack: by halves, which keeps chains of additions short. */
template <typename R, int N>
__device__ inline R sum_of(const R (&v)[N]) {
  R sum[N];
  UNROLLED(k, N) sum[k] = v[k];
  UNROLL
  for (int half = N / 2; half > 0; half /= 2) {
    UNROLLED(k, N / 2)
      if (k < half) sum[k] += sum[k + half];
  }
  return sum[0];
}

/* The sum of products of two packs, in four chains. */
template <typename R, int N>
__device__ inline R dot_of(const R (&a)[N], const R (&b)[N]) {
  enum { CHAINS = N < 4 ? N : 4 };
  R sum[CHAINS];
  UNROLLED(k, N) sum[k % CHAINS] = k < CHAINS ? a[k] * b[k] : a[k] * b[k] + sum[k % CHAINS];
  return sum_of(sum);
}

/* The row's elements of a pack as numbers; what is not the row's own is `otherwise`. */
template <typename T, typename P, typename R, int N>
__device__ inline void widen_place(const P &p, int4 bits, R otherwise, R (&v)[N]) {
  widen_pack<T>(bits, v);
  if (p.whole) return;
  UNROLLED(k, N) v[k] = p.owns(k) ? v[k] : otherwise;
}

/* Values that belong to the columns of a pack: one per column, in the arithmetic type. Those of a whole place begin on
 * a 16-byte boundary; nothing in the kernel writes them, so that loads need not wait for stores before them. */
template <typename R, int N>
__device__ inline void load_columns(const R *data, const whole_place &p, R otherwise, R (&v)[N]) {
  UNROLL
  for (int k = 0; k < N; k += packed<R>::N) {
    R part[packed<R>::N];
    UNROLLED(j, packed<R>::N) part[j] = otherwise;
    if (data) widen_pack<R>(__ldg((const int4 *)(data + p.first + k)), part);
    UNROLLED(j, packed<R>::N) v[k + j] = part[j];
  }
}
template <typename R, int N>
__device__ inline void load_columns(const R *data, const any_place &p, R otherwise, R (&v)[N]) {
  UNROLLED(k, N) v[k] = data && p.owns(k) ? data[p.first + k] : otherwise;
}
template <typename R, int N>
__device__ inline void store_columns(R *data, const whole_place &p, const R (&v)[N]) {
  UNROLL
  for (int k = 0; k < N; k += packed<R>::N) {
    R part[packed<R>::N];
    UNROLLED(j, packed<R>::N) part[j] = v[k + j];
    store_bits(data + p.first + k, narrow_pack<R>(part));
  }
}

/* Adds up, over the rows of a block, the COUNT values that each thread has, in a fixed order; the first row's threads
 * get the sums. value(j) is a reference to the thread's value j, j a constant. Takes the ring's place in shared memory,
 * as [warps][COUNT][32]. What is added are the values of threads with the same lane: first of the rows of a warp, by
 * shuffles, then of the warps. More lanes than a warp's are a block with one row, and nothing is to be added. */
template <typename R, int COUNT, typename F>
__device__ inline void join_sums(int lanes, F value) {
  extern __shared__ int4 ring[];
  if (lanes > 32) return;
  ONCE
  for (int offset = lanes; offset < 32; offset *= 2) {
    UNROLLED(j, COUNT) value(j) += __shfl_xor_sync(0xffffffffu, value(j), offset);
  }
  __syncthreads();
  const int warps = blockDim.x / 32, lane = threadIdx.x % 32;
  R *room = (R *)ring + threadIdx.x / 32 * COUNT * 32 + lane;
  UNROLLED(j, COUNT)
    if (lane < lanes) room[j * 32] = value(j);
  __syncthreads();
  if (threadIdx.x >= lanes) return;
  ONCE
  for (int w = 1; w < warps; w++) {
    UNROLLED(j, COUNT) value(j) += room[(w * COUNT + j) * 32];
  }
}

/* Packs that a thread may have in registers, for `elements` of them or fewer: the same as the plan counts (rows.c). */
template <typename T>
constexpr int packs_of_elements(int elements) {
  return elements / packed<T>::N < 4 ? elements / packed<T>::N : 4;
}

/* Stamps function<T, PACKS>(args) for short rows (one pack per thread), for others whose threads have up to `elements`,
 * and for any: function_short_f32, function_long_f32, function_any_f32, … The long ones are compiled for blocks of up
 * to `threads`, 1024, since registers are worth less than threads, or 512 where sums over rows fill them. Rows of
 * doubles are all taken for any: few would notice, and all would have to load what it takes. */
#define TFU_HELD_ROW_KERNEL_(function, args, elements, threads, tag, T) \
  TFU_STAMP((256), function##_short_##tag, args, function<T, 1>)        \
  TFU_STAMP((threads), function##_long_##tag, args, function<T, packs_of_elements<T>(elements)>)
#define TFU_HELD_ROW_KERNEL(function, args, elements, threads) \
  TFU_SINGLES(TFU_HELD_ROW_KERNEL_, function, args, elements, threads)
#define TFU_ANY_ROW_KERNEL_(function, args, tag, T) TFU_STAMP((256), function##_any_##tag, args, function<T, 0>)
#define TFU_ANY_ROW_KERNEL(function, args) TFU_TYPES(TFU_ANY_ROW_KERNEL_, function, args)
#define TFU_ROW_KERNEL(function, args, elements, threads) \
  TFU_HELD_ROW_KERNEL(function, args, elements, threads)  \
  TFU_ANY_ROW_KERNEL(function, args)
/* For rows that are a thread's own (TFU_HAS_THREAD): not for kernels that store to several tensors. */
#define TFU_THREAD_ROW_KERNEL_(function, args, tag, T) \
  TFU_STAMP((TFU_THREAD_ROWS_THREADS, 8), function##_thread_##tag, args, function<T, THREAD>)
#define TFU_THREAD_ROW_KERNEL(function, args) TFU_SINGLES(TFU_THREAD_ROW_KERNEL_, function, args)
/* For long rows (TFU_HAS_RING): two blocks may share a multiprocessor. */
#if __CUDA_ARCH__ >= 800
#define TFU_RING_ROW_KERNEL_(function, args, tag, T) \
  TFU_STAMP((TFU_RING_THREADS, 2), function##_ring_##tag, args, function<T, RING>)
#define TFU_RING_ROW_KERNEL(function, args) TFU_SINGLES(TFU_RING_ROW_KERNEL_, function, args)
#else
#define TFU_RING_ROW_KERNEL(function, args)
#endif
