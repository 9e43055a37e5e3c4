/* Sums of segments (segment_sum.h). All floats are added up in double and all integers in int64: additions wait for
 * memory, and two kernels serve six types. */
#include "kernels/reductions/segment_sum.h"

#include "kernels/reductions/reduce.cuh"

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

template <typename R>
__device__ inline void segment_sum(const segment_args &a) {
  __shared__ R sums[TFU_SEGMENT_THREADS];
  enum { CHUNK = TFU_SEGMENT_CHUNK, AHEAD = 4 };
  const int across = TFU_SEGMENT_THREADS >> a.lane_bits, lane = threadIdx.x / (unsigned)across,
            lanes = 1 << a.lane_bits;
  const int64_t item = (int64_t)blockIdx.x * across + (threadIdx.x & (across - 1));
  const int64_t group = divide(item, a.inner), column = item - group * a.inner;
  const bool active = group < (a.for_chunks ? a.rows / CHUNK : a.segments);
  /* Up to three runs: rows, sums of chunks, rows. Kept in bounds, should ids not be sorted. */
  int64_t begin[3] = {0, 0, 0}, end[3] = {0, 0, 0};
  if (active && a.for_chunks) {
    begin[0] = group * CHUNK;
    end[0] = id_at(a, begin[0]) == id_at(a, begin[0] + CHUNK - 1) ? begin[0] + CHUNK : 0;
  } else if (active) {
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
  R sum = 0;
  ONCE
  for (int run = 0; run < 3; run++) {
    const bool whole = run == 1;
    const void *data = whole ? a.chunks : a.data;
    const int from = !whole ? a.from : is_real<R>::value ? TFU_AS_F64 : TFU_AS_I64;
    ONCE
    for (int64_t i = begin[0] + lane; i < end[0]; i += AHEAD * lanes) {
      R v[AHEAD];
      UNROLL
      for (int k = 0; k < AHEAD; k++) {
        const int64_t at = i + k * lanes;
        v[k] = at < end[0] ? load_wide<R>(data, (whole ? at : row_at(a, at)) * a.inner + column, from) : (R)0;
      }
      sum += sum_of(v);
    }
    begin[0] = begin[1], begin[1] = begin[2], end[0] = end[1], end[1] = end[2];
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
extern "C" __global__ void __launch_bounds__(TFU_SEGMENT_THREADS)
    segment_sum_f64(const __grid_constant__ segment_args a) {
  segment_sum<double>(a);
}
extern "C" __global__ void __launch_bounds__(TFU_SEGMENT_THREADS)
    segment_sum_i64(const __grid_constant__ segment_args a) {
  segment_sum<int64_t>(a);
}
