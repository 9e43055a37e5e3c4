/* Depthwise convolution in strips: y of x, and dx of dy; kernels/convolution/depthwise_conv.h says what strips are.
 *
 * Along one axis, position p of a strip and position j of what it reads meet in tap j - p * STRIDE of the window. In dx
 * of dy it is the other way round: with positions counted from the padding's beginning, dx's u and dy's o meet in tap u
 * - o * STRIDE. A strip begins at a multiple of STRIDE there, so which taps there are is known to the compiler, and
 * those that there are not cost nothing. A window of 7 takes 784 multiplications for each channel of a strip and reads
 * 100 positions. */
#include "kernels/convolution/depthwise_strips.cuh"

#include "kernels/core/device/any_activation.cuh"

/* A pack of y, so many bytes after its beginning. */
template <typename T, int V>
__device__ inline void store_result(const depthwise_args &a, int64_t offset, float (&v)[V]) {
  typedef channels_of<T, V> pack;
  typedef typename pack::bits bits;
  if (a.pre) *(bits *)((char *)a.pre + offset) = pack::narrow(v);
  if (a.activation == TFU_ACT_relu) {
    UNROLLED(k, V) v[k] = math_of<T>::type::relu(v[k]);
  } else if (a.activation != TFU_ACT_linear) {
    UNROLLED(k, V) v[k] = activate<T>(a.activation, v[k]);
  }
  *(bits *)((char *)a.to + offset) = pack::narrow(v);
}

template <typename T, int SIZE, int STRIDE, bool BACK>
__device__ inline void depthwise_strip(const depthwise_args &a) {
  enum {
    V = TFU_STRIP_CHANNELS(SIZE, sizeof(T)),
    REACH = BACK ? (SIZE - 1) / STRIDE : 0, /* positions before a strip's own that it reads */
    LINES = BACK ? (SIDE - 1) / STRIDE + REACH + 1 : (SIDE - 1) * STRIDE + SIZE,
  };
  typedef channels_of<T, V> pack;
  typedef typename pack::bits bits;
  const depthwise_strips &s = a.strips;
  const int within = threadIdx.x / s.lanes, strip = (int)(blockIdx.x / s.groups) * s.per + within;
  const int channel = ((int)(blockIdx.x % s.groups) * s.lanes + (int)threadIdx.x - within * s.lanes) * V;
  if (within >= s.per || strip >= s.count || channel >= s.channels) return;
  const strip_position at(s, strip, channel);

  /* Where the strip begins in `to` and in `from`. */
  const int start_h = BACK ? a.h.before / STRIDE * STRIDE : 0, start_w = BACK ? a.w.before / STRIDE * STRIDE : 0;
  const int u = start_h + at.row * SIDE, v = start_w + at.column * SIDE;
  const int to_row = BACK ? u - a.h.before : u, to_column = BACK ? v - a.w.before : v;
  const int row = BACK ? u / STRIDE - REACH : u * STRIDE - a.h.before;
  const int column = BACK ? v / STRIDE - REACH : v * STRIDE - a.w.before;
  const int from_h = BACK ? a.h.out : a.h.in, from_w = BACK ? a.w.out : a.w.in;
  const int to_h = BACK ? a.h.in : a.h.out, to_w = BACK ? a.w.in : a.w.out;

  const unsigned step = s.channels * sizeof(T), line = from_w * step, own = channel * sizeof(T);
  float weight[SIZE][SIZE][V], sum[SIDE][SIDE][V], start[V];
  const char *const kernel = settled((const char *)a.kernel + own);
  UNROLLED(tap, SIZE * SIZE) pack::widen(load_pack<bits>(kernel, step, tap), weight[tap / SIZE][tap % SIZE]);
  UNROLLED(k, V) start[k] = 0;
  if (!BACK && a.bias) pack::widen(load_pack<bits>((const char *)a.bias + own, 0, 0), start);
  UNROLLED(position, SIDE * SIDE)
    UNROLLED(k, V) sum[position / SIDE][position % SIDE][k] = start[k];

  const unsigned columns = inside<LINES>(column, from_w);
  const char *const from =
      settled((const char *)a.from + ((int64_t)at.batch * from_h + row) * line + (int64_t)column * step + own);
  strip_line<T, V, LINES> seen;
  seen.load(from, step, (unsigned)row < (unsigned)from_h ? columns : 0);
  UNROLLED(i, LINES) {
    const char *const below = settled(from + (uint64_t)line * (i + 1));
    const unsigned there = (unsigned)(row + i + 1) < (unsigned)from_h ? columns : 0;
    UNROLLED(j, LINES) {
      float x[V];
      pack::widen(seen.at[j], x);
      if (i + 1 < LINES) seen.load(j, below, step, there); /* comes while the rest of the line is multiplied */
      UNROLLED(o, SIDE) {
        const int r = BACK ? o - (i - REACH) * STRIDE : i - o * STRIDE;
        UNROLLED(p, SIDE) {
          const int c = BACK ? p - (j - REACH) * STRIDE : j - p * STRIDE;
          if (r < 0 || r >= SIZE || c < 0 || c >= SIZE) continue;
          UNROLLED(k, V) sum[o][p][k] = fmaf(weight[r][c][k], x[k], sum[o][p][k]);
        }
      }
    }
  }

  UNROLLED(o, SIDE) {
    if ((unsigned)(to_row + o) >= (unsigned)to_h) continue;
    const int64_t first = (((int64_t)at.batch * to_h + to_row + o) * to_w + to_column) * step + own;
    UNROLLED(p, SIDE) {
      if ((unsigned)(to_column + p) >= (unsigned)to_w) continue;
      if constexpr (BACK) *(bits *)((char *)a.to + first + p * (int64_t)step) = pack::narrow(sum[o][p]);
      else store_result<T>(a, first + p * (int64_t)step, sum[o][p]);
    }
  }
}

#define KERNEL(label, size, stride, back, tag, T)                                                                      \
  TFU_STAMP((TFU_STRIP_THREADS, TFU_STRIP_BLOCKS(size, sizeof(T))), label##_##size##_##stride##_##tag, depthwise_args, \
            depthwise_strip<T, size, stride, back>)
#define KERNELS(size, stride)                               \
  TFU_SINGLES(KERNEL, depthwise_strip, size, stride, false) \
  TFU_SINGLES(KERNEL, depthwise_back, size, stride, true)
KERNELS(3, 1)
KERNELS(3, 2)
KERNELS(5, 1)
KERNELS(5, 2)
KERNELS(7, 1)
