/* Attention (ops/attention/attention.c), forward, on tensor cores: a block has some queries of a head and lets the
 * head's keys and values pass by in tiles. Scores exist for one tile only, by online softmax: the running maximum m and
 * sum of exp(score - m) of each query are carried along, and the output so far is scaled down where m rises (Dao,
 * FlashAttention-2, 2023).
 *
 * Scores are taken to base 2. Plain kernels know bands (causal, window), lengths and ragged sequences; full ones also
 * soft cap, bias, mask, dropout, pages and a scale that is not positive. */
#include "kernels/attention/attention_softmax.cuh"
#include "kernels/attention/attention_tile.cuh"

/* Shared memory has three tiles of rows of D elements: the block's ROWS queries, STEPS keys and STEPS values; after
 * them the warps' bits for dropout. Warp i has queries i * OWN and on: their scores of one tile, p, and their output so
 * far are in its registers, in the accumulators' layout (mma.cuh). In an iteration of the loop the values are on their
 * way while scores are made of the keys, and the next keys while the values are multiplied: one tile of each is enough.
 * The band is looked at only in tiles that have keys which not all of the block's queries attend to. */
template <typename T, int D, bool FULL>
__device__ inline void forward(const attention_work &w) {
#if __CUDA_ARCH__ >= 800
  typedef attention_block<FULL ? TFU_FORWARD_FULL : TFU_FORWARD, sizeof(T), D> block;
  enum { M = block::M, N = block::N, STEPS = block::STEPS, ROWS = block::ROWS };
  extern __shared__ __align__(1024) char memory[];
  const attention_args &a = w.a;
  const attention_place at = place_of<false>(w, ROWS);
  const tfu_sequence &s = at.s;
  if (at.first >= at.written) return;

  const tile<T, D> query = {shared_address(memory)}, key = {query.at + ROWS * query.ROW},
                   value = {key.at + STEPS * key.ROW};
  const attention_band band(a, s);
  const attention_pairs<T> pairs(a, FULL ? at.b : 0, FULL ? at.h : 0);
  const int last = min(at.first + ROWS, s.queries) - 1, own = threadIdx.x / 32 * block::OWN, g = lane_id() / 4;
  const int begin = at.first > last ? 0 : band.first(at.first) / STEPS * STEPS;
  const int end = at.first > last ? 0 : band.end(last);
  const int whole_first = band.first(last), whole_end = band.end(at.first); /* keys that all queries attend to */
  const int key_head = at.h / (a.heads / a.key_heads);
  const int64_t first_key = FULL && a.table ? 0 : s.first_key;
  const attention_rows<T> keys(a.key, first_key, a.key_heads, key_head, a.head_dim, s.keys),
      values(a.value, first_key, a.key_heads, key_head, a.value_dim, s.keys);

  const auto load_steps = [&](const tile<T, D> &to, const attention_rows<T> &from, int j0) {
    if (FULL && a.table) load_paged<STEPS, block::THREADS>(to, from, w.aligned, a, at.b, j0, threadIdx.x);
    else load_rows<STEPS, block::THREADS>(to, from, w.aligned, j0, threadIdx.x);
    close_copies();
  };
  load_rows<ROWS, block::THREADS, FEW>(query,
                                       attention_rows<T>(a.query, s.first_query, a.heads, at.h, a.head_dim, s.queries),
                                       w.aligned, at.first, threadIdx.x);
  if (begin < end) load_steps(key, keys, begin);

  /* Without soft cap, bias and mask, scores stay as they are and are scaled on their way into exp2. */
  const bool special = FULL && (a.bias || a.mask || a.scale <= 0 || a.soft_cap > 0);
  const float by = a.scale * LOG2_E, factor = special ? 1 : by;
  float out[M][D / 8][4] = {};
  online_softmax_rows<M> so_far;
  for (int j0 = begin; j0 < end; j0 += STEPS) {
    float p[M][N][4];
    wait_for_copies<0>();
    __syncthreads();
    load_steps(value, values, j0);
    multiply_rows(p, query, own, key, a.tf32);

    if (special) finish_scores<false>(p, pairs, by, at.first + own, j0);
    if (j0 < whole_first || j0 + STEPS > whole_end)
      for_results(p, [&](float &v, int row, int col) {
        if (!band.has(at.first + own + row, j0 + col)) v = -INFINITE;
      });

    so_far.add(p, out, factor);
    if (FULL && a.seed) {
      typedef attention_drops<block::OWN, STEPS> drops_of;
      const auto start = [&](int row) { return pairs.element(at.first + own + row, j0); };
      const drops_of drops(memory + (ROWS + 2 * STEPS) * key.ROW + threadIdx.x / 32 * drops_of::BYTES, a, start);
      for_results(p, [&](float &v, int row, int col) { v = drops.stays(row, start(row), col) ? v : 0; });
    }
    const left_factors<T, M, N> weights(p);
    wait_for_copies<0>();
    __syncthreads();
    if (j0 + STEPS < end) load_steps(key, keys, j0 + STEPS);
    multiply_results(out, weights, value, a.tf32);
  }

  float down[M][2];
  UNROLLED(r, 2 * M) {
    const int m = r / 2, k = r % 2, i = at.first + own + 8 * r + g;
    const float total = so_far.total(m, k);
    const bool none = total == 0 || i >= s.queries;
    down[m][k] = none ? 0 : pairs.kept / total;
    if (a.stats && lane_id() % 4 == 0 && i < at.written)
      ((float *)a.stats)[tfu_stats_at(&a, &s, at.b, at.h, i)] =
          none ? -INFINITE : fmaf(so_far.high[m][k] * factor, LN_2, logf(total));
  }
  leave_tiles();
  store_results((T *)a.output + ((s.first_query + at.first + own) * a.heads + at.h) * a.value_dim,
                (int64_t)a.heads * a.value_dim, a.value_dim, w.aligned,
                min(at.written - at.first - own, (int)block::OWN), out, down, query, own);
#endif
}

#define STAMP_PLAIN(d, tag, T) \
  TFU_TILE_KERNEL(forward_##d##_##tag, (attention_block<TFU_FORWARD, sizeof(T), d>::THREADS), 2, forward<T, d, false>)
#define STAMP_FULL(d, tag, T)                                                                              \
  TFU_TILE_KERNEL(forward_##d##_full_##tag, (attention_block<TFU_FORWARD_FULL, sizeof(T), d>::THREADS), 2, \
                  forward<T, d, true>)
TFU_HALVES(STAMP_PLAIN, 64)
TFU_HALVES(STAMP_PLAIN, 128)
TFU_EVERY_TILE(STAMP_FULL)
