/* Products of few rows (few_rows.h): each warp reads rows of the kernel straight into the factors of tensor cores.
 *
 * A lane (g, t), g = lane / 4 and t = lane % 4, loads 8 rows of the kernel, 8 t and on, at 8 columns, 8 g and on: a
 * warp has 32 rows of 64 columns. mma's factor on the right has for column g the rows 2 t, 2 t + 1, 2 t + 8, 2 t + 9 of
 * 16: any four rows serve, if the factor on the left takes the same ones of x. So rows 8 t … 8 t + 3 are the first
 * product's and the next four the second's, and column c of the lane's eight is column g of the c-th product: of the
 * block's tile it is 8 g + c. All that is left to do is to put the halves of two rows side by side. Sums are joined
 * over warps, then over the blocks of a cluster, in the order of the kernel's rows. */
#include "kernels/products/few_rows.h"

#include "kernels/core/device/activations.cuh"
#include "kernels/core/device/mma.cuh"
#include "kernels/core/device/row_team.cuh"

enum { THREADS = 32 * FEW_ROWS_WARPS, PITCH = FEW_ROWS_TILE + 4 };

/* Read once, by one block. */
__device__ inline int4 load_weights(const void *at) {
  int4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.s32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at));
  return v;
}

template <typename T>
static __device__ __noinline__ float activated(int which, float v) {
  switch (which) {
#define X(name) \
  case TFU_ACT_##name: return math_of<T>::type::name(v);
    TFU_ACTIVATIONS(X)
#undef X
  }
  return v;
}

template <typename T, int TILES>
struct few_rows_step {
  int4 kernel[8], x[TILES][2];

  __device__ void load(const few_rows_args &a, int64_t k, int64_t column) {
    const int g = lane_id() / 4, t = lane_id() % 4;
    const int4 zero = {0, 0, 0, 0};
    const T *w = (const T *)a.kernel + (k + 8 * t) * a.outputs + column;
    UNROLLED(j, 8) kernel[j] = column < a.outputs ? load_weights(w + j * a.outputs) : zero;
    UNROLLED(m, TILES)
      UNROLLED(h, 2) {
        const int row = 16 * m + 8 * h + g;
        x[m][h] = row < a.rows ? *(const int4 *)((const T *)a.x + row * a.inputs + k + 8 * t) : zero;
      }
  }

  /* sum[m][c] += the tile m of rows times column c of each lane's eight. */
  __device__ void multiply_into(float (&sum)[TILES][8][4]) const {
    UNROLLED(half, 2) {
      const int4 *rows = kernel + 4 * half;
      UNROLLED(c, 8) {
        const int word = c / 2, which = c % 2 ? 0x7632 : 0x5410;
        const unsigned b0 = __byte_perm(((const int *)&rows[0])[word], ((const int *)&rows[1])[word], which);
        const unsigned b1 = __byte_perm(((const int *)&rows[2])[word], ((const int *)&rows[3])[word], which);
        UNROLLED(m, TILES) {
          const unsigned *first = (const unsigned *)&x[m][0] + 2 * half,
                         *second = (const unsigned *)&x[m][1] + 2 * half;
          const unsigned left[4] = {first[0], second[0], first[1], second[1]};
          multiply(sum[m][c], left, b0, b1, T());
        }
      }
    }
  }
};

/* A number in the shared memory of another block of the cluster. */
__device__ inline float there(const float *mine, int rank) {
  float v = *mine;
#if __CUDA_ARCH__ >= 900
  unsigned at;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(mine)), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
#endif
  return v;
}

template <typename T>
__device__ inline void finish(const few_rows_args &a, int row, int64_t column, float v) {
  if (row >= a.rows || column >= a.outputs) return;
  const int64_t at = row * a.outputs + column;
  if (a.bias) v += (float)((const T *)a.bias)[column];
  v = activated<T>(a.activation, v);
  if (a.residual) v += (float)((const T *)a.residual)[at];
  ((T *)a.y)[at] = (T)v;
}

template <typename T, int TILES>
__device__ inline void few_rows(const few_rows_args &a) {
  __shared__ float part[FEW_ROWS_WARPS][16][PITCH];
  const int g = lane_id() / 4, t = lane_id() % 4, warp = threadIdx.x / 32;
  const int split = (int)(blockIdx.x % (unsigned)a.splits), workers = a.splits * FEW_ROWS_WARPS;
  const int64_t first = (int64_t)(blockIdx.x / (unsigned)a.splits) * FEW_ROWS_TILE, column = first + 8 * g;
  const int64_t steps = a.inputs / FEW_ROWS_STEP, worker = split * FEW_ROWS_WARPS + warp;
  const int64_t begin = steps * worker / workers, end = steps * (worker + 1) / workers;
  float sum[TILES][8][4] = {};
  few_rows_step<T, TILES> now, next;
  if (begin < end) now.load(a, begin * FEW_ROWS_STEP, column);
  ONCE
  for (int64_t s = begin; s < end; s++) {
    if (s + 1 < end) next.load(a, (s + 1) * FEW_ROWS_STEP, column);
    now.multiply_into(sum);
    now = next;
  }
  UNROLLED(m, TILES) {
    if (16 * m >= a.rows) break;
    UNROLLED(r, 4)
      UNROLLED(c, 8) part[warp][g + r / 2 * 8][16 * t + r % 2 * 8 + c] = sum[m][c][r];
    __syncthreads();
    for (int i = threadIdx.x; i < 16 * FEW_ROWS_TILE; i += THREADS) {
      const int row = i / FEW_ROWS_TILE, c = i % FEW_ROWS_TILE;
      float v = 0;
      UNROLLED(w, FEW_ROWS_WARPS) v += part[w][row][c];
      if (a.splits == 1) finish<T>(a, 16 * m + row, first + c, v);
      else part[0][row][c] = v;
    }
    if (a.splits > 1) {
      cluster_barrier();
      const int share = 16 * FEW_ROWS_TILE / a.splits;
      for (int i = split * share + threadIdx.x; i < (split + 1) * share; i += THREADS) {
        const int row = i / FEW_ROWS_TILE, c = i % FEW_ROWS_TILE;
        float v = 0;
        for (int rank = 0; rank < a.splits; rank++) v += there(&part[0][row][c], rank);
        finish<T>(a, 16 * m + row, first + c, v);
      }
      cluster_barrier();
    }
    __syncthreads();
  }
}
#define FEW_ROWS_OF_(tiles, tag, T) TFU_STAMP((THREADS), few_rows_##tiles##_##tag, few_rows_args, few_rows<T, tiles>)
TFU_HALVES(FEW_ROWS_OF_, 1)
TFU_HALVES(FEW_ROWS_OF_, 2)
TFU_HALVES(FEW_ROWS_OF_, 4)
