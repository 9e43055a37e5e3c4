/* The fourth rung (conv_own.h), implicit GEMM: a product of matrices on tensor cores, of which one is never written.
 *
 * Row m of the left matrix is what the window at position m sees, [window, channels of a group]; the right matrix is
 * the kernel as it lies, [window, channels of a group, outputs]. A tile of the left one is gathered from x when it is
 * copied to shared memory: a chunk of 16 bytes is some channels that one tap sees, or zeros where that is outside of x.
 * What the tiles make is in panels.cuh. */
#include "kernels/convolution/conv_own.cuh"
#include "kernels/core/device/panels.cuh"

#if TFU_HAS_PANELS(__CUDA_ARCH__ / 10)
template <typename T>
struct windows_panel : panel_tile<T, TFU_PANEL_ROWS, false, false> {
  typedef panel_lines<T, TFU_PANEL_ROWS, false> layout;
  enum { COUNT = layout::COUNT, NOWHERE = -(1 << 30) };
  const conv_shape &s;
  const T *x;                  /* of the group */
  int top[COUNT], left[COUNT]; /* where the windows of this thread's rows begin … */
  unsigned at[COUNT];          /* … as a pixel of x: outside of it, modulo 2^32 */
  int down, across, c;         /* tap and channel of its chunk of the next tile */
  unsigned to;

  /* Positions `first` .. of those that there are. */
  __device__ windows_panel(const conv_args &a, int first, int positions, int group)
      : s(a.s), x((const T *)a.x + group * a.s.c), down(0), across(0) {
    const int line = threadIdx.x / layout::CHUNKS, chunk = threadIdx.x % layout::CHUNKS;
    c = chunk * layout::N;
    to = layout::place(line, chunk);
    UNROLLED(i, COUNT) {
      const int m = first + line + i * layout::AT_ONCE, high = (int)s.out[1], wide = (int)s.out[2];
      top[i] = m < positions ? m / wide % high * (int)s.stride[1] - (int)s.before[1] : NOWHERE;
      left[i] = m % wide * (int)s.stride[2] - (int)s.before[2];
      at[i] = (m / wide / high * (unsigned)s.in[1] + top[i]) * (unsigned)s.in[2] + left[i];
    }
  }

  __device__ void fetch(unsigned tile) {
    const int channels = (int)s.c, high = (int)s.in[1], wide = (int)s.in[2];
    const int64_t pixel = s.groups * s.c;
    while (c >= channels) {
      c -= channels;
      if (++across == (int)s.window[2]) across = 0, down++;
    }
    const int i_tap = down * (int)s.dilation[1], j_tap = across * (int)s.dilation[2];
    const bool there = down < (int)s.window[1];
    UNROLLED(i, COUNT) {
      const bool inside =
          there && (unsigned)(top[i] + i_tap) < (unsigned)high && (unsigned)(left[i] + j_tap) < (unsigned)wide;
      const T *const from = x + (at[i] + i_tap * (unsigned)wide + j_tap) * pixel + c;
      copy_pack(tile + to + i * layout::AT_ONCE * layout::LINE, inside ? from : x, inside ? 16 : 0);
    }
    c += layout::DEPTH;
  }
};
#endif

/* blockIdx.x counts tiles of outputs first, since these see the same windows, then those of positions, then groups. */
template <typename T>
__device__ inline void conv_tensor(const conv_args &a) {
#if TFU_HAS_PANELS(__CUDA_ARCH__ / 10)
  enum { ROWS = TFU_PANEL_ROWS, COLS = TFU_PANEL_COLS(sizeof(T)), DEPTH = TFU_PANEL_DEPTH(sizeof(T)) };
  extern __shared__ __align__(1024) char memory[];
  const conv_shape &s = a.s;
  const int positions = (int)(s.batch * volume(s.out)), terms = (int)(volume(s.window) * s.c), outputs = (int)s.k;
  const int tiles = (outputs + COLS - 1) / COLS, rows = (positions + ROWS - 1) / ROWS;
  const int row = (int)blockIdx.x / tiles % rows * ROWS, col = (int)blockIdx.x % tiles * COLS;
  const int group = (int)blockIdx.x / tiles / rows;
  const int64_t all = s.groups * s.k, first = group * s.k;
  windows_panel<T> left(a, row, positions, group);
  matrix_panel<T, COLS, true, true> right((const T *)a.kernel + first + col, 1, all, outputs - col, terms);
  multiply_panels<T>(left, right, (terms + DEPTH - 1) / DEPTH, memory, [&](int r, int c, const float(&two)[2]) {
    if (row + r < positions && col + c < outputs) finish<T>(a, (row + r) * all + first + col + c, first + col + c, two);
  });
#endif
}

#define STAMP(name, tag, T) TFU_STAMP((TFU_THREADS, 1), name##_##tag, __grid_constant__ conv_args, name<T>)
TFU_SINGLES(STAMP, conv_tensor)
