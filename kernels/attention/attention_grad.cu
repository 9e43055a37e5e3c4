/* Gradient of attention (FlashAttention-2), on tensor cores, bit for bit repeatable: nothing is added by more than one
 * block. One kernel has some queries stay while keys and values pass, and makes dquery; another has some keys stay
 * while the queries of all heads that share them pass, and makes dkey and dvalue. Both compute the scores again: seven
 * products where five would do, if the sums over keys were added up in memory. */
#include "kernels/attention/attention_grad.cuh"

/* Shared memory has the block's ROWS queries and their doutput; then STAGES pairs of tiles, STEPS keys and their
 * values, all in rows of D elements; then the warps' bits for dropout. Warp i has queries i * OWN and on: ds of one
 * tile and dquery so far are in its registers, in the accumulators' layout (mma.cuh). */
template <typename T, int D, bool FULL>
__device__ inline void by_query(const attention_work &w) {
#if __CUDA_ARCH__ >= 800
  typedef attention_block<TFU_BY_QUERY, sizeof(T), D> block;
  enum { M = block::M, N = block::N, STEPS = block::STEPS, ROWS = block::ROWS, THREADS = block::THREADS };
  extern __shared__ __align__(1024) char memory[];
  const attention_args &a = w.a;
  const attention_place at = place_of<false>(w, ROWS);
  const tfu_sequence &s = at.s;
  if (at.first >= at.written) return;

  const attention_head<T, FULL> head(a, s, at.b, at.h);
  const attention_band &band = head.band;
  const int own = threadIdx.x / 32 * block::OWN, last = min(at.first + ROWS, s.queries) - 1;
  const int begin = at.first > last ? 0 : band.first(at.first) / STEPS * STEPS;
  const int end = at.first > last ? 0 : band.end(last);
  const int whole_first = band.first(last), whole_end = band.end(at.first);
  const int key_head = at.h / (a.heads / a.key_heads);
  const attention_rows<T> keys(a.key, s.first_key, a.key_heads, key_head, a.head_dim, s.keys),
      values(a.value, s.first_key, a.key_heads, key_head, a.value_dim, s.keys);
  const tile<T, D> query = {shared_address(memory)}, doutput = {query.at + ROWS * query.ROW};
  const auto key = [&](int stage) { return tile<T, D>{doutput.at + (ROWS + 2 * stage * STEPS) * query.ROW}; };
  const auto value = [&](int stage) { return tile<T, D>{key(stage).at + STEPS * query.ROW}; };
  const auto load = [&](int stage, int j0) {
    load_rows<STEPS, THREADS>(key(stage), keys, w.aligned, j0, threadIdx.x);
    load_rows<STEPS, THREADS>(value(stage), values, w.aligned, j0, threadIdx.x);
    close_copies();
  };
  load_rows<ROWS, THREADS, FEW>(query, attention_rows<T>(a.query, s.first_query, a.heads, at.h, a.head_dim, s.queries),
                                w.aligned, at.first, threadIdx.x);
  load_rows<ROWS, THREADS, FEW>(doutput,
                                attention_rows<T>(a.doutput, s.first_query, a.heads, at.h, a.value_dim, s.queries),
                                w.aligned, at.first, threadIdx.x);
  float2 numbers[M][2];
  load_numbers(numbers, w, s, at.b, at.h, at.first + own);

  char *const drops = memory + 2 * (ROWS + block::STAGES * STEPS) * query.ROW +
                      threadIdx.x / 32 * attention_drops<block::OWN, STEPS>::BYTES;
  float dquery[M][D / 8][4] = {};
  /* With two stages, the loop begins a tile before the first, so that it alone has code that loads. */
  enum { AHEAD = block::STAGES == 2 ? STEPS : 0 };
  int stage = block::STAGES - 1;
  ONCE
  for (int j0 = begin - AHEAD; j0 < end; j0 += STEPS) {
    if (AHEAD && j0 >= begin) {
      wait_for_copies<0>();
      __syncthreads();
    }
    if (j0 + AHEAD < end) load(AHEAD ? stage ^ 1 : 0, j0 + AHEAD);
    if (!AHEAD) {
      wait_for_copies<0>();
      __syncthreads();
    }
    if (j0 >= begin) {
      float ds[M][N][4];
      const bool edge = j0 < whole_first || j0 + STEPS > whole_end;
      score_gradients<true>(ds, head, edge, at.first + own, j0, numbers, own, query, doutput, key(stage), value(stage),
                            drops);
      multiply_results(dquery, left_factors<T, M, N>(ds), key(stage), a.tf32);
    }
    if (AHEAD) stage ^= 1;
    else __syncthreads();
  }

  float by[M][2];
  UNROLLED(r, 2 * M) by[r / 2][r % 2] = at.first + own + 8 * r + (int)(lane_id() / 4) < s.queries ? a.scale : 0;
  leave_tiles();
  store_results((T *)a.dquery + ((s.first_query + at.first + own) * a.heads + at.h) * a.head_dim,
                (int64_t)a.heads * a.head_dim, a.head_dim, w.aligned, min(at.written - at.first - own, (int)block::OWN),
                dquery, by, query, own);
#endif
}

/* Makes dkey and dvalue: BOTH, where there are registers for the two together, else dkey in the blocks whose y is 0 and
 * dvalue in those whose y is 1.
 *
 * Shared memory has the block's ROWS keys and their values; then STAGES pairs of tiles, STEPS queries and their
 * doutput; then the two numbers of each of these queries (attention_work.rows) and the warps' bits for dropout. All is
 * transposed here: the rows of p and ds are keys, i * OWN and on for warp i, and their columns are queries. So both go
 * from registers into the products that follow as left factors, dvalue += p doutput and dkey += ds query. */
template <typename T, int D, bool FULL, bool BOTH>
__device__ inline void by_key(const attention_work &w) {
#if __CUDA_ARCH__ >= 800
  typedef attention_block<TFU_BY_KEY, sizeof(T), D> block;
  enum { M = block::M, N = block::N, STEPS = block::STEPS, ROWS = block::ROWS, THREADS = block::THREADS };
  extern __shared__ __align__(1024) char memory[];
  const attention_args &a = w.a;
  const attention_place at = place_of<true>(w, ROWS);
  const tfu_sequence &s = at.s;
  if (at.first >= at.written) return;
  const int group = a.heads / a.key_heads;

  /* The queries that attend to any of these keys. */
  const int own = threadIdx.x / 32 * block::OWN, last = min(at.first + ROWS, s.keys) - 1;
  const int begin = a.right < 0 ? 0 : max(at.first - s.shift - a.right, 0) / STEPS * STEPS;
  const int end = at.first > last ? 0 : a.left < 0 ? s.queries : min(last - s.shift + a.left + 1, s.queries);
  const tile<T, D> key = {shared_address(memory)}, value = {key.at + ROWS * key.ROW};
  const auto query = [&](int stage) { return tile<T, D>{value.at + (ROWS + 2 * stage * STEPS) * key.ROW}; };
  const auto doutput = [&](int stage) { return tile<T, D>{query(stage).at + STEPS * key.ROW}; };
  typedef attention_drops<STEPS, block::OWN> drops_of;
  float2 *const numbers = (float2 *)(memory + (2 * ROWS + 2 * block::STAGES * STEPS) * key.ROW);
  const auto load = [&](int stage, int h, int i0) {
    load_rows<STEPS, THREADS>(query(stage),
                              attention_rows<T>(a.query, s.first_query, a.heads, h, a.head_dim, s.queries), w.aligned,
                              i0, threadIdx.x);
    load_rows<STEPS, THREADS>(doutput(stage),
                              attention_rows<T>(a.doutput, s.first_query, a.heads, h, a.value_dim, s.queries),
                              w.aligned, i0, threadIdx.x);
    if (threadIdx.x < STEPS) {
      const int i = i0 + (int)threadIdx.x;
      float2 *const to = numbers + stage * STEPS + threadIdx.x;
      if (i < s.queries) copy_8_bytes(shared_address(to), (const float2 *)w.rows + tfu_stats_at(&a, &s, at.b, h, i));
      else *to = make_float2(INFINITE, 0); /* no query: its weights are 0, whatever a bias adds */
    }
    close_copies();
  };
  load_rows<ROWS, THREADS, FEW>(key, attention_rows<T>(a.key, s.first_key, a.key_heads, at.h, a.head_dim, s.keys),
                                w.aligned, at.first, threadIdx.x);
  load_rows<ROWS, THREADS, FEW>(value, attention_rows<T>(a.value, s.first_key, a.key_heads, at.h, a.value_dim, s.keys),
                                w.aligned, at.first, threadIdx.x);

  const bool makes_key = BOTH || blockIdx.y == 0;
  float dkey[M][D / 8][4] = {}, dvalue[M][D / 8][4] = {}; /* where not BOTH, dkey is either */
  /* Tiles of queries, head by head. With two stages, the loop begins a tile before the first, so that it alone has code
   * that loads. */
  enum { AHEAD = block::STAGES == 2 };
  const int first_head = at.h * group, end_head = begin < end ? first_head + group : first_head;
  int stage = AHEAD, h = first_head - AHEAD, i0 = AHEAD ? end - STEPS : begin;
  ONCE
  while (h < end_head) {
    const int next_i = i0 + STEPS < end ? i0 + STEPS : begin, next_h = i0 + STEPS < end ? h : h + 1;
    if (AHEAD && h >= first_head) {
      wait_for_copies<0>();
      __syncthreads();
    }
    if (!AHEAD) load(0, h, i0);
    else if (next_h < end_head) load(stage ^ 1, next_h, next_i);
    if (!AHEAD) {
      wait_for_copies<0>();
      __syncthreads();
    }
    if (h >= first_head) {
      float p[M][N][4], ds[M][N][4];
      const attention_head<T, FULL> head(a, s, at.b, h);
      const int j0 = at.first + own, t = lane_id() % 4;
      const bool edge = (a.right >= 0 && i0 + s.shift + a.right < at.first + ROWS - 1) ||
                        (a.left >= 0 && i0 + STEPS - 1 + s.shift - a.left > at.first);
      multiply_rows(p, key, own, query(stage), a.tf32);
      head.template score<true>(p, j0, i0, edge);
      if (makes_key) multiply_rows(ds, value, own, doutput(stage), a.tf32);
      UNROLLED(n, N) {
        const float4 of = *(const float4 *)(numbers + stage * STEPS + 8 * n + 2 * t);
        UNROLLED(i, 4 * M) {
          float &v = p[i / 4][n][i % 4];
          v = exp2_of(fmaf(v, head.factor, i % 2 ? -of.z : -of.x));
        }
      }
      if (FULL && a.seed) {
        /* A weight that is dropped counts in dkey all the same: its sign says that it is. */
        const auto start = [&](int col) { return head.pairs.element(i0 + col, j0); };
        const drops_of drops((char *)(numbers + block::STAGES * STEPS) + threadIdx.x / 32 * drops_of::BYTES, a, start);
        for_results(p, [&](float &v, int row, int col) { v = drops.stays(col, start(col), row) ? v : -v; });
      }
      if (makes_key) {
        UNROLLED(n, N) {
          const float4 of = *(const float4 *)(numbers + stage * STEPS + 8 * n + 2 * t);
          UNROLLED(i, 4 * M) {
            const int m = i / 4, k = i % 4;
            const float weight = p[m][n][k], delta = k % 2 ? of.w : of.y;
            if (FULL && a.seed) {
              const float dp = signbit(weight) ? 0 : ds[m][n][k] * head.pairs.kept;
              ds[m][n][k] = fabsf(weight) * (dp - delta);
            } else {
              ds[m][n][k] = weight * (ds[m][n][k] - delta);
            }
          }
        }
      }
      if (FULL && a.seed) for_results(p, [&](float &v, int, int) { v = signbit(v) ? 0 : v * head.pairs.kept; });
      if (BOTH) {
        multiply_results(dvalue, left_factors<T, M, N>(p), doutput(stage), a.tf32);
      } else if (!makes_key) {
        UNROLLED(i, M * N * 4) ds[i / 4 / N][i / 4 % N][i % 4] = p[i / 4 / N][i / 4 % N][i % 4];
      }
      if (FULL && a.soft_cap > 0 && makes_key) multiply_slopes(ds, a, key, own, query(stage));
      multiply_results(dkey, left_factors<T, M, N>(ds), makes_key ? query(stage) : doutput(stage), a.tf32);
    }
    if (AHEAD) stage ^= 1;
    else __syncthreads();
    i0 = next_i, h = next_h;
  }

  float by[M][2], real[M][2];
  UNROLLED(r, 2 * M) {
    real[r / 2][r % 2] = at.first + own + 8 * r + (int)(lane_id() / 4) < s.keys ? 1 : 0;
    by[r / 2][r % 2] = makes_key ? a.scale * real[r / 2][r % 2] : real[r / 2][r % 2];
  }
  const int64_t row = (s.first_key + at.first + own) * a.key_heads + at.h;
  const int rows = min(at.written - at.first - own, (int)block::OWN);
  const auto store = [&](void *to, int dim, const float(&v)[M][D / 8][4], const float(&times)[M][2]) {
    store_results((T *)to + row * dim, (int64_t)a.key_heads * dim, dim, w.aligned, rows, v, times, key, own);
  };
  leave_tiles();
  if (BOTH) store(a.dvalue, a.value_dim, dvalue, real);
  store(makes_key ? a.dkey : a.dvalue, makes_key ? a.head_dim : a.value_dim, dkey, by);
#endif
}

#define STAMP(label, kind, d, tag, T, ...) \
  TFU_TILE_KERNEL(label##_##tag, (attention_block<kind, sizeof(T), d>::THREADS), 2, __VA_ARGS__)
#define STAMP_PLAIN(d, tag, T)                                        \
  STAMP(by_query_##d, TFU_BY_QUERY, d, tag, T, by_query<T, d, false>) \
  STAMP(by_key_##d, TFU_BY_KEY, d, tag, T, by_key<T, d, false, true>)
#define STAMP_FULL(d, tag, T)                                               \
  STAMP(by_query_##d##_full, TFU_BY_QUERY, d, tag, T, by_query<T, d, true>) \
  STAMP(by_key_##d##_full, TFU_BY_KEY, d, tag, T, by_key<T, d, true, d <= TFU_MOST_BOTH>)
TFU_HALVES(STAMP_PLAIN, 64)
TFU_HALVES(STAMP_PLAIN, 128)
TFU_EVERY_TILE(STAMP_FULL)
