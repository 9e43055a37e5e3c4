/* Selective scans on the GPU. A thread has four states of each of four channels, and a quad, the four threads that
 * stand side by side, has all states of these. So of what a step reads, b and c are loaded for four channels at once,
 * and the rest for four states. A block is a strip of channels, which share b and c. It goes over a sequence, or a
 * piece of it, segment by segment; the next one is on its way to shared memory meanwhile. Steps beyond the end of a
 * sequence are as if delta, x and dy were 0: they leave states as they are, and give nothing.
 *
 * Slot j of a thread is channel j ^ (its place in the quad), so that slot 0 is a channel of its own, which the thread
 * reads and writes, slot j is that of the thread j ^ place, and sums over the quad end where they belong without a
 * selection (sum_quad).
 *
 * The gradient goes over segments backwards. Of each it computes the states of all steps again, from those that were
 * kept before it: the factors and states of HELD steps stay in registers while it goes back through them. What channels
 * give to b and c is summed over the four of a thread, then over the threads of a block through shared memory, and over
 * strips by another kernel, in a fixed order. */
#include "kernels/scans/selective_scan.h"

#include "kernels/core/device/shared.cuh"

enum { STRIP = TFU_SELECT_STRIP, STATES = TFU_SELECT_SLOTS, ROWS = TFU_SELECT_ROWS, QUAD = 4, EIGHTHS = STRIP / QUAD };

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

/* A pack on its way to shared memory; zeros where there is none. */
__device__ inline void send_pack(void *to, const void *from, bool has) {
#if __CUDA_ARCH__ >= 800
  copy_pack((unsigned)__cvta_generic_to_shared(to), from, has ? 16 : 0);
#else
  *(int4 *)to = has ? *(const int4 *)from : make_int4(0, 0, 0, 0);
#endif
}

/* What the channels of a strip share of a segment. */
template <typename R>
struct factors {
  enum { STEPS = TFU_SELECT_STEPS_OF(sizeof(R)) };
  four<R> b[STEPS][STATES / 4], c[STEPS][STATES / 4];
};

/* What is read of a segment, as it lies in memory; dy only for the gradient. */
template <typename T, bool BACK>
struct alignas(16) stage {
  enum { STEPS = factors<acc<T>>::STEPS };
  T x[STEPS][STRIP], delta[STEPS][STRIP], dy[BACK ? STEPS : 1][STRIP], b[STEPS][STATES], c[STEPS][STATES];
};

/* A block's strip, and a thread's part of it. Threads beyond the last channel compute with zeros, and write nothing. */
template <typename T>
struct strip {
  typedef acc<T> R;
  enum { STEPS = factors<R>::STEPS };
  const selective_args &args;
  int64_t group, batch, table;    /* table: of the strip, among those of all groups */
  int64_t begin, channel, beyond; /* the strip's first, the thread's own, and the first that is not the group's */
  int place;                      /* in the quad; the thread's states begin with 4 * place */
  int first, last;                /* segments of the piece: up to `last` */
  int64_t stride;                 /* bytes from a step's values to those of the next one */
  bool there;

  __device__ strip(const selective_args &args) : args(args) {
    const unsigned strips = (unsigned)args.strips, groups = (unsigned)args.groups;
    table = blockIdx.x % (strips * groups);
    group = table / strips;
    batch = blockIdx.x / strips / groups;
    const int64_t each = args.channels / args.groups;
    place = threadIdx.x % QUAD;
    begin = group * each + (table - group * strips) * STRIP;
    channel = begin + threadIdx.x;
    beyond = (group + 1) * each;
    there = channel < beyond;
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
    const int64_t block = (batch * args.segments + segment) * args.strips * args.groups + table;
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

  /* Sends for n rows, `step` elements apart, the first of which begins at `from`; zeros beyond the `count` elements
   * that a row has, and the n rows. Rows that are not whole packs are copied at once. All threads do it together. */
  template <int WIDE>
  __device__ void send_rows(T (&to)[STEPS][WIDE], const void *tensor, int64_t from, int64_t step, int64_t count,
                            int n) const {
    if (args.packs) {
      enum { N = packed<T>::N, PACKS = WIDE / N };
      UNROLLED(round, (STEPS * PACKS + STRIP - 1) / STRIP) {
        const int i = round * STRIP + threadIdx.x, k = i / PACKS, at = i % PACKS * N;
        if (k >= STEPS) break;
        const bool has = k < n && at < count;
        send_pack(&to[k][at], (const T *)tensor + (has ? from + k * step + at : 0), has);
      }
    } else {
      ONCE
      for (int i = threadIdx.x; i < STEPS * WIDE; i += STRIP) {
        const int k = i / WIDE, at = i % WIDE;
        to[k][at] = k < n && at < count ? ((const T *)tensor)[from + k * step + at] : (T)0.0f;
      }
    }
  }
  /* A segment; c only if it is wanted. */
  template <bool BACK>
  __device__ void send(stage<T, BACK> &to, int segment, bool c) const {
    const int n = steps(segment);
    const int64_t from = row(segment) * args.channels + begin, count = beyond - begin;
    send_rows(to.x, args.x, from, args.channels, count, n);
    send_rows(to.delta, args.delta, from, args.channels, count, n);
    const int64_t shared = (row(segment) * args.groups + group) * args.states, step = args.groups * args.states;
    send_rows(to.b, args.b, shared, step, args.states, n);
    if (c) send_rows(to.c, args.c, shared, step, args.states, n);
    if constexpr (BACK) send_rows(to.dy, args.dy, from, args.channels, count, n);
    close_copies();
  }
  /* To compute with. */
  template <bool BACK>
  __device__ void widen(factors<R> &to, const stage<T, BACK> &from) const {
    if (threadIdx.x >= STEPS * STATES) return;
    (&to.b[0][0].v[0])[threadIdx.x] = (R)(&from.b[0][0])[threadIdx.x];
    (&to.c[0][0].v[0])[threadIdx.x] = (R)(&from.c[0][0])[threadIdx.x];
  }
};

/* What a step takes states to, but for b: computed while the step before is under way, to hide how long that takes. */
template <typename R>
struct step_of {
  R factor[QUAD][4], gain[QUAD];
  __device__ void begin(R x, R delta, const R (&a)[QUAD][4]) {
    const R input = delta * x;
    R deltas[QUAD];
    UNROLLED(j, QUAD) deltas[j] = of_slot(delta, j), gain[j] = of_slot(input, j);
    UNROLLED(j, QUAD)
      UNROLLED(n, 4) factor[j][n] = power_of_2(deltas[j] * a[j][n]);
  }
};

/* What the segment after the next one reads is on its way while this one is computed, so that the next one's is there
 * when its first step begins. Without RESULTS only states are wanted. */
template <typename T, bool RESULTS>
__device__ inline void scan_strip(const selective_args &args) {
  typedef acc<T> R;
  __shared__ stage<T, false> stages[3];
  __shared__ factors<R> shared[2];
  const strip<T> p(args);
  enum { STEPS = p.STEPS };
  const int me = threadIdx.x;
  p.send(stages[0], p.first, RESULTS);
  p.send(stages[1], p.first + 1, RESULTS);
  R h[QUAD][4], a[QUAD][4], sum = 0;
  p.load_exponents(a);
  p.load_states(h, args.find ? NULL : args.initial, p.batch * args.channels);
  if (!args.find) {
    ONCE
    for (int piece = 0; piece < (int)blockIdx.y; piece++) p.pass(piece, h, a);
  }
  const R skip = p.skip();
  char *to = (char *)p.own(args.y, p.first);
  wait_for_copies<1>();
  __syncthreads();
  p.widen(shared[0], stages[0]);
  step_of<R> now;
  now.begin((R)stages[0].x[0][me], (R)stages[0].delta[0][me], a);
  int slot = 0;
  ONCE
  for (int segment = p.first; segment < p.last; segment++) {
    wait_for_copies<0>();
    __syncthreads(); /* the next one's are there, and all are done with the segment before */
    const int next = slot == 2 ? 0 : slot + 1, after = next == 2 ? 0 : next + 1;
    p.send(stages[after], segment + 2, RESULTS);
    const int half = (segment - p.first) % 2;
    p.widen(shared[!half], stages[next]);
    const stage<T, false> &in = stages[slot], &in_next = stages[next];
    const factors<R> &s = shared[half];
    const int n = p.there ? p.steps(segment) : 0;
    if (!RESULTS && !args.find) {
      UNROLLED(j, QUAD) p.kept(segment, j) = {h[j][0], h[j][1], h[j][2], h[j][3]};
    }
    UNROLLED(k, STEPS) {
      const step_of<R> current = now;
      const stage<T, false> &from = k + 1 < STEPS ? in : in_next;
      const int following = (k + 1) % STEPS;
      now.begin((R)from.x[following][me], (R)from.delta[following][me], a);
      const four<R> b = s.b[k][p.place], c = RESULTS ? s.c[k][p.place] : four<R>();
      R y[QUAD];
      UNROLLED(j, QUAD)
        UNROLLED(n, 4) {
          h[j][n] = current.factor[j][n] * h[j][n] + current.gain[j] * b.v[n];
          if (RESULTS) y[j] = n ? y[j] + c.v[n] * h[j][n] : c.v[n] * h[j][n];
        }
      if (RESULTS) {
        const R all = sum_quad(y) + skip * (R)in.x[k][me];
        if (k < n) *(T *)to = (T)all;
        to += p.stride;
      } else {
        sum += (R)in.delta[k][me];
      }
    }
    slot = next;
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

/* Of the gradient, in shared memory: what is read, of this segment and the one before it, and what each four threads
 * give to b and c. `kept` has the states before the segment, where these can be sent for. */
template <typename T>
struct segment_back {
  typedef acc<T> R;
  enum { STEPS = factors<R>::STEPS };
  stage<T, true> in[2];
  factors<R> shared;
  four<R> given[STEPS][2][EIGHTHS][STATES / 4];
#if __CUDA_ARCH__ >= 800
  four<R> kept[QUAD][STRIP];
#endif
};

template <typename T>
struct strip_back : strip<T> {
  typedef strip<T> base;
  typedef acc<T> R;
  enum { STEPS = base::STEPS, HELD = TFU_SELECT_HELD_OF(sizeof(R)) };
  segment_back<T> &s;
  const stage<T, true> *in; /* of this segment */
  const int me, eighth;
  R a[QUAD][4], g[QUAD][4], weights[QUAD][4], own_weight, sum, skip;

  __device__ strip_back(const selective_args &args, segment_back<T> &s)
      : base(args), s(s), me(threadIdx.x), eighth(threadIdx.x / QUAD), own_weight(0), sum(0), skip(base::skip()) {
    this->load_exponents(a);
    this->load_states(g, args.find ? NULL : args.dlast, this->batch * args.channels);
    UNROLLED(j, QUAD)
      UNROLLED(n, 4) weights[j][n] = 0;
  }

  /* The thread's own states before a segment, which nobody else reads. */
  __device__ void send_kept(int segment) {
#if __CUDA_ARCH__ >= 800
    enum {PACKS = sizeof(four<R>) / 16};
    UNROLLED(j, QUAD)
      UNROLLED(i, PACKS)
        send_pack((int4 *)&s.kept[j][me] + i, segment >= this->first ? (int4 *)&this->kept(segment, j) + i : NULL,
                  segment >= this->first);
    close_copies();
#endif
  }
  __device__ void load_kept(R (&h)[QUAD][4], int segment) const {
    UNROLLED(j, QUAD) {
#if __CUDA_ARCH__ >= 800
      const four<R> from = s.kept[j][me];
#else
      const four<R> from = this->kept(segment, j);
#endif
      UNROLLED(n, 4) h[j][n] = from.v[n];
    }
  }
  __device__ R x(int k) const { return (R)in->x[k][me]; }
  __device__ R delta(int k) const { return (R)in->delta[k][me]; }
  __device__ R dy(int k) const { return (R)in->dy[k][me]; }
  /* The states after `count` steps, an even number. */
  __device__ void advance(R (&h)[QUAD][4], int count) const {
    ONCE
    for (int k = 0; k < count; k += 2) {
      step_of<R> step[2];
      UNROLLED(i, 2) step[i].begin(x(k + i), delta(k + i), a);
      UNROLLED(i, 2) {
        const four<R> b = s.shared.b[k + i][this->place];
        UNROLLED(j, QUAD)
          UNROLLED(n, 4) h[j][n] = step[i].factor[j][n] * h[j][n] + step[i].gain[j] * b.v[n];
      }
    }
  }
  /* Steps from `begin` on, forward and back. */
  __device__ void go(R (&h)[QUAD][4], int segment, int begin) {
    R factor[HELD][QUAD][4], left[HELD][QUAD][4];
    UNROLLED(i, HELD) {
      const int k = begin + i;
      const R step = delta(k), input = step * x(k), dy = this->dy(k);
      const four<R> b = s.shared.b[k][this->place];
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
      const R step = delta(k), x = this->x(k), dy = this->dy(k), input = step * x;
      const four<R> b = s.shared.b[k][this->place], c = s.shared.c[k][this->place];
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
    UNROLLED(round, (STEPS * 2 * 8 + STRIP - 1) / STRIP) {
      const int at = round * STRIP + me;
      if (at >= STEPS * 2 * 8) break;
      const int n = at % 4, half = at / 4 % 2, which = at / 8 % 2, k = at / 16;
      four<R> all = s.given[k][which][half][n];
      UNROLL
      for (int r = half + 2; r < EIGHTHS; r += 2) {
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
      const R step = delta(k), dy = this->dy(k);
      const four<R> c = s.shared.c[k][this->place];
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
  segment_back<T> &s = *(segment_back<T> *)memory;
  strip_back<T> p(args, s);
  enum { STEPS = p.STEPS, HELD = p.HELD };
  if (!args.find) {
    ONCE
    for (int piece = args.pieces - 1; piece > (int)blockIdx.y; piece--) p.pass(piece, p.g, p.a);
    p.send_kept(p.last - 1);
  }
  p.send(s.in[(p.last - 1) & 1], p.last - 1, true);
  ONCE
  for (int segment = p.last - 1; segment >= p.first; segment--) {
    p.in = &s.in[segment & 1];
    wait_for_copies<0>();
    __syncthreads(); /* the segment is there, and all are done with the one behind it */
    p.send(s.in[(segment + 1) & 1], segment - 1, true);
    p.widen(s.shared, *p.in);
    __syncthreads();
    if (args.find) {
      p.find();
      continue;
    }
    ONCE
    for (int begin = STEPS - HELD; begin >= 0; begin -= HELD) {
      R h[QUAD][4];
      p.load_kept(h, segment);
      if (begin == 0) p.send_kept(segment - 1);
      p.advance(h, begin);
      p.go(h, segment, begin);
    }
    __syncthreads();
    p.fold(segment);
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
