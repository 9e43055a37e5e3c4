/* Selective scans on the GPU: a thread has a channel, with all its states in registers, and a block a strip of
 * channels, which share b and c in shared memory. It goes over a sequence, or a piece of it, segment by segment. Steps
 * beyond the end of a sequence are as if delta, x and dy were 0: they leave states as they are, and give nothing.
 *
 * The gradient goes over segments backwards. Of each it computes the states before all steps again, from those that
 * were kept, into shared memory, and then goes back through them. What channels give to b and c is summed over the
 * threads of a warp, then over the warps, and over strips by another kernel, in a fixed order. */
#include "kernels/scans/selective_scan.h"

#include "kernels/core/device/pack.cuh"

enum {
  STRIP = TFU_SELECT_STRIP,
  STATES = TFU_SELECT_SLOTS,
  STEPS = TFU_SELECT_STEPS,
  ROWS = TFU_SELECT_ROWS,
  WARPS = STRIP / 32
};

/* 2^x by one instruction; exp(x) is 2^(x log2 e). */
__device__ inline float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline double power_of_2(double x) { return exp2(x); }

/* What the channels of a strip share of a segment. */
template <typename R>
struct alignas(16) factors {
  R b[STEPS][STATES], c[STEPS][STATES];
};

/* A segment of the gradient, in shared memory; before has the states before each step, sums what warps give to b and c.
 */
template <typename R>
struct segment_back {
  factors<R> in;
  R x[STEPS][STRIP], delta[STEPS][STRIP], dy[STEPS][STRIP];
  R before[STEPS][STATES][STRIP];
  R sums[WARPS][STEPS][2 * STATES];
};

/* A block's strip, and a thread's channel. Threads beyond the last channel compute with zeros, and write nothing. */
template <typename T>
struct strip {
  typedef acc<T> R;
  const selective_args &args;
  int64_t number, group, batch, channel;
  bool there;
  int first, last; /* segments of the piece: up to `last` */

  __device__ strip(const selective_args &args) : args(args) {
    const unsigned strips = (unsigned)args.strips, groups = (unsigned)args.groups;
    number = blockIdx.x % strips;
    group = blockIdx.x / strips % groups;
    batch = blockIdx.x / strips / groups;
    const int64_t each = args.channels / args.groups, own = number * STRIP + threadIdx.x;
    there = own < each;
    channel = group * each + own;
    first = (int)(blockIdx.y * args.piece);
    last = (int)min(args.segments, first + args.piece);
  }

  /* Of the weights and states, one for each state. */
  __device__ void load_states(R (&h)[STATES], const void *from, int64_t row) const {
    UNROLLED(n, STATES) h[n] = there && from && n < args.states ? ((const R *)from)[row * args.states + n] : (R)0;
  }
  __device__ void store_states(const R (&h)[STATES], void *to) const {
    if (!there || !to) return;
    const int64_t row = batch * args.channels + channel;
    UNROLLED(n, STATES) {
      if (n < args.states) ((R *)to)[row * args.states + n] = h[n];
    }
  }
  /* Exponents of base 2. */
  __device__ void load_exponents(R (&a)[STATES]) const {
    load_states(a, args.a, channel);
    UNROLLED(n, STATES) a[n] *= (R)1.4426950408889634;
  }

  /* Where row `row` of a table of a piece, or of a segment, has the thread's value. */
  __device__ int64_t in_rows(int64_t table, int rows, int row) const {
    return (table * rows + row) * args.channels + channel;
  }
  __device__ R &total(int piece, int row) const {
    return ((R *)args.totals)[in_rows(piece * args.batch + batch, ROWS, row)];
  }
  __device__ R &kept(int segment, int n) const {
    return ((R *)args.kept)[in_rows(batch * args.segments + segment, STATES, n)];
  }
  /* What a piece takes states to. */
  __device__ void pass(int piece, R (&h)[STATES], const R (&a)[STATES]) const {
    if (!there) return;
    const R sum = total(piece, STATES);
    UNROLLED(n, STATES) h[n] = power_of_2(sum * a[n]) * h[n] + total(piece, n);
  }
  __device__ void store_total(const R (&h)[STATES], R sum) const {
    if (!there) return;
    UNROLLED(n, STATES) total(blockIdx.y, n) = h[n];
    total(blockIdx.y, STATES) = sum;
  }

  __device__ int64_t step_row(int segment, int k) const { return batch * args.length + (int64_t)segment * STEPS + k; }
  __device__ bool is_step(int segment, int k) const { return (int64_t)segment * STEPS + k < args.length; }

  /* The thread's values of a segment; zeros beyond the end of the piece. */
  __device__ void fetch_steps(T (&to)[STEPS], const void *from, int segment) const {
    UNROLLED(k, STEPS) {
      const bool has = there && segment < last && is_step(segment, k);
      to[k] = has ? ((const T *)from)[step_row(segment, k) * args.channels + channel] : (T)0.0f;
    }
  }
  /* Those of b or c, by all threads together: EACH of them for each thread. */
  enum { EACH = STEPS * STATES / STRIP };
  __device__ void fetch_factors(T (&to)[EACH], const void *from, int segment) const {
    UNROLLED(i, EACH) {
      const int at = i * STRIP + threadIdx.x, k = at / STATES, n = at % STATES;
      const bool has = n < args.states && segment < last && is_step(segment, k);
      to[i] = has ? ((const T *)from)[(step_row(segment, k) * args.groups + group) * args.states + n] : (T)0.0f;
    }
  }
  __device__ void put_factors(R (&to)[STEPS][STATES], const T (&values)[EACH]) const {
    UNROLLED(i, EACH) (&to[0][0])[i * STRIP + threadIdx.x] = (R)values[i];
  }
  /* Of the gradient: all is fetched before any of it is put. */
  __device__ void load_segment(segment_back<R> &s, int segment) const {
    T x[STEPS], delta[STEPS], dy[STEPS], b[EACH], c[EACH];
    fetch_steps(x, args.x, segment);
    fetch_steps(delta, args.delta, segment);
    fetch_steps(dy, args.dy, segment);
    fetch_factors(b, args.b, segment);
    fetch_factors(c, args.c, segment);
    UNROLLED(k, STEPS) {
      s.x[k][threadIdx.x] = (R)x[k], s.delta[k][threadIdx.x] = (R)delta[k], s.dy[k][threadIdx.x] = (R)dy[k];
    }
    put_factors(s.in.b, b);
    put_factors(s.in.c, c);
  }
};

/* What the next segment reads is on its way while this one is computed. */
template <typename T>
__device__ inline void selective_scan(const selective_args &args) {
  typedef acc<T> R;
  __shared__ factors<R> shared[2];
  const strip<T> p(args);
  const bool results = args.y && !args.find;
  R h[STATES], a[STATES], sum = 0;
  p.load_exponents(a);
  p.load_states(h, args.find ? NULL : args.initial, p.batch * args.channels + p.channel);
  if (!args.find) {
    ONCE
    for (int piece = 0; piece < (int)blockIdx.y; piece++) p.pass(piece, h, a);
  }
  const R skip = p.there && args.skip ? ((const R *)args.skip)[p.channel] : (R)0;
  T x[STEPS], delta[STEPS], b[p.EACH], c[p.EACH];
  const auto fetch = [&](int segment, T(&x)[STEPS], T(&delta)[STEPS]) {
    p.fetch_steps(x, args.x, segment);
    p.fetch_steps(delta, args.delta, segment);
    p.fetch_factors(b, args.b, segment);
    if (results) p.fetch_factors(c, args.c, segment);
  };
  const auto put = [&](factors<R> &to) {
    p.put_factors(to.b, b);
    if (results) p.put_factors(to.c, c);
    __syncthreads(); /* all have put theirs, and are done with the segment before */
  };
  fetch(p.first, x, delta);
  put(shared[p.first % 2]);
  ONCE
  for (int segment = p.first; segment < p.last; segment++) {
    const factors<R> &s = shared[segment % 2];
    T next_x[STEPS], next_delta[STEPS];
    fetch(segment + 1, next_x, next_delta);
    if (args.kept && !args.find && p.there) {
      UNROLLED(n, STATES) p.kept(segment, n) = h[n];
    }
    UNROLLED(k, STEPS) {
      const R step = (R)delta[k], value = (R)x[k], input = step * value;
      UNROLLED(n, STATES) h[n] = power_of_2(step * a[n]) * h[n] + input * s.b[k][n];
      sum += step;
      if (!results) continue;
      R y[2] = {skip * value, 0};
      UNROLLED(n, STATES) y[n % 2] += s.c[k][n] * h[n];
      if (p.there && p.is_step(segment, k))
        ((T *)args.y)[p.step_row(segment, k) * args.channels + p.channel] = (T)(y[0] + y[1]);
    }
    put(shared[(segment + 1) % 2]);
    UNROLLED(k, STEPS) x[k] = next_x[k], delta[k] = next_delta[k];
  }
  if (args.find) p.store_total(h, sum);
  else if ((int)blockIdx.y == args.pieces - 1) p.store_states(h, args.last);
}
#define FORWARD(tag, T) TFU_STAMP((STRIP), selective_scan_##tag, selective_args, selective_scan<T>)
FORWARD(f32, float)
FORWARD(f16, f16)
FORWARD(bf16, bf16)
FORWARD(f64, double)

/* ---- the gradient ---- */

/* Sums of 32 values over the threads of a warp: thread i has that of value i. In each round a thread hands half of its
 * values to another one, and takes the other half from there. */
template <int HALF, typename R>
__device__ inline void swap_half(R (&v)[32], int lane) {
  const bool upper = lane & HALF;
  UNROLLED(i, HALF) {
    const R mine = upper ? v[i + HALF] : v[i], other = upper ? v[i] : v[i + HALF];
    v[i] = mine + __shfl_xor_sync(0xffffffffu, other, HALF);
  }
}
template <typename R>
__device__ inline R sums_by_lane(R (&v)[32], int lane) {
  swap_half<16>(v, lane), swap_half<8>(v, lane), swap_half<4>(v, lane), swap_half<2>(v, lane), swap_half<1>(v, lane);
  return v[0];
}

template <typename T>
__device__ inline void selective_scan_back(const selective_args &args) {
  typedef acc<T> R;
  extern __shared__ int4 memory[];
  segment_back<R> &s = *(segment_back<R> *)memory;
  const strip<T> p(args);
  const int me = threadIdx.x, lane = me % 32, warp = me / 32;
  R g[STATES], a[STATES], weights[ROWS], sum = 0;
  p.load_exponents(a);
  p.load_states(g, args.find ? NULL : args.dlast, p.batch * args.channels + p.channel);
  UNROLLED(n, ROWS) weights[n] = 0;
  if (!args.find) {
    ONCE
    for (int piece = args.pieces - 1; piece > (int)blockIdx.y; piece--) p.pass(piece, g, a);
  }
  const R skip = p.there && args.skip ? ((const R *)args.skip)[p.channel] : (R)0;
  ONCE
  for (int segment = p.last - 1; segment >= p.first; segment--) {
    __syncthreads(); /* all are done with the segment before, and with its sums */
    p.load_segment(s, segment);
    __syncthreads();
    if (args.find) {
      ONCE
      for (int k = STEPS - 1; k >= 0; k--) {
        const R delta = s.delta[k][me], dy = s.dy[k][me];
        UNROLLED(n, STATES) g[n] = power_of_2(delta * a[n]) * (g[n] + dy * s.in.c[k][n]);
        sum += delta;
      }
      continue;
    }
    R h[STATES];
    UNROLLED(n, STATES) h[n] = p.there ? p.kept(segment, n) : (R)0;
    UNROLLED(k, STEPS) {
      const R delta = s.delta[k][me], input = delta * s.x[k][me];
      UNROLLED(n, STATES) {
        s.before[k][n][me] = h[n];
        h[n] = power_of_2(delta * a[n]) * h[n] + input * s.in.b[k][n];
      }
    }
    ONCE
    for (int k = STEPS - 1; k >= 0; k--) {
      const R delta = s.delta[k][me], x = s.x[k][me], dy = s.dy[k][me], input = delta * x;
      R inner = 0, exponent = 0, given[2 * STATES];
      UNROLLED(n, STATES) {
        const R factor = power_of_2(delta * a[n]), left = factor * s.before[k][n][me], b = s.in.b[k][n];
        const R all = g[n] + dy * s.in.c[k][n], along = all * left;
        given[n] = all * input;
        given[STATES + n] = dy * (left + input * b);
        inner += all * b;
        exponent += along * a[n];
        weights[n] += along * delta;
        g[n] = all * factor;
      }
      weights[STATES] += dy * x;
      if (p.there && p.is_step(segment, k)) {
        const int64_t at = p.step_row(segment, k) * args.channels + p.channel;
        ((T *)args.dx)[at] = (T)(inner * delta + skip * dy);
        ((T *)args.ddelta)[at] = (T)(exponent * (R)0.6931471805599453 + inner * x);
      }
      s.sums[warp][k][lane] = sums_by_lane(given, lane);
    }
    __syncthreads();
    UNROLL
    for (int i = me; i < STEPS * 2 * STATES; i += STRIP) {
      const int k = i / (2 * STATES), n = i % (2 * STATES);
      R all = 0;
      UNROLLED(w, WARPS) all += s.sums[w][k][n];
      const int64_t row = p.number * args.batch * args.length + p.step_row(segment, k);
      if (p.is_step(segment, k)) ((R *)args.factors)[(row * args.groups + p.group) * 2 * STATES + n] = all;
    }
  }
  if (args.find) {
    p.store_total(g, sum);
    return;
  }
  if (p.there) {
    R *const to = (R *)args.weights + p.in_rows(blockIdx.y * args.batch + p.batch, ROWS, 0);
    UNROLLED(n, ROWS) to[n * args.channels] = weights[n];
  }
  if (blockIdx.y == 0) p.store_states(g, args.dinitial);
}
#define BACKWARD(tag, T) TFU_STAMP((STRIP), selective_scan_back_##tag, selective_args, selective_scan_back<T>)
BACKWARD(f32, float)
BACKWARD(f16, f16)
BACKWARD(bf16, bf16)
BACKWARD(f64, double)

/* db and dc, an element of each for a thread. */
template <typename T>
__device__ inline void selective_scan_factors(const selective_args &args) {
  typedef acc<T> R;
  const int64_t i = (int64_t)blockIdx.x * TFU_THREADS + threadIdx.x, all = args.batch * args.length * args.groups;
  if (i >= all * args.states) return;
  const int64_t row = i / args.states, n = i - row * args.states;
  R db = 0, dc = 0;
  ONCE
  for (int64_t strip = 0; strip < args.strips; strip++) {
    const R *part = (const R *)args.factors + (strip * all + row) * 2 * STATES + n;
    db += part[0], dc += part[STATES];
  }
  ((T *)args.db)[i] = (T)db;
  ((T *)args.dc)[i] = (T)dc;
}
TFU_KERNEL(selective_scan_factors, selective_args)

/* da and dskip: a thread has a row of a channel. */
template <typename T>
__device__ inline void selective_scan_weights(const selective_args &args) {
  typedef acc<T> R;
  const int64_t i = (int64_t)blockIdx.x * TFU_THREADS + threadIdx.x;
  if (i >= ROWS * args.channels) return;
  const int64_t n = i / args.channels, channel = i - n * args.channels;
  R sum = 0;
  ONCE
  for (int64_t table = 0; table < args.pieces * args.batch; table++)
    sum += ((const R *)args.weights)[(table * ROWS + n) * args.channels + channel];
  if (n < args.states) ((R *)args.da)[channel * args.states + n] = sum;
  else if (n == STATES && args.dskip) ((R *)args.dskip)[channel] = sum;
}
TFU_KERNEL(selective_scan_weights, selective_args)
