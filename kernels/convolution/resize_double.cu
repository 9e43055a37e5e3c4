/* Bilinear resizing to twice the height and width, and its gradient: what a U-Net's upsampling does. resize.cu serves
 * all else; with its table, and weights that may be anything, a pack of y takes some 130 instructions, and here 50.
 *
 * Along an axis of n positions, with positions outside of it clamped to its ends,
 *   y[2 i] = x[i - 1] / 4 + 3 x[i] / 4    y[2 i + 1] = 3 x[i] / 4 + x[i + 1] / 4
 *   dx[i] = (dy[2 i - 1] + 3 dy[2 i] + 3 dy[2 i + 1] + dy[2 i + 2]) / 4
 *
 * A thread has a pack of one column of x or dx, and goes down the rows of a strip. It adds up along the width what it
 * reads of a row, once, and asks for the next row before it computes. */
#include "kernels/convolution/resize.h"
#include "kernels/core/device/pack.cuh"

/* Where a thread is: the pack's first byte in an image, the column, and the rows begin to end of the strip. */
struct double_place {
  int64_t image;
  unsigned own;
  int column, begin, end;
  bool none;

  __device__ explicit double_place(const resize_double_args &a) {
    const uint32_t unit = blockIdx.x * TFU_THREADS + threadIdx.x;
    const uint32_t place = divide(unit, a.by_words), strips = divide(place, a.by_wide);
    const uint32_t number = divide(strips, a.by_strips);
    none = unit >= a.units;
    image = number;
    own = (unit - place * a.by_words.by) * 16;
    column = (int)(place - strips * a.by_wide.by);
    begin = (int)(strips - number * a.by_strips.by) * a.rows, end = min(begin + a.rows, a.high);
  }
};

__device__ inline int clamped(int i, int n) { return min(max(i, 0), n - 1); }

/* sum = (3 near + far) / 4 */
template <int N>
__device__ inline void blend(const float (&near)[N], const float (&far)[N], float (&sum)[N]) {
  UNROLLED(c, N) sum[c] = fmaf(0.75f, near[c], 0.25f * far[c]);
}

/* ---- forward ---- */

/* A row of x: the pack's column and its neighbors, as they were read. */
struct double_row {
  int4 left, own, right;
  __device__ void read(const char *row, unsigned left_at, unsigned own_at, unsigned right_at) {
    left = __ldg((const int4 *)(row + left_at));
    own = __ldg((const int4 *)(row + own_at));
    right = __ldg((const int4 *)(row + right_at));
  }
};

/* The columns 2 i and 2 i + 1 of a row of x, doubled along the width. */
template <typename T>
struct double_pair {
  enum { N = packed<T>::N };
  float even[N], odd[N];
  __device__ void of(const double_row &row) {
    float own[N], next[N];
    widen_pack<T>(row.own, own);
    widen_pack<T>(row.left, next);
    blend(own, next, even);
    widen_pack<T>(row.right, next);
    blend(own, next, odd);
  }
};

template <typename T>
__device__ inline void store_blend(char *to, unsigned step, const double_pair<T> &near, const double_pair<T> &far) {
  float sum[packed<T>::N];
  blend(near.even, far.even, sum);
  store_bits(to, narrow_pack<T>(sum));
  blend(near.odd, far.odd, sum);
  store_bits(to + step, narrow_pack<T>(sum));
}

template <typename T>
__device__ inline void resize_double(const resize_double_args &a) {
  const double_place p(a);
  if (p.none) return;
  const unsigned step = a.step;
  const int64_t line = (int64_t)a.wide * step, to_line = 2 * line;
  const char *const from = (const char *)a.from + p.image * a.high * line + p.own;
  const unsigned left = (unsigned)max(p.column - 1, 0) * step, own = (unsigned)p.column * step;
  const unsigned right = (unsigned)min(p.column + 1, a.wide - 1) * step;
  char *to = (char *)a.to + (p.image * 2 * a.high + 2 * p.begin) * to_line + 2 * own + p.own;
  double_row next;
  double_pair<T> above, here;
  next.read(from + max(p.begin - 1, 0) * line, left, own, right);
  above.of(next);
  next.read(from + p.begin * line, left, own, right);
  /* Rows 2 r - 1 and 2 r of y lie between the rows r - 1 and r of x; the strip's first and last row of y have one. */
  ONCE
  for (int r = p.begin; r <= p.end; r++) {
    here.of(next);
    if (r < p.end) next.read(from + min(r + 1, a.high - 1) * line, left, own, right);
    if (r > p.begin) store_blend<T>(to, step, above, here), to += to_line;
    if (r < p.end) store_blend<T>(to, step, here, above), to += to_line;
    above = here;
  }
}

/* ---- gradient ---- */

/* sum = (a + 3 b + 3 c + d) / 4, term by term: b + c by itself may overflow where the sum does not. */
template <int N>
__device__ inline void blend4(const float (&a)[N], const float (&b)[N], const float (&c)[N], const float (&d)[N],
                              float (&sum)[N]) {
  UNROLLED(k, N) sum[k] = fmaf(0.25f, d[k], fmaf(0.75f, c[k], fmaf(0.75f, b[k], 0.25f * a[k])));
}

/* The sum of a row of dy along the width. */
template <typename T>
struct double_sum {
  enum { N = packed<T>::N };
  int4 bits[4];
  __device__ void read(const char *row, const unsigned (&at)[4]) {
    UNROLLED(k, 4) bits[k] = __ldg((const int4 *)(row + at[k]));
  }
  __device__ void sum(float (&total)[N]) const {
    float v[4][N];
    UNROLLED(k, 4) widen_pack<T>(bits[k], v[k]);
    blend4(v[0], v[1], v[2], v[3], total);
  }
};

template <typename T>
__device__ inline void resize_double_grad(const resize_double_args &a) {
  enum { N = packed<T>::N };
  const double_place p(a);
  if (p.none) return;
  const unsigned step = a.step;
  const int64_t to_line = (int64_t)a.wide * step, line = 2 * to_line;
  const int last = 2 * a.high - 1;
  const char *const from = (const char *)a.from + p.image * 2 * a.high * line + p.own;
  char *to = (char *)a.to + (p.image * a.high + p.begin) * to_line + (int64_t)p.column * step + p.own;
  unsigned at[4];
  UNROLLED(k, 4) at[k] = (unsigned)clamped(2 * p.column - 1 + k, 2 * a.wide) * step;
  float above[N], upper[N], lower[N], below[N]; /* rows 2 r - 1 to 2 r + 2 of dy */
  double_sum<T> first, second;                  /* rows 2 r + 1 and 2 r + 2, as they were read */
  first.read(from + max(2 * p.begin - 1, 0) * line, at);
  second.read(from + 2 * p.begin * line, at);
  first.sum(above), second.sum(upper);
  first.read(from + (2 * p.begin + 1) * line, at);
  second.read(from + min(2 * p.begin + 2, last) * line, at);
  ONCE
  for (int r = p.begin; r < p.end; r++, to += to_line) {
    first.sum(lower), second.sum(below);
    if (r + 1 < p.end) {
      first.read(from + (2 * r + 3) * line, at);
      second.read(from + min(2 * r + 4, last) * line, at);
    }
    float sum[N];
    blend4(above, upper, lower, below, sum);
    store_bits(to, narrow_pack<T>(sum));
    UNROLLED(c, N) above[c] = lower[c], upper[c] = below[c];
  }
}

/* Three blocks to a multiprocessor: of two, too few bytes are under way. */
#define DOUBLE(function, tag, T) TFU_STAMP((TFU_THREADS, 3), function##_##tag, resize_double_args, function<T>)
TFU_SINGLES(DOUBLE, resize_double)
TFU_SINGLES(DOUBLE, resize_double_grad)
