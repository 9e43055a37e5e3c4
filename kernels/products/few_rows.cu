/* Products of few rows (few_rows.h): a stream of the kernel through tensor cores, as fast as memory gives it.
 *
 * A block has a tile of N columns of the kernel, and of its rows a slice. A warp takes stages of 32 rows in turn, with
 * the columns of x that go with them, through a ring of its own in shared memory, filled by asynchronous copies
 * (prefetch): no warp waits for another before all are done. Sums are joined over warps, then over the blocks of a
 * cluster (split-K), in fixed order.
 *
 * The norm costs no reading of its own: gamma is multiplied with x on its way to the tensor cores, the squares of x are
 * summed beside the products, and what they give multiplies the sums at the end. (x * gamma has the range of bfloat16,
 * not that of float16.)
 *
 * Stages are asked for before the kernels that run before this one have ended (programmatic dependent launch): they
 * are weights, which those do not write. So memory is busy while the rows of x, which those do write, are waited
 * for. The kernel after this one is let in when the last stage has been asked for: its blocks would take places on some
 * multiprocessors before this one's are dealt out evenly. */
#include "kernels/products/few_rows.cuh"

#if __CUDA_ARCH__ >= 900
enum { STEP = FEW_ROWS_STEP };

/* The columns of x of a stage: rows of 64 bytes, 16 * M of them. Chunk c of row r lies at c ^ (r / 2 % 4), so that
 * eight rows of one chunk come from different banks. */
template <typename T>
struct few_rows_left {
  unsigned at;

  __device__ unsigned chunk(int row, int c) const { return at + row * STEP * 2 + ((c ^ (row >> 1 & 3)) << 4); }
  /* Rows row .. row + 15 by columns k .. k + 15. */
  __device__ factor<T> left(int row, int k) const {
    factor<T> f;
    load_matrices(chunk(row + (lane_id() & 15), k / 8 + (lane_id() >> 4)), f.v);
    return f;
  }
};

/* A warp's stages, from memory to its ring. Rows of x beyond the last are whatever lies there: they make results of
 * their own, which nobody reads. */
template <typename T, int M, int N>
struct few_rows_stages {
  enum { KERNEL = STEP * N * 2, X = 16 * M * STEP * 2, STAGE = FEW_ROWS_STAGE(M, N) };
  enum { CHUNKS = N / 8, AT_ONCE = 32 / CHUNKS }; /* of a row; rows that a warp copies at once */
  const T *kernel, *x;                            /* this lane's chunk of the first row that it copies */
  const float *gamma;
  int64_t kernel_row, x_row;
  unsigned ring;
  int rows, bytes; /* bytes: 16, or 0 beyond the last column */

  __device__ few_rows_stages(const few_rows_args &a, int64_t k, const few_rows_tile &tile, unsigned ring)
      : x_row(a.inputs), ring(ring), rows(a.rows) {
    const int c = lane_id() % CHUNKS, second = a.gated && c >= CHUNKS / 2;
    const few_rows_product &p = a.of[tile.product + second];
    const int64_t mine = tile.first + (second ? c - CHUNKS / 2 : c) * 8;
    kernel_row = p.outputs;
    bytes = mine < p.outputs ? 16 : 0;
    kernel = (const T *)p.kernel + (k + lane_id() / CHUNKS) * kernel_row + (bytes ? mine : 0);
    x = (const T *)a.x + lane_id() / 4 * x_row + k + lane_id() % 4 * 8;
    gamma = a.gamma ? a.gamma + k + lane_id() % 8 * 4 : nullptr;
  }

  __device__ tile<T, N> right(int slot) const { return {ring + slot * STAGE}; }
  __device__ few_rows_left<T> left(int slot) const { return {ring + slot * STAGE + KERNEL}; }
  __device__ unsigned gamma_at(int slot) const { return ring + slot * STAGE + KERNEL + X; }

  __device__ void load_kernel(int slot, int stage) const {
    const T *from = kernel + (int64_t)stage * STEP * kernel_row;
    UNROLLED(i, STEP / AT_ONCE)
      copy_pack(right(slot).chunk(AT_ONCE * i + lane_id() / CHUNKS, lane_id() % CHUNKS),
                from + AT_ONCE * i * kernel_row, bytes);
    if (gamma && lane_id() < 8) copy_pack(gamma_at(slot) + lane_id() * 16, gamma + stage * STEP);
  }
  __device__ void load_x(int slot, int stage) const {
    const T *from = x + stage * STEP;
    UNROLLED(i, 2 * M) {
      const int row = 8 * i + lane_id() / 4;
      if (row < rows) copy_pack(left(slot).chunk(row, lane_id() % 4), from + 8 * i * x_row);
    }
  }

  /* f, columns k .. k + 15 of x, times gamma; adds the squares of f to those of rows g and g + 8. */
  __device__ void norm(factor<T> &f, int slot, int k, float (&squares)[2]) const {
    UNROLLED(i, 4) { /* f.v[i] has columns 2 t, 2 t + 1 of row g or, where i is odd, g + 8; beyond i = 1 8 columns on */
      float by[2];
      asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                   : "=f"(by[0]), "=f"(by[1])
                   : "r"(gamma_at(slot) + (k + i / 2 * 8 + lane_id() % 4 * 2) * 4)
                   : "memory");
      const float2 v = pair_of<T>::widen(f.v[i]);
      squares[i % 2] = fmaf(v.x, v.x, fmaf(v.y, v.y, squares[i % 2]));
      f.v[i] = pair_of<T>::narrow(v.x * by[0], v.y * by[1]);
    }
  }
};

/* Sixteen rows of a warp's sums, to shared memory that no copy is on its way to. */
template <int N>
__device__ inline void store_sums(few_rows_parts<N, FEW_ROWS_WARPS, 16> &parts, const float (&sum)[N / 8][4],
                                  const float (&squares)[2], int rows) {
  const int g = lane_id() / 4, t = lane_id() % 4;
  float(&part)[16][N + 4] = parts.of[threadIdx.x / 32];
  UNROLLED(n, N / 8)
    UNROLLED(r, 2)
      if (g + 8 * r < rows) *(float2 *)&part[g + 8 * r][8 * n + 2 * t] = make_float2(sum[n][2 * r], sum[n][2 * r + 1]);
  UNROLLED(r, 2) {
    float all = squares[r] + __shfl_xor_sync(0xffffffffu, squares[r], 1);
    all += __shfl_xor_sync(0xffffffffu, all, 2);
    if (t == 0) part[g + 8 * r][N] = all;
  }
}

/* The groups of copies: of the first stages the kernel's, one each; then x's of the same; then both of each later one.
 * So where all but the last DEPTH - 1 groups are there, the oldest stage is. */
template <typename T, int M, int N>
__device__ inline void few_rows(const few_rows_args &a) {
  extern __shared__ __align__(1024) char memory[];
  const int warp = threadIdx.x / 32, split = (int)(blockIdx.x % (unsigned)a.splits);
  const few_rows_tile tile(a, blockIdx.x / (unsigned)a.splits, a.gated ? N / 2 : N);
  const int64_t steps = a.inputs / STEP, begin = steps * split / a.splits;
  const int stages = (int)(steps * (split + 1) / a.splits - begin);
  const few_rows_stages<T, M, N> ring(a, begin * STEP, tile,
                                      shared_address(memory) + warp * FEW_ROWS_DEPTH * FEW_ROWS_STAGE(M, N));
  const int first = split * THREADS + threadIdx.x, columns = a.gated ? N / 2 : N;
  UNROLLED(i, FEW_ROWS_DEPTH) {
    if (warp + i * FEW_ROWS_WARPS < stages) ring.load_kernel(i, warp + i * FEW_ROWS_WARPS);
    close_copies();
  }
  wait_for_those_before();
  UNROLLED(i, FEW_ROWS_DEPTH) {
    if (warp + i * FEW_ROWS_WARPS < stages) ring.load_x(i, warp + i * FEW_ROWS_WARPS);
    close_copies();
  }
  const float early = few_rows_result<T>(a, tile, first / columns, first % columns).residual(a);
  float sum[M][N / 8][4] = {}, squares[M][2] = {};
  int slot = 0;
  ONCE
  for (int s = warp; s < stages; s += FEW_ROWS_WARPS) {
    wait_for_copies<FEW_ROWS_DEPTH - 1>();
    __syncwarp();
    UNROLLED(h, STEP / 16) {
      factor<T> l[M];
      UNROLLED(m, M) {
        l[m] = ring.left(slot).left(16 * m, 16 * h);
        if (a.gamma) ring.norm(l[m], slot, 16 * h, squares[m]);
      }
      UNROLLED(n, N / 16) {
        const factor<T> r = ring.right(slot).right(16 * h, 16 * n);
        UNROLLED(m, M) multiply_add<T>(sum[m][2 * n], sum[m][2 * n + 1], l[m], r, false);
      }
    }
    __syncwarp();
    const int next = s + FEW_ROWS_WARPS * FEW_ROWS_DEPTH;
    if (next < stages) ring.load_kernel(slot, next), ring.load_x(slot, next);
    else start_those_after();
    close_copies();
    slot = slot + 1 < FEW_ROWS_DEPTH ? slot + 1 : 0;
  }
  auto &parts = *(few_rows_parts<N, FEW_ROWS_WARPS, 16> *)memory;
  UNROLLED(m, M) {
    if (16 * m < a.rows) {
      __syncthreads();
      store_sums<N>(parts, sum[m], squares[m], a.rows - 16 * m);
      join<T>(a, tile, parts, 16 * m, m == 0 ? &early : nullptr, nullptr);
    }
  }
}
#define FEW_ROWS_OF_(tiles, columns, tag, T) \
  TFU_STAMP((THREADS), few_rows_##tiles##_##columns##_##tag, few_rows_args, few_rows<T, tiles, columns>)
#else /* there are no clusters: it is not served */
__device__ inline void not_here(const few_rows_args &) {}
#define FEW_ROWS_OF_(tiles, columns, tag, T) \
  TFU_STAMP((32), few_rows_##tiles##_##columns##_##tag, few_rows_args, not_here)
#endif
TFU_HALVES(FEW_ROWS_OF_, 1, 64)
TFU_HALVES(FEW_ROWS_OF_, 1, 128)
TFU_HALVES(FEW_ROWS_OF_, 2, 64)
TFU_HALVES(FEW_ROWS_OF_, 2, 128)
TFU_HALVES(FEW_ROWS_OF_, 4, 64)
