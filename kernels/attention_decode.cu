/* Attention of few queries, as in decoding: what takes time is reading the keys and values once. So all queries that
 * read the same keys, those of the heads that share a key head, are the rows of one product; the keys are split over
 * blocks until they fill the GPU, and within a block over warps, each with tiles of its own and no need to wait for
 * others. What the parts found is put together in a fixed order. */
#include "kernels/attention_tile.cuh"

template <typename T, int D>
__device__ inline void decode(const attention_work &w) {
#if __CUDA_ARCH__ >= 800
  typedef attention_block<TFU_DECODE, sizeof(T), D> block;
  enum { N = block::N, STEPS = block::STEPS, WARPS = block::WARPS, SLOTS = 2 * block::STAGES };
  extern __shared__ __align__(1024) char memory[];
  const attention_args &a = w.a;
  const int group = a.heads / a.key_heads, rows = a.queries * group, lane = lane_id(), warp = threadIdx.x / 32;
  const int split = (int)(blockIdx.x % (unsigned)w.splits), rest = (int)(blockIdx.x / (unsigned)w.splits);
  const int row0 = rest % w.tiles * 16, key_head = rest / w.tiles % a.key_heads, b = rest / w.tiles / a.key_heads;
  const tfu_sequence s = tfu_sequence_of(&a, b);
  const attention_band band(a, s);
  /* Row r is query r / group of head r % group of those that share the key head: in memory, rows follow each other. */
  const int last = min(min(row0 + 16, rows) - 1, s.queries * group - 1);
  const int from = row0 > last ? 0 : band.first(row0 / group), to = row0 > last ? 0 : max(band.end(last / group), from);
  const int share = ((to - from + w.splits - 1) / w.splits + WARPS * STEPS - 1) / (WARPS * STEPS) * (WARPS * STEPS);
  const int begin = (int)min((int64_t)from + (int64_t)split * share, (int64_t)to), end = min(begin + share, to);
  const int whole_first = band.first(max(last, 0) / group), whole_end = band.end(row0 / group);

  const tile<T, D> query = {shared_address(memory)};
  const tile<T, D> ring = {query.at + (16 + warp * SLOTS * STEPS) * query.ROW};
  const int64_t first_key = a.table ? 0 : s.first_key;
  const attention_rows<T> keys(a.key, first_key, a.key_heads, key_head, a.head_dim, s.keys),
      values(a.value, first_key, a.key_heads, key_head, a.value_dim, s.keys);
  /* The warp's tiles in the order of their use, number n: keys and values of steps begin + (n / 2 * WARPS + warp) *
   * STEPS. */
  const auto load = [&](int n) {
    const int j0 = begin + (n / 2 * WARPS + warp) * STEPS;
    const tile<T, D> slot = {ring.at + n % SLOTS * STEPS * ring.ROW};
    const attention_rows<T> &source = n % 2 ? values : keys;
    if (j0 < end) {
      if (a.table)
        load_rows_at<STEPS, 32>(slot, source, w.aligned, lane,
                                [&](int r) { return j0 + r < s.keys ? tfu_key_row(&a, &s, b, j0 + r) : (int64_t)-1; });
      else load_rows<STEPS, 32>(slot, source, w.aligned, j0, lane);
    }
    close_copies();
  };
  load_rows_at<16, block::THREADS>(
      query, attention_rows<T>(a.query, 0, 1, 0, a.head_dim, 0), w.aligned, threadIdx.x, [&](int r) {
        const int i = (row0 + r) / group;
        return row0 + r < rows ? (s.first_query + i) * a.heads + key_head * group + (row0 + r) % group : (int64_t)-1;
      });
  close_copies();
  UNROLL
  for (int n = 0; n < SLOTS; n++) load(n);
  wait_copies<SLOTS>();
  __syncthreads();

  const bool special = a.bias || a.mask || a.scale <= 0;
  const float by = a.scale * LOG2_E, factor = special ? 1 : by;
  float out[1][D / 8][4] = {}, high[2] = {-INFINITE, -INFINITE}, sum[2] = {};
  int n = 0;
  ONCE
  for (int j0 = begin + warp * STEPS; j0 < end; j0 += WARPS * STEPS, n += 2) {
    float p[1][N][4];
    wait_copies<SLOTS - 1>();
    __syncwarp();
    multiply_rows(p, query, 0, tile<T, D>{ring.at + n % SLOTS * STEPS * ring.ROW});
    __syncwarp();
    load(n + SLOTS);

    if (special || j0 < whole_first || j0 + STEPS > min(whole_end, end))
      for_results(p, [&](float &v, int row, int col) {
        const int r = row0 + row, i = r / group, j = j0 + col;
        if (r > last || j >= end || !band.has(i, j)) v = -INFINITE;
        else if (special) v = attention_pairs<T>(a, b, key_head * group + r % group).score(v * by, i, j);
      });
    UNROLL
    for (int k = 0; k < 2; k++) {
      float top = high[k];
      UNROLL
      for (int n = 0; n < N; n++) top = fmaxf(top, fmaxf(p[0][n][2 * k], p[0][n][2 * k + 1]));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      const float down = high[k] == -INFINITE ? 0 : exp2_of((high[k] - top) * factor);
      const float shift = top == -INFINITE ? 0 : top * factor;
      high[k] = top;
      sum[k] *= down;
      UNROLL
      for (int n = 0; n < D / 8; n++) out[0][n][2 * k] *= down, out[0][n][2 * k + 1] *= down;
      UNROLL
      for (int n = 0; n < N; n++) UNROLL
      for (int c = 2 * k; c < 2 * k + 2; c++) {
        p[0][n][c] = exp2_of(fmaf(p[0][n][c], factor, -shift));
        sum[k] += p[0][n][c];
      }
    }
    if (a.seed)
      for_results(p, [&](float &v, int row, int col) {
        const int r = row0 + row;
        if (!attention_pairs<T>(a, b, key_head * group + r % group).stays(r / group, j0 + col)) v = 0;
      });

    wait_copies<SLOTS - 1>();
    __syncwarp();
    multiply_results(out, left_factors<T, 1, N>(p), tile<T, D>{ring.at + (n + 1) % SLOTS * STEPS * ring.ROW});
    __syncwarp();
    load(n + 1 + SLOTS);
  }

  /* The warps' parts as one, through the memory of the tiles. */
  enum { ROW = D + 2 };
  wait_copies<0>();
  __syncthreads();
  float *const found = (float *)memory;
  UNROLL
  for (int k = 0; k < 2; k++) {
    float total = sum[k];
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    float *const row = found + (warp * 16 + lane / 4 + 8 * k) * ROW;
    if (lane % 4 == 0) row[0] = high[k] * factor, row[1] = total;
    UNROLL
    for (int n = 0; n < D / 8; n++)
      *(float2 *)(row + 2 + 8 * n + 2 * (lane % 4)) = make_float2(out[0][n][2 * k], out[0][n][2 * k + 1]);
  }
  __syncthreads();
  const int cols = a.value_dim + 2;
  for (int e = threadIdx.x; e < 16 * cols; e += block::THREADS) {
    const int r = e / cols, c = e % cols;
    if (row0 + r >= rows) break;
    float top = -INFINITE, v = 0;
    UNROLL
    for (int k = 0; k < WARPS; k++) top = fmaxf(top, found[(k * 16 + r) * ROW]);
    UNROLL
    for (int k = 0; k < WARPS; k++) {
      const float *const row = found + (k * 16 + r) * ROW;
      if (row[1] != 0) v = fmaf(row[c], exp2_of(row[0] - top), v);
    }
    const int64_t part = (((int64_t)b * a.key_heads + key_head) * rows + row0 + r) * w.splits + split;
    w.parts[part * cols + c] = c == 0 ? top : v;
  }
#endif
}

/* A block per query and head. */
template <typename T>
__device__ inline void join_parts(const attention_work &w) {
  const attention_args &a = w.a;
  const int group = a.heads / a.key_heads, rows = a.queries * group, cols = a.value_dim + 2;
  const int r = (int)(blockIdx.x % (unsigned)rows), rest = (int)(blockIdx.x / (unsigned)rows);
  const int i = r / group, b = rest / a.key_heads, h = rest % a.key_heads * group + r % group;
  const tfu_sequence s = tfu_sequence_of(&a, b);
  const float *const parts = w.parts + (int64_t)blockIdx.x * w.splits * cols;
  float top = -INFINITE, sum = 0;
  for (int k = 0; k < w.splits; k++) top = fmaxf(top, parts[k * cols]);
  for (int k = 0; k < w.splits; k++)
    if (parts[k * cols + 1] != 0) sum = fmaf(parts[k * cols + 1], exp2_of(parts[k * cols] - top), sum);
  const bool none = sum == 0 || i >= s.queries;
  const float by = none ? 0 : (a.seed ? 1 / (1 - a.rate) : 1) / sum;
  for (int c = threadIdx.x; c < a.value_dim; c += blockDim.x) {
    float v = 0;
    for (int k = 0; k < w.splits; k++)
      if (parts[k * cols + 1] != 0) v = fmaf(parts[k * cols + 2 + c], exp2_of(parts[k * cols] - top), v);
    ((T *)a.output)[((s.first_query + i) * a.heads + h) * a.value_dim + c] = (T)(none ? 0.0f : v * by);
  }
  if (a.stats && threadIdx.x == 0)
    ((float *)a.stats)[tfu_stats_at(&a, &s, b, h, i)] = none ? -INFINITE : fmaf(top, LN_2, logf(sum));
}

#define STAMP(d, tag, T) \
  TFU_TILE_KERNEL(decode_##d##_##tag, (attention_block<TFU_DECODE, sizeof(T), d>::THREADS), 2, decode<T, d>)
TFU_EVERY_TILE(STAMP)
TFU_TILE_KERNEL(join_parts_f32, TFU_THREADS, 1, join_parts<float>)
TFU_TILE_KERNEL(join_parts_f16, TFU_THREADS, 1, join_parts<f16>)
TFU_TILE_KERNEL(join_parts_bf16, TFU_THREADS, 1, join_parts<bf16>)
