/* Attention of few queries, as in decoding: what takes time is reading the keys and values once. So all queries that
 * read the same keys, those of the heads that share a key head, are the rows of one product; the keys are split over
 * blocks until they fill the GPU (flash decoding, a split-K), and within a block over warps, each with tiles of its own
 * and no need to wait for others. What the parts found is put together in a fixed order. */
#include "kernels/attention/attention_softmax.cuh"
#include "kernels/attention/attention_tile.cuh"

/* What tensor cores sum of a product of float: a sequence may have so few keys that what they cut off shows. */
enum { TERMS = 8 };

/* A block has one split of the keys for 16 rows: blockIdx.x counts splits, then tiles of rows, key heads and sequences.
 *
 * Shared memory has the 16 rows of queries, D elements each, which all warps read; then for each warp a ring of SLOTS
 * tiles of STEPS rows, keys and values in turn; then the warps' bits for dropout. Of every WARPS * STEPS keys, STEPS
 * are a warp's. Each load closes a group of copies, even where nothing is left to load: so all but the last SLOTS - 1
 * groups are there exactly when the oldest tile is. At the end the warps' maxima, sums and outputs become one part,
 * which join_parts joins with those of the other splits. */
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
  /* Pages are looked up ahead, each row by one lane: where row lane % STEPS of the pair of tiles to load next is. */
  const auto look_up = [&](int pair) {
    const int j = begin + (pair * WARPS + warp) * STEPS + lane % STEPS;
    return a.table && j < end ? tfu_key_row(&a, &s, b, j) : (int64_t)-1;
  };
  int64_t paged_row = look_up(0);
  /* The warp's tiles in the order of their use, number n: keys or values of steps begin + (n / 2 * WARPS + warp) *
   * STEPS. */
  const auto load = [&](int n) {
    const int j0 = begin + (n / 2 * WARPS + warp) * STEPS;
    const tile<T, D> slot = {ring.at + n % SLOTS * STEPS * ring.ROW};
    attention_rows<T> source = keys;
    if (n % 2) source = values;
    if (j0 < end) {
      if (a.table)
        load_rows_at<STEPS, 32>(slot, source, w.aligned, lane,
                                [&](int r) { return __shfl_sync(0xffffffffu, paged_row, r); });
      else load_rows<STEPS, 32>(slot, source, w.aligned, j0, lane);
    }
    close_copies();
    if (n % 2) paged_row = look_up(n / 2 + 1);
  };
  load_rows_at<16, block::THREADS, 1>(
      query, attention_rows<T>(a.query, 0, 1, 0, a.head_dim, 0), w.aligned, threadIdx.x, [&](int r) {
        const int i = (row0 + r) / group;
        return row0 + r < rows ? (s.first_query + i) * a.heads + key_head * group + (row0 + r) % group : (int64_t)-1;
      });
  close_copies();
  ONCE
  for (int n = 0; n < SLOTS; n++) load(n);
  wait_for_copies<SLOTS>();
  __syncthreads();

  const bool capped = a.soft_cap > 0, special = capped || a.bias || a.mask || a.scale <= 0;
  const float by = capped ? 1 : a.scale * LOG2_E, factor = special ? 1 : by;
  float out[1][D / 8][4] = {};
  online_softmax_rows<1> so_far;
  int n = 0;
  ONCE
  for (int j0 = begin + warp * STEPS; j0 < end; j0 += WARPS * STEPS, n += 2) {
    float p[1][N][4];
    wait_for_copies<SLOTS - 1>();
    __syncwarp();
    multiply_rows<TERMS>(p, query, 0, tile<T, D>{ring.at + n % SLOTS * STEPS * ring.ROW}, a.tf32);
    __syncwarp();
    load(n + SLOTS);

    if (capped) cap_scores<T>(p, a);
    if (special || j0 < whole_first || j0 + STEPS > min(whole_end, end)) {
      UNROLLED(k, 2) {
        const int r = row0 + lane / 4 + 8 * k, i = r / group;
        const attention_pairs<T> pairs(a, b, key_head * group + r % group);
        UNROLLED(c, 2 * N) {
          const int j = j0 + c / 2 * 8 + lane % 4 * 2 + c % 2;
          float &v = p[0][c / 2][2 * k + c % 2];
          if (r > last || j >= end || !band.has(i, j)) v = -INFINITE;
          else if (special) v = pairs.score(v * by, i, j);
        }
      }
    }
    so_far.add(p, out, factor);
    if (a.seed) {
      typedef attention_drops<16, STEPS> drops_of;
      const auto start = [&](int row) {
        const int r = row0 + row;
        return tfu_pair(&a, b, key_head * group + r % group, r / group, j0);
      };
      const drops_of drops(memory + (16 + WARPS * SLOTS * STEPS) * query.ROW + warp * drops_of::BYTES, a, start);
      for_results(p, [&](float &v, int row, int col) { v = drops.stays(row, start(row), col) ? v : 0; });
    }

    wait_for_copies<SLOTS - 1>();
    __syncwarp();
    multiply_results<TERMS>(out, left_factors<T, 1, N>(p), tile<T, D>{ring.at + (n + 1) % SLOTS * STEPS * ring.ROW},
                            a.tf32);
    __syncwarp();
    load(n + 1 + SLOTS);
  }

  /* The warps' parts as one, through the memory of the tiles. */
  enum { ROW = D + 2 };
  wait_for_copies<0>();
  __syncthreads();
  float *const found = (float *)memory;
  UNROLLED(k, 2) {
    const float total = so_far.total(0, k);
    float *const row = found + (warp * 16 + lane / 4 + 8 * k) * ROW;
    if (lane % 4 == 0) row[0] = so_far.high[0][k] * factor, row[1] = total;
    UNROLLED(n, D / 8)
      *(float2 *)(row + 2 + 8 * n + 2 * (lane % 4)) = make_float2(out[0][n][2 * k], out[0][n][2 * k + 1]);
  }
  __syncthreads();
  const int cols = a.value_dim + 2;
  for (int e = threadIdx.x; e < 16 * cols; e += block::THREADS) {
    const int r = e / cols, c = e % cols;
    if (row0 + r >= rows) break;
    float top = -INFINITE, v = 0;
    UNROLLED(k, WARPS) top = fmaxf(top, found[(k * 16 + r) * ROW]);
    UNROLLED(k, WARPS) {
      const float *const row = found + (k * 16 + r) * ROW;
      if (row[1] != 0) v = fmaf(row[c], exp2_of(row[0] - top), v);
    }
    const int64_t part = (((int64_t)b * a.key_heads + key_head) * rows + row0 + r) * w.splits + split;
    w.parts[part * cols + c] = c == 0 ? top : v;
  }
#endif
}

/* A block per query and head. `across` threads have a column of the output each, and `teams` of such threads take the
 * splits in turn. Each loads AHEAD of its parts before the splits' weights are known, so that it waits for memory once.
 * Maximum and sum are found by every warp for itself. */
template <typename T>
__device__ inline void join_parts(const attention_work &w) {
  __shared__ float weight[TFU_MOST_SPLITS], team_sum[TFU_JOIN_THREADS];
  const attention_args &a = w.a;
  const int group = a.heads / a.key_heads, rows = a.queries * group, cols = a.value_dim + 2;
  const int r = (int)(blockIdx.x % (unsigned)rows), rest = (int)(blockIdx.x / (unsigned)rows);
  const int i = r / group, b = rest / a.key_heads, h = rest % a.key_heads * group + r % group;
  const int across = a.value_dim <= 64 ? 64 : a.value_dim <= 128 ? 128 : 256, teams = TFU_JOIN_THREADS / across;
  const int team = threadIdx.x / across, c = threadIdx.x % across, end = c < a.value_dim ? w.splits : 0;
  const float *const parts = w.parts + (int64_t)blockIdx.x * w.splits * cols;
  enum { AHEAD = 8 };
  float ahead[AHEAD];
  UNROLLED(k, AHEAD) ahead[k] = team + k * teams < end ? parts[(team + k * teams) * cols + 2 + c] : 0;

  float top = -INFINITE, sum = 0;
  for (int k = lane_id(); k < w.splits; k += 32) top = fmaxf(top, parts[k * cols]);
  UNROLL
  for (int offset = 16; offset; offset /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, offset));
  for (int k = lane_id(); k < w.splits; k += 32) {
    const float part = parts[k * cols + 1], by = part == 0 ? 0 : exp2_of(parts[k * cols] - top);
    if (threadIdx.x < 32) weight[k] = by;
    sum = fmaf(part, by, sum);
  }
  UNROLL
  for (int offset = 16; offset; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  __syncthreads();

  /* Parts without keys have no output worth a product. */
  float v = 0;
  const auto add = [&](int k, float part) { v = weight[k] == 0 ? v : fmaf(part, weight[k], v); };
  UNROLLED(k, AHEAD)
    if (team + k * teams < end) add(team + k * teams, ahead[k]);
  for (int k = team + AHEAD * teams; k < end; k += teams) add(k, parts[k * cols + 2 + c]);
  team_sum[threadIdx.x] = v;
  __syncthreads();
  const tfu_sequence s = tfu_sequence_of(&a, b);
  const bool none = sum == 0 || i >= s.queries;
  if (team == 0 && c < a.value_dim) {
    for (int k = 1; k < teams; k++) v += team_sum[k * across + c];
    const float by = (a.seed ? 1 / (1 - a.rate) : 1) / sum;
    ((T *)a.output)[((s.first_query + i) * a.heads + h) * a.value_dim + c] = (T)(none ? 0.0f : v * by);
  }
  if (a.stats && threadIdx.x == 0)
    ((float *)a.stats)[tfu_stats_at(&a, &s, b, h, i)] = none ? -INFINITE : fmaf(top, LN_2, logf(sum));
}

#define STAMP(d, tag, T) \
  TFU_TILE_KERNEL(decode_##d##_##tag, (attention_block<TFU_DECODE, sizeof(T), d>::THREADS), 2, decode<T, d>)
TFU_EVERY_TILE(STAMP)
#define STAMP_JOIN(name, tag, T) TFU_TILE_KERNEL(name##_##tag, TFU_JOIN_THREADS, 1, name<T>)
TFU_SINGLES(STAMP_JOIN, join_parts)
