/* Products of few rows (few_rows.h) by the warpgroups of compute capability 9.0: any number of rows, R at a time.
 *
 * The product is computed transposed: 128 columns of the kernel are the rows of two products of 64, and R rows of x
 * their columns. So both factors are read from shared memory as they lie in memory, tiles of 64 terms each, and the
 * fewer rows there are, the fewer columns are multiplied. A block has 128 columns, of a gated unit 64 of each kernel, R
 * rows of x, and of the terms a slice, whose sums are joined over the blocks of a cluster in fixed order (split-K).
 *
 * Whatever R is, a result is the sum of the same terms in the same order: its bits do not depend on other rows.
 *
 * One thread brings the tiles, STAGES of them on their way; the first warpgroup multiplies. Kernels are asked for
 * before those that run before this one have ended (few_rows.cu says why that may be), x when they have. */
#include "kernels/core/device/wgmma.cuh"
#include "kernels/products/few_rows.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
enum {
  TERMS = FEW_ROWS_WGMMA_TERMS,
  HALF = FEW_ROWS_WGMMA_COLUMNS / 2,
  HALF_BYTES = TERMS * HALF * 2,
  PITCH = 2 * HALF + 4
};

/* The stages of a block in shared memory: of each the kernel's two tiles, and that of x. */
template <int R>
struct wgmma_ring {
  enum { STAGE = FEW_ROWS_WGMMA_STAGE(R) };
  unsigned memory, barriers;
  int stages;

  __device__ unsigned kernel(int slot) const { return memory + slot * STAGE; }
  __device__ unsigned x(int slot) const { return kernel(slot) + 2 * HALF_BYTES; }
  __device__ unsigned full(int slot) const { return barriers + slot * 8; }
  __device__ unsigned empty(int slot) const { return barriers + (FEW_ROWS_WGMMA_STAGES + slot) * 8; }
};

template <int R>
__device__ inline void bring(const few_rows_wgmma_args &w, const few_rows_tile &tile, const wgmma_ring<R> &ring,
                             int group, int begin, int count) {
  const few_rows_args &a = w.a;
  const tfu_tensor_map &first = w.kernel[tile.product], &second = a.gated ? w.kernel[1] : first;
  const int column = (int)tile.first, other = a.gated ? column : column + HALF, ahead = min(count, ring.stages);
  const auto load_kernel = [&](int slot, int step) {
    const int row = (begin + step) * TERMS;
    expect_bytes(ring.full(slot), ring.STAGE);
    copy_box(ring.kernel(slot), first, column, row, ring.full(slot));
    copy_box(ring.kernel(slot) + HALF_BYTES, second, other, row, ring.full(slot));
  };
  const auto load_x = [&](int slot, int step) {
    copy_box(ring.x(slot), w.x, (begin + step) * TERMS, group * R, ring.full(slot));
  };
  for (int s = 0; s < ahead; s++) load_kernel(s, s);
  wait_for_those_before();
  for (int s = 0; s < ahead; s++) load_x(s, s);
  int slot = 0, phase = 0;
  for (int s = ring.stages; s < count; s++) {
    wait_for_barrier(ring.empty(slot), phase);
    load_kernel(slot, s), load_x(slot, s);
    if (++slot == ring.stages) slot = 0, phase ^= 1;
  }
  start_those_after();
}

/* Eight sums side by side, from their place in shared memory: those of all blocks of the cluster, in their order. All
 * are asked for before the first is waited for. */
__device__ inline void sum_over_cluster(const float *mine, int blocks, float (&sum)[8]) {
  float v[FEW_ROWS_WGMMA_SPLITS][8];
  UNROLLED(rank, FEW_ROWS_WGMMA_SPLITS)
    UNROLLED(i, 8) v[rank][i] = 0;
  UNROLLED(rank, FEW_ROWS_WGMMA_SPLITS) {
    if (rank >= blocks) break;
    unsigned at = shared_address(mine);
    if (blocks > 1) asm("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(at) : "r"(rank));
    UNROLLED(h, 2)
      asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(v[rank][4 * h]), "=f"(v[rank][4 * h + 1]), "=f"(v[rank][4 * h + 2]), "=f"(v[rank][4 * h + 3])
                   : "r"(at + 16 * h)
                   : "memory");
  }
  UNROLLED(i, 8) {
    sum[i] = v[0][i];
    UNROLLED(rank, FEW_ROWS_WGMMA_SPLITS - 1) sum[i] += v[rank + 1][i];
  }
}

/* Makes results of sums, [R][PITCH] in the shared memory of each block of the cluster, eight of a row at a time. */
template <typename T, int R>
__device__ inline void finish(const few_rows_args &a, const few_rows_tile &tile, const float *sums, int first_row) {
  const few_rows_product &p = a.of[tile.product];
  const int split = (int)(blockIdx.x % (unsigned)a.splits), packs = (a.gated ? HALF : 2 * HALF) / 8,
            count = min(R, a.rows - first_row) * packs;
  const bool added = a.residual && tile.product == 0;
  ONCE
  for (int i = split * THREADS + threadIdx.x; i < count; i += a.splits * THREADS) {
    const int row = i / packs, c = i % packs * 8;
    const int64_t column = tile.first + c, at = (first_row + row) * p.outputs + column;
    if (column >= p.outputs) continue;
    const int4 none = make_int4(0, 0, 0, 0), residual = added ? *(const int4 *)((const T *)a.residual + at) : none,
               bias = p.bias ? *(const int4 *)((const T *)p.bias + column) : none;
    float v[8], other[8];
    sum_over_cluster(sums + row * PITCH + c, a.splits, v);
    widen_pack<T>(bias, other);
    UNROLLED(k, 8) v[k] += other[k];
    if (a.activation != TFU_ACT_linear)
      UNROLLED(k, 8) v[k] = activate<T>(a.activation, v[k]);
    if (a.gated) {
      float by[8];
      sum_over_cluster(sums + row * PITCH + HALF + c, a.splits, by);
      widen_pack<T>(a.of[1].bias ? *(const int4 *)((const T *)a.of[1].bias + column) : none, other);
      UNROLLED(k, 8) v[k] *= by[k] + other[k];
    }
    widen_pack<T>(residual, other);
    UNROLLED(k, 8) v[k] += other[k];
    store_bits((T *)p.y + at, narrow_pack<T>(v));
  }
}

template <typename T, int R>
__device__ inline void few_rows_wgmma(const few_rows_wgmma_args &w) {
  const few_rows_args &a = w.a;
  extern __shared__ __align__(1024) char memory[];
  __shared__ uint64_t barriers[2 * FEW_ROWS_WGMMA_STAGES];
  const int split = (int)(blockIdx.x % (unsigned)a.splits);
  const unsigned unit = blockIdx.x / (unsigned)a.splits;
  const int group = (int)(unit % (unsigned)w.groups);
  const few_rows_tile tile(a, unit / (unsigned)w.groups, a.gated ? HALF : 2 * HALF);
  const int64_t steps = (a.inputs + TERMS - 1) / TERMS;
  const int begin = (int)(steps * split / a.splits), count = (int)(steps * (split + 1) / a.splits) - begin;
  const wgmma_ring<R> ring = {shared_address(memory), shared_address(barriers), w.stages};
  float *const sums = (float *)memory;
  const int warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < ring.stages; s++) open_barrier(ring.full(s), 1), open_barrier(ring.empty(s), 4);
    publish_barriers();
  }
  __syncthreads();
  if (warp >= 4) {
    if (threadIdx.x == 4 * 32) bring(w, tile, ring, group, begin, count);
    __syncwarp();
  } else {
    float sum[2][R / 2];
    int slot = 0, phase = 0, last = 0;
    ONCE
    for (int s = 0; s < count; s++) {
      wait_for_barrier(ring.full(slot), phase);
      begin_products();
      UNROLLED(k, TERMS / 16)
        UNROLLED(h, 2)
          multiply_warpgroup(sum[h], tile_of_wgmma(ring.kernel(slot) + h * HALF_BYTES + k * 16 * HALF * 2),
                             tile_of_wgmma(ring.x(slot)) + 2 * k, s + k, T());
      close_products();
      wait_for_products<1>(); /* those of the step before */
      if (s > 0 && lane_id() == 0) arrive(ring.empty(last));
      last = slot;
      if (++slot == ring.stages) slot = 0, phase ^= 1;
    }
    wait_for_products<0>();
    sync_threads<128>(1); /* the parts lie where tiles were that others may still read */
    const int g = lane_id() / 4, t = lane_id() % 4;
    UNROLLED(h, 2)
      UNROLLED(i, R / 2) {
        const int row = i / 4 * 8 + 2 * t + i % 2, column = h * HALF + warp * 16 + g + i % 4 / 2 * 8;
        sums[row * PITCH + column] = sum[h][i];
      }
  }
  wait_for_those_before();
  if (a.splits > 1) cluster_barrier();
  else __syncthreads();
  finish<T, R>(a, tile, sums, group * R);
  if (a.splits > 1) leave_cluster();
}
#define FEW_ROWS_WGMMA_OF_(rows, tag, T) \
  TFU_STAMP((THREADS, 1), few_rows_wgmma_##rows##_##tag, __grid_constant__ few_rows_wgmma_args, few_rows_wgmma<T, rows>)
#else
__device__ inline void not_here(const few_rows_wgmma_args &) {}
#define FEW_ROWS_WGMMA_OF_(rows, tag, T) TFU_STAMP((32), few_rows_wgmma_##rows##_##tag, few_rows_wgmma_args, not_here)
#endif
TFU_HALVES(FEW_ROWS_WGMMA_OF_, 8)
TFU_HALVES(FEW_ROWS_WGMMA_OF_, 16)
TFU_HALVES(FEW_ROWS_WGMMA_OF_, 32)
TFU_HALVES(FEW_ROWS_WGMMA_OF_, 64)
TFU_HALVES(FEW_ROWS_WGMMA_OF_, 128)
