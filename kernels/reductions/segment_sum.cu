/* Sums of segments (segment_sum.h). All floats are added up in double and all integers in int64: additions wait for
 * memory. Floats that come in whole packs have kernels of their own, and two kernels serve six types. */
#include "kernels/reductions/segment_sum.h"

#include "kernels/reductions/kinds.cuh"

__device__ inline int64_t row_at(const segment_args &a, int64_t i) { return a.order ? a.order[i] : i; }
/* The id of the row that is number i in the order of ids: from -1, what is to be dropped, up to `segments`, the same.
 */
__device__ inline int64_t id_at(const segment_args &a, int64_t i) {
  const int64_t row = row_at(a, i), id = a.wide_ids ? ((const int64_t *)a.ids)[row] : ((const int32_t *)a.ids)[row];
  return id < 0 ? -1 : id < a.segments ? id : a.segments;
}

/* offsets[s] = i for all segments s that begin at i, also those without rows. */
extern "C" __global__ void __launch_bounds__(TFU_SEGMENT_THREADS)
    segment_offsets_i64(const __grid_constant__ segment_args a) {
  const int64_t i = (int64_t)blockIdx.x * TFU_SEGMENT_THREADS + threadIdx.x;
  if (i > a.rows) return;
  const int64_t before = i == 0 ? -1 : id_at(a, i - 1), here = i == a.rows ? a.segments : id_at(a, i);
  ONCE
  for (int64_t s = before + 1; s <= here; s++) a.offsets[s] = i;
}

template <typename R>
__device__ inline R load_wide(const void *x, int64_t at, int from);
template <>
__device__ inline double load_wide<double>(const void *x, int64_t at, int from) {
  return from == TFU_AS_F64 ? ((const double *)x)[at] : load_one<float>(x, at, from);
}
template <>
__device__ inline int64_t load_wide<int64_t>(const void *x, int64_t at, int from) {
  return load_one<int64_t>(x, at, from);
}

/* What a group, a chunk or a segment, is the sum of: up to three runs, of rows, of sums of chunks, and of rows again.
 * Kept in bounds, should ids not be sorted. */
struct segment_runs {
  int64_t begin[3] = {0, 0, 0}, end[3] = {0, 0, 0};
  __device__ segment_runs(const segment_args &a, int64_t group) {
    enum { CHUNK = TFU_SEGMENT_CHUNK };
    if (a.for_chunks) {
      begin[0] = group * CHUNK;
      end[0] = id_at(a, begin[0]) == id_at(a, begin[0] + CHUNK - 1) ? begin[0] + CHUNK : 0;
      return;
    }
    const int64_t from = a.offsets[group], to = a.offsets[group + 1];
    begin[0] = from < 0 ? 0 : from;
    end[0] = to < a.rows ? to : a.rows;
    const int64_t first = (begin[0] + CHUNK - 1) / CHUNK, last = end[0] / CHUNK;
    if (a.chunks && first < last) {
      begin[1] = first, end[1] = last;
      begin[2] = last * CHUNK, end[2] = end[0];
      end[0] = first * CHUNK;
    }
  }
  __device__ segment_runs() {}
  __device__ void next() { begin[0] = begin[1], begin[1] = begin[2], end[0] = end[1], end[1] = end[2]; }
};

template <typename R>
__device__ inline void segment_sum(const segment_args &a) {
  __shared__ R sums[TFU_SEGMENT_THREADS];
  enum { AHEAD = 4 };
  const int across = TFU_SEGMENT_THREADS >> a.lane_bits, lane = threadIdx.x / (unsigned)across,
            lanes = 1 << a.lane_bits;
  const int64_t item = (int64_t)blockIdx.x * across + (threadIdx.x & (across - 1));
  const int64_t group = divide(item, a.inner), column = item - group * a.inner;
  const bool active = group < (a.for_chunks ? a.rows / TFU_SEGMENT_CHUNK : a.segments);
  segment_runs runs = active ? segment_runs(a, group) : segment_runs();
  R sum = 0;
  ONCE
  for (int run = 0; run < 3; run++) {
    const bool whole = run == 1;
    const void *data = whole ? a.chunks : a.data;
    const int from = !whole ? a.from : is_real<R>::value ? TFU_AS_F64 : TFU_AS_I64;
    ONCE
    for (int64_t i = runs.begin[0] + lane; i < runs.end[0]; i += AHEAD * lanes) {
      R v[AHEAD];
      UNROLLED(k, AHEAD) {
        const int64_t at = i + k * lanes;
        v[k] = at < runs.end[0] ? load_wide<R>(data, (whole ? at : row_at(a, at)) * a.inner + column, from) : (R)0;
      }
      sum += sum_of(v);
    }
    runs.next();
  }
  sums[threadIdx.x] = sum;
  ONCE
  for (int half = 1 << a.lane_bits >> 1; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) sums[threadIdx.x] += sums[threadIdx.x + half * across];
  }
  if (lane != 0 || !active) return;
  sum = sums[threadIdx.x];
  if (a.for_chunks) ((R *)a.chunks)[item] = sum;
  else if (!is_real<R>::value || a.from == TFU_AS_F64) store_one(a.y, item, a.from, sum);
  else store_one(a.y, item, a.from, (float)sum);
}
#define KERNEL(function, tag, T) \
  TFU_STAMP((TFU_SEGMENT_THREADS), function##_##tag, __grid_constant__ segment_args, function<T>)
KERNEL(segment_sum, f64, double)
KERNEL(segment_sum, i64, int64_t)

/* The same for rows of whole packs: a pack's columns for each thread. */
template <typename T>
__device__ inline void segment_packs(const segment_args &a) {
  enum { V = packed<T>::N, AHEAD = 4 };
  __shared__ double sums[TFU_SEGMENT_THREADS * V];
  const int across = TFU_SEGMENT_THREADS >> a.lane_bits, lanes = 1 << a.lane_bits;
  const int lane = threadIdx.x >> (8 - a.lane_bits), beside = threadIdx.x & (across - 1);
  const int64_t item = ((int64_t)blockIdx.x * across + beside) * V;
  const int64_t group = divide(item, a.inner), column = item - group * a.inner;
  const bool active = group < (a.for_chunks ? a.rows / TFU_SEGMENT_CHUNK : a.segments);
  segment_runs runs = active ? segment_runs(a, group) : segment_runs();
  double sum[V];
  UNROLLED(k, V) sum[k] = 0;
  ONCE
  for (int run = 0; run < 3; run++) {
    if (run == 1) {
      ONCE
      for (int64_t i = runs.begin[0] + lane; i < runs.end[0]; i += lanes) {
        UNROLLED(k, V) sum[k] += ((const double *)a.chunks)[i * a.inner + column + k];
      }
    } else {
      ONCE
      for (int64_t i = runs.begin[0] + lane; i < runs.end[0]; i += AHEAD * lanes) {
        int4 bits[AHEAD];
        UNROLLED(k, AHEAD) {
          bits[k] = make_int4(0, 0, 0, 0);
          const int64_t at = i + k * lanes;
          if (at < runs.end[0]) bits[k] = load_once((const T *)a.data + row_at(a, at) * a.inner + column);
        }
        UNROLLED(k, AHEAD * V) sum[k % V] += element<T>(bits[k / V], k % V);
      }
    }
    runs.next();
  }
  if (lanes > 1) { /* the upper half of the lanes with the lower one */
    const int columns = across * V;
    UNROLLED(k, V) sums[lane * columns + beside * V + k] = sum[k];
    ONCE
    for (int half = lanes * columns / 2; half >= columns; half /= 2) {
      __syncthreads();
      ONCE
      for (int i = threadIdx.x; i < half; i += TFU_SEGMENT_THREADS) sums[i] += sums[i + half];
    }
    __syncthreads();
    UNROLLED(k, V) sum[k] = sums[beside * V + k];
  }
  if (lane != 0 || !active) return;
  if (a.for_chunks) {
    UNROLLED(k, V) ((double *)a.chunks)[item + k] = sum[k];
  } else {
    float v[V];
    UNROLLED(k, V) v[k] = (float)sum[k];
    store_bits((T *)a.y + item, narrow_pack<T>(v));
  }
}
TFU_SINGLES(KERNEL, segment_packs)
