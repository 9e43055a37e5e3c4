/* d = alpha a b + c + bias (matmul_own.h), three times: naive, tiled, on tensor cores.
 *
 * A block has a tile of the results of one product, or of one part of its sums. Tiles are dealt out so that blocks that
 * run at the same time share rows of a and columns of b, which then come from the L2 cache. */
#include "kernels/products/matmul_own.h"

#include "kernels/core/device/mma.cuh"

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
  UNROLL
  for (int i = 0; i < N; i++) {
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
      UNROLL
      for (int i = 0; i < COUNT; i++)
        held[i] = line + i * lines_step < lines && term + i * terms_step < terms ? from[i * step] : (T)0.0f;
      from += next;
    }
    __device__ void store(R (&tile)[DEPTH][LINE]) const {
      UNROLL
      for (int i = 0; i < COUNT; i++) tile[term + i * terms_step][line + i * lines_step] = (R)held[i];
    }
  };

  static __device__ void read(const R (&line)[LINE], int thread, R (&v)[OWN]) {
    UNROLL
    for (int i = 0; i < OWN; i += P) {
      const int4 bits = *(const int4 *)(line + own(thread, i));
      R pack[P];
      widen_pack<R>(bits, pack);
      UNROLL
      for (int p = 0; p < P; p++) v[i + p] = pack[p];
    }
  }
};

/* Thread t has rows own(t / REACH, i) and columns own(t % REACH, j) of the block's results. In a turn the tile that
 * waits in the threads' registers goes to shared memory, the next one sets out for the registers, and the one in shared
 * memory is multiplied. */
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
      UNROLL
      for (int i = 0; i < OWN * OWN; i++) into[i / OWN][i % OWN] += u[i / OWN] * v[i % OWN];
    }
    UNROLL
    for (int i = 0; CHAINS && i < OWN * OWN; i++) sum[i / OWN][i % OWN] += part[i / OWN][i % OWN];
    __syncthreads();
  }
  /* Always the first row of sums, and the others move up: one copy of the code that finishes them serves all. */
  ONCE
  for (int i = 0; i < OWN; i++) {
    const int64_t row = at.row + t::own(down, i), to = place_in_d(a, at, row, 0);
    UNROLL
    for (int j = 0; j < OWN; j++) {
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
#define STAMP_TILED(T, tag, blocks)                                                                           \
  extern "C" __global__ void __launch_bounds__(TFU_THREADS, blocks) matmul_tiled_##tag(const matmul_args a) { \
    matmul_tiled<T>(a);                                                                                       \
  }
STAMP_TILED(float, f32, 1)
STAMP_TILED(f16, f16, 2)
STAMP_TILED(bf16, bf16, 2)
STAMP_TILED(double, f64, 1)

/* ---- tensor cores ---- */

#if TFU_OWN_HAS_TENSOR(__CUDA_ARCH__ / 10)
/* The tile of one factor: SIDE rows of a or columns of b, by DEPTH terms. It lies in shared memory as it does in the
 * large matrix: in lines of WIDTH elements, along the terms or (ALONG) across them. Chunks of 16 bytes are permuted
 * within 128 bytes so that eight of them below each other come from different banks. */
template <typename T, int SIDE, bool RIGHT, bool ALONG>
struct panel {
  enum { DEPTH = TFU_OWN_DEPTH, LINES = ALONG ? DEPTH : SIDE, WIDTH = ALONG ? SIDE : DEPTH, N = packed<T>::N };
  enum { LINE = WIDTH * (int)sizeof(T), CHUNKS = LINE / 16, BYTES = LINES * LINE };
  enum { AT_ONCE = TFU_THREADS / CHUNKS, COUNT = LINES / AT_ONCE };
  static_assert(AT_ONCE % 8 == 0 && LINES % AT_ONCE == 0, "a thread's chunks are all permuted alike");

  static __device__ unsigned place(int line, int chunk) {
    return line * LINE + ((chunk ^ (LINE >= 128 ? line & 7 : line >> 1 & 3)) << 4);
  }

  const T *from;    /* this thread's first chunk of the next tile … */
  int64_t step;     /* … and the way to the next, AT_ONCE lines down */
  int64_t next;     /* and to the next tile */
  int lines, width; /* that are left from there on */
  unsigned to;

  __device__ panel(const T *start, int64_t side_stride, int64_t term_stride, int64_t side, int terms) {
    const int line = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS, most = (int)min(side, (int64_t)SIDE);
    const int64_t stride = ALONG ? term_stride : side_stride;
    from = start + line * stride + chunk * N;
    step = AT_ONCE * stride;
    next = DEPTH * term_stride;
    lines = (ALONG ? terms : most) - line;
    width = (ALONG ? most : terms) - chunk * N;
    to = place(line, chunk);
  }

  /* Starts the next tile on its way to `tile`; zeros beyond the matrix, whose sides are whole chunks. */
  __device__ void fetch(unsigned tile) {
    UNROLL
    for (int i = 0; i < COUNT; i++)
      copy_pack(tile + to + i * AT_ONCE * LINE, from + i * step, width > 0 && i * AT_ONCE < lines ? 16 : 0);
    from += next;
    (ALONG ? lines : width) -= DEPTH;
  }

  /* This lane's address for a matrix load, of the part that begins at `first` of SIDE. The four 8 x 8 matrices of a
   * load come down the lines first or across them first (mma.cuh); left and right factors want them in different
   * orders, and ALONG, where the load is a turned one, exchanges these. */
  static __device__ unsigned lane(int first) {
    const unsigned l = lane_id();
    const int line = RIGHT == ALONG ? l & 15 : (l & 7) + (l >> 4) * 8, chunk = RIGHT == ALONG ? l >> 4 : l >> 3 & 1;
    return place(line, chunk) + first * (ALONG ? (int)sizeof(T) : LINE);
  }
  /* Factor i, 16 of SIDE by the terms 16 k .. 16 k + 15, from the lane's address. */
  static __device__ factor<T> load(unsigned lane, int i, int k) {
    factor<T> f;
    if (ALONG) load_matrices_turned((lane ^ (i * 32)) + k * 16 * LINE, f.v);
    else load_matrices((lane ^ (k * 32)) + i * 16 * LINE, f.v);
    return f;
  }
};
#endif

/* Eight warps have 64 x 64 results each, two warps below each other and four side by side; a warp's sums are in its
 * registers, in the accumulators' layout (mma.cuh). Tiles come STAGES deep through shared memory by asynchronous
 * copies, a stage being the left panel and then the right one; of a tile in turn, the factors of the next 16 terms are
 * read while those before are multiplied. */
template <typename T, bool A_TURNED, bool B_TURNED>
__device__ inline void matmul_tensor(const matmul_args &a) {
#if TFU_OWN_HAS_TENSOR(__CUDA_ARCH__ / 10)
  enum { STAGES = TFU_OWN_STAGES, STEPS = TFU_OWN_DEPTH / 16, OWN = 64, DOWN = TFU_OWN_ROWS / OWN };
  typedef panel<T, TFU_OWN_ROWS, false, A_TURNED> left_panel;
  typedef panel<T, TFU_OWN_COLS, true, !B_TURNED> right_panel;
  enum { STAGE = left_panel::BYTES + right_panel::BYTES };
  extern __shared__ __align__(1024) char memory[];
  const matmul_place at = place_of(a, TFU_OWN_ROWS, TFU_OWN_COLS);
  left_panel left(start_of<T>(a.a, at, at.row, at.first), a.a.row, a.a.col, a.m - at.row, at.terms);
  right_panel right(start_of<T>(a.b, at, at.first, at.col), a.b.col, a.b.row, a.n - at.col, at.terms);
  const int warp = threadIdx.x / 32, row = warp % DOWN * OWN, col = warp / DOWN * OWN;
  const int count = (at.terms + TFU_OWN_DEPTH - 1) / TFU_OWN_DEPTH;
  const unsigned begin = shared_address(memory), end = begin + STAGES * STAGE;
  const unsigned left_lane = left_panel::lane(row), right_lane = left_panel::BYTES + right_panel::lane(col);

  unsigned reading = begin, writing = begin;
  const auto turn = [&](unsigned stage) { return stage + STAGE == end ? begin : stage + STAGE; };
  const auto fetch = [&](bool more) {
    if (more) left.fetch(writing), right.fetch(writing + left_panel::BYTES);
    close_copies();
    writing = turn(writing);
  };
  float sum[OWN / 16][OWN / 8][4] = {};
  factor<T> l[2][OWN / 16], r[2][OWN / 16]; /* of these terms and of the next */
  const auto load = [&](int which, int k) {
    UNROLL
    for (int i = 0; i < OWN / 16; i++) {
      l[which][i] = left_panel::load(reading + left_lane, i, k);
      r[which][i] = right_panel::load(reading + right_lane, i, k);
    }
  };

  for (int i = 0; i < STAGES - 1; i++) fetch(i < count);
  wait_for_copies<STAGES - 2>();
  __syncthreads();
  load(0, 0);
  ONCE
  for (int tile = 0; tile < count; tile++) {
    UNROLL
    for (int k = 0; k < STEPS; k++) {
      if (k == STEPS - 1) { /* the last factors of this tile are read: it may go, and the next must be there */
        wait_for_copies<STAGES - 2>();
        __syncthreads();
        reading = turn(reading);
      }
      load((k + 1) % 2, (k + 1) % STEPS);
      if (k == 0) fetch(tile + STAGES - 1 < count);
      UNROLL
      for (int i = 0; i < OWN / 16 * OWN / 16; i++) {
        const int m = i / (OWN / 16), n = i % (OWN / 16);
        multiply_add<T>(sum[m][2 * n], sum[m][2 * n + 1], l[k % 2][m], r[k % 2][n], false);
      }
    }
  }
  /* Through shared memory, where a warp has room of its own for its 64 x 64 sums: their rows are then finished one
   * after the other, by a loop that is short, and neighbours write side by side. Lines are LINE apart, so that eight of
   * them begin in different banks. */
  enum { LINE = OWN + 8 };
  static_assert(TFU_THREADS / 32 * OWN * LINE * (int)sizeof(float) <= STAGES * STAGE, "all warps' sums must fit");
  wait_for_copies<0>();
  __syncthreads(); /* all factors have been read */
  float *const sums = (float *)memory + warp * OWN * LINE;
  UNROLL
  for (int i = 0; i < OWN / 8 * OWN / 8; i++) { /* rows 8 apart; see mma.cuh */
    const int r = i / (OWN / 8), n = i % (OWN / 8);
    *(float2 *)(sums + (8 * r + lane_id() / 4) * LINE + 8 * n + lane_id() % 4 * 2) =
        make_float2(sum[r / 2][n][r % 2 * 2], sum[r / 2][n][r % 2 * 2 + 1]);
  }
  __syncwarp();
  const int64_t c = at.col + col + 2 * lane_id();
  const int rows = (int)min(a.m - at.row - row, (int64_t)OWN);
  if (c >= a.n) return;
  _Pragma("unroll 4") for (int r = 0; r < rows; r++) {
    const float2 v = *(const float2 *)(sums + r * LINE + 2 * lane_id());
    const float two[2] = {v.x, v.y};
    finish<T>(a, at, place_in_d(a, at, at.row + row + r, c), c, two);
  }
#endif
}

#define STAMP(layout, T, tag, a_turned, b_turned)                             \
  extern "C" __global__ void __launch_bounds__(TFU_THREADS, 1)                \
      matmul_tensor_##layout##_##tag(const __grid_constant__ matmul_args a) { \
    matmul_tensor<T, a_turned, b_turned>(a);                                  \
  }
#define STAMP_BOTH(layout, a_turned, b_turned) \
  STAMP(layout, f16, f16, a_turned, b_turned)  \
  STAMP(layout, bf16, bf16, a_turned, b_turned)
STAMP_BOTH(nn, false, false)
STAMP_BOTH(nt, false, true)
STAMP_BOTH(tn, true, false)
STAMP_BOTH(tt, true, true)
