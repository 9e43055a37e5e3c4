/* The fourth rung (conv_own.h), implicit GEMM: a product of matrices on tensor cores, of which one is never written.
 *
 * Row m of the left matrix is what the window at position m sees, [window, channels of a group]; the right matrix is
 * the kernel as it lies, [window, channels of a group, outputs]. A tile of the left one is gathered from x when it is
 * copied to shared memory (conv_windows.cuh). What the tiles make is in panels.cuh. */
#include "kernels/convolution/conv_own.cuh"
#include "kernels/convolution/conv_windows.cuh"
#include "kernels/core/device/panels.cuh"

#if TFU_HAS_PANELS(__CUDA_ARCH__ / 10)
template <typename T>
struct windows_panel : panel_tile<T, TFU_PANEL_ROWS, false, false> {
  typedef panel_lines<T, TFU_PANEL_ROWS, false> layout;
  window_lines<T, layout::COUNT, layout::AT_ONCE, layout::LINE> windows;
  unsigned to;

  /* Positions `first` .. of those that there are. */
  __device__ windows_panel(const conv_args &a, int first, int positions, int group) : windows(a.s, a.y_high, a.y_wide) {
    const int line = threadIdx.x / layout::CHUNKS, chunk = threadIdx.x % layout::CHUNKS;
    windows.begin((const T *)a.x + group * a.s.c, first + line, positions, chunk);
    to = layout::place(line, chunk);
  }

  __device__ void fetch(unsigned tile) { windows.fetch(tile + to); }
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
