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

/* The same of tiles, in groups of whole tiles, into 16 bits: a warp has some tiles, one below the other, whose rows it
 * writes through shared memory. outputs is a multiple of 8. */
template <typename T>
__device__ inline void dequantize_tiles(const dequantize_args &a) {
  enum { ROWS = QUANT_TILE_ROWS, COLUMNS = QUANT_TILE_COLUMNS, WARPS = TFU_THREADS / 32, PITCH = COLUMNS + 8 };
  __shared__ __align__(16) T buffer[WARPS][ROWS][PITCH];
  const quantized_kernel &k = a.kernel;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  T(&tile)[ROWS][PITCH] = buffer[threadIdx.x / 32];
  const int64_t down = k.inputs / ROWS;
  const int64_t first = ((int64_t)blockIdx.x * WARPS + threadIdx.x / 32) * QUANT_WARP_TILES;
  for (int64_t j = blockIdx.y; j * COLUMNS < k.outputs; j += gridDim.y) {
    column_numbers<float> n[COLUMNS / 8] = {};
    int64_t group = -1;
    for (int64_t i = first; i < min(first + QUANT_WARP_TILES, down); i++) {
      const int4 *const from = (const int4 *)k.codes + (j * down + i) * (8 * k.bits) + lane;
      const int4 left = from[0], right = k.bits == 8 ? from[32] : left;
      const int words[8] = {left.x, left.y, left.z, left.w, right.x, right.y, right.z, right.w};
      if (i * ROWS / k.group != group) {
        group = i * ROWS / k.group;
        UNROLLED(c, COLUMNS / 8) {
          if (j * COLUMNS + 8 * c < k.outputs) n[c] = numbers_of<T>(k, group, j * COLUMNS + 8 * c + g);
        }
      }
      UNROLLED(c, COLUMNS / 8) { /* column 8 c + g of rows 2 t, 2 t + 1, 2 t + 8, 2 t + 9 */
        const unsigned word = k.bits == 8 ? words[c] : (unsigned)words[c / 2] >> c % 2 * 8;
        UNROLLED(r, 4) {
          const int h = r / 2, e = r % 2, row = 8 * h + 2 * t + e;
          const unsigned code = k.bits == 8 ? word >> (2 * e + h) * 8 & 255 : word >> (16 * e + 4 * h) & 15;
          float v = ((float)quant_value(code, k.bits, k.bits == 8) - n[c].zero) * n[c].by;
          if (k.input_scale) v /= (float)((const T *)k.input_scale)[i * ROWS + row];
          tile[row][8 * c + g] = (T)v;
        }
      }
      __syncwarp();
      UNROLLED(r, ROWS * COLUMNS / 8 / 32) {
        const int row = r * 4 + lane / 8, c = lane % 8 * 8;
        if (j * COLUMNS + c < k.outputs)
          *(int4 *)((T *)a.w + (i * ROWS + row) * k.outputs + j * COLUMNS + c) = *(const int4 *)&tile[row][c];
      }
      __syncwarp();
    }
  }
}
TFU_HALVES(TFU_KERNEL_OF_, dequantize_tiles, dequantize_args)

/* Codes of any order as int8, transposed; unsigned bytes 128 less. A block has SIDE rows by ACROSS columns, which pass
 * through shared memory: it reads neighbours in the kernel, and writes neighbours in w. Of tiles a warp has one at a
 * time, and writes codes of two neighbouring rows at once. */
template <typename>
__device__ inline void transpose_codes(const dequantize_args &a) {
  enum { SIDE = QUANT_TURNED_ROWS, ACROSS = QUANT_TILE_COLUMNS, PITCH = SIDE + 16 };
  __shared__ __align__(16) int8_t turned[ACROSS][PITCH];
  const quantized_kernel &k = a.kernel;
  const int less = k.order != QUANT_TILES && k.bits == 8 && !k.is_signed ? 128 : 0, bits = k.bits;
  const int64_t i = (int64_t)blockIdx.x * SIDE, rows = min((int64_t)SIDE, k.inputs - i);
  for (int64_t o = (int64_t)blockIdx.y * ACROSS; o < k.outputs; o += (int64_t)gridDim.y * ACROSS) {
    if (k.order == QUANT_TILES) {
      const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
      const int64_t down = k.inputs / QUANT_TILE_ROWS, first = o / ACROSS * down + i / QUANT_TILE_ROWS;
      for (int tile = threadIdx.x / 32; tile * QUANT_TILE_ROWS < rows; tile += TFU_THREADS / 32) {
        const int4 *const from = (const int4 *)k.codes + (first + tile) * (8 * bits) + lane;
        const int4 left = from[0], right = bits == 8 ? from[32] : left;
        const int words[8] = {left.x, left.y, left.z, left.w, right.x, right.y, right.z, right.w};
        UNROLLED(n, 16) {
          const int block = n / 2, h = n % 2;
          const int two = bits == 8 ? words[block] >> 8 * h : words[block / 2] >> (8 * (block % 2) + 4 * h) & 0xf000f;
          *(uint16_t *)&turned[8 * block + g][tile * QUANT_TILE_ROWS + 8 * h + 2 * t] =
              (uint16_t)__byte_perm(two, 0, 0x20);
        }
      }
    } else {
      for (int n = threadIdx.x; n < SIDE * ACROSS; n += TFU_THREADS) {
        const int by_rows = k.order == QUANT_BY_ROWS, c = by_rows ? n % ACROSS : n / SIDE,
                  r = by_rows ? n / ACROSS : n % SIDE;
        if (r < rows && o + c < k.outputs) turned[c][r] = (int8_t)(quant_at(&k, i + r, o + c) - less);
      }
    }
    __syncthreads();
    for (int n = threadIdx.x; n < SIDE / 16 * ACROSS; n += TFU_THREADS) {
      const int c = n / (SIDE / 16), r = n % (SIDE / 16) * 16;
      int8_t *const to = (int8_t *)a.w + (o + c) * k.inputs + i + r;
      if (o + c >= k.outputs) continue;
      if (k.inputs % 16 == 0 && r < rows) *(int4 *)to = *(const int4 *)&turned[c][r];
      else
        for (int e = 0; e < 16 && r + e < rows; e++) to[e] = turned[c][r + e];
    }
    __syncthreads();
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
/* The same into codes, of rows that are whole packs: the first numbers of one stay in registers. */
template <typename T>
__device__ inline void quantize_packs(const quantize_rows_args &a) {
  enum { N = packed<T>::N, HELD = 32 / N, STEP = TFU_THREADS * N };
  __shared__ float shared[TFU_THREADS / 32];
  const T *const x = (const T *)a.x + blockIdx.x * a.inputs;
  int8_t *const y = (int8_t *)a.y + blockIdx.x * a.inputs;
  const int64_t first = threadIdx.x * N;
  int4 held[HELD];
  float largest = 0;
  UNROLLED(h, HELD) {
    held[h] = make_int4(0, 0, 0, 0);
    if (first + h * STEP < a.inputs) held[h] = *(const int4 *)(x + first + h * STEP);
  }
  const auto read = [&](int4 pack) {
    float v[N];
    widen_pack<T>(pack, v);
    UNROLLED(i, N) largest = top_of(largest, fabsf(v[i]));
  };
  UNROLLED(h, HELD) read(held[h]);
  for (int64_t i = first + HELD * STEP; i < a.inputs; i += STEP) read(*(const int4 *)(x + i));
  largest = over_block(largest, shared, [](float p, float q) { return top_of(p, q); });
  const float by = 127.0f / (largest + 1e-7f), back = 1 / by;
  int sum = 0;
  const auto round = [&](int64_t at, int4 pack) {
    float v[N];
    unsigned words[N / 4];
    widen_pack<T>(pack, v);
    UNROLLED(w, N / 4) {
      int code[4];
      UNROLLED(i, 4) code[i] = __float2int_rn(__fmul_rn(v[4 * w + i], by));
      words[w] = __byte_perm(__byte_perm(code[0], code[1], 0x0040), __byte_perm(code[2], code[3], 0x0040), 0x5410);
      UNROLLED(i, 4) sum += code[i];
    }
    if constexpr (N == 8) *(uint2 *)(y + at) = make_uint2(words[0], words[1]);
    else *(unsigned *)(y + at) = words[0];
  };
  UNROLLED(h, HELD) {
    if (first + h * STEP < a.inputs) round(first + h * STEP, held[h]);
  }
  for (int64_t i = first + HELD * STEP; i < a.inputs; i += STEP) round(i, *(const int4 *)(x + i));
  const float all = over_block((float)sum, shared, [](float p, float q) { return p + q; });
  if (threadIdx.x == 0) {
    a.row_scale[blockIdx.x] = back;
    if (a.row_sum) a.row_sum[blockIdx.x] = all;
  }
}
#define QUANTIZE_PACKS_OF_(args, tag, T) TFU_KERNEL_AS_(quantize_rows_packs_##tag, args, quantize_packs<T>)
TFU_SINGLES(QUANTIZE_PACKS_OF_, quantize_rows_args)

#define QUANTIZE_ROWS_OF_(args, tag, T)                               \
  TFU_KERNEL_AS_(quantize_rows_same_##tag, args, quantize_rows<T, T>) \
  TFU_KERNEL_AS_(quantize_rows_codes_##tag, args, quantize_rows<T, int8_t>)
TFU_TYPES(QUANTIZE_ROWS_OF_, quantize_rows_args)

/* Four columns for each thread, of some rows. outputs is a multiple of 4. */
template <typename T>
__device__ inline void quantized_finish(const quantized_finish_args &a) {
  struct __align__(4 * sizeof(T)) four {
    T v[4];
  };
  const quantized_kernel &k = a.kernel;
  const int64_t o = ((int64_t)blockIdx.x * TFU_THREADS + threadIdx.x) * 4;
  if (o >= k.outputs) return;
  const int less = k.order != QUANT_TILES && k.bits == 8 && !k.is_signed ? 128 : 0;
  const bool is_pack = (uintptr_t)a.y % sizeof(four) == 0;
  float zero[4], by[4], bias[4];
  UNROLLED(i, 4) {
    const column_numbers<float> n = numbers_of<T>(k, 0, o + i);
    zero[i] = n.zero - less, by[i] = n.by, bias[i] = a.bias ? (float)((const T *)a.bias)[o + i] : 0;
  }
  _Pragma("unroll 4") for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
    const int64_t at = row * k.outputs + o;
    const int4 sums = *(const int4 *)(a.sums + at);
    const int of[4] = {sums.x, sums.y, sums.z, sums.w};
    const float sum = a.row_sum[row], scale = a.row_scale[row];
    four y;
    UNROLLED(i, 4) {
      float v = ((float)of[i] - zero[i] * sum) * by[i] * scale + bias[i];
      if (a.activation != TFU_ACT_linear) v = activate<T>(a.activation, v);
      y.v[i] = (T)(a.residual ? v + (float)((const T *)a.residual)[at + i] : v);
    }
    if (is_pack) *(four *)((T *)a.y + at) = y;
    else
      UNROLLED(i, 4) ((T *)a.y)[at + i] = y.v[i];
  }
}
TFU_SINGLES(TFU_KERNEL_OF_, quantized_finish, quantized_finish_args)
