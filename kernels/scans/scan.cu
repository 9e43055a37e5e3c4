/* Scans on the GPU: one read and one write of memory where the axis is the last one, or has columns enough beside it.
 */
#include "kernels/scans/scan.cuh"

template <typename V>
__device__ inline void turn_round(V (&v)[4]) {
  const V a = v[0], b = v[1];
  v[0] = v[3], v[1] = v[2], v[2] = b, v[3] = a;
}

/* A row as the packs of memory that it touches. The first and the last may hold bytes of other rows: they are read with
 * the row's own, since memory that a pack touches is there as a whole, and are replaced by numbers that change nothing.
 */
struct row_packs {
  const char *begin, *end, *first; /* the row, and its first pack */
  int64_t packs;
  __device__ row_packs(const void *x, int64_t row, const scan_rows_args &a) {
    begin = (const char *)x + row * a.bytes;
    end = begin + a.bytes;
    first = (const char *)((uintptr_t)begin & ~(uintptr_t)15);
    packs = row < a.rows ? (end - first + 15) / 16 : 0;
  }
  __device__ const char *at(int64_t pack) const { return first + pack * 16; }
  __device__ bool whole(int64_t pack) const { return at(pack) >= begin && at(pack) + 16 <= end; }
};

/* The lanes of a row, side by side, and the packs that they have of it, 1 << depth each, which all lanes together move
 * between global and shared memory. There those of a lane follow each other, and are TFU_SCAN_STRIDE bytes apart from
 * the next lane's, so that eight lanes reach 32 banks. Where all packs are whole, as nearly always, none is looked at.
 */
struct scan_lanes_of_row {
  enum { STRIDE = TFU_SCAN_STRIDE };
  const scan_rows_args &a;
  bool blockwise; /* a row is of whole blocks */
  int width, lane, count, tile = 0;
  int64_t row, first = 0; /* pack of all lanes, and `count` from there on */
  unsigned base;          /* of their shared memory                       */
  __device__ scan_lanes_of_row(const scan_rows_args &a, void *memory) : a(a), blockwise(a.shift > 5) {
    width = blockwise ? 32 : 1 << a.shift, lane = threadIdx.x & (width - 1);
    count = width << a.depth;
    row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) >> a.shift;
    if (blockwise) {
      row = blockIdx.x / (unsigned)a.tiles;
      tile = blockIdx.x - (unsigned)row * a.tiles;
      first = (int64_t)(tile * (blockDim.x / 32) + threadIdx.x / 32) * count;
    }
    if (a.what.reverse) first = row_packs(a.what.x, row, a).packs - first - count;
    base = (unsigned)__cvta_generic_to_shared(memory) + (threadIdx.x - lane) * STRIDE;
  }
  __device__ unsigned slot(int i) const { return base + (i >> a.depth) * STRIDE + (i & ((1 << a.depth) - 1)) * 16; }
  __device__ bool all_whole(const row_packs &packs) const {
    return first >= 0 && first + count <= packs.packs && packs.whole(first) && packs.whole(first + count - 1);
  }
  __device__ static void copy(unsigned to, const char *from) {
#if __CUDA_ARCH__ >= 800
    copy_pack(to, from);
#else
    store_shared(to, *(const int4 *)from);
#endif
  }

  /* Fetches, `further` in shared memory. What is none of the row's changes nothing. */
  __device__ void fetch(const void *x, uint64_t nothing, unsigned further) const {
    const row_packs packs(x, row, a);
    const char *from = packs.at(first + lane);
    if (all_whole(packs)) {
      ONCE
      for (int i = lane; i < count; i += width, from += width * 16) copy(slot(i) + further, from);
    } else {
      const int low = (int)nothing, high = (int)(nothing >> 32);
      ONCE
      for (int i = lane; i < count; i += width, from += width * 16) {
        if (first + i >= 0 && first + i < packs.packs) copy(slot(i) + further, from);
        else store_shared(slot(i) + further, make_int4(low, high, low, high));
      }
    }
    close_copies();
    wait_for_copies<0>();
    if (!all_whole(packs)) {
      ONCE
      for (int i = lane; i < count; i += width) {
        const int64_t pack = first + i;
        if (pack < 0 || pack >= packs.packs || packs.whole(pack)) continue;
        uint8_t *bytes = (uint8_t *)__cvta_shared_to_generic(slot(i) + further);
        ONCE
        for (int n = 0; n < 16; n++) {
          const char *at = packs.at(pack) + n;
          if (at < packs.begin || at >= packs.end) bytes[n] = (uint8_t)(nothing >> 8 * (n % 8));
        }
      }
    }
    __syncwarp();
  }
  /* Writes them to where y has the row. */
  __device__ void put() const {
    const row_packs packs(a.what.x, row, a);
    char *const y = (char *)a.what.y + row * a.bytes;
    int64_t to = packs.at(first + lane) - packs.begin;
    __syncwarp();
    if (!a.apart && all_whole(packs)) {
      ONCE
      for (int i = lane; i < count; i += width, to += width * 16) store_bits(y + to, load_shared(slot(i)));
      return;
    }
    ONCE
    for (int i = lane; i < count; i += width, to += width * 16) {
      const char *from = (const char *)__cvta_shared_to_generic(slot(i));
      const int64_t pack = first + i;
      if (pack < 0 || pack >= packs.packs) continue;
      if (!a.apart && packs.whole(pack)) {
        store_bits(y + to, load_shared(slot(i)));
      } else {
        ONCE
        for (int n = 0; n < 16; n++)
          if (to + n >= 0 && to + n < a.bytes) y[to + n] = from[n];
      }
    }
  }
};

/* Scans what the lanes have in shared memory, and leaves results there. Each lane takes its own packs: it joins their
 * numbers to one state, learns the state of all that lies before it, and goes over them again for results. */
template <typename OP>
__device__ inline void scan_row(const scan_lanes_of_row &l) {
  enum { STRIDE = TFU_SCAN_STRIDE };
  typedef typename OP::real R;
  typedef typename OP::state S;
  __shared__ S totals[32], ahead;
  const scan_rows_args &a = l.a;
  const OP op = {hidden(a.what.kind), hidden(a.what.storage)};
  const bool reverse = a.what.reverse;
  const int width = l.width, lane = l.lane, warp = threadIdx.x / 32;
  const unsigned factors = blockDim.x * STRIDE; /* so much further */

  /* A lane's numbers, four at a time, from `own` on and then `step` bytes further each time. */
  const int bytes = 16 << a.depth, step = reverse ? -a.four : a.four;
  const unsigned own = l.base + (reverse ? (width - 1 - lane) * STRIDE + bytes - a.four : lane * STRIDE);
  S now = op.none();
  unsigned at = own;
  ONCE
  for (int left = bytes; left > 0; left -= a.four, at += step) {
    R v[4], f[4] = {};
    load_four<OP::FACTOR>(at, hidden(a.what.storage), v);
    if constexpr (OP::FACTOR) { /* of others, the order does not matter here */
      load_four<OP::FACTOR>(factors + at, hidden(a.what.storage), f);
      if (reverse) turn_round(v), turn_round(f);
    }
    UNROLL
    for (int n = 0; n < 4; n++) now = op.join(now, op.of(v[n], f[n]));
  }
  S run = scan_lanes(op, now, width);
  now = lane_before(run, 1, width);
  if (lane == 0) now = op.none();
  if (l.blockwise) {
    const int warps = blockDim.x / 32;
    if (lane == 31) totals[warp] = run;
    __syncthreads();
    run = scan_lanes(op, lane < warps ? totals[lane] : op.none(), 32);
    const S total = of_lane(run, warps - 1, 32);
    run = of_lane(run, warp ? warp - 1 : 0, 32);
    if (warp == 0) run = op.none();
    if (a.tiles > 1) {
      if (warp == 0) {
        scan_slot<S> *slots = (scan_slot<S> *)a.slots + l.row * a.row_slots;
        const S found = state_before(op, slots, a.tiles, a.groups, l.tile, total);
        if (lane == 0) ahead = found;
      }
      __syncthreads();
      run = op.join(ahead, run);
    }
    now = op.join(run, now);
  }
  at = own;
  ONCE
  for (int left = bytes; left > 0; left -= a.four, at += step) {
    R v[4], f[4] = {};
    load_four<OP::FACTOR>(at, hidden(a.what.storage), v);
    if constexpr (OP::FACTOR) load_four<OP::FACTOR>(factors + at, hidden(a.what.storage), f);
    if (reverse) turn_round(v);
    if (OP::FACTOR && reverse) turn_round(f);
    UNROLL
    for (int n = 0; n < 4; n++) {
      const S next = op.join(now, op.of(v[n], f[n]));
      v[n] = op.value(a.what.exclusive ? now : next);
      now = next;
    }
    if (reverse) turn_round(v);
    store_four<OP::FACTOR>(at, hidden(a.what.storage), v);
  }
}

/* Blocks of a multiprocessor: on older ones two have all of its threads. */
#if __CUDA_ARCH__ >= 800
#define MANY 3
#else
#define MANY 2
#endif

/* Rows of the last axis. Two kernels serve all: they share what moves memory, and differ in the registers that they
 * take. Sums of floats have arithmetic of their own, since nothing else should be in memory's way. */
extern "C" __global__ void __launch_bounds__(TFU_SCAN_MOST, MANY) scan_rows_f32(const scan_rows_args a) {
  extern __shared__ int4 memory[];
  const scan_lanes_of_row lanes(a, memory);
  lanes.fetch(a.what.x, a.nothing[0], 0);
  if (a.how == TFU_SCAN_FLOAT_SUMS) scan_row<sum_scan<float>>(lanes);
  else if (a.how == TFU_SCAN_FLOATS) scan_row<plain_scan<float>>(lanes);
  else if (a.how == TFU_SCAN_DOUBLES) scan_row<plain_scan<double>>(lanes);
  else scan_row<plain_scan<int64_t>>(lanes);
  lanes.put();
}
extern "C" __global__ void __launch_bounds__(TFU_SCAN_MOST, 2) scan_pairs_f32(const scan_rows_args a) {
  extern __shared__ int4 memory[];
  const scan_lanes_of_row lanes(a, memory);
  const bool recurs = a.what.kind == TFU_SCAN_RECURRENCE;
  ONCE
  for (int i = recurs; i >= 0; i--)
    lanes.fetch(i ? a.what.factor : a.what.x, a.nothing[i], i * blockDim.x * TFU_SCAN_STRIDE);
  if (recurs) scan_row<recurrence_scan>(lanes);
  else if (a.how == TFU_SCAN_FLOATS) scan_row<lse_scan<float>>(lanes);
  else scan_row<lse_scan<double>>(lanes);
  lanes.put();
}

/* Columns: the axis is not the last one, and floats are summed, multiplied or compared. A thread has one column and
 * TFU_SCAN_COLUMN places of it at a time. Threads stand side by side along the columns, 1 << shift of them, and the
 * others of the block take the places that follow. The block goes down its chunk of the axis, and carries the state of
 * what lies above. */
extern "C" __global__ void __launch_bounds__(TFU_SCAN_THREADS) scan_columns_f32(const scan_columns_args a) {
  enum { K = TFU_SCAN_COLUMN };
  typedef float S;
  __shared__ S shared[TFU_SCAN_THREADS];
  plain_scan<float> op = {hidden(a.what.kind), hidden(a.what.storage)};
  const int wide = 1 << a.shift, lane = threadIdx.x & (wide - 1), group = threadIdx.x >> a.shift;
  const int groups = TFU_SCAN_THREADS >> a.shift;
  const unsigned strip = blockIdx.x % (unsigned)a.strips, part = blockIdx.x / (unsigned)a.strips;
  const unsigned chunk = part % (unsigned)a.chunks, outer = part / (unsigned)a.chunks;
  const int64_t column = ((int64_t)strip << a.shift) + lane;
  const bool ours = column < a.inner;
  const int64_t start = chunk * a.chunk, last = min(a.length, start + a.chunk), end = ours ? last : 0;
  const int64_t step = a.what.reverse ? -a.inner : a.inner;
  const int64_t origin = (outer * a.length + (a.what.reverse ? a.length - 1 : 0)) * a.inner + column;
  S *totals = (S *)a.totals + ((int64_t)outer * a.chunks * a.inner + column);

  S run = op.none();
  if (ours && a.chunks > 1 && !a.find) {
    ONCE
    for (unsigned c = 0; c < chunk; c++) run = op.join(run, totals[c * a.inner]);
  }
  ONCE
  for (int64_t top = start; top < last; top += groups * K) {
    op.kind = hidden(op.kind);
    const int storage = hidden(a.what.storage);
    const bool exclusive = hidden(a.what.exclusive);
    const int64_t first = top + group * K;
    const int n = first < end ? (int)min((int64_t)K, end - first) : 0; /* places that there are */
    const int64_t at = origin + first * step;
    const int64_t far = step * a.size;
    const char *from = (const char *)a.what.x + at * a.size;
    char *to = (char *)a.what.y + at * a.size;
    S x[K];
    UNROLL
    for (int k = 0; k < K; k++, from += far)
      if (k < n) x[k] = load_one(from, storage);
    S own = op.none();
    UNROLL
    for (int k = 0; k < K; k++)
      if (k < n) own = op.join(own, x[k]);
    /* Of each column, the states of all groups up to each; then of what lies before this one. */
    shared[threadIdx.x] = own;
    __syncthreads();
    ONCE
    for (int distance = 1; distance < groups; distance *= 2) {
      const bool joins = group >= distance;
      if (joins) own = op.join(shared[threadIdx.x - (distance << a.shift)], own);
      __syncthreads();
      if (joins) shared[threadIdx.x] = own;
      __syncthreads();
    }
    S now = group ? op.join(run, shared[threadIdx.x - wide]) : run;
    run = op.join(run, shared[TFU_SCAN_THREADS - wide + lane]);
    __syncthreads();
    if (a.find) continue;
    UNROLL
    for (int k = 0; k < K; k++, to += far) {
      const S next = op.join(now, x[k]);
      if (k < n) store_one(to, storage, exclusive ? now : next);
      now = next;
    }
  }
  if (ours && a.find && group == 0) totals[chunk * a.inner] = run;
}
