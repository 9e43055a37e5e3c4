/* Histograms: counts by integer additions in copies of the bins (privatised), whose order does not matter, and sums of
 * sorted weights in a fixed order. */
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
  typedef T type;
  int64_t size;
  __device__ of_ids(const bin_args &a) : size(a.size) {}
  __device__ int bin(T id) const { return id < 0 || id >= size ? -1 : (int)id; }
};

/* The bin of a value by the formula: -1 where it has none, that is of NaN, and of all if the range is none. */
static __device__ __noinline__ int bin_of(double v, double low, double width, double last) {
  const double above = v < low ? 0 : (v - low) / width;
  return v != v || !(width > 0) ? -1 : (int)(above < last ? above : last);
}

__device__ inline double wide(double v) { return v; }
__device__ inline double wide(float v) { return v; }
__device__ inline double wide(f16 v) { return __half2float(v); }
__device__ inline double wide(bf16 v) { return __bfloat162float(v); }
__device__ inline double wide(int v) { return v; }
__device__ inline double wide(int64_t v) { return (double)v; }

template <typename T>
struct of_values {
  typedef T type;
  double low, width, last;
  __device__ of_values(const bin_args &a) {
    const T *range = (const T *)a.range;
    low = wide(range[0]), last = (double)(a.size - 1);
    width = (wide(range[1]) - low) / (double)a.size;
  }
  __device__ int bin(T v) const { return bin_of(wide(v), low, width, last); }
};

/* The same for values that a float holds: in float, which is off by less than size * 2^-21 bins, for v - low and
 * 1 / width are rounded once each. What is nearer than that to an edge is computed in double. Beyond the range nothing
 * is near one. Where there are very many bins, or they are very narrow or wide, all is near. */
template <typename T>
struct of_floats {
  typedef T type;
  of_values<T> exact;
  float low, scale, most, near;
  __device__ of_floats(const bin_args &a) : exact(a) {
    low = (float)exact.low, scale = (float)(1 / exact.width), most = (float)a.size + 0.5f;
    const bool fits = a.size < 1 << 18 && exact.width > 1e-30 && exact.width < 1e30;
    near = fits ? (float)a.size * (1.0f / (1 << 21)) : 2;
  }
  __device__ int bin(T v) const {
    const float value = (float)wide(v), at = fminf(fmaxf((value - low) * scale, -0.5f), most);
    if (value != value) return -1;
    if (!(fabsf(at - rintf(at)) >= near)) return exact.bin(v);
    const int bin = (int)at, last = (int)most - 1;
    return bin < last ? bin : last;
  }
};

/* Where a block counts: in shared memory, or, where that has no room for all bins, at once in the result. */
struct in_shared {
  unsigned *mine;
  int copies;
  __device__ void count(int bin) const { atomicAdd(&mine[bin * copies], 1u); }
};
struct in_result {
  unsigned long long *counts;
  bool binary;
  __device__ void count(int bin) const {
    if (binary) counts[bin] = 1;
    else atomicAdd(&counts[bin], 1ull);
  }
};

/* Groups of TFU_THREADS threads take TFU_BIN_EACH values each at a time, so far apart as there are threads in a group.
 */
template <typename Source, typename Counts>
__device__ inline void count_row(const bin_args &a, int64_t row, const Counts &counts) {
  typedef typename Source::type T;
  enum { TAKEN = TFU_BIN_EACH * TFU_THREADS };
  const Source source(a);
  const int64_t groups = blockDim.x / TFU_THREADS, step = groups * a.chunks * TAKEN;
  int64_t at = (blockIdx.x % a.chunks * groups + threadIdx.x / TFU_THREADS) * TAKEN + threadIdx.x % TFU_THREADS;
  const T *of = (const T *)a.of + row * a.cols;
  ONCE
  for (; at + TAKEN - TFU_THREADS < a.cols; at += step) {
    T v[TFU_BIN_EACH];
    UNROLLED(i, TFU_BIN_EACH) v[i] = of[at + i * TFU_THREADS];
    UNROLLED(i, TFU_BIN_EACH) {
      const int bin = source.bin(v[i]);
      if (bin >= 0) counts.count(bin);
    }
  }
  ONCE
  for (; at < a.cols; at += TFU_THREADS) {
    const int bin = source.bin(of[at]);
    if (bin >= 0) counts.count(bin);
  }
}

/* Copies are a power of two, and those of a bin lie side by side: with 32 of them each lane has a bank to itself. */
template <typename Source>
__device__ inline void bin_count(const bin_args &a) {
  const int64_t row = blockIdx.x / a.chunks;
  const int size = (int)a.size, copies = a.copies;
  unsigned long long *counts = a.counts + row * a.size;
  if (!copies) {
    count_row<Source>(a, row, in_result{counts, a.binary != 0});
    return;
  }
  ONCE
  for (int b = threadIdx.x; b < size * copies; b += blockDim.x) bins_here[b] = 0;
  __syncthreads();
  count_row<Source>(a, row, in_shared{bins_here + (threadIdx.x & (copies - 1)), copies});
  __syncthreads();
  ONCE
  for (int b = threadIdx.x; b < size; b += blockDim.x) {
    unsigned long long sum = 0;
    ONCE
    for (int c = 0; c < copies; c++) sum += bins_here[b * copies + ((c + threadIdx.x) & (copies - 1))];
    if (sum && a.binary) counts[b] = 1;
    else if (sum) atomicAdd(&counts[b], sum);
  }
}

#define BIN_KERNEL(label, ...) TFU_STAMP((TFU_BIN_THREADS), label, bin_args, bin_count<__VA_ARGS__>)
BIN_KERNEL(bin_count_ids_i32, of_ids<int>)
BIN_KERNEL(bin_count_ids_i64, of_ids<int64_t>)
BIN_KERNEL(bin_count_values_f32, of_floats<float>)
BIN_KERNEL(bin_count_values_f16, of_floats<f16>)
BIN_KERNEL(bin_count_values_bf16, of_floats<bf16>)
BIN_KERNEL(bin_count_values_f64, of_values<double>)
BIN_KERNEL(bin_count_whole_i32, of_values<int>)
BIN_KERNEL(bin_count_whole_i64, of_values<int64_t>)

/* ---- weights ---- */

/* The bin of each id as a key of 32 bits; `size` for none. */
extern "C" __global__ void __launch_bounds__(TFU_THREADS) bin_keys_any(const bin_args a) {
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
    weight_at(a, row + (a.indices ? a.indices[row + i] : i), w);
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
TFU_KERNEL_AS_(bin_sum_values_any, bin_sum_args, bin_sum<double>)
TFU_KERNEL_AS_(bin_sum_whole_any, bin_sum_args, bin_sum<int64_t>)

/* The parts of a bin, in order. */
extern "C" __global__ void __launch_bounds__(TFU_THREADS) bin_join_any(const bin_sum_args a) {
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

/* Bound by memory: sums are few, and stay in the cache. */
template <typename T>
__device__ inline void bin_take(const bin_take_args &a) {
  const int64_t n = a.rows * a.cols, step = (int64_t)gridDim.x * TFU_THREADS;
  _Pragma("unroll 4") for (int64_t at = (int64_t)blockIdx.x * TFU_THREADS + threadIdx.x; at < n; at += step) {
    const int64_t id = integer_at(a.ids, at, a.kind), row = a.rows == 1 ? 0 : at / a.cols;
    ((T *)a.weights)[at] = id < 0 || id >= a.size ? (T)0 : ((const T *)a.sums)[row * a.size + id];
  }
}
TFU_KERNEL_AS_(bin_take_b16, bin_take_args, bin_take<uint16_t>)
TFU_KERNEL_AS_(bin_take_b32, bin_take_args, bin_take<uint32_t>)
TFU_KERNEL_AS_(bin_take_b64, bin_take_args, bin_take<uint64_t>)
