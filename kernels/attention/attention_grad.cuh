/* attention_grad.cuh - what the kernels of attention's gradient share.
 *
 *   p_ij = exp(score_ij - stats_i),   dp_ij = doutput_i . value_j,   ds_ij = p_ij (dp_ij - delta_i),
 *   delta_i = sum(doutput_i * output_i) - dstats_i,
 *   dvalue_j = sum over i of p_ij doutput_i,   dquery_i = scale sum over j of ds_ij key_j,   dkey_j likewise,
 *
 * where dropout sets p_ij in dvalue, and dp_ij, to zero or divides them by 1 - rate, and a soft cap multiplies ds_ij in
 * dquery and dkey by its slope, 1 - tanh(scale query_i . key_j / soft_cap)^2. Scores are computed again. */
#pragma once

#include "kernels/attention/attention_tile.cuh"

#if __CUDA_ARCH__ >= 800
/* A head of a sequence. */
template <typename T, bool FULL>
struct attention_head {
  const attention_args &a;
  const tfu_sequence s;
  const attention_band band;
  const attention_pairs<T> pairs;
  const bool special; /* scores need more than their scale */
  const float by, factor;

  __device__ attention_head(const attention_args &a, const tfu_sequence &s, int b, int h)
      : a(a),
        s(s),
        band(a, s),
        pairs(a, FULL ? b : 0, FULL ? h : 0),
        special(FULL && (a.bias || a.mask || a.scale <= 0 || a.soft_cap > 0)),
        by(a.scale * LOG2_E),
        factor(special ? 1 : by) {}

  /* Products of query and key as scores in base 2, divided by the factor; at the edge, some are not in the band. Rows
   * are queries from row0 on; TRANSPOSED, keys. */
  template <bool TRANSPOSED, int M, int N>
  __device__ void score(float (&v)[M][N][4], int row0, int col0, bool edge) const {
    if (special) finish_scores<TRANSPOSED>(v, pairs, by, row0, col0);
    if (edge)
      for_results(v, [&](float &x, int row, int col) {
        if (!(TRANSPOSED ? band.has(col0 + col, row0 + row) : band.has(row0 + row, col0 + col))) x = -INFINITE;
      });
  }
};

/* ds, rows are queries i0 .. and columns keys j0 ..; numbers are the rows' stats in base 2 and deltas. SLOPES: times
 * the slope of the soft cap. `memory` is the warp's, for dropout. */
template <bool SLOPES, typename T, int D, bool FULL, int M, int N>
__device__ inline void score_gradients(float (&ds)[M][N][4], const attention_head<T, FULL> &head, bool edge, int i0,
                                       int j0, const float2 (&numbers)[M][2], int own, const tile<T, D> &query,
                                       const tile<T, D> &doutput, const tile<T, D> &key, const tile<T, D> &value,
                                       char *memory) {
  float dp[M][N][4];
  multiply_rows(ds, query, own, key, head.a.tf32);
  multiply_rows(dp, doutput, own, value, head.a.tf32);
  if (FULL && head.a.seed) {
    const auto start = [&](int row) { return head.pairs.element(i0 + row, j0); };
    const attention_drops<16 * M, 8 * N> drops(memory, head.a, start);
    for_results(dp,
                [&](float &v, int row, int col) { v = drops.stays(row, start(row), col) ? v * head.pairs.kept : 0; });
  }
  const bool capped = FULL && SLOPES && head.a.soft_cap > 0;
  if (capped) {
    const float inside = head.a.scale / head.a.soft_cap;
    UNROLLED(i, M * N * 4) {
      const int m = i / 4 / N, n = i / 4 % N, k = i % 4;
      dp[m][n][k] = (dp[m][n][k] - numbers[m][k / 2].y) * slope_at<T>(ds[m][n][k], inside);
    }
  }
  head.template score<false>(ds, i0, j0, edge);
  UNROLLED(i, M * N * 4) {
    const int m = i / 4 / N, n = i / 4 % N, k = i % 4;
    const float2 of = numbers[m][k / 2];
    ds[m][n][k] = exp2_of(fmaf(ds[m][n][k], head.factor, -of.x)) * (dp[m][n][k] - (capped ? 0 : of.y));
  }
}

/* ds times the slope of the soft cap. Its rows are those of `left`, from `row` on, and its columns those of `right`.
 * The products are computed again, two blocks of columns at a time: registers have no room to keep them. */
template <typename T, int D, int M, int N>
__device__ inline void multiply_slopes(float (&ds)[M][N][4], const attention_args &a, const tile<T, D> &left, int row,
                                       const tile<T, D> &right) {
  const float inside = a.scale / a.soft_cap;
  UNROLL
  for (int n = 0; n < N; n += 2) {
    float product[M][2][4];
    multiply_rows(product, left, row, tile<T, D>{right.at + 8 * n * right.ROW}, a.tf32);
    UNROLLED(i, M * 8) ds[i / 8][n + i / 4 % 2][i % 4] *= slope_at<T>(product[i / 8][i / 4 % 2][i % 4], inside);
  }
}

/* The numbers of this lane's rows i0 + 16 m + 8 k + g. */
template <int M>
__device__ inline void load_numbers(float2 (&numbers)[M][2], const attention_work &w, const tfu_sequence &s, int b,
                                    int h, int i0) {
  UNROLLED(r, 2 * M) {
    const int i = i0 + 8 * r + (int)(lane_id() / 4);
    numbers[r / 2][r % 2] =
        i < s.queries ? ((const float2 *)w.rows)[tfu_stats_at(&w.a, &s, b, h, i)] : make_float2(INFINITE, 0);
  }
}
#endif
