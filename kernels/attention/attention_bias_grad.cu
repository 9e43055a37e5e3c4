/* Gradient of attention's bias: the sum of ds (attention_grad.cuh) over all that bias was stretched over. A block has a
 * tile of bias's own queries and keys, adds up the tiles of scores that it serves, one after the other, and at the end
 * the tile's rows or columns where bias has only one. */
#include "kernels/attention/attention_grad.cuh"

/* Shared memory has the rows of one tile of scores: ROWS queries and their doutput, STEPS keys and values, D elements
 * each; after them the warps' bits for dropout. The sum of ds is in registers, in the accumulators' layout (mma.cuh),
 * and at the end takes the tiles' place, as [ROWS][STEPS] floats. */
template <typename T, int D>
__device__ inline void by_bias(const attention_work &w) {
#if __CUDA_ARCH__ >= 800
  typedef attention_block<TFU_BY_QUERY, sizeof(T), D> block;
  enum { M = block::M, N = block::N, STEPS = block::STEPS, ROWS = block::ROWS, THREADS = block::THREADS };
  extern __shared__ __align__(1024) char memory[];
  const attention_args &a = w.a;
  const int own = threadIdx.x / 32 * block::OWN;
  const int across = (a.keys + STEPS - 1) / STEPS, down = (a.queries + ROWS - 1) / ROWS;
  /* First and end of batches, heads, tiles of queries and of keys: all of them, or one. */
  int first[4], end[4] = {a.batch, a.heads, down, across};
  int rest = (int)blockIdx.x;
  UNROLL
  for (int d = 3; d >= 0; d--) {
    first[d] = a.bias_step[d] ? rest % end[d] : 0;
    if (!a.bias_step[d]) continue;
    rest /= end[d];
    end[d] = first[d] + 1;
  }
  const tile<T, D> query = {shared_address(memory)}, doutput = {query.at + ROWS * query.ROW},
                   key = {doutput.at + ROWS * query.ROW}, value = {key.at + STEPS * query.ROW};
  char *const drops = memory + 2 * (ROWS + block::STAGES * STEPS) * query.ROW +
                      threadIdx.x / 32 * attention_drops<block::OWN, STEPS>::BYTES;

  float sum[M][N][4] = {};
  for (int b = first[0]; b < end[0]; b++)
    for (int h = first[1]; h < end[1]; h++) {
      const tfu_sequence s = tfu_sequence_of(&a, b);
      const attention_head<T, true> head(a, s, b, h);
      const int key_head = h / (a.heads / a.key_heads);
      const attention_rows<T> queries(a.query, s.first_query, a.heads, h, a.head_dim, s.queries),
          doutputs(a.doutput, s.first_query, a.heads, h, a.value_dim, s.queries),
          keys(a.key, s.first_key, a.key_heads, key_head, a.head_dim, s.keys),
          values(a.value, s.first_key, a.key_heads, key_head, a.value_dim, s.keys);
      for (int y = first[2]; y < end[2]; y++)
        for (int x = first[3]; x < end[3]; x++) {
          const int i0 = y * ROWS, j0 = x * STEPS, last = min(i0 + ROWS, s.queries) - 1;
          if (i0 > last || j0 >= head.band.end(last) || j0 + STEPS <= head.band.first(i0)) continue;
          __syncthreads();
          load_rows<ROWS, THREADS, FEW>(query, queries, w.aligned, i0, threadIdx.x);
          load_rows<ROWS, THREADS, FEW>(doutput, doutputs, w.aligned, i0, threadIdx.x);
          load_rows<STEPS, THREADS>(key, keys, w.aligned, j0, threadIdx.x);
          load_rows<STEPS, THREADS>(value, values, w.aligned, j0, threadIdx.x);
          close_copies();
          float2 numbers[M][2];
          load_numbers(numbers, w, s, b, h, i0 + own);
          wait_for_copies<0>();
          __syncthreads();
          const bool edge = j0 < head.band.first(last) || j0 + STEPS > head.band.end(i0);
          float ds[M][N][4];
          score_gradients<false>(ds, head, edge, i0 + own, j0, numbers, own, query, doutput, key, value, drops);
          for_results(ds, [&](float &v, int row, int) { v = i0 + own + row > last ? 0 : v; });
          UNROLLED(k, M * N * 4) sum[k / 4 / N][k / 4 % N][k % 4] += ds[k / 4 / N][k / 4 % N][k % 4];
        }
    }

  /* Through memory, where rows and columns that bias has once come together. */
  float *const total = (float *)memory;
  const bool one_row = a.bias_step[2] == 0, one_col = a.bias_step[3] == 0;
  __syncthreads();
  for_results(sum, [&](float &v, int row, int col) { total[(own + row) * STEPS + col] = v; });
  __syncthreads();
  const int i0 = first[2] * ROWS, j0 = first[3] * STEPS;
  const int rows = one_row ? 1 : min((int)ROWS, a.queries - i0), cols = one_col ? 1 : min((int)STEPS, a.keys - j0);
  T *const to =
      (T *)a.dbias + first[0] * a.bias_step[0] + first[1] * a.bias_step[1] + i0 * a.bias_step[2] + j0 * a.bias_step[3];
  for (int e = threadIdx.x; e < rows * cols; e += THREADS) {
    const int row = e / cols, col = e - row * cols;
    float v = 0;
    for (int r = row; r < (one_row ? (int)ROWS : row + 1); r++)
      for (int c = col; c < (one_col ? (int)STEPS : col + 1); c++) v += total[r * STEPS + c];
    to[row * a.bias_step[2] + col * a.bias_step[3]] = (T)v;
  }
#endif
}

#define STAMP(d, tag, T) \
  TFU_TILE_KERNEL(by_bias_##d##_##tag, (attention_block<TFU_BY_QUERY, sizeof(T), d>::THREADS), 2, by_bias<T, d>)
TFU_EVERY_TILE(STAMP)
