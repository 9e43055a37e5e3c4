/* Around products of float8: matrices are rounded to it on their way to cuBLASLt, as they lie and transposed, and the
 * largest of each is found for the scales that come next. Where there is no such product, they become what their float8
 * numbers stand for, in their own type. */
#include "kernels/products/float8_linear.h"

#include "kernels/core/device/pack.cuh"

/* v / scale to the last bit, where back = 1 / scale: one Newton step after the product (Markstein). Beyond what float8
 * holds the product alone is enough, and of infinities it is all there is. */
__device__ inline float quotient(float v, float scale, float back) {
  const float near = v * back, next = fmaf(fmaf(-near, scale, v), back, near);
  return fabsf(near) < 0x1p20f ? next : near;
}
__device__ inline double quotient(double v, double scale, double) { return v / scale; }

/* The largest of a warp's threads, for all of them, and of a block's; `shared` has a place for each warp. */
template <typename R>
__device__ inline R top_of_warp(R v) {
  for (int by = 16; by > 0; by /= 2) v = top_of(v, __shfl_xor_sync(0xffffffffu, v, by));
  return v;
}
template <typename R>
__device__ inline R top_of_block(R v, R *shared) {
  v = top_of_warp(v);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
  __syncthreads();
  v = shared[0];
  for (int w = 1; w < TFU_THREADS / 32; w++) v = top_of(v, shared[w]);
  return v;
}

/* ---- codes ---- */

/* Nothing multiplies codes before 8.9, and nobody makes them there: their kernels are empty. */
#define HAS_FLOAT8 (__CUDA_ARCH__ >= 890)

/* Codes of two numbers, the first in the lower byte. */
__device__ inline unsigned two_codes(float low, float high, int e5m2) {
  unsigned short codes = 0;
#if HAS_FLOAT8
  if (e5m2) asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  else asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
#endif
  return codes;
}

/* Eight neighbours in a row, as they are loaded. */
template <typename X>
struct eight {
  enum { PACKS = sizeof(X) / 2 };
  int4 pack[PACKS];
  __device__ void load(const X *from) {
    UNROLLED(p, PACKS) pack[p] = ((const int4 *)from)[p];
  }
  __device__ void clear() {
    UNROLLED(p, PACKS) pack[p] = make_int4(0, 0, 0, 0);
  }
  __device__ void largest(float &top) const {
    enum { N = packed<X>::N };
    UNROLLED(p, PACKS) {
      float v[N];
      widen_pack<X>(pack[p], v);
      UNROLLED(i, N) top = top_of(top, fabsf(v[i]));
    }
  }
  __device__ uint2 codes(float scale, float back, int e5m2) const {
    enum { N = packed<X>::N };
    unsigned two[4];
    UNROLLED(p, PACKS) {
      float v[N];
      widen_pack<X>(pack[p], v);
      UNROLLED(i, N / 2)
        two[p * N / 2 + i] = two_codes(quotient(v[2 * i], scale, back), quotient(v[2 * i + 1], scale, back), e5m2);
    }
    return make_uint2(two[0] | two[1] << 16, two[2] | two[3] << 16);
  }
};
template <>
struct eight<uint8_t> {
  uint2 bytes;
  __device__ void load(const uint8_t *from) { bytes = *(const uint2 *)from; }
  __device__ void clear() { bytes = make_uint2(0, 0); }
  __device__ void largest(float &) const {}
  __device__ uint2 codes(float, float, int) const { return bytes; }
};

/* Four rows of four bytes become four columns. */
__device__ inline void turn(const unsigned (&row)[4], unsigned (&col)[4]) {
  const unsigned a = __byte_perm(row[0], row[1], 0x5140), b = __byte_perm(row[2], row[3], 0x5140);
  const unsigned c = __byte_perm(row[0], row[1], 0x7362), d = __byte_perm(row[2], row[3], 0x7362);
  col[0] = __byte_perm(a, b, 0x5410), col[1] = __byte_perm(a, b, 0x7632);
  col[2] = __byte_perm(c, d, 0x5410), col[3] = __byte_perm(c, d, 0x7632);
}

/* A block has a tile of 128 rows and columns at a time. A thread has four rows of eight columns, twice; their bytes are
 * turned in registers, and pass through shared memory in words of four rows. Word r of column c lies at r ^ 2 (c / 8):
 * so the lanes of a warp write to 32 banks, and read from 32. cols is a multiple of 16, and x begins on 16 bytes. */
template <typename X>
__device__ inline void float8_codes(const float8_codes_args &a) {
  if (!HAS_FLOAT8) return;
  enum { SIDE = FLOAT8_SIDE, WORDS = SIDE / 4, GROUPS = SIDE / 8, TALL = TFU_THREADS / GROUPS * 4 };
  __shared__ unsigned turned[SIDE][WORDS];
  __shared__ float shared[TFU_THREADS / 32];
  const int group = threadIdx.x % GROUPS, four = threadIdx.x / GROUPS, lane = threadIdx.x % 32;
  const int64_t col = (int64_t)blockIdx.x * SIDE + group * 8;
  const float scale = a.scale ? *a.scale : 1, back = 1 / scale;
  float top = 0;
  for (int64_t first = (int64_t)blockIdx.y * SIDE; first < a.rows; first += (int64_t)gridDim.y * SIDE) {
    for (int half = 0; half < SIDE; half += TALL) {
      const int64_t row = first + half + four * 4;
      eight<X> v[4];
      unsigned left[4], right[4], turn_left[4], turn_right[4];
      UNROLLED(r, 4) {
        if (row + r < a.rows && col < a.cols) v[r].load((const X *)a.x + (row + r) * a.cols + col);
        else v[r].clear();
      }
      UNROLLED(r, 4) {
        const uint2 codes = v[r].codes(scale, back, a.e5m2);
        v[r].largest(top);
        if (a.straight && row + r < a.rows && col < a.cols) *(uint2 *)(a.straight + (row + r) * a.cols + col) = codes;
        left[r] = codes.x, right[r] = codes.y;
      }
      if (!a.transposed) continue;
      turn(left, turn_left);
      turn(right, turn_right);
      const int word = (half / 4 + four) ^ 2 * group;
      UNROLLED(c, 4) {
        turned[group * 8 + c][word] = turn_left[c];
        turned[group * 8 + 4 + c][word] = turn_right[c];
      }
    }
    if (!a.transposed) continue;
    __syncthreads();
    for (int c = threadIdx.x / 32; c < SIDE; c += TFU_THREADS / 32) {
      const int64_t column = (int64_t)blockIdx.x * SIDE + c, row = first + lane * 4;
      if (column < a.cols && row < a.apart)
        *(unsigned *)(a.transposed + column * a.apart + row) = turned[c][lane ^ 2 * (c / 8)];
    }
    __syncthreads();
  }
  if (!a.tops) return;
  top = top_of_block(top, shared);
  if (threadIdx.x == 0) a.tops[(int64_t)blockIdx.y * gridDim.x + blockIdx.x] = top;
}
#define FLOAT8_CODES_OF_(args, tag, X) TFU_KERNEL_AS_(float8_codes_##tag, args, float8_codes<X>)
TFU_SINGLES(FLOAT8_CODES_OF_, float8_codes_args)
FLOAT8_CODES_OF_(float8_codes_args, u8, uint8_t)

/* ---- what codes stand for ---- */

__device__ inline float nearest(float v, int e5m2) { return float8_value(float8_code(v, e5m2), e5m2); }
/* Rounded to odd float first, whose many digits the second rounding does not miss. */
__device__ inline double nearest(double v, int e5m2) {
  float near = __double2float_rz(v);
  if ((double)near != v && v - v == 0) near = __uint_as_float(__float_as_uint(near) | 1);
  return nearest(near, e5m2);
}

/* An element for each thread: neighbours are columns. */
template <typename T>
__device__ inline void float8_round(const float8_round_args &a) {
  typedef acc<T> R;
  __shared__ R shared[TFU_THREADS / 32];
  const int64_t col = (int64_t)blockIdx.x * TFU_THREADS + threadIdx.x;
  R top = 0;
  if (col < a.cols)
    for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
      const int64_t at = row * a.cols + col;
      const float scale = a.scale ? a.scale[row * a.scale_row + col * a.scale_col] : 1;
      R v;
      if (a.codes) {
        v = (R)float8_value(((const uint8_t *)a.x)[at], a.e5m2) * (R)scale;
      } else {
        const R x = (R)((const T *)a.x)[at];
        top = top_of(top, (R)fabs(x));
        v = a.scale ? nearest(quotient(x, (R)scale, 1 / (R)scale), a.e5m2) * (R)scale : x;
      }
      if (a.y) ((T *)a.y)[a.transposed ? col * a.rows + row : at] = (T)v;
    }
  if (!a.tops) return;
  top = top_of_block(top, shared);
  if (threadIdx.x == 0) a.tops[(int64_t)blockIdx.y * gridDim.x + blockIdx.x] = (float)top;
}
TFU_KERNEL(float8_round, float8_round_args)

/* ---- rows with scales of their own ---- */

__device__ inline float scale_of_row(float top) {
  const float scale = top * float8_row_f32;
  return scale > 0 && top - top == 0 ? scale : 1;
}
__device__ inline double scale_of_row(double top) {
  const double scale = top * float8_row_f64;
  return scale > 0 && top - top == 0 ? scale : 1;
}

/* A team of threads, a warp or the block, has a row, whose first numbers it keeps in registers; those after them it
 * reads twice. cols is a multiple of 16, and x begins on 16 bytes. */
template <typename X, int TEAM>
__device__ inline void row_codes(const float8_rows_args &a, float *shared) {
  enum { HELD = 8 / sizeof(X), STEP = TEAM * 8 };
  const int64_t row = (int64_t)blockIdx.x * (TFU_THREADS / TEAM) + threadIdx.x / TEAM;
  const int first = threadIdx.x % TEAM * 8;
  if (row >= a.rows) return; /* of warps alone: else a block has one row */
  const X *x = (const X *)a.x + row * a.cols;
  uint8_t *y = (uint8_t *)a.y + row * a.cols;
  eight<X> v[HELD];
  float top = 0;
  UNROLLED(h, HELD) {
    v[h].clear();
    if (first + h * STEP < a.cols) v[h].load(x + first + h * STEP);
  }
  UNROLLED(h, HELD) v[h].largest(top);
  for (int64_t i = first + HELD * STEP; i < a.cols; i += STEP) {
    eight<X> more;
    more.load(x + i);
    more.largest(top);
  }
  top = TEAM == 32 ? top_of_warp(top) : top_of_block(top, shared);
  const float scale = scale_of_row(top), back = 1 / scale;
  UNROLLED(h, HELD) {
    if (first + h * STEP < a.cols) *(uint2 *)(y + first + h * STEP) = v[h].codes(scale, back, 0);
  }
  for (int64_t i = first + HELD * STEP; i < a.cols; i += STEP) {
    eight<X> more;
    more.load(x + i);
    *(uint2 *)(y + i) = more.codes(scale, back, 0);
  }
  if (first == 0) a.scale[row] = scale;
}
template <typename X>
__device__ inline void float8_row_codes(const float8_rows_args &a) {
  if (!HAS_FLOAT8) return;
  __shared__ float shared[TFU_THREADS / 32];
  if (a.by_warps) row_codes<X, 32>(a, shared);
  else row_codes<X, TFU_THREADS>(a, shared);
}
#define FLOAT8_ROW_CODES_OF_(args, tag, X) TFU_KERNEL_AS_(float8_row_codes_##tag, args, float8_row_codes<X>)
TFU_SINGLES(FLOAT8_ROW_CODES_OF_, float8_rows_args)

/* The same of any rows, as what the codes stand for. */
template <typename T>
__device__ inline void float8_rows(const float8_rows_args &a) {
  typedef acc<T> R;
  __shared__ R shared[TFU_THREADS / 32];
  const T *x = (const T *)a.x + blockIdx.x * a.cols;
  T *y = (T *)a.y + blockIdx.x * a.cols;
  R top = 0;
  for (int64_t i = threadIdx.x; i < a.cols; i += TFU_THREADS) top = top_of(top, (R)fabs((R)x[i]));
  const R scale = scale_of_row(top_of_block(top, shared)), back = 1 / scale;
  for (int64_t i = threadIdx.x; i < a.cols; i += TFU_THREADS)
    y[i] = (T)(nearest(quotient((R)x[i], scale, back), 0) * scale);
}
TFU_KERNEL(float8_rows, float8_rows_args)

/* ---- scales ---- */

template <typename>
__device__ inline void float8_update(const float8_update_args &a) {
  __shared__ float shared[2][TFU_THREADS / 32];
  const auto &of = a.of[blockIdx.x];
  float top = 0, before = 0;
  for (int64_t i = threadIdx.x; i < of.tops_count; i += TFU_THREADS) top = top_of(top, of.tops[i]);
  for (int64_t i = threadIdx.x; i < of.count; i += TFU_THREADS) {
    before = top_of(before, of.history[i]);
    if (i > 0) of.new_history[i] = of.history[(i + 1) % of.count];
  }
  top = top_of_block(top, shared[0]);
  before = top_of_block(before, shared[1]);
  if (threadIdx.x != 0) return;
  of.new_history[0] = top;
  *of.new_scale = float8_next_scale(before, *of.scale, of.largest);
}
TFU_KERNEL_AS_(float8_update_any, float8_update_args, float8_update<void>)

template <typename>
__device__ inline void float8_spread(const float8_spread_args &a) {
  const int64_t i = (int64_t)blockIdx.x * TFU_THREADS + threadIdx.x;
  if (i < a.count) a.to[i] = *a.from;
}
TFU_KERNEL_AS_(float8_spread_any, float8_spread_args, float8_spread<void>)
