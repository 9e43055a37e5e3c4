/* selective_scan.cuh - what selective scans and their gradient share on the GPU. A thread has four states of each of
 * four channels, and a quad, the four threads that stand side by side, has all states of these. So of what a step
 * reads, b and c are loaded for four channels at once, and the rest for four states. A block is a strip of channels,
 * which share b and c. It goes over a sequence, or a piece of it, segment by segment; the next one is on its way to
 * shared memory meanwhile. Steps beyond the end of a sequence are as if delta, x and dy were 0: they leave states as
 * they are, and give nothing.
 *
 * Slot j of a thread is channel j ^ (its place in the quad), so that slot 0 is a channel of its own, which the thread
 * reads and writes, slot j is that of the thread j ^ place, and sums over the quad end where they belong without a
 * selection (sum_quad). */
#pragma once

#include "kernels/core/device/shared.cuh"
#include "kernels/scans/scan_linear.cuh"
#include "kernels/scans/selective_scan.h"

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
      UNROLLED(n, 4)
        h[j][n] = affine<R>{power_of_2(sum * a[j][n]), in_rows(args.totals, piece, state(n), in_slot(j))}(h[j][n]);
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

#define KERNEL_OF(function, tag, T) TFU_STAMP((STRIP), function##_##tag, selective_args, function<T>)
