/* Before and after an attention that another library computes over sequences of different lengths, or with a bias that
 * may be -infinity all along a query's keys.
 *
 * Before: lengths within the axes' sizes and of one step at least, since what comes of none is NaN; and stats of 0 for
 * queries without keys, which are masked all the same, where -infinity - -infinity would be NaN.
 * After: zeros in the rows that stand for nothing: of queries that attend to no key, and in the gradients of keys that
 * no query may attend to. What was there is not read. Rows are whole packs of 16 bytes. */
#include "kernels/attention/attention_edges.h"

#include "kernels/core/device/pack.cuh"

static __device__ inline float lowest() { return __int_as_float(0xff800000); } /* -infinity */

/* Only 16-bit types come here, and zeros are the same in both; a tensor has less than 2^31 elements. */
#define TFU_BOTH(function)                                  \
  TFU_KERNEL_AS_(function##_f16, attention_edges, function) \
  TFU_KERNEL_AS_(function##_bf16, attention_edges, function)

__device__ inline void attention_before(const attention_edges &e) {
  const int first = blockIdx.x * TFU_THREADS + threadIdx.x, step = gridDim.x * TFU_THREADS;
  for (int b = first; e.queries && b < e.a.batch; b += step) {
    const tfu_sequence s = tfu_sequence_of(&e.a, b);
    const bool none = s.queries == 0 || s.keys == 0;
    e.queries[b] = none ? 1 : s.queries;
    e.keys[b] = none ? 1 : s.keys;
  }
  if (!e.stats) return;
  const int n = e.a.batch * e.a.heads * e.a.queries;
  for (int i = first; i < n; i += step) {
    const float v = ((const float *)e.a.stats)[i];
    e.stats[i] = v == lowest() ? 0 : v;
  }
}
TFU_BOTH(attention_before)

/* Row `row` of a tensor with rows of `dim`, by one warp. */
__device__ inline void clear(void *data, int row, int dim) {
  const int packs = dim / 8;
  for (int i = threadIdx.x % 32; i < packs; i += 32) ((int4 *)data)[(int64_t)row * packs + i] = make_int4(0, 0, 0, 0);
}

/* Whether the bias leaves query i none of its keys. */
__device__ inline bool all_lowest(const attention_edges &e, int b, int h, int i, int first, int end) {
  const attention_args &a = e.a;
  const uint16_t *bias = (const uint16_t *)a.bias + b * a.bias_step[0] + h * a.bias_step[1] + i * a.bias_step[2];
  bool lowest = true;
  for (int j = first + threadIdx.x % 32; j < end; j += 32) lowest &= bias[j * a.bias_step[3]] == e.lowest;
  return __all_sync(0xffffffffu, lowest);
}

__device__ inline void query_row(const attention_edges &e, int row) {
  const attention_args &a = e.a;
  const int b = row / a.heads / a.queries, i = row / a.heads % a.queries;
  const tfu_sequence s = tfu_sequence_of(&a, b);
  int first, end;
  tfu_band(&a, &s, i, &first, &end);
  if (first < end) {
    if (!a.bias || a.dquery || isfinite(((const float *)a.stats)[tfu_stats_at(&a, &s, b, row % a.heads, i)])) return;
    if (!all_lowest(e, b, row % a.heads, i, first, end)) return;
  }
  if (a.dquery) return clear(a.dquery, row, a.head_dim);
  clear(a.output, row, a.value_dim);
  if (threadIdx.x % 32 == 0) ((float *)a.stats)[tfu_stats_at(&a, &s, b, row % a.heads, i)] = lowest();
}

__device__ inline void key_row(const attention_args &a, int row) {
  const int b = row / a.key_heads / a.keys, j = row / a.key_heads % a.keys;
  const tfu_sequence s = tfu_sequence_of(&a, b);
  if (j < s.keys && s.queries > 0) return;
  clear(a.dkey, row, a.head_dim);
  clear(a.dvalue, row, a.value_dim);
}

/* A warp for a row. */
__device__ inline void attention_after(const attention_edges &e) {
  const attention_args &a = e.a;
  const int warps = TFU_THREADS / 32, warp = blockIdx.x * warps + threadIdx.x / 32, step = gridDim.x * warps;
  for (int row = warp; row < a.batch * a.queries * a.heads; row += step) query_row(e, row);
  if (!a.dquery) return;
  for (int row = warp; row < a.batch * a.keys * a.key_heads; row += step) key_row(a, row);
}
TFU_BOTH(attention_after)
