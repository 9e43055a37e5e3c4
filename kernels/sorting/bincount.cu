/* Counts by integer additions, whose order does not matter, and sums of sorted weights in a fixed order. */
#include "kernels/sorting/bincount.h"

#include "kernels/sorting/radix.cuh"

extern __shared__ unsigned bins_here[];

__device__ inline int64_t integer_at(const void *of, int64_t at, int kind) {
  return kind == TFU_BIN_I32 ? ((const int *)of)[at] : ((const int64_t *)of)[at];
}

/* One copy of it is enough. */
static __device__ __noinline__ double value_at(const void *of, int64_t at, int kind) {
  switch (kind) {
    case TFU_BIN_F32: return ((const float *)of)[at];
    case TFU_BIN_F16: return __half2float(((const f16 *)of)[at]);
    case TFU_BIN_BF16: return __bfloat162float(((const bf16 *)of)[at]);
    case TFU_BIN_F64: return ((const double *)of)[at];
    default: return (double)integer_at(of, at, kind);
  }
}

/* ---- counts ---- */

/* The bin of an id. */
template <typename T>
struct of_ids {
  const T *of;
  __device__ of_ids(const bin_args &a, int64_t row) : of((const T *)a.of + row * a.cols) {}
  typedef T type;
  __device__ T load(int64_t at) const { return of[at]; }
  __device__ int64_t bin(T id) const { return id; }
};

/* The bin of a value: -1 where it has none, that is of NaN, and of all if the range is none. What is long is there
 * once. */
struct of_values {
  const bin_args &a;
  double low, width;
  typedef uint64_t type;
  __device__ of_values(const bin_args &args, int64_t) : a(args) {
    low = value_at(a.range, 0, a.kind);
    width = (value_at(a.range, 1, a.kind) - low) / (double)a.size;
  }
  __device__ uint64_t load(int64_t at) const {
    if (look_again(a.kind == TFU_BIN_F32 || a.kind == TFU_BIN_I32)) return ((const uint32_t *)a.of)[at];
    if (look_again(a.kind == TFU_BIN_F64 || a.kind == TFU_BIN_I64)) return ((const uint64_t *)a.of)[at];
    return ((const uint16_t *)a.of)[at];
  }
  __device__ int64_t bin(uint64_t bits) const { return bin_of(bits, a.kind, low, width, (double)(a.size - 1)); }
  static __device__ __noinline__ int bin_of(uint64_t bits, int kind, double low, double width, double last) {
    const double v = value_at(&bits, 0, kind), above = v < low ? 0 : (v - low) / width;
    return v != v || !(width > 0) ? -1 : (int)(above < last ? above : last);
  }
};

template <typename Source>
__device__ inline void bin_count(const bin_args &a) {
  const int64_t row = blockIdx.x / a.chunks, step = (int64_t)a.chunks * blockDim.x;
  const Source source(a, row);
  const int size = (int)a.size, copies = a.copies, copy = copies ? threadIdx.x % copies : 0;
  unsigned long long *counts = a.counts + row * a.size;
  ONCE
  for (int b = threadIdx.x; b < size * copies; b += blockDim.x) bins_here[b] = 0;
  __syncthreads();
  ONCE
  for (int64_t at = (int64_t)(blockIdx.x % a.chunks) * blockDim.x + threadIdx.x; at < a.cols;
       at += TFU_BIN_EACH * step) {
    typename Source::type v[TFU_BIN_EACH];
    UNROLL
    for (int i = 0; i < TFU_BIN_EACH; i++)
      if (at + i * step < a.cols) v[i] = source.load(at + i * step);
    UNROLL
    for (int i = 0; i < TFU_BIN_EACH; i++) {
      const int64_t bin = at + i * step < a.cols ? source.bin(v[i]) : -1;
      if (bin < 0 || bin >= size) continue;
      if (copies) atomicAdd(&bins_here[(int)bin * copies + copy], 1u);
      else if (a.binary) counts[bin] = 1;
      else atomicAdd(&counts[bin], 1ull);
    }
  }
  if (!copies) return;
  __syncthreads();
  ONCE
  for (int b = threadIdx.x; b < size; b += blockDim.x) {
    unsigned long long sum = 0;
    ONCE
    for (int c = 0; c < copies; c++) sum += bins_here[b * copies + c];
    if (sum && a.binary) counts[b] = 1;
    else if (sum) atomicAdd(&counts[b], sum);
  }
}

/* Named after floats of the ids' size; the one for values serves all. */
TFU_KERNEL_AS_(bin_count_ids_f32, bin_args, bin_count<of_ids<int>>)
TFU_KERNEL_AS_(bin_count_ids_f64, bin_args, bin_count<of_ids<int64_t>>)
TFU_KERNEL_AS_(bin_count_values_f32, bin_args, bin_count<of_values>)

/* ---- weights ---- */

/* The bin of each id as a key of 32 bits; `size` for none. */
extern "C" __global__ void __launch_bounds__(TFU_THREADS) bin_keys_f32(const bin_args a) {
  const int64_t n = a.rows * a.cols, step = (int64_t)gridDim.x * blockDim.x;
  ONCE
  for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < n; at += step) {
    const int64_t id = integer_at(a.of, at, a.kind);
    a.keys[at] = (uint32_t)(id < 0 || id >= a.size ? a.size : id);
  }
}

/* The first of n sorted keys that is not less. */
__device__ inline int64_t first_of(const uint32_t *keys, int64_t n, uint32_t key) {
  int64_t from = 0, to = n;
  ONCE
  while (from < to) {
    const int64_t middle = (from + to) / 2;
    if (keys[middle] < key) from = middle + 1;
    else to = middle;
  }
  return from;
}

__device__ inline void weight_at(const bin_sum_args &a, int64_t at, double &w) { w = value_at(a.weights, at, a.kind); }
__device__ inline void weight_at(const bin_sum_args &a, int64_t at, int64_t &w) {
  w = integer_at(a.weights, at, a.kind);
}

/* A block sums one part of the weights of a bin: a thread every so many of them, then the threads by halves. R is
 * double, or int64_t for integers, which may wrap round. */
template <typename R>
__device__ inline void bin_sum(const bin_sum_args &a) {
  __shared__ R sums[TFU_THREADS];
  const unsigned bins = (unsigned)(a.rows * a.size), bin = blockIdx.x % bins, part = blockIdx.x / bins;
  const unsigned key = bin % (unsigned)a.size;
  const int64_t row = (int64_t)(bin / (unsigned)a.size) * a.cols;
  const int64_t begin = first_of(a.keys + row, a.cols, key), end = first_of(a.keys + row, a.cols, key + 1);
  const int64_t length = ((unsigned)(end - begin) + a.parts - 1) / (unsigned)a.parts, from = begin + part * length;
  const int64_t to = from + length < end ? from + length : end;
  R sum = 0;
  ONCE
  for (int64_t i = from + threadIdx.x; i < to; i += blockDim.x) {
    R w;
    weight_at(a, row + a.places[row + i], w);
    sum += w;
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  ONCE
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) ((R *)a.partial)[(int64_t)part * bins + bin] = sums[0];
}
TFU_KERNEL_AS_(bin_sum_values_f32, bin_sum_args, bin_sum<double>)
TFU_KERNEL_AS_(bin_sum_whole_f32, bin_sum_args, bin_sum<int64_t>)

/* The parts of a bin, in order. */
extern "C" __global__ void __launch_bounds__(TFU_THREADS) bin_join_f32(const bin_sum_args a) {
  const int64_t bins = a.rows * a.size, bin = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (bin >= bins) return;
  const bool whole = a.kind >= TFU_BIN_I32;
  double sum = 0;
  int64_t count = 0;
  ONCE
  for (int p = 0; p < a.parts; p++) {
    if (whole) count += ((const int64_t *)a.partial)[p * bins + bin];
    else sum += ((const double *)a.partial)[p * bins + bin];
  }
  switch (a.kind) {
    case TFU_BIN_F32: ((float *)a.sums)[bin] = (float)sum; break;
    case TFU_BIN_F16: ((f16 *)a.sums)[bin] = __float2half((float)sum); break;
    case TFU_BIN_BF16: ((bf16 *)a.sums)[bin] = __float2bfloat16((float)sum); break;
    case TFU_BIN_F64: ((double *)a.sums)[bin] = sum; break;
    case TFU_BIN_I32: ((int *)a.sums)[bin] = (int)count; break;
    default: ((int64_t *)a.sums)[bin] = count;
  }
}
