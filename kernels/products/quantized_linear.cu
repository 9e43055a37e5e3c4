/* Around products of many rows: kernels of 8 and 4 bits as matrices that cuBLASLt takes, rows of x rounded to 8 bits,
 * and what is made of sums in int32. */
#include "kernels/products/quantized_linear.h"

#include "kernels/core/device/any_activation.cuh"

template <typename T>
__device__ inline acc<T> scale_at(const quantized_kernel &k, int64_t at) {
  return k.wide ? ((const acc<T> *)k.scale)[at] : (acc<T>)((const T *)k.scale)[at];
}

/* What a column of a group subtracts from codes, and then multiplies with. */
template <typename R>
struct column_numbers {
  R zero, by;
};
template <typename T>
__device__ inline column_numbers<acc<T>> numbers_of(const quantized_kernel &k, int64_t g, int64_t o) {
  typedef acc<T> R;
  if (k.order == QUANT_TILES)
    return {scale_at<T>(k, (2 * g + 1) * k.outputs + o), scale_at<T>(k, 2 * g * k.outputs + o)};
  const int64_t at = quant_scale_at(&k, g, o);
  const R by = scale_at<T>(k, at);
  return {(R)(k.zero ? quant_value(k.zero[at], 8, k.is_signed) : 0), k.divide ? 1 / by : by};
}

/* An element of w for each thread: neighbours are columns. */
template <typename T>
__device__ inline void dequantize(const dequantize_args &a) {
  typedef acc<T> R;
  const quantized_kernel &k = a.kernel;
  const int64_t o = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (o >= k.outputs) return;
  for (int64_t i = blockIdx.y; i < k.inputs; i += gridDim.y) {
    const column_numbers<R> n = numbers_of<T>(k, quant_group(&k, i), o);
    R v = ((R)quant_at(&k, i, o) - n.zero) * n.by;
    if (k.input_scale) v /= (R)((const T *)k.input_scale)[i];
    ((T *)a.w)[i * k.outputs + o] = (T)v;
  }
}
TFU_KERNEL(dequantize, dequantize_args)

/* The same of tiles, in groups of whole tiles, into 16 bits: a warp has a tile, whose rows it writes through shared
 * memory. outputs is a multiple of 8. */
template <typename T>
__device__ inline void dequantize_tiles(const dequantize_args &a) {
  enum { ROWS = QUANT_TILE_ROWS, COLUMNS = QUANT_TILE_COLUMNS, WARPS = TFU_THREADS / 32, PITCH = COLUMNS + 8 };
  __shared__ __align__(16) T buffer[WARPS][ROWS][PITCH];
  const quantized_kernel &k = a.kernel;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, words = k.bits == 8 ? 8 : 4;
  T(&tile)[ROWS][PITCH] = buffer[threadIdx.x / 32];
  const int64_t down = k.inputs / ROWS, i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
  if (i >= down) return;
  for (int64_t j = blockIdx.y; j * COLUMNS < k.outputs; j += gridDim.y) {
    const unsigned *codes = (const unsigned *)(k.codes + (j * down + i) * (ROWS * COLUMNS / 8) * k.bits);
    for (int c = 0; c < COLUMNS / 8; c++) { /* column 8 c + g of rows 2 t, 2 t + 1, 2 t + 8, 2 t + 9 */
      const int64_t o = j * COLUMNS + 8 * c + g;
      column_numbers<float> n = {0, 0};
      if (o < k.outputs) n = numbers_of<T>(k, i * ROWS / k.group, o);
      const unsigned word =
          k.bits == 8 ? codes[c / 4 * 128 + lane * 4 + c % 4] : codes[lane * words + c / 2] >> c % 2 * 8;
      for (int r = 0; r < 4; r++) {
        const int h = r / 2, e = r % 2, row = 8 * h + 2 * t + e;
        const unsigned code = k.bits == 8 ? word >> (2 * e + h) * 8 & 255 : word >> (16 * e + 4 * h) & 15;
        float v = ((float)quant_value(code, k.bits, k.bits == 8) - n.zero) * n.by;
        if (k.input_scale) v /= (float)((const T *)k.input_scale)[i * ROWS + row];
        tile[row][8 * c + g] = (T)v;
      }
    }
    __syncwarp();
    for (int n = lane; n < ROWS * COLUMNS / 8; n += 32) {
      const int row = n / 8, c = n % 8 * 8;
      if (j * COLUMNS + c < k.outputs)
        *(int4 *)((T *)a.w + (i * ROWS + row) * k.outputs + j * COLUMNS + c) = *(const int4 *)&tile[row][c];
    }
    __syncwarp();
  }
}
TFU_HALVES(TFU_KERNEL_OF_, dequantize_tiles, dequantize_args)

/* Codes of any order as int8, transposed; unsigned bytes 128 less. A block has 64 rows and columns, which are read from
 * the first-level cache again and again. */
template <typename>
__device__ inline void transpose_codes(const dequantize_args &a) {
  enum { SIDE = 64 };
  const quantized_kernel &k = a.kernel;
  const int less = k.order != QUANT_TILES && k.bits == 8 && !k.is_signed ? 128 : 0;
  for (int64_t o = (int64_t)blockIdx.y * SIDE; o < k.outputs; o += (int64_t)gridDim.y * SIDE)
    for (int n = threadIdx.x; n < SIDE * SIDE; n += blockDim.x) {
      const int64_t row = o + n / SIDE, i = (int64_t)blockIdx.x * SIDE + n % SIDE;
      if (row < k.outputs && i < k.inputs) ((int8_t *)a.w)[row * k.inputs + i] = (int8_t)(quant_at(&k, i, row) - less);
    }
}
TFU_KERNEL_AS_(transpose_codes_any, dequantize_args, transpose_codes<void>)

/* The joined values of a block's threads, for all of them; `shared` has a place for each warp. */
template <typename R, typename F>
__device__ inline R over_block(R v, R *shared, F join) {
  for (int by = 16; by > 0; by /= 2) v = join(v, __shfl_xor_sync(0xffffffffu, v, by));
  __syncthreads(); /* what was there before has been read */
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
  __syncthreads();
  v = shared[0];
  for (int w = 1; w < TFU_THREADS / 32; w++) v = join(v, shared[w]);
  return v;
}

/* A block has a row, and reads it twice: the second time from a cache. Y is T, or int8. */
template <typename T, typename Y>
__device__ inline void quantize_rows(const quantize_rows_args &a) {
  typedef acc<T> R;
  __shared__ R shared[TFU_THREADS / 32];
  const T *x = (const T *)a.x + blockIdx.x * a.inputs;
  Y *y = (Y *)a.y + blockIdx.x * a.inputs;
  if (a.how == QUANT_DIVIDED) {
    for (int64_t i = threadIdx.x; i < a.inputs; i += TFU_THREADS)
      y[i] = (Y)((R)x[i] / (R)((const T *)a.input_scale)[i]);
    return;
  }
  R largest = 0;
  _Pragma("unroll 4") for (int64_t i = threadIdx.x; i < a.inputs; i += TFU_THREADS) largest =
      top_of(largest, (R)fabs((R)x[i]));
  largest = over_block(largest, shared, [](R p, R q) { return top_of(p, q); });
  const R by = (R)127 / (largest + (R)1e-7), back = 1 / by;
  R sum = 0;
  _Pragma("unroll 4") for (int64_t i = threadIdx.x; i < a.inputs; i += TFU_THREADS) {
    const R v = rint((R)x[i] * by);
    y[i] = (Y)(a.how == QUANT_WHOLE ? v : v * back);
    sum += v;
  }
  if (a.how != QUANT_WHOLE) return;
  sum = over_block(sum, shared, [](R p, R q) { return p + q; });
  if (threadIdx.x == 0) {
    a.row_scale[blockIdx.x] = (float)back;
    if (a.row_sum) a.row_sum[blockIdx.x] = (float)sum;
  }
}
#define QUANTIZE_ROWS_OF_(args, tag, T)                               \
  TFU_KERNEL_AS_(quantize_rows_same_##tag, args, quantize_rows<T, T>) \
  TFU_KERNEL_AS_(quantize_rows_codes_##tag, args, quantize_rows<T, int8_t>)
TFU_TYPES(QUANTIZE_ROWS_OF_, quantize_rows_args)

/* A column for each thread, of some rows. */
template <typename T>
__device__ inline void quantized_finish(const quantized_finish_args &a) {
  const quantized_kernel &k = a.kernel;
  const int64_t o = (int64_t)blockIdx.x * TFU_THREADS + threadIdx.x;
  if (o >= k.outputs) return;
  const int less = k.order != QUANT_TILES && k.bits == 8 && !k.is_signed ? 128 : 0;
  const column_numbers<acc<T>> n = numbers_of<T>(k, 0, o);
  const float zero = (float)n.zero - less, by = (float)n.by, bias = a.bias ? (float)((const T *)a.bias)[o] : 0;
  for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
    const int64_t at = row * k.outputs + o;
    float v = ((float)a.sums[at] - zero * a.row_sum[row]) * by * a.row_scale[row] + bias;
    v = activate<T>(a.activation, v);
    ((T *)a.y)[at] = (T)(a.residual ? v + (float)((const T *)a.residual)[at] : v);
  }
}
TFU_SINGLES(TFU_KERNEL_OF_, quantized_finish, quantized_finish_args)
