/* The third rung (conv_own.h): tiles of x in shared memory, register tiles of results.
 *
 * Windows overlap: of a 3 x 3 one, every element of x is seen by nine results of an output. A block has a rectangle of
 * positions and brings what their windows see, all of it and some channels at a time, to shared memory once; then it
 * goes through the taps. A tap is a product of two small matrices there, positions by channels and channels by outputs,
 * of which a thread has PLACES x OWN results: 48 numbers read for 128 multiplications. */
#include "kernels/convolution/conv_own.cuh"

template <typename T>
struct conv_tile {
  typedef acc<T> R;
  enum { HIGH = CONV_TILE_HIGH, WIDE = CONV_TILE_WIDE, OUTPUTS = CONV_TILE_OUTPUTS, CHANNELS = CONV_TILE_CHANNELS };
  enum { OWN = 4, ACROSS = OUTPUTS / OWN, PLACES = HIGH * WIDE / (TFU_THREADS / ACROSS), P = packed<R>::N };
  enum { WEIGHTS = CHANNELS * OUTPUTS, HELD = WEIGHTS / TFU_THREADS };
  enum { CHAINS = sizeof(T) == 4 }; /* 16 bits are rounded by more than a chain loses, 64 have digits to spare */
  static_assert(WIDE % PLACES == 0 && WEIGHTS % TFU_THREADS == 0, "whole shares");

  const conv_args &a;
  int64_t n, top, left;     /* of x: the image, and where the first window begins */
  int64_t row, col, group;  /* of y: the first position; whose channels are seen */
  int64_t k;                /* the first output, within its group */
  int high, wide, channels; /* of x in shared memory; of those CHANNELS, how many exist */

  /* blockIdx.x counts tiles of outputs first, since these see the same x, then those of positions. */
  __device__ conv_tile(const conv_args &a) : a(a) {
    const conv_shape &s = a.s;
    const int64_t tiles = (s.k + OUTPUTS - 1) / OUTPUTS, across = (s.out[2] + WIDE - 1) / WIDE;
    const int64_t down = (s.out[1] + HIGH - 1) / HIGH, positions = blockIdx.x / (tiles * s.groups);
    k = blockIdx.x % tiles * OUTPUTS, group = blockIdx.x / tiles % s.groups;
    col = positions % across * WIDE, row = positions / across % down * HIGH, n = positions / across / down;
    top = row * s.stride[1] - s.before[1], left = col * s.stride[2] - s.before[2];
    high = (int)conv_seen(&s, 1, HIGH), wide = (int)conv_seen(&s, 2, WIDE);
  }

  /* Channels `first` .. of what the windows see, as [high][wide][CHANNELS]; 0 outside of x. */
  __device__ void load_x(int64_t first, R *to) const {
    const conv_shape &s = a.s;
    const int c = threadIdx.x % CHANNELS, step = TFU_THREADS / CHANNELS;
    const T *const x = (const T *)a.x + n * s.in[1] * s.in[2] * s.groups * s.c + group * s.c + first + c;
    int i = 0, j = threadIdx.x / CHANNELS;
    for (int at = threadIdx.x; at < high * wide * CHANNELS; at += TFU_THREADS, j += step) {
      while (j >= wide) j -= wide, i++;
      const int64_t h = top + i, w = left + j;
      const bool inside = h >= 0 && h < s.in[1] && w >= 0 && w < s.in[2] && c < channels;
      to[at] = inside ? (R)x[(h * s.in[2] + w) * s.groups * s.c] : (R)0;
    }
  }

  /* This thread's part of the weights of a tap, [CHANNELS][OUTPUTS], on the way to shared memory. */
  __device__ void load_weights(int tap, int64_t first, T (&held)[HELD]) const {
    const conv_shape &s = a.s;
    UNROLLED(i, HELD) {
      const int at = threadIdx.x + i * TFU_THREADS, c = at / OUTPUTS, o = at % OUTPUTS;
      const int64_t line = tap * s.c + first + c;
      held[i] =
          c < channels && k + o < s.k ? ((const T *)a.kernel)[line * s.groups * s.k + group * s.k + k + o] : (T)0.0f;
    }
  }
  static __device__ void store_weights(const T (&held)[HELD], R *to) {
    UNROLLED(i, HELD) to[threadIdx.x + i * TFU_THREADS] = (R)held[i];
  }

  static __device__ void read(const R *from, R (&v)[P]) { widen_pack<R>(*(const int4 *)from, v); }

  /* sum[i][j] += what the thread's positions, `step` apart in x, see by one tap, times its outputs' weights. */
  __device__ void multiply(const R *x, int step, const R *weights, R (&sum)[PLACES][OWN]) const {
    for (int c = 0; c < channels; c += P, x += P, weights += P * OUTPUTS) {
      R w[P][OWN];
      UNROLLED(i, P * OWN / P) {
        R pack[P];
        read(weights + i / (OWN / P) * OUTPUTS + i % (OWN / P) * P, pack);
        UNROLLED(p, P) w[i / (OWN / P)][i % (OWN / P) * P + p] = pack[p];
      }
      UNROLLED(i, PLACES) {
        R seen[P];
        read(x + i * step, seen);
        UNROLLED(p, P * OWN) sum[i][p % OWN] += seen[p / OWN] * w[p / OWN][p % OWN];
      }
    }
  }
};

/* Thread t has outputs OWN (t % ACROSS) .. and PLACES neighbours of a row. While the weights of a tap are multiplied,
 * those of the next are on their way in registers; two slots in shared memory take turns. */
template <typename T>
__device__ inline void conv_shared(const conv_args &a) {
  typedef conv_tile<T> t;
  typedef acc<T> R;
  enum { PLACES = t::PLACES, OWN = t::OWN, CHANNELS = t::CHANNELS, CHAINS = t::CHAINS };
  extern __shared__ __align__(16) char memory[];
  R *const weights = (R *)memory, *const x = weights + 2 * t::WEIGHTS;
  const conv_shape &s = a.s;
  t tile(a);
  const int own = threadIdx.x % t::ACROSS * OWN, first = threadIdx.x / t::ACROSS * PLACES;
  const int row = first / t::WIDE, col = first % t::WIDE, taps = (int)(s.window[1] * s.window[2]);
  const int step = (int)s.stride[2] * CHANNELS;
  const R *const corner = x + (row * (int)s.stride[1] * tile.wide + col * (int)s.stride[2]) * CHANNELS;
  R sum[PLACES][OWN] = {}, part[PLACES][OWN];
  R(&into)[PLACES][OWN] = CHAINS ? part : sum;
  for (int64_t c = 0; c < s.c; c += CHANNELS) {
    T held[t::HELD];
    tile.channels = (int)min(s.c - c, (int64_t)CHANNELS);
    tile.load_x(c, x);
    tile.load_weights(0, c, held);
    t::store_weights(held, weights);
    __syncthreads();
    for (int tap = 0; tap < taps; tap++) {
      const bool more = tap + 1 < taps;
      if (more) tile.load_weights(tap + 1, c, held);
      UNROLL
      for (int i = 0; CHAINS && i < PLACES * OWN; i++) part[i / OWN][i % OWN] = 0;
      const int down = tap / (int)s.window[2] * (int)s.dilation[1],
                across = tap % (int)s.window[2] * (int)s.dilation[2];
      tile.multiply(corner + (down * tile.wide + across) * CHANNELS, step, weights + tap % 2 * t::WEIGHTS + own, into);
      UNROLL
      for (int i = 0; CHAINS && i < PLACES * OWN; i++) sum[i / OWN][i % OWN] += part[i / OWN][i % OWN];
      if (more) t::store_weights(held, weights + (tap + 1) % 2 * t::WEIGHTS);
      __syncthreads();
    }
  }
  /* Always the first position, and the others move up: one copy of the code that finishes them serves all. */
  const int64_t h = tile.row + row, k = tile.k + own;
  ONCE
  for (int i = 0; i < PLACES; i++) {
    const int64_t w = tile.col + col + i;
    const int64_t to = ((tile.n * s.out[1] + h) * s.out[2] + w) * s.groups * s.k + tile.group * s.k + k;
    UNROLLED(j, OWN) {
      const R one[1] = {sum[0][j]};
      if (h < s.out[1] && w < s.out[2] && k + j < s.k) finish<T>(a, to + j, tile.group * s.k + k + j, one);
    }
    UNROLL
    for (int m = OWN; m < PLACES * OWN; m++) sum[m / OWN - 1][m % OWN] = sum[m / OWN][m % OWN];
  }
}
/* Two blocks to a multiprocessor: one multiplies while the other waits for its tile. */
#define STAMP(name, tag, T) TFU_STAMP((TFU_THREADS, 2), name##_##tag, conv_args, name<T>)
TFU_TYPES(STAMP, conv_shared)
