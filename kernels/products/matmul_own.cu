/* d = alpha a b + c + bias (matmul_own.h), three times: naive, tiled, on tensor cores.
 *
 * A block has a tile of the results of one product, or of one part of its sums (split-K). Tiles are dealt out so that
 * blocks that run at the same time share rows of a and columns of b, which then come from the L2 cache. */
#include "kernels/products/matmul_own.h"

#include "kernels/core/device/panels.cuh"

/* ---- what all three share ---- */

struct matmul_place {
  int64_t batch, row, col; /* the tile's first result */
  int64_t first;           /* the first term of its sums … */
  int terms;               /* … and how many there are */
  int slice;
};

/* blockIdx.x counts the tiles of one slice of one product, then slices, then products. GROUP rows of tiles go down
 * together, column by column: a wave of blocks is about as wide as it is high. */
__device__ inline matmul_place place_of(const matmul_args &a, int rows, int cols) {
  enum { GROUP = 16 };
  const int64_t down = (a.m + rows - 1) / rows, across = (a.n + cols - 1) / cols;
  const int64_t unit = blockIdx.x / (down * across), tile = blockIdx.x % (down * across);
  const int64_t top = tile / (GROUP * across) * GROUP, inside = tile % (GROUP * across);
  const int64_t high = min(down - top, (int64_t)GROUP);
  matmul_place at;
  at.batch = unit / a.slices, at.slice = (int)(unit % a.slices);
  at.row = (top + inside % high) * rows, at.col = inside / high * cols;
  at.first = at.slice * a.slice;
  at.terms = (int)min(a.k - at.first, a.slice);
  return at;
}

/* The element that the tile's sums begin with. */
template <typename T>
__device__ inline const T *start_of(const matmul_factor &f, const matmul_place &at, int64_t row, int64_t col) {
  return (const T *)f.data + at.batch * f.batch + row * f.row + col * f.col;
}

/* Where a result goes. */
__device__ inline int64_t place_in_d(const matmul_args &a, const matmul_place &at, int64_t row, int64_t col) {
  return at.slice * a.parts + at.batch * a.d_batch + row * a.n + col;
}

/* One result, or two neighbours, of the type that c and d have. */
template <typename D, typename T, typename R, int N>
__device__ inline void finish_as(const matmul_args &a, bool first, int64_t to, int64_t col, const R (&sum)[N]) {
  struct alignas(N * sizeof(D)) result {
    D v[N];
  } d, c;
  if (a.c) c = *(const result *)((const D *)a.c + to);
  UNROLLED(i, N) {
    R v = sum[i] * (R)a.alpha;
    if (a.bias && first) v += (R)((const T *)a.bias)[col + i];
    if (a.c) v += (R)c.v[i];
    d.v[i] = (D)v;
  }
  *(result *)((D *)a.d + to) = d;
}
template <typename T, int N>
__device__ inline void finish(const matmul_args &a, const matmul_place &at, int64_t to, int64_t col,
                              const acc<T> (&sum)[N]) {
  if (a.wide) finish_as<acc<T>, T>(a, at.slice == 0, to, col, sum);
  else finish_as<T, T>(a, at.slice == 0, to, col, sum);
}

/* Terms that are summed on their own before their sum is added to the rest: one long chain loses digits in float32. */
enum { CHAIN = 16 };

/* ---- naive ---- */

/* Two loads for every multiplication; only the caches keep it from being slower still. Chains cost nothing here, so all
 * types have them. */
template <typename T>
__device__ inline void matmul_naive(const matmul_args &a) {
  enum { SIDE = 16 };
  const matmul_place at = place_of(a, SIDE, SIDE);
  const int64_t row = at.row + threadIdx.x / SIDE, col = at.col + threadIdx.x % SIDE;
  if (row >= a.m || col >= a.n) return;
  const T *x = start_of<T>(a.a, at, row, at.first), *y = start_of<T>(a.b, at, at.first, col);
  acc<T> sum[1] = {0};
  for (int k = 0; k < at.terms;) {
    acc<T> part = 0;
    for (const int end = min(k + CHAIN, at.terms); k < end; k++, x += a.a.col, y += a.b.row)
      part += (acc<T>)*x * (acc<T>)*y;
    sum[0] += part;
  }
  finish<T>(a, at, place_in_d(a, at, row, col), col, sum);
}
TFU_KERNEL(matmul_naive, matmul_args)

/* ---- tiled ---- */

/* SIDE x SIDE results by DEPTH terms at a time. A thread has OWN x OWN of them, in packs of 16 bytes that are as far
 * apart as the threads reach: so for 2 OWN numbers from shared memory there are OWN * OWN multiplications, and
 * neighbours read what lies side by side. The tiles of both factors are [term][row of a, or column of b] there; a LINE
 * is a pack longer than SIDE, so that what is stored below each other spreads over the banks. */
template <typename T>
struct tiles {
  typedef acc<T> R;
  enum { SIDE = 128, DEPTH = 16, OWN = 8, REACH = SIDE / OWN, P = packed<R>::N, LINE = SIDE + P };
  enum { COUNT = SIDE * DEPTH / TFU_THREADS };
  enum { CHAINS = sizeof(T) == 4 }; /* 16 bits are rounded by more than a chain loses, 64 have digits to spare */
  static_assert(DEPTH == CHAIN, "a tile is a chain");
  static_assert(REACH * REACH == TFU_THREADS, "a thread per OWN x OWN results");

  /* Which results a thread has, along one axis. */
  static __device__ int own(int thread, int i) { return (i / P * REACH + thread) * P + i % P; }

  /* A thread's part of a tile on its way, COUNT elements, equal steps apart along the axis that is not contiguous. */
  struct part {
    const T *from;
    int64_t step, next;
    int line, term, lines_step, terms_step, lines; /* of the first element; to the next; lines that exist */
    T held[COUNT];

    __device__ part(const T *from, int64_t line_stride, int64_t term_stride, int64_t lines)
        : lines((int)min(lines, (int64_t)SIDE)) {
      const bool terms_side_by_side = term_stride == 1;
      const int t = threadIdx.x;
      line = terms_side_by_side ? t / DEPTH : t % SIDE, term = terms_side_by_side ? t % DEPTH : t / SIDE;
      lines_step = terms_side_by_side ? TFU_THREADS / DEPTH : 0,
      terms_step = terms_side_by_side ? 0 : TFU_THREADS / SIDE;
      this->from = from + line * line_stride + term * term_stride;
      step = lines_step * line_stride + terms_step * term_stride;
      next = DEPTH * term_stride;
    }
    /* Zeros beyond the matrix; `terms` are left. */
    __device__ void load(int terms) {
      UNROLLED(i, COUNT)
        held[i] = line + i * lines_step < lines && term + i * terms_step < terms ? from[i * step] : (T)0.0f;
      from += next;
    }
    __device__ void store(R (&tile)[DEPTH][LINE]) const {
      UNROLLED(i, COUNT) tile[term + i * terms_step][line + i * lines_step] = (R)held[i];
    }
  };

  static __device__ void read(const R (&line)[LINE], int thread, R (&v)[OWN]) {
    UNROLL
    for (int i = 0; i < OWN; i += P) {
      const int4 bits = *(const int4 *)(line + own(thread, i));
      R pack[P];
      widen_pack<R>(bits, pack);
      UNROLLED(p, P) v[i + p] = pack[p];
    }
  }
};

/* Thread t has rows own(t / REACH, i) and columns own(t % REACH, j) of the block's results. In an iteration the tile
 * that waits in the threads' registers goes to shared memory, the next one sets out for the registers, and the one in
 * shared memory is multiplied. */
template <typename T>
__device__ inline void matmul_tiled(const matmul_args &a) {
  typedef tiles<T> t;
  typedef acc<T> R;
  enum { DEPTH = t::DEPTH, OWN = t::OWN, REACH = t::REACH, CHAINS = t::CHAINS };
  __shared__ __align__(16) R left[DEPTH][t::LINE], right[DEPTH][t::LINE];
  const matmul_place at = place_of(a, t::SIDE, t::SIDE);
  const int down = threadIdx.x / REACH, across = threadIdx.x % REACH;
  typename t::part x(start_of<T>(a.a, at, at.row, at.first), a.a.row, a.a.col, a.m - at.row);
  typename t::part y(start_of<T>(a.b, at, at.first, at.col), a.b.col, a.b.row, a.n - at.col);
  R sum[OWN][OWN] = {}, part[OWN][OWN];
  R(&into)[OWN][OWN] = CHAINS ? part : sum;
  x.load(at.terms), y.load(at.terms);
  for (int terms = at.terms; terms > 0; terms -= DEPTH) {
    x.store(left), y.store(right);
    __syncthreads();
    if (terms > DEPTH) x.load(terms - DEPTH), y.load(terms - DEPTH); /* come while these are multiplied */
    UNROLL
    for (int i = 0; CHAINS && i < OWN * OWN; i++) part[i / OWN][i % OWN] = 0;
    _Pragma("unroll 8") for (int k = 0; k < DEPTH; k++) {
      R u[OWN], v[OWN];
      t::read(left[k], down, u), t::read(right[k], across, v);
      UNROLLED(i, OWN * OWN) into[i / OWN][i % OWN] += u[i / OWN] * v[i % OWN];
    }
    UNROLL
    for (int i = 0; CHAINS && i < OWN * OWN; i++) sum[i / OWN][i % OWN] += part[i / OWN][i % OWN];
    __syncthreads();
  }
  /* Always the first row of sums, and the others move up: one copy of the code that finishes them serves all. */
  ONCE
  for (int i = 0; i < OWN; i++) {
    const int64_t row = at.row + t::own(down, i), to = place_in_d(a, at, row, 0);
    UNROLLED(j, OWN) {
      const int64_t col = at.col + t::own(across, j);
      const R one[1] = {sum[0][j]};
      if (row < a.m && col < a.n) finish<T>(a, at, to + col, col, one);
    }
    UNROLL
    for (int k = OWN; k < OWN * OWN; k++) sum[k / OWN - 1][k % OWN] = sum[k / OWN][k % OWN];
  }
}
/* Two blocks to a multiprocessor: one multiplies while the other waits for its tile. Chains, or sums in double, leave
 * room for one. */
#define STAMP_TILED(blocks, tag, T) TFU_STAMP((TFU_THREADS, blocks), matmul_tiled_##tag, matmul_args, matmul_tiled<T>)
STAMP_TILED(1, f32, float)
TFU_HALVES(STAMP_TILED, 2)
STAMP_TILED(1, f64, double)

/* ---- tensor cores ---- */

/* What the panels of both factors make is in panels.cuh; this says where they lie and where results go. */
template <typename T, bool A_TRANSPOSED, bool B_TRANSPOSED>
__device__ inline void matmul_tensor(const matmul_args &a) {
#if TFU_HAS_PANELS(__CUDA_ARCH__ / 10)
  enum { ROWS = TFU_PANEL_ROWS, COLS = TFU_PANEL_COLS(sizeof(T)), DEPTH = TFU_PANEL_DEPTH(sizeof(T)) };
  extern __shared__ __align__(1024) char memory[];
  const matmul_place at = place_of(a, ROWS, COLS);
  matrix_panel<T, ROWS, false, A_TRANSPOSED> left(start_of<T>(a.a, at, at.row, at.first), a.a.row, a.a.col,
                                                  a.m - at.row, at.terms);
  matrix_panel<T, COLS, true, !B_TRANSPOSED> right(start_of<T>(a.b, at, at.first, at.col), a.b.col, a.b.row,
                                                   a.n - at.col, at.terms);
  multiply_panels<T>(left, right, (at.terms + DEPTH - 1) / DEPTH, memory, [&](int row, int col, const float(&two)[2]) {
    const int64_t r = at.row + row, c = at.col + col;
    if (r < a.m && c < a.n) finish<T>(a, at, place_in_d(a, at, r, c), c, two);
  });
#endif
}

#define STAMP(layout, a_transposed, b_transposed, tag, T)                                    \
  TFU_STAMP((TFU_THREADS, 1), matmul_tensor_##layout##_##tag, __grid_constant__ matmul_args, \
            matmul_tensor<T, a_transposed, b_transposed>)
TFU_HALVES(STAMP, nn, false, false)
TFU_HALVES(STAMP, nt, false, true)
TFU_HALVES(STAMP, tn, true, false)
TFU_HALVES(STAMP, tt, true, true)
