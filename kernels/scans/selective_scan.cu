/* Selective scans on the GPU. A warp has 32 channels, and a thread four states of each of four of them: a quad, the
 * four threads that stand side by side, has all states of four channels. So of what a step reads, b and c are loaded
 * for four channels at once, and the rest for four states. A block is a strip of channels, which share b and c in
 * shared memory. It goes over a sequence, or a piece of it, segment by segment. Steps beyond the end of a sequence are
 * as if delta, x and dy were 0: they leave states as they are, and give nothing.
 *
 * Slot j of a thread is channel j ^ (its place in the quad), so that slot 0 is a channel of its own, the one that the
 * thread reads and writes, slot j is that of the thread j ^ place, and sums over the quad end where they belong without
 * a selection (sum_quad).
 *
 * The gradient goes over segments backwards. Of each it computes the states of all steps again, from those that were
 * kept before it: the factors and states of HELD steps stay in registers while it goes back through them. What channels
 * give to b and c is summed over the four of a thread, then over the threads of a block through shared memory, and over
 * strips by another kernel, in a fixed order. */
#include "kernels/scans/selective_scan.h"

#include "kernels/core/device/pack.cuh"

enum { STRIP = TFU_SELECT_STRIP, STATES = TFU_SELECT_SLOTS, ROWS = TFU_SELECT_ROWS, QUAD = 4, EIGHTS = STRIP / QUAD };

/* 2^x by one instruction; exp(x) is 2^(x log2 e). */
__device__ inline float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __noinline__ double power_of_2(double x) { return exp2(x); } /* one copy of long code */

/* Four values that lie side by side, which are moved at once. */
template <typename R>
struct alignas(16) four {
  R v[4];
};

/* Of the thread `slot` places away. */
template <typename R>
__device__ inline R of_slot(R v, int slot) {
  return slot ? __shfl_xor_sync(0xffffffffu, v, slot) : v;
}
/* The sum over a quad of what it has of this thread's own channel. */
template <typename R>
__device__ inline R sum_quad(const R (&v)[QUAD]) {
  const R low = v[0] + of_slot(v[2], 2), high = v[1] + of_slot(v[3], 2);
  return low + of_slot(high, 1);
}

/* What the channels of a strip share of a segment. */
template <typename R>
struct factors {
  enum { STEPS = TFU_SELECT_STEPS_OF(sizeof(R)) };
  four<R> b[STEPS][STATES / 4], c[STEPS][STATES / 4];
};

/* A block's strip, and a thread's part of it. Threads beyond the last channel compute with zeros, and write nothing. */
template <typename T>
struct strip {
  typedef acc<T> R;
  enum { STEPS = factors<R>::STEPS };
  const selective_args &args;
  int64_t group, batch, table; /* table: of the strip, among those of all groups */
  int64_t channel, beyond;     /* the thread's own, and the first one that is not the group's */
  int place;                   /* in the quad; the thread's states begin with 4 * place */
  int first, last;             /* segments of the piece: up to `last` */
  int64_t stride;              /* bytes from a step's values to those of the next one */
  bool there;

  __device__ strip(const selective_args &args) : args(args) {
    const unsigned strips = (unsigned)args.strips, groups = (unsigned)args.groups;
    table = blockIdx.x % (strips * groups);
    group = table / strips;
    batch = blockIdx.x / strips / groups;
    const int64_t each = args.channels / args.groups;
    channel = group * each + (table - group * strips) * STRIP + threadIdx.x;
    beyond = (group + 1) * each;
    there = channel < beyond;
    place = threadIdx.x % QUAD;
    first = (int)(blockIdx.y * args.piece);
    last = (int)min(args.segments, first + args.piece);
    stride = args.channels * (int64_t)sizeof(T);
  }
  __device__ int64_t in_slot(int j) const { return channel - place + (j ^ place); }
  __device__ int state(int n) const { return QUAD * place + n; }
  __device__ bool has(int j, int n) const { return in_slot(j) < beyond && state(n) < args.states; }

  /* Of the weights and states, [rows, states], from the row of channel 0 on. */
  __device__ void load_states(R (&h)[QUAD][4], const void *from, int64_t row) const {
    UNROLLED(j, QUAD)
      UNROLLED(n, 4)
        h[j][n] = from && has(j, n) ? ((const R *)from)[(row + in_slot(j)) * args.states + state(n)] : (R)0;
  }
  __device__ void store_states(const R (&h)[QUAD][4], void *to) const {
    if (!to) return;
    UNROLLED(j, QUAD)
      UNROLLED(n, 4) {
        if (has(j, n)) ((R *)to)[(batch * args.channels + in_slot(j)) * args.states + state(n)] = h[j][n];
      }
  }
  /* Exponents of base 2. */
  __device__ void load_exponents(R (&a)[QUAD][4]) const {
    load_states(a, args.a, 0);
    UNROLLED(j, QUAD)
      UNROLLED(n, 4) a[j][n] *= (R)1.4426950408889634;
  }
  __device__ R skip() const { return there && args.skip ? ((const R *)args.skip)[channel] : (R)0; }

  /* Row `row` of a table that a piece has of the sequence. */
  __device__ R &in_rows(void *tables, int piece, int row, int64_t channel) const {
    return ((R *)tables)[((piece * args.batch + batch) * ROWS + row) * args.channels + channel];
  }
  /* What a piece takes states to. */
  __device__ void pass(int piece, R (&h)[QUAD][4], const R (&a)[QUAD][4]) const {
    UNROLLED(j, QUAD) {
      if (in_slot(j) >= beyond) continue;
      const R sum = in_rows(args.totals, piece, STATES, in_slot(j));
      UNROLLED(n, 4) h[j][n] = power_of_2(sum * a[j][n]) * h[j][n] + in_rows(args.totals, piece, state(n), in_slot(j));
    }
  }
  /* A table of the piece: of its states, and of its own channel. */
  __device__ void store_rows(void *tables, const R (&h)[QUAD][4], R own) const {
    UNROLLED(j, QUAD) {
      if (in_slot(j) >= beyond) continue;
      UNROLLED(n, 4) in_rows(tables, blockIdx.y, state(n), in_slot(j)) = h[j][n];
    }
    if (there) in_rows(tables, blockIdx.y, STATES, channel) = own;
  }
  __device__ four<R> &kept(int segment, int j) const {
    const int64_t tables = args.strips * args.groups;
    const int64_t block = (batch * args.segments + segment) * tables + table;
    return ((four<R> *)args.kept)[(block * QUAD + j) * STRIP + threadIdx.x];
  }

  __device__ int64_t row(int segment) const { return batch * args.length + (int64_t)segment * STEPS; }
  /* The thread's own value of a segment's first step. */
  __device__ const char *own(const void *tensor, int segment) const {
    return (const char *)((const T *)tensor + (row(segment) * args.channels + channel));
  }
  /* Of a segment; none of those that are not the piece's. */
  __device__ int steps(int segment) const {
    return segment >= first && segment < last ? (int)min((int64_t)STEPS, args.length - (int64_t)segment * STEPS) : 0;
  }

  /* The value at `at`, if there is one, or else 0; from there to the step after. */
  __device__ T fetch(const char *&at, bool has) const {
    T value = (T)0.0f;
    if (has) value = *(const T *)at;
    at += stride;
    return value;
  }
  /* Its value of b or c: each of the first threads has one. */
  __device__ T fetch_factor(const void *from, int segment) const {
    const int k = threadIdx.x / STATES, n = threadIdx.x % STATES;
    const bool has = n < args.states && k < steps(segment);
    return has ? ((const T *)from)[((row(segment) + k) * args.groups + group) * args.states + n] : (T)0.0f;
  }
  __device__ void put_factor(four<R> (&to)[STEPS][STATES / 4], T value) const {
    if (threadIdx.x < STEPS * STATES) (&to[0][0].v[0])[threadIdx.x] = (R)value;
  }
};

/* What the next segment reads is on its way while this one is computed: a step's values are replaced by those of the
 * same step of the next segment. Without RESULTS only states are wanted. */
template <typename T, bool RESULTS>
__device__ inline void scan_strip(const selective_args &args) {
  typedef acc<T> R;
  __shared__ factors<R> shared[2];
  const strip<T> p(args);
  enum { STEPS = p.STEPS };
  R h[QUAD][4], a[QUAD][4], sum = 0;
  p.load_exponents(a);
  p.load_states(h, args.find ? NULL : args.initial, p.batch * args.channels);
  if (!args.find) {
    ONCE
    for (int piece = 0; piece < (int)blockIdx.y; piece++) p.pass(piece, h, a);
  }
  const R skip = p.skip();
  const char *from_x = p.own(args.x, p.first), *from_delta = p.own(args.delta, p.first);
  char *to = (char *)p.own(args.y, p.first);
  int n = p.there ? p.steps(p.first) : 0;
  T x[STEPS], delta[STEPS], b = p.fetch_factor(args.b, p.first),
                            c = RESULTS ? p.fetch_factor(args.c, p.first) : (T)0.0f;
  UNROLLED(k, STEPS) x[k] = p.fetch(from_x, k < n), delta[k] = p.fetch(from_delta, k < n);
  ONCE
  for (int segment = p.first; segment < p.last; segment++) {
    factors<R> &s = shared[segment % 2];
    p.put_factor(s.b, b);
    if (RESULTS) p.put_factor(s.c, c);
    __syncthreads(); /* all have put theirs, and are done with the segment before */
    b = p.fetch_factor(args.b, segment + 1);
    if (RESULTS) c = p.fetch_factor(args.c, segment + 1);
    const int next = p.there ? p.steps(segment + 1) : 0;
    if (!RESULTS && !args.find) {
      UNROLLED(j, QUAD) p.kept(segment, j) = {h[j][0], h[j][1], h[j][2], h[j][3]};
    }
    UNROLLED(k, STEPS) {
      const R step = (R)delta[k], value = (R)x[k], input = step * value;
      x[k] = p.fetch(from_x, k < next), delta[k] = p.fetch(from_delta, k < next);
      const four<R> b = s.b[k][p.place], c = RESULTS ? s.c[k][p.place] : four<R>();
      R y[QUAD];
      UNROLLED(j, QUAD) {
        const R delta = of_slot(step, j), gain = of_slot(input, j);
        UNROLLED(n, 4) {
          h[j][n] = power_of_2(delta * a[j][n]) * h[j][n] + gain * b.v[n];
          if (RESULTS) y[j] = n ? y[j] + c.v[n] * h[j][n] : c.v[n] * h[j][n];
        }
      }
      if (RESULTS) {
        const R all = sum_quad(y) + skip * value;
        if (k < n) *(T *)to = (T)all;
        to += p.stride;
      } else {
        sum += step;
      }
    }
    n = next;
  }
  if (args.find) p.store_rows(args.totals, h, sum);
  else if (RESULTS && (int)blockIdx.y == args.pieces - 1) p.store_states(h, args.last);
}
template <typename T>
__device__ inline void selective_scan(const selective_args &args) {
  scan_strip<T, true>(args);
}
template <typename T>
__device__ inline void selective_scan_states(const selective_args &args) {
  scan_strip<T, false>(args);
}
#define KERNEL_OF(function, tag, T) TFU_STAMP((STRIP), function##_##tag, selective_args, function<T>)
TFU_TYPES(KERNEL_OF, selective_scan)
TFU_TYPES(KERNEL_OF, selective_scan_states)

/* ---- the gradient ---- */

/* A segment of the gradient, in shared memory: the threads' own values, and what each eighth of a warp gives to b and
 * c. */
template <typename R>
struct segment_back {
  enum { STEPS = factors<R>::STEPS };
  R x[STEPS][STRIP], delta[STEPS][STRIP], dy[STEPS][STRIP];
  factors<R> in;
  four<R> given[STEPS][2][EIGHTS][STATES / 4];
};

template <typename T>
struct strip_back : strip<T> {
  typedef strip<T> base;
  typedef acc<T> R;
  enum { STEPS = base::STEPS, HELD = TFU_SELECT_HELD_OF(sizeof(R)) };
  segment_back<R> &s;
  const int me, eighth;
  R a[QUAD][4], g[QUAD][4], weights[QUAD][4], own_weight, sum, skip;

  __device__ strip_back(const selective_args &args, segment_back<R> &s)
      : base(args), s(s), me(threadIdx.x), eighth(threadIdx.x / QUAD), own_weight(0), sum(0), skip(base::skip()) {
    this->load_exponents(a);
    this->load_states(g, args.find ? NULL : args.dlast, this->batch * args.channels);
    UNROLLED(j, QUAD)
      UNROLLED(n, 4) weights[j][n] = 0;
  }

  /* All is fetched before any of it is put. */
  __device__ void load(int segment) {
    T x[STEPS], delta[STEPS], dy[STEPS];
    const int n = this->there ? this->steps(segment) : 0;
    const char *from_x = this->own(this->args.x, segment), *from_delta = this->own(this->args.delta, segment);
    const char *from_dy = this->own(this->args.dy, segment);
    UNROLLED(k, STEPS) {
      x[k] = this->fetch(from_x, k < n), delta[k] = this->fetch(from_delta, k < n), dy[k] = this->fetch(from_dy, k < n);
    }
    const T b = this->fetch_factor(this->args.b, segment);
    const T c = this->fetch_factor(this->args.c, segment);
    UNROLLED(k, STEPS) s.x[k][me] = (R)x[k], s.delta[k][me] = (R)delta[k], s.dy[k][me] = (R)dy[k];
    this->put_factor(s.in.b, b);
    this->put_factor(s.in.c, c);
  }
  /* Of the next segment, on its way to the second level cache. */
  __device__ void prefetch(int segment) const {
    const int lane = me % 32, k = lane % 8;
    if (lane >= 24 || k >= this->steps(segment)) return;
    const void *from = lane < 8 ? this->args.x : lane < 16 ? this->args.delta : this->args.dy;
    const char *at = this->own(from, segment) - lane * (int)sizeof(T) + k * this->stride;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
  }
  __device__ void load_kept(R (&h)[QUAD][4], int segment) const {
    UNROLLED(j, QUAD) {
      const four<R> from = this->kept(segment, j);
      UNROLLED(n, 4) h[j][n] = from.v[n];
    }
  }
  /* States after step k. */
  __device__ void advance(R (&h)[QUAD][4], int k) const {
    const R step = s.delta[k][me], input = step * s.x[k][me];
    const four<R> b = s.in.b[k][this->place];
    UNROLLED(j, QUAD) {
      const R delta = of_slot(step, j), gain = of_slot(input, j);
      UNROLLED(n, 4) h[j][n] = power_of_2(delta * a[j][n]) * h[j][n] + gain * b.v[n];
    }
  }
  /* Steps from `begin` on, forward and back. */
  __device__ void go(R (&h)[QUAD][4], int segment, int begin) {
    R factor[HELD][QUAD][4], left[HELD][QUAD][4];
    UNROLLED(i, HELD) {
      const int k = begin + i;
      const R step = s.delta[k][me], input = step * s.x[k][me], dy = s.dy[k][me];
      const four<R> b = s.in.b[k][this->place];
      four<R> dc = {};
      UNROLLED(j, QUAD) {
        const R delta = of_slot(step, j), gain = of_slot(input, j), dy_j = of_slot(dy, j);
        UNROLLED(n, 4) {
          factor[i][j][n] = power_of_2(delta * a[j][n]);
          left[i][j][n] = factor[i][j][n] * h[j][n];
          h[j][n] = left[i][j][n] + gain * b.v[n];
          dc.v[n] += dy_j * h[j][n];
        }
      }
      s.given[k][1][eighth][this->place] = dc;
    }
    const int n = this->there ? this->steps(segment) : 0;
    const int64_t end = (begin + HELD) * this->stride;
    char *dx = (char *)this->own(this->args.dx, segment) + end;
    char *ddelta = (char *)this->own(this->args.ddelta, segment) + end;
    UNROLLED(back, HELD) {
      const int i = HELD - 1 - back, k = begin + i;
      const R step = s.delta[k][me], x = s.x[k][me], dy = s.dy[k][me], input = step * x;
      const four<R> b = s.in.b[k][this->place], c = s.in.c[k][this->place];
      four<R> db = {};
      R inner[QUAD], exponent[QUAD];
      UNROLLED(j, QUAD) {
        const R delta = of_slot(step, j), gain = of_slot(input, j), dy_j = of_slot(dy, j);
        inner[j] = 0, exponent[j] = 0;
        UNROLLED(n, 4) {
          const R all = g[j][n] + dy_j * c.v[n], along = all * left[i][j][n];
          db.v[n] += all * gain;
          inner[j] += all * b.v[n];
          exponent[j] += along * a[j][n];
          weights[j][n] += along * delta;
          g[j][n] = all * factor[i][j][n];
        }
      }
      s.given[k][0][eighth][this->place] = db;
      const R own_inner = sum_quad(inner), own_exponent = sum_quad(exponent);
      own_weight += dy * x;
      dx -= this->stride, ddelta -= this->stride;
      if (k < n) {
        *(T *)dx = (T)(own_inner * step + skip * dy);
        *(T *)ddelta = (T)(own_exponent * (R)0.6931471805599453 + own_inner * x);
      }
    }
  }
  /* What the strip gives to b and c: two threads have four states of one of a step, and every second row of them. */
  __device__ void fold(int segment) const {
    UNROLL
    for (int at = me; at < STEPS * 2 * 8; at += STRIP) {
      const int n = at % 4, half = at / 4 % 2, which = at / 8 % 2, k = at / 16;
      four<R> all = s.given[k][which][half][n];
      UNROLL
      for (int r = half + 2; r < EIGHTS; r += 2) {
        const four<R> more = s.given[k][which][r][n];
        UNROLLED(i, 4) all.v[i] += more.v[i];
      }
      UNROLLED(i, 4) all.v[i] += of_slot(all.v[i], 4);
      const int64_t rows = this->args.batch * this->args.length, number = this->table - this->group * this->args.strips;
      const int64_t to = ((number * rows + this->row(segment) + k) * this->args.groups + this->group) * 2 + which;
      if (half == 0 && k < this->steps(segment)) ((four<R> *)this->args.factors)[to * (STATES / 4) + n] = all;
    }
  }
  /* As fold and go, where only totals are wanted. */
  __device__ void find() {
    ONCE
    for (int k = STEPS - 1; k >= 0; k--) {
      const R step = s.delta[k][me], dy = s.dy[k][me];
      const four<R> c = s.in.c[k][this->place];
      UNROLLED(j, QUAD) {
        const R delta = of_slot(step, j), dy_j = of_slot(dy, j);
        UNROLLED(n, 4) g[j][n] = power_of_2(delta * a[j][n]) * (g[j][n] + dy_j * c.v[n]);
      }
      sum += step;
    }
  }
};

template <typename T>
__device__ inline void selective_scan_back(const selective_args &args) {
  typedef acc<T> R;
  extern __shared__ int4 memory[];
  strip_back<T> p(args, *(segment_back<R> *)memory);
  enum { STEPS = p.STEPS, HELD = p.HELD };
  if (!args.find) {
    ONCE
    for (int piece = args.pieces - 1; piece > (int)blockIdx.y; piece--) p.pass(piece, p.g, p.a);
  }
  ONCE
  for (int segment = p.last - 1; segment >= p.first; segment--) {
    p.load(segment);
    p.prefetch(segment - 1);
    __syncthreads();
    if (args.find) {
      p.find();
    } else {
      ONCE
      for (int begin = STEPS - HELD; begin >= 0; begin -= HELD) {
        R h[QUAD][4];
        p.load_kept(h, segment);
        ONCE
        for (int k = 0; k < begin; k++) p.advance(h, k);
        p.go(h, segment, begin);
      }
      __syncthreads();
      p.fold(segment);
    }
    __syncthreads(); /* all are done with the segment, and with what it gives */
  }
  if (args.find) {
    p.store_rows(args.totals, p.g, p.sum);
    return;
  }
  p.store_rows(args.weights, p.weights, p.own_weight);
  if (blockIdx.y == 0) p.store_states(p.g, args.dinitial);
}
TFU_TYPES(KERNEL_OF, selective_scan_back)

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
