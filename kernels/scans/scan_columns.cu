/* Scans along an axis that is not the last one: one read and one write of memory where there are columns enough. A
 * thread has one column, and some positions of it at a time. Threads stand side by side along the columns, 1 << shift
 * of them, and the other groups of the block take the places that follow. The block goes down its chunk of the axis,
 * and carries the state of what lies above; the next positions are prefetched while these are scanned. */
#include "kernels/scans/scan.cuh"

/* A number as it is stored, in the type that it is computed in, and back. */
__device__ inline void widen(float &v, f16 stored) { v = __half2float(stored); }
__device__ inline void widen(float &v, bf16 stored) { v = pair_of<bf16>::widen(__bfloat16_as_ushort(stored)).x; }
template <typename R, typename T>
__device__ inline void widen(R &v, T stored) {
  v = stored;
}
__device__ inline void narrow(f16 &stored, float v) { stored = __float2half_rn(v); }
__device__ inline void narrow(bf16 &stored, float v) { stored = __float2bfloat16_rn(v); }
template <typename R, typename T>
__device__ inline void narrow(T &stored, R v) {
  stored = (T)v;
}

/* Two columns of halves that lie side by side as one: half the instructions for each number. Sums alone, where there
 * are an even number of columns, and words of four bytes begin with them, are worth kernels of their own. */
template <typename T>
struct two_halves {
  unsigned bits;
};
template <typename T>
__device__ inline void widen(pair<float> &v, two_halves<T> stored) {
  const float2 w = pair_of<T>::widen(stored.bits);
  v.a = w.x, v.b = w.y;
}
template <typename T>
__device__ inline void narrow(two_halves<T> &stored, pair<float> v) {
  stored.bits = pair_of<T>::narrow(v.a, v.b);
}
template <typename OP>
struct two_columns {
  enum { FACTOR = 0 };
  typedef two_halves<typename OP::stored> stored;
  typedef pair<typename OP::real> real, state;
  static __device__ real nothing() { return {OP::nothing(), OP::nothing()}; }
  static __device__ real no_factor() { return {}; }
  static __device__ state none() { return {OP::none(), OP::none()}; }
  static __device__ state of(real x, real) { return x; }
  static __device__ state join(state p, state q) { return {OP::join(p.a, q.a), OP::join(p.b, q.b)}; }
  static __device__ real value(state s) { return s; }
};

/* The state of what the groups before this thread's have of its column, and of all groups. Lanes of a warp learn it
 * from each other, warps through `memory`, which the block must not have used since it last came together. */
template <typename OP>
__device__ inline typename OP::state join_groups(typename OP::state own, typename OP::state *memory, int shift,
                                                 typename OP::state &all) {
  typedef typename OP::state S;
  const int wide = 1 << shift, lane = threadIdx.x % 32, column = threadIdx.x & (wide - 1);
  S before = OP::none();
  if (wide < 32) {
    ONCE
    for (int distance = wide; distance < 32; distance *= 2) {
      const S s = lane_before(own, distance, 32);
      if (lane >= distance) own = OP::join(s, own);
    }
    before = lane_before(own, wide, 32);
    if (lane < wide) before = OP::none();
  }
  const int side = max(wide, 32), row = threadIdx.x / side;
  if (lane >= 32 - wide) memory[row * side + column] = own;
  __syncthreads();
  S above = OP::none();
  all = OP::none();
  ONCE
  for (int r = 0; r * side < TFU_SCAN_THREADS; r++) {
    if (r == row) above = all;
    all = OP::join(all, memory[r * side + column]);
  }
  return OP::join(above, before);
}

/* What a thread has: its column, from `origin` on in steps along the axis, and its group's positions of the block's
 * chunk.
 */
struct column_of_thread {
  int group, groups;
  unsigned chunk;
  int64_t start, last, end;    /* of the chunk, and this thread's, which has none beyond the last column */
  int64_t origin, step, total; /* the position of the chunk's total */
  __device__ column_of_thread(const scan_columns_args &a) {
    group = threadIdx.x >> a.shift, groups = TFU_SCAN_THREADS >> a.shift;
    const unsigned part = blockIdx.x / (unsigned)a.strips, strip = blockIdx.x - part * (unsigned)a.strips;
    const unsigned outer = part / (unsigned)a.chunks;
    chunk = part - outer * (unsigned)a.chunks;
    const int64_t column = ((int64_t)strip << a.shift) + (threadIdx.x & ((1 << a.shift) - 1));
    start = chunk * a.chunk, last = min(a.length, start + a.chunk), end = column < a.inner ? last : 0;
    step = a.what.reverse ? -a.inner : a.inner;
    origin = (outer * a.length + (a.what.reverse ? a.length - 1 : 0)) * a.inner + column;
    total = (int64_t)outer * a.chunks * a.inner + column;
  }
};

template <typename OP>
__device__ inline void scan_columns(const scan_columns_args &a, const column_of_thread &c) {
  typedef typename OP::stored T;
  typedef typename OP::real R;
  typedef typename OP::state S;
  enum { K = TFU_SCAN_COLUMN(OP::FACTOR) };
  __shared__ S memory[2][TFU_SCAN_THREADS];
  const int high = c.groups * K;
  const int64_t far = c.step * (int64_t)sizeof(T);
  S *totals = (S *)a.totals + c.total;

  /* The first round sends for positions, and joins the chunks above, which the groups share. */
  S above = OP::none(), run = OP::none();
  if (a.chunks > 1 && !a.find && c.end) {
    const unsigned share = ((c.chunk << a.shift) + TFU_SCAN_THREADS - 1) / TFU_SCAN_THREADS, first = c.group * share;
    ONCE
    for (unsigned i = first; i < min(c.chunk, first + share); i++) above = OP::join(above, totals[i * a.inner]);
  }
  R v[K], f[K]; /* this round's positions */
  UNROLLED(k, K) v[k] = OP::nothing(), f[k] = OP::no_factor();
  int left = 0, half = 0; /* how many of them there are */
  ONCE
  for (int64_t top = c.start - high; top < c.last; top += high, half ^= 1) {
    /* The next round's stay as they are read until the end of this one, so that nobody waits for them. */
    T x[K], factor[OP::FACTOR ? K : 1];
    const int64_t next = top + high + c.group * K, at = (c.origin + next * c.step) * (int64_t)sizeof(T);
    const int n = left;
    left = (int)max((int64_t)0, min((int64_t)K, c.end - next));
    const char *from = (const char *)a.what.x + at, *from_factor = (const char *)a.what.factor + at;
    UNROLL
    for (int k = 0; k < K; k++, from += far, from_factor += far) {
      if (k < left) x[k] = *(const T *)from;
      if (OP::FACTOR && k < left) factor[OP::FACTOR ? k : 0] = *(const T *)from_factor;
    }
    S own = above, all;
    above = OP::none();
    UNROLLED(k, K) own = OP::join(own, OP::of(v[k], f[k]));
    S now = join_groups<OP>(own, memory[half], a.shift, all);
    now = OP::join(run, now);
    run = OP::join(run, all);
    if (!a.find && top >= c.start) {
      const bool exclusive = sizeof(S) > sizeof(R) ? hidden(a.what.exclusive) : a.what.exclusive; /* long code once */
      char *to = (char *)a.what.y + at - high * far;
      UNROLL
      for (int k = 0; k < K; k++, to += far) {
        const S after = OP::join(now, OP::of(v[k], f[k]));
        if (k < n) narrow(*(T *)to, OP::value(exclusive ? now : after));
        now = after;
      }
    }
    UNROLLED(k, K) {
      v[k] = OP::nothing(), f[k] = OP::no_factor();
      if (k < left) widen(v[k], x[k]);
      if (OP::FACTOR && k < left) widen(f[k], factor[OP::FACTOR ? k : 0]);
    }
  }
  if (c.end && a.find && c.group == 0) totals[c.chunk * a.inner] = run;
}

template <typename T>
__device__ inline void scan_plain(const scan_columns_args &a) {
  const column_of_thread c(a);
  if (a.kind == TFU_SCAN_SUM) scan_columns<sum_scan<T>>(a, c);
  else if (a.kind == TFU_SCAN_PROD) scan_columns<prod_scan<T>>(a, c);
  else scan_columns<max_scan<T>>(a, c);
}
template <typename OP>
__device__ inline void scan_pairs(const scan_columns_args &a) {
  scan_columns<OP>(a, column_of_thread(a));
}

#define KERNEL(label, ...) TFU_STAMP((TFU_SCAN_THREADS, 4), label, scan_columns_args, __VA_ARGS__)
#define PLAIN(name, tag, T) KERNEL(name##_##tag, scan_plain<T>)
#define PAIRS(name, scan, tag, T) KERNEL(name##_##tag, scan_pairs<scan<T>>)
TFU_TYPES(PLAIN, scan_columns_plain)
PLAIN(scan_columns_plain, i32, int32_t)
PLAIN(scan_columns_plain, i64, int64_t)
template <typename T>
using two_sums = two_columns<sum_scan<T>>;
TFU_HALVES(PAIRS, scan_columns_two, two_sums)
TFU_TYPES(PAIRS, scan_columns_lse, lse_scan)
PAIRS(scan_columns_recurrence, recurrence_scan, f32, float)
PAIRS(scan_columns_recurrence, recurrence_scan, f64, double)
