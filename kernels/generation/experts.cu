/* experts on the GPU: products of routed rows, and sums of what experts give.
 *
 * A block of a product has some columns of one expert's kernel, and returns at once where no pair names that expert. A
 * row of these columns is one pack for each of EXPERTS_LANES threads; the other threads have other rows, every
 * GROUPS-th one. So a pair's sum is made in an order that depends on the sizes of the kernel alone: by each thread,
 * then over the threads of a warp, then over the warps. */
#include "kernels/generation/experts.h"

#include "kernels/core/device/any_activation.cuh"

enum { GROUPS = EXPERTS_THREADS / EXPERTS_LANES, WARPS = EXPERTS_THREADS / 32 };

template <typename T, int KERNELS>
struct expert_tile {
  enum { N = packed<T>::N, COLUMNS = EXPERTS_LANES * N, AT_ONCE = 8 / KERNELS };
  acc<T> part[WARPS][EXPERTS_ROWS][KERNELS][COLUMNS];
  int mine[EXPERTS_MOST]; /* the pairs that name the expert */
  int count;

  __device__ void find_pairs(const expert_product_args &a, int expert) {
    if (threadIdx.x < 32) {
      const int lane = threadIdx.x;
      int n = 0;
      for (int first = 0; first < a.pairs; first += 32) {
        const bool is = first + lane < a.pairs && a.numbers[first + lane] == expert;
        const unsigned all = __ballot_sync(~0u, is);
        if (is) mine[n + __popc(all & ((1u << lane) - 1))] = first + lane;
        n += __popc(all);
      }
      if (lane == 0) count = n;
    }
    __syncthreads();
  }

  /* The products of pairs mine[first], …, n of them and at most ROWS. The rows beyond are the last one again. */
  template <int ROWS>
  __device__ void multiply(const expert_product_args &a, int expert, int first, int n) {
    typedef acc<T> R;
    const int lane = threadIdx.x % EXPERTS_LANES;
    const int64_t column = (int64_t)blockIdx.x * COLUMNS + lane * N,
                  begin = (int64_t)expert * a.inputs * a.pitch + column;
    const T *const kernel[2] = {(const T *)a.kernel + begin, (const T *)a.up + begin};
    const bool there = column < a.outputs; /* then the whole pack is */
    const T *x[ROWS];
    UNROLLED(r, ROWS) x[r] = (const T *)a.x + (int64_t)(mine[first + min(r, n - 1)] / a.share) * a.inputs;
    R sum[ROWS][KERNELS][N] = {};
    ONCE
    for (int64_t k = threadIdx.x / EXPERTS_LANES; k < a.inputs; k += GROUPS * AT_ONCE) {
      int4 bits[AT_ONCE][KERNELS];
      T by[AT_ONCE][ROWS];
      UNROLLED(j, AT_ONCE) { /* all are asked for before the first is waited for */
        const int64_t at = k + j * GROUPS;
        const bool is = at < a.inputs;
        UNROLLED(m, KERNELS) {
          bits[j][m] = make_int4(0, 0, 0, 0);
          if (is && there) bits[j][m] = __ldg((const int4 *)(kernel[m] + at * a.pitch));
        }
        UNROLLED(r, ROWS) by[j][r] = is ? x[r][at] : (T)0.0f;
      }
      UNROLLED(j, AT_ONCE)
        UNROLLED(m, KERNELS) {
          R v[N];
          widen_pack<T>(bits[j][m], v);
          UNROLLED(r, ROWS)
            UNROLLED(i, N) sum[r][m][i] = fma((R)by[j][r], v[i], sum[r][m][i]);
        }
    }
    UNROLLED(r, ROWS)
      UNROLLED(m, KERNELS)
        UNROLLED(i, N) {
          R v = sum[r][m][i];
          for (int step = EXPERTS_LANES; step < 32; step *= 2) v += __shfl_xor_sync(~0u, v, step);
          if (threadIdx.x % 32 < EXPERTS_LANES) part[threadIdx.x / 32][r][m][lane * N + i] = v;
        }
  }

  __device__ acc<T> total(int row, int m, int column) const {
    acc<T> v = part[0][row][m][column];
    UNROLLED(w, WARPS - 1) v += part[w + 1][row][m][column];
    return v;
  }
};

template <typename T, int KERNELS>
__device__ inline void expert_product(const expert_product_args &a) {
  typedef expert_tile<T, KERNELS> tile;
  __shared__ tile t;
  const int expert = (int)blockIdx.y;
  t.find_pairs(a, expert);
  ONCE
  for (int first = 0; first < t.count; first += EXPERTS_ROWS) {
    const int n = min(t.count - first, (int)EXPERTS_ROWS);
    if (n == 1) t.template multiply<1>(a, expert, first, n);
    else t.template multiply<EXPERTS_ROWS>(a, expert, first, n);
    __syncthreads();
    for (int i = threadIdx.x; i < n * tile::COLUMNS; i += EXPERTS_THREADS) {
      const int row = i / tile::COLUMNS, c = i % tile::COLUMNS;
      const int64_t column = (int64_t)blockIdx.x * tile::COLUMNS + c;
      if (column >= a.outputs) continue;
      acc<T> v = t.total(row, 0, c);
      if (KERNELS == 2) v = activate<T>(a.activation, v) * t.total(row, KERNELS - 1, c);
      ((T *)a.y)[t.mine[first + row] * a.outputs + column] = (T)v;
    }
    __syncthreads(); /* before the next rows are put there */
  }
}
#define EXPERT_PRODUCT_OF_(label, kernels, tag, T) \
  TFU_STAMP((EXPERTS_THREADS, 2), expert_product_##label##_##tag, expert_product_args, expert_product<T, kernels>)
TFU_TYPES(EXPERT_PRODUCT_OF_, alone, 1)
TFU_TYPES(EXPERT_PRODUCT_OF_, gated, 2)

template <typename T>
__device__ inline void expert_sum(const expert_sum_args &a) {
  for (int64_t i = (int64_t)blockIdx.x * EXPERTS_THREADS + threadIdx.x; i < a.elements;
       i += (int64_t)gridDim.x * EXPERTS_THREADS) {
    const int64_t row = i / a.outputs, column = i - row * a.outputs;
    acc<T> sum = 0;
    for (int64_t pair = row * a.top_k; pair < (row + 1) * a.top_k; pair++)
      if (a.numbers[pair] >= 0 && a.numbers[pair] < a.experts)
        sum = fma((acc<T>)((const T *)a.weights)[pair], (acc<T>)((const T *)a.part)[pair * a.outputs + column], sum);
    if (a.residual) sum += (acc<T>)((const T *)a.residual)[i];
    ((T *)a.y)[i] = (T)sum;
  }
}

template <typename T>
__device__ inline void expert_add(const expert_add_args &a) {
  for (int64_t i = (int64_t)blockIdx.x * EXPERTS_THREADS + threadIdx.x; i < a.elements;
       i += (int64_t)gridDim.x * EXPERTS_THREADS) {
    const int64_t row = i / a.outputs;
    acc<T> sum = a.expert ? ((const acc<T> *)a.sum)[i] : (acc<T>)0;
    for (int64_t pair = row * a.top_k; pair < (row + 1) * a.top_k; pair++)
      if (a.numbers[pair] == a.expert)
        sum = fma((acc<T>)((const T *)a.weights)[pair], (acc<T>)((const T *)a.part)[i], sum);
    if (a.expert + 1 < a.experts) {
      ((acc<T> *)a.sum)[i] = sum;
      continue;
    }
    if (a.residual) sum += (acc<T>)((const T *)a.residual)[i];
    ((T *)a.y)[i] = (T)sum;
  }
}
#define EXPERT_SUM_OF_(function, args, tag, T) TFU_STAMP((EXPERTS_THREADS), function##_##tag, args, function<T>)
TFU_TYPES(EXPERT_SUM_OF_, expert_sum, expert_sum_args)
TFU_TYPES(EXPERT_SUM_OF_, expert_add, expert_add_args)
