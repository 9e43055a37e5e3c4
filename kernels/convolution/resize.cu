/* Resizing: every position of the result gathers the positions that its windows along three axes see (resize.h).
 * resize_any serves everything: a thread has a unit, 8 channels at one position. resize_strip serves images of whole
 * packs with up to TAPS weights along height and width: a thread has a pack of one column, and goes down some rows. It
 * adds up along the width what it reads, once for each row of `from`, and keeps these sums in registers for all rows of
 * the result that read them. */
#include "kernels/convolution/resize.h"

#include "kernels/convolution/pool.cuh" /* units */

#define FUNCTION static __device__ inline
#define FN(name) name
#define REAL float
struct weights_float {
#include "kernels/convolution/resize_weights.h"
};
#undef REAL
#define REAL double
struct weights_double {
#include "kernels/convolution/resize_weights.h"
};
#undef REAL
#undef FN
#undef FUNCTION

template <typename R>
struct weights_of {
  typedef weights_float type;
};
template <>
struct weights_of<double> {
  typedef weights_double type;
};

/* [entries] first positions, [entries] counts, and from a multiple of 16 bytes on weights. */
template <typename R>
struct resize_table {
  int *first, *count;
  R *weights;

  __device__ resize_table(const resize_args &a, void *memory)
      : first((int *)memory), count(first + a.entries), weights((R *)(first + (2 * a.entries + 3) / 4 * 4)) {}
};

/* Entries thread, thread + threads, … of all axes: one copy of these formulas serves all kernels. */
template <typename R>
static __device__ __noinline__ void fill(const resize_args &a, const resize_table<R> &table, int thread, int threads) {
  ONCE
  for (int i = 0; i < 3; i++) {
    const resize_axis *const axis = &a.axis[i];
    ONCE
    for (int t = thread; t < axis->to; t += threads)
      weights_of<R>::type::resize_entry(axis, a.back, t, table.first + axis->entry + t, table.count + axis->entry + t,
                                        table.weights + axis->weight + t * axis->taps);
  }
}

/* The table of the launch, or the block's own. */
template <typename R>
__device__ inline resize_table<R> table_of(const resize_args &a) {
  extern __shared__ int4 memory[];
  resize_table<R> table(a, a.table ? a.table : (void *)memory);
  if (!a.table) {
    fill(a, table, (int)threadIdx.x, TFU_THREADS);
    __syncthreads();
  }
  return table;
}

template <typename T>
__device__ inline void resize_fill(const resize_args &a) {
  fill(a, resize_table<acc<T>>(a, a.table), (int)(blockIdx.x * TFU_THREADS + threadIdx.x),
       (int)(gridDim.x * TFU_THREADS));
}

/* ---- any ---- */

/* A unit's first channel, how many there are, its position along the axes, and its image. */
struct resize_unit {
  int64_t image;
  int channel, left, at[3];
  __device__ resize_unit(const resize_args &a, int64_t unit) {
    int64_t rest = a.by[0].by ? divide((uint32_t)unit, a.by[0]) : unit / a.words;
    channel = (int)(unit - rest * a.words) * UNIT, left = min(a.channels - channel, (int)UNIT);
    UNROLL
    for (int i = 2; i >= 0; i--) {
      const int64_t outer = a.by[0].by ? divide((uint32_t)rest, a.by[3 - i]) : rest / a.axis[i].to;
      at[i] = (int)(rest - outer * a.axis[i].to), rest = outer;
    }
    image = rest;
  }
};

template <typename T>
__device__ inline void resize_any(const resize_args &a) {
  typedef acc<T> R;
  const resize_table<R> table = table_of<R>(a);
  for (int64_t unit = (int64_t)blockIdx.x * TFU_THREADS + threadIdx.x; unit < a.units;
       unit += (int64_t)gridDim.x * TFU_THREADS) {
    const resize_unit u(a, unit);
    int first[3], count[3];
    const R *weights[3];
    int64_t position = u.image;
    UNROLLED(i, 3) {
      const resize_axis &axis = a.axis[i];
      first[i] = table.first[axis.entry + u.at[i]], count[i] = table.count[axis.entry + u.at[i]];
      weights[i] = table.weights + axis.weight + (int64_t)u.at[i] * axis.taps;
      position = position * axis.to + u.at[i];
    }
    R sum[UNIT];
    UNROLLED(k, UNIT) sum[k] = 0;
    for (int d = 0; d < count[0]; d++)
      for (int h = 0; h < count[1]; h++) {
        const int64_t row = (u.image * a.axis[0].from + first[0] + d) * a.axis[1].from + first[1] + h;
        const int64_t from = (row * a.axis[2].from + first[2]) * a.channels + u.channel;
        const R weight = weights[0][d] * weights[1][h];
        _Pragma("unroll 4") for (int w = 0; w < count[2]; w++) {
          const R all = weight * weights[2][w];
          R v[UNIT];
          if (all == 0) continue;
          load_unit<T>(a.from, from + (int64_t)w * a.channels, u.left, a.aligned, v);
          UNROLLED(k, UNIT) sum[k] += all * v[k];
        }
      }
    store_unit<T>(a.to, position * a.channels + u.channel, u.left, a.aligned, sum);
  }
}

/* ---- strips ---- */

/* sum = what a column of the result reads of a row, by TAPS weights `step` bytes apart. Positions of weight 0 are not
 * read. */
template <typename T, int TAPS>
__device__ inline void add_across(const char *from, unsigned step, const float (&across)[TAPS],
                                  float (&sum)[packed<T>::N]) {
  enum { N = packed<T>::N };
  int4 bits[TAPS];
  UNROLLED(k, TAPS) {
    bits[k] = make_int4(0, 0, 0, 0);
    if (across[k] != 0) bits[k] = __ldg((const int4 *)(from + (uint64_t)step * (unsigned)k));
  }
  float total[N];
  UNROLLED(k, TAPS) {
    float v[N];
    widen_pack<T>(bits[k], v);
    UNROLLED(c, N) total[c] = k ? fmaf(across[k], v[c], total[c]) : across[0] * v[c];
  }
  UNROLLED(c, N) sum[c] = total[c];
}

/* Forgets the first BY rows of those that are kept. */
template <int BY, int TAPS, int N>
__device__ inline void forget(float (&row)[TAPS][N]) {
  UNROLLED(k, TAPS - BY)
    UNROLLED(c, N) row[k][c] = row[k + BY][c];
}

template <typename T, int TAPS>
__device__ inline void resize_strip(const resize_args &a) {
  enum { N = packed<T>::N, HALF = TAPS > 1 ? TAPS / 2 : 1 };
  const resize_table<float> table = table_of<float>(a);
  const resize_axis &high = a.axis[1], &wide = a.axis[2];
  const unsigned step = (unsigned)a.channels * (unsigned)sizeof(T);
  const int64_t from_line = (int64_t)wide.from * step, to_line = (int64_t)wide.to * step;
  ONCE
  for (int64_t unit = (int64_t)blockIdx.x * TFU_THREADS + threadIdx.x; unit < a.units;
       unit += (int64_t)gridDim.x * TFU_THREADS) {
    const uint32_t place = divide((uint32_t)unit, a.by[0]), strips = divide(place, a.by[1]);
    const uint32_t image = divide(strips, a.by[2]);
    const unsigned own = ((uint32_t)unit - place * a.by[0].by) * 16;
    const int column = (int)(place - strips * a.by[1].by), strip = (int)(strips - image * a.by[2].by);
    float across[TAPS];
    UNROLLED(k, TAPS) across[k] = table.weights[wide.weight + column * TAPS + k];
    const char *const from = (const char *)a.from + (int64_t)image * high.from * from_line +
                             (int64_t)table.first[wide.entry + column] * step + own;
    const int begin = strip * a.rows, end = min(begin + a.rows, high.to);
    char *to = (char *)a.to + ((int64_t)image * high.to + begin) * to_line + (int64_t)column * step + own;

    float row[TAPS][N]; /* of rows base, base + 1, … of `from`, as far as `known` */
    UNROLLED(k, TAPS)
      UNROLLED(c, N) row[k][c] = 0;
    int base = 0, known = 0;
    ONCE
    for (int y = begin; y < end; y++, to += to_line) {
      const int first = table.first[high.entry + y], count = table.count[high.entry + y];
      if (first >= known) base = known = first;
      ONCE
      for (; first - base >= HALF; base += HALF) forget<HALF>(row);
      if (HALF > 1) {
        ONCE
        for (; base < first; base++) forget<1>(row);
      }
      UNROLLED(k, TAPS)
        if (k < count && base + k >= known) add_across<T, TAPS>(from + (base + k) * from_line, step, across, row[k]);
      known = max(known, first + count);
      float sum[N];
      UNROLLED(c, N) sum[c] = 0;
      UNROLLED(k, TAPS) {
        const float weight = table.weights[high.weight + y * TAPS + k];
        if (weight != 0) {
          UNROLLED(c, N) sum[c] = fmaf(weight, row[k][c], sum[c]);
        }
      }
      store_bits(to, narrow_pack<T>(sum));
    }
  }
}

TFU_KERNEL(resize_fill, __grid_constant__ resize_args)
TFU_KERNEL(resize_any, __grid_constant__ resize_args)
#define STRIP(taps, tag, T) \
  TFU_KERNEL_AS_(resize_strip_##taps##_##tag, __grid_constant__ resize_args, resize_strip<T, taps>)
TFU_SINGLES(STRIP, 1)
TFU_SINGLES(STRIP, 2)
TFU_SINGLES(STRIP, 4)
TFU_SINGLES(STRIP, 8)
