/* The norm of a list: a sum per chunk, from these one per tensor, from these the norm; each in a fixed order, in double
 * from the first block on. The sums of a chunk carry how often a value was not finite as well. */
#include "kernels/lists/tensors_norm.h"

#include "kernels/lists/tensors_walk.h"

template <typename R>
__device__ inline void take(R x, R &sum, bool &bad) {
  sum += x * x;
  bad |= !isfinite(x);
}

template <typename T>
__device__ inline void tensors_squares(const norm_args &a) {
  const tensors_chunk c = chunk_of_block(a.table);
  const T *x = (const T *)a.table.at[c.tensor][0];
  const int64_t whole = (uintptr_t)x % 16 ? c.begin : c.end - (c.end - c.begin) % 4;
  acc<T> sums[4] = {0, 0, 0, 0}, v[4];
  bool bad = false;
  for (int64_t i = c.begin + threadIdx.x * 4; i < whole; i += TFU_THREADS * 4) {
    load4(x + i, v);
    UNROLLED(k, 4) take(v[k], sums[k], bad);
  }
  for (int64_t i = whole + threadIdx.x; i < c.end; i += TFU_THREADS) take((acc<T>)x[i], sums[0], bad);
  const double sum = block_sum(((double)sums[0] + sums[1]) + ((double)sums[2] + sums[3]));
  const int count = __syncthreads_count(bad);
  if (threadIdx.x) return;
  double *to = a.chunks + 2 * (a.table.chunks_before + blockIdx.x);
  to[0] = sum;
  to[1] = count;
}
TENSORS_KERNEL(tensors_squares, norm_args)

/* One block per tensor of the table. T is the type of the results. */
template <typename T>
__device__ inline void tensors_norms(const norm_args &a) {
  const int first = a.table.first[blockIdx.x], n = a.table.first[blockIdx.x + 1] - first,
            at = a.table.base + blockIdx.x;
  const double *chunks = a.chunks + 2 * (a.table.chunks_before + first);
  const double sum = block_fold(chunks, n, 2), bad = block_fold(chunks + 1, n, 2);
  if (threadIdx.x) return;
  a.sums[2 * at] = sum;
  a.sums[2 * at + 1] = bad;
  ((T *)a.norms)[at] = (T)sqrt(sum);
}
TENSORS_KERNEL_REAL(tensors_norms, norm_args)

template <typename T>
__device__ inline void tensors_total(const norm_args &a) {
  const double sum = block_fold(a.sums, a.n, 2), bad = block_fold(a.sums + 1, a.n, 2);
  if (threadIdx.x) return;
  *(T *)a.norm = (T)sqrt(sum);
  *a.finite = bad == 0;
}
TENSORS_KERNEL_REAL(tensors_total, norm_args)

template <typename T>
__device__ inline void tensors_clip(const clip_args &a) {
  typedef acc<T> R;
  const tensors_chunk c = chunk_of_block(a.table);
  const T *x = (const T *)a.table.at[c.tensor][0];
  T *y = (T *)a.table.at[c.tensor][1];
  const R norm = *(const R *)a.norm, clip = *(const R *)a.clip, one = 1;
  const R by_norm = one / norm, by_clip = one / clip;
  const R scale = clip * (by_norm < by_clip ? by_norm : by_clip) + (norm - norm); /* NaN where the norm is not finite */
  const int64_t whole = ((uintptr_t)x | (uintptr_t)y) % 16 ? c.begin : c.end - (c.end - c.begin) % 4;
  R v[4];
  for (int64_t i = c.begin + threadIdx.x * 4; i < whole; i += TFU_THREADS * 4) {
    load4(x + i, v);
    UNROLLED(k, 4) v[k] *= scale;
    store4(y + i, v);
  }
  for (int64_t i = whole + threadIdx.x; i < c.end; i += TFU_THREADS) y[i] = (T)((R)x[i] * scale);
}
TENSORS_KERNEL(tensors_clip, clip_args)
