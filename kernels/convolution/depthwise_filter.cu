/* The gradient of a depthwise convolution's filter, and of its bias, in strips of dy;
 * kernels/convolution/depthwise_conv.h says what strips are.
 *
 *   dkernel[r, c] = sum of x[i * STRIDE - before + r, j * STRIDE - before + c] * dy[i, j] over all positions i, j of a
 * batch
 *
 * A thread holds all taps' sums of its channels in registers while it goes through its share of the strips; a strip's
 * dy is in registers too, and every position of x that meets it is read once. At the end a block adds up its threads, a
 * row of the window at a time, and leaves the sums to a fold: always in the same order. */
#include "kernels/convolution/depthwise_strips.cuh"

template <typename T, int SIZE, int STRIDE>
__device__ inline void depthwise_filter(const depthwise_filter_args &a) {
  enum {
    V = TFU_STRIP_CHANNELS(SIZE, sizeof(T)),
    LINES = (SIDE - 1) * STRIDE + SIZE,
  };
  typedef channels_of<T, V> pack;
  __shared__ float sums[SIZE][V][TFU_STRIP_THREADS];
  const depthwise_strips &s = a.strips;
  const int within = threadIdx.x / s.lanes, lane = (int)threadIdx.x - within * s.lanes;
  const int first = (int)blockIdx.x * s.lanes * V, channel = first + lane * V;
  const bool idle = within >= s.per || channel >= s.channels;
  const unsigned step = s.channels * sizeof(T), own = channel * sizeof(T);
  const unsigned line = a.w.in * step, dy_line = a.w.out * step;

  float sum[SIZE][SIZE][V], bias[V];
  UNROLLED(tap, SIZE * SIZE)
    UNROLLED(k, V) sum[tap / SIZE][tap % SIZE][k] = 0;
  UNROLLED(k, V) bias[k] = 0;

  ONCE
  for (int strip = idle ? s.count : (int)blockIdx.y * s.per + within; strip < s.count; strip += gridDim.y * s.per) {
    const strip_position at(s, strip, channel);
    const int dy_row = at.row * SIDE, dy_column = at.column * SIDE;
    const int row = dy_row * STRIDE - a.h.before, column = dy_column * STRIDE - a.w.before;
    const unsigned columns = inside<LINES>(column, a.w.in), dy_columns = inside<SIDE>(dy_column, a.w.out);
    const char *const from =
        settled((const char *)a.x + ((int64_t)at.batch * a.h.in + row) * line + (int64_t)column * step + own);
    const char *const dy = settled((const char *)a.dy + ((int64_t)at.batch * a.h.out + dy_row) * dy_line +
                                   (int64_t)dy_column * step + own);
    strip_line<T, V, SIDE> slopes[SIDE];
    UNROLLED(o, SIDE) slopes[o].load(settled(dy + (uint64_t)dy_line * o), step, dy_row + o < a.h.out ? dy_columns : 0);
    strip_line<T, V, LINES> seen;
    seen.load(from, step, (unsigned)row < (unsigned)a.h.in ? columns : 0);
    float g[SIDE][SIDE][V];
    UNROLLED(position, SIDE * SIDE) {
      pack::widen(slopes[position / SIDE].at[position % SIDE], g[position / SIDE][position % SIDE]);
      UNROLLED(k, V) bias[k] += g[position / SIDE][position % SIDE][k];
    }
    UNROLLED(i, LINES) {
      const char *const below = settled(from + (uint64_t)line * (i + 1));
      const unsigned there = (unsigned)(row + i + 1) < (unsigned)a.h.in ? columns : 0;
      UNROLLED(j, LINES) {
        float x[V];
        pack::widen(seen.at[j], x);
        if (i + 1 < LINES) seen.load(j, below, step, there); /* comes while the rest of the line is multiplied */
        UNROLLED(o, SIDE) {
          UNROLLED(p, SIDE) {
            const int r = i - o * STRIDE, c = j - p * STRIDE;
            if (r < 0 || r >= SIZE || c < 0 || c >= SIZE) continue;
            UNROLLED(k, V) sum[r][c][k] = fmaf(x[k], g[o][p][k], sum[r][c][k]);
          }
        }
      }
    }
  }

  /* The sums of threads with the same channels, those of the lowest strip first. */
  const auto add_up = [&](int quantity, int k, int channel_lane) {
    float total = 0;
    ONCE
    for (int other = 0; other < s.per; other++) total += sums[quantity][k][other * s.lanes + channel_lane];
    return total;
  };
  const int packs = min(s.lanes, (s.channels - first) / V);
  UNROLL
  for (int r = 0; r <= SIZE; r++) { /* the last is the bias */
    const int quantities = r < SIZE ? SIZE : 1;
    if (r == SIZE && !a.dbias) return;
    UNROLLED(c, quantities)
      UNROLLED(k, V) sums[c][k][threadIdx.x] = r < SIZE ? sum[r < SIZE ? r : 0][c][k] : bias[k];
    __syncthreads();
    float *const to = r < SIZE ? (float *)a.dkernel + ((int64_t)blockIdx.y * SIZE * SIZE + r * SIZE) * s.channels
                               : (float *)a.dbias + (int64_t)blockIdx.y * s.channels;
    ONCE
    for (int i = threadIdx.x; i < quantities * packs * V; i += TFU_STRIP_THREADS) {
      const int c = i / (packs * V), position = i - c * packs * V;
      to[(int64_t)c * s.channels + first + position] = add_up(c, position % V, position / V);
    }
    __syncthreads();
  }
}

#define KERNEL(size, stride, tag, T)                                                                            \
  TFU_STAMP((TFU_STRIP_THREADS, TFU_STRIP_BLOCKS(size, sizeof(T))), depthwise_filter_##size##_##stride##_##tag, \
            depthwise_filter_args, depthwise_filter<T, size, stride>)
TFU_SINGLES(KERNEL, 3, 1)
TFU_SINGLES(KERNEL, 3, 2)
TFU_SINGLES(KERNEL, 5, 1)
TFU_SINGLES(KERNEL, 5, 2)
TFU_SINGLES(KERNEL, 7, 1)
