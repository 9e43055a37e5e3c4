/* Scans (prefix sums) of rows on the GPU: one read and one write of memory, by decoupled look-back where a row has
 * several tiles. */
#include "kernels/scans/scan.cuh"

/* The packs that the lanes of a row have of it, 1 << depth each: those from `first` on, of the packs of memory that the
 * row touches. In shared memory those of a lane follow each other, and are TFU_SCAN_STRIDE bytes apart from the next
 * lane's, so that eight lanes reach 32 banks. All lanes together move them, side by side; as a lane has no more packs
 * than there are lanes, those that it moves are equally far apart there. */
struct lanes_packs {
  const char *begin; /* the row                           */
  int64_t bytes;     /* of it; none where there is no row */
  int64_t first;
  unsigned slot; /* of shared memory, for the first pack that this lane moves */
  int lane, width, depth;
  __device__ const char *at(int64_t pack) const {
    return (const char *)((uintptr_t)begin & ~(uintptr_t)15) + pack * 16;
  }
  __device__ int64_t count() const { return bytes ? (begin + bytes - at(0) + 15) / 16 : 0; }
  __device__ bool whole(int64_t pack) const { return at(pack) >= begin && at(pack) + 16 <= begin + bytes; }
  __device__ unsigned gap() const { return (width >> depth) * TFU_SCAN_STRIDE; }
};

__device__ inline void fetch_pack(unsigned to, const char *from) {
#if __CUDA_ARCH__ >= 800
  copy_pack(to, from);
#else
  store_shared(to, *(const int4 *)from);
#endif
}

/* The first and the last pack of a row may hold bytes of other rows: they are read with the row's own, since memory
 * that a pack touches is there as a whole, and are replaced by numbers that change nothing, as is what lies beyond the
 * row. */
__device__ inline void fetch_edges(const lanes_packs p, uint64_t nothing) {
  const int64_t count = p.count();
  const int low = (int)nothing, high = (int)(nothing >> 32);
  ONCE
  for (int k = 0; k < 1 << p.depth; k++) {
    const int64_t pack = p.first + p.lane + k * p.width;
    const unsigned slot = p.slot + k * p.gap();
    if (pack >= 0 && pack < count) fetch_pack(slot, p.at(pack));
    else store_shared(slot, make_int4(low, high, low, high));
  }
  close_copies();
  wait_for_copies<0>();
  ONCE
  for (int k = 0; k < 1 << p.depth; k++) {
    const int64_t pack = p.first + p.lane + k * p.width;
    if (pack < 0 || pack >= count || p.whole(pack)) continue;
    uint8_t *bytes = (uint8_t *)__cvta_shared_to_generic(p.slot + k * p.gap());
    ONCE
    for (int n = 0; n < 16; n++) {
      const int64_t position = p.at(pack) + n - p.begin;
      if (position < 0 || position >= p.bytes) bytes[n] = (uint8_t)(nothing >> 8 * (n % 8));
    }
  }
}
/* Writes the row's own bytes to y, whose row begins in a pack elsewhere than x's does where it is apart. */
__device__ inline void put_edges(const lanes_packs p, char *y, bool apart) {
  const int64_t count = p.count();
  ONCE
  for (int k = 0; k < 1 << p.depth; k++) {
    const unsigned slot = p.slot + k * p.gap();
    const char *from = (const char *)__cvta_shared_to_generic(slot);
    const int64_t pack = p.first + p.lane + k * p.width, to = p.at(pack) - p.begin;
    if (pack < 0 || pack >= count) continue;
    if (!apart && p.whole(pack)) {
      store_bits(y + to, load_shared(slot));
    } else {
      ONCE
      for (int n = 0; n < 16; n++)
        if (to + n >= 0 && to + n < p.bytes) y[to + n] = from[n];
    }
  }
}

/* The lanes of a row, side by side. A long row has whole blocks, whose lanes have TFU_SCAN_PACKS packs each. Of a short
 * row, 1 << shift lanes have 1 << depth packs each. */
struct scan_lanes_of_row {
  const scan_rows_args &a;
  lanes_packs p;
  int64_t row;
  unsigned base; /* of the lanes' shared memory */
  int tile = 0;
  bool blockwise, all_whole; /* as nearly always */
  __device__ scan_lanes_of_row(const scan_rows_args &a, void *memory) : a(a), blockwise(a.shift > 5) {
    p.width = blockwise ? 32 : 1 << a.shift, p.depth = a.depth;
    p.lane = threadIdx.x & (p.width - 1);
    base = (unsigned)__cvta_generic_to_shared(memory) + (threadIdx.x - p.lane) * TFU_SCAN_STRIDE;
    p.slot = base + (p.lane >> p.depth) * TFU_SCAN_STRIDE + (p.lane & ((1 << p.depth) - 1)) * 16;
    p.first = 0;
    row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) >> a.shift;
    if (blockwise) {
      const unsigned number = a.tiles > 1 ? take_ticket(a.tickets) : blockIdx.x;
      row = number / (unsigned)a.tiles;
      tile = number - (unsigned)row * a.tiles;
      p.first = (int64_t)(tile * (blockDim.x / 32) + threadIdx.x / 32) * (32 << a.depth);
    }
    p.begin = (const char *)a.what.x + row * a.bytes;
    p.bytes = row < a.rows ? a.bytes : 0;
    const int64_t count = p.count();
    if (a.what.reverse) p.first = count - p.first - (p.width << p.depth);
    const int64_t end = p.first + (p.width << p.depth);
    all_whole = p.first >= 0 && end <= count && p.whole(p.first) && p.whole(end - 1);
  }

  /* Fetches the row's packs, or those of the factor, which begins where x does in a pack, so much further on. */
  __device__ void fetch(int64_t ahead, uint64_t nothing, unsigned further) const {
    if (all_whole) {
      const char *from = p.at(p.first + p.lane) + ahead;
      unsigned slot = p.slot + further;
      ONCE
      for (int k = 0; k < 1 << p.depth; k++, from += p.width * 16, slot += p.gap()) fetch_pack(slot, from);
      close_copies();
      wait_for_copies<0>();
    } else {
      lanes_packs q = p;
      q.begin += ahead, q.slot += further;
      fetch_edges(q, nothing);
    }
    __syncwarp();
  }
  __device__ void put() const {
    char *const y = (char *)a.what.y + row * a.bytes;
    __syncwarp();
    if (!a.apart && all_whole) {
      char *to = y + (p.at(p.first + p.lane) - p.begin);
      unsigned slot = p.slot;
      ONCE
      for (int k = 0; k < 1 << p.depth; k++, to += p.width * 16, slot += p.gap()) store_bits(to, load_shared(slot));
    } else {
      put_edges(p, y, a.apart);
    }
  }
};

/* A pack in shared memory as numbers, in the order in which they are scanned. */
template <typename OP>
struct scanned_pack {
  enum { N = packed<typename OP::stored>::N };
  typedef typename OP::stored T;
  typename OP::real v[N];
  __device__ void load(unsigned from, bool reversed) {
    typename computed<T>::type w[N];
    widen_pack<T>(load_shared(from), w);
    UNROLLED(n, N) v[n] = reversed ? w[N - 1 - n] : w[n];
  }
  __device__ void store(unsigned to, bool reversed) const {
    typename computed<T>::type w[N];
    UNROLLED(n, N) w[n] = (typename computed<T>::type)(reversed ? v[N - 1 - n] : v[n]);
    store_shared(to, narrow_pack<T>(w));
  }
};

/* Scans what the lanes have in shared memory, and leaves results there. Each lane takes its own packs: it joins their
 * numbers to one state, learns the state of all that lies before it, and goes over them again for results. */
template <typename OP>
__device__ inline void scan_row(const scan_lanes_of_row &l) {
  enum { STRIDE = TFU_SCAN_STRIDE, N = scanned_pack<OP>::N };
  typedef typename OP::state S;
  const scan_rows_args &a = l.a;
  const bool reverse = a.what.reverse;
  const int width = l.p.width, lane = l.p.lane, each = 1 << l.p.depth;
  const unsigned factors = blockDim.x * STRIDE; /* so much further */
  const int step = reverse ? -16 : 16;
  const unsigned own = l.base + (reverse ? (width - 1 - lane) * STRIDE + (each - 1) * 16 : lane * STRIDE);
  scanned_pack<OP> x, factor;
  S now = OP::none();
  unsigned at = own;
  ONCE
  for (int k = 0; k < each; k++, at += step) {
    x.load(at, OP::FACTOR && reverse); /* of others, the order does not matter here */
    if (OP::FACTOR) factor.load(at + factors, reverse);
    UNROLLED(n, N) now = OP::join(now, OP::of(x.v[n], OP::FACTOR ? factor.v[n] : 0));
  }
  S run = scan_lanes<OP>(now, width);
  now = lane_before(run, 1, width);
  if (lane == 0) now = OP::none();
  if (l.blockwise) {
    __shared__ S totals[32], ahead;
    const int warps = blockDim.x / 32, warp = threadIdx.x / 32;
    if (lane == 31) totals[warp] = run;
    __syncthreads();
    run = scan_lanes<OP>(lane < warps ? totals[lane] : OP::none(), 32);
    const S total = of_lane(run, warps - 1, 32);
    run = of_lane(run, warp ? warp - 1 : 0, 32);
    if (warp == 0) run = OP::none();
    if (a.tiles > 1) {
      if (warp == 0) {
        told_state<S> *slots = (told_state<S> *)a.slots + l.row * a.row_slots;
        const S found = state_before<OP>(slots, a.tiles, a.groups, l.tile, total);
        if (lane == 0) ahead = found;
      }
      __syncthreads();
      run = OP::join(ahead, run);
    }
    now = OP::join(run, now);
  }
  at = own;
  ONCE
  for (int k = 0; k < each; k++, at += step) {
    const bool exclusive = hidden(a.what.exclusive), reversed = hidden(reverse);
    x.load(at, reversed);
    if (OP::FACTOR) factor.load(at + factors, reversed);
    UNROLLED(n, N) {
      const S next = OP::join(now, OP::of(x.v[n], OP::FACTOR ? factor.v[n] : 0));
      x.v[n] = OP::value(exclusive ? now : next);
      now = next;
    }
    x.store(at, reversed);
  }
}

template <typename T>
__device__ inline void scan_plain(const scan_rows_args &a) {
  extern __shared__ int4 memory[];
  const scan_lanes_of_row lanes(a, memory);
  lanes.fetch(0, a.nothing[0], 0);
  if (a.kind == TFU_SCAN_SUM) scan_row<sum_scan<T>>(lanes);
  else if (a.kind == TFU_SCAN_PROD) scan_row<prod_scan<T>>(lanes);
  else scan_row<max_scan<T>>(lanes);
  lanes.put();
}
template <typename OP>
__device__ inline void scan_pairs(const scan_rows_args &a) {
  extern __shared__ int4 memory[];
  const scan_lanes_of_row lanes(a, memory);
  UNROLL
  for (int i = OP::FACTOR; i >= 0; i--) {
    const int64_t ahead = i ? (const char *)a.what.factor - (const char *)a.what.x : 0;
    lanes.fetch(ahead, a.nothing[i], i * blockDim.x * TFU_SCAN_STRIDE);
  }
  scan_row<OP>(lanes);
  lanes.put();
}

/* Blocks of a multiprocessor: as many as there are threads for, and registers. */
#if __CUDA_ARCH__ >= 800
#define MANY(T) (sizeof(T) <= 4 ? 3 : 2)
#else
#define MANY(T) 2
#endif
#define KERNEL(label, blocks, ...) TFU_STAMP((TFU_SCAN_MOST, blocks), label, scan_rows_args, __VA_ARGS__)
#define PLAIN(name, tag, T) KERNEL(name##_##tag, MANY(T), scan_plain<T>)
#define PAIRS(name, scan, tag, T) KERNEL(name##_##tag, 2, scan_pairs<scan<T>>)
TFU_TYPES(PLAIN, scan_rows_plain)
PLAIN(scan_rows_plain, i32, int32_t)
PLAIN(scan_rows_plain, i64, int64_t)
TFU_TYPES(PAIRS, scan_rows_lse, lse_scan)
PAIRS(scan_rows_recurrence, recurrence_scan, f32, float)
PAIRS(scan_rows_recurrence, recurrence_scan, f64, double)
