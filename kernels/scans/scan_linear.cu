/* Linear recurrences along an axis that is not the last one, on the GPU. The lanes of a warp stand side by side along
 * the columns, WIDE of which a lane has, so that memory is read and written in whole lines. The warps of a block have
 * the same columns, and take turns along the axis: each has AHEAD positions of a round, and finds what they take a
 * state to, which the others learn through shared memory. The positions of the next round are on their way meanwhile.
 *
 * Where columns are too few, they are cut into chunks, which are gone over twice: first for what each takes a state to,
 * and then from the state that those before it lead to. */
#include "kernels/scans/scan_linear.h"

#include "kernels/scans/scan_linear.cuh"

template <typename T, int WIDE, bool BACK>
struct linear_columns {
  typedef acc<T> R;
  enum { WARPS = TFU_LINEAR_THREADS / 32, AHEAD = TFU_LINEAR_AHEAD };
  typedef side_by_side<T, WIDE> wide;
  const scan_linear_args &args;
  int64_t first, step, column; /* where position 0 lies; to the next one; the first of the lane's columns */
  int64_t begin, end;          /* positions of the chunk */
  int warp;
  bool there;

  struct positions {
    wide a[AHEAD], b[AHEAD], h[BACK ? AHEAD : 1];
  };

  __device__ linear_columns(const scan_linear_args &args) : args(args), warp(threadIdx.x / 32) {
    const int64_t strips = (args.inner + 32 * WIDE - 1) / (32 * WIDE), outer = blockIdx.x / strips;
    const int64_t within = (blockIdx.x - outer * strips) * 32 * WIDE + threadIdx.x % 32 * WIDE;
    there = within < args.inner;
    column = outer * args.inner + within;
    first = outer * args.length * args.inner + within;
    step = args.inner;
    if (args.flipped) first += (args.length - 1) * args.inner, step = -step;
    begin = blockIdx.y * args.chunk;
    end = min(args.length, begin + args.chunk);
  }
  /* How many of the positions from i on there are. */
  __device__ int count(int64_t i) const { return (int)max((int64_t)0, min((int64_t)AHEAD, end - i)); }

  /* Of the gradient also the states before each step, which are those of the positions that follow here; the last of
   * all has initial. */
  __device__ void fetch(positions &p, int64_t i) const {
    const int n = there ? count(i) : 0;
    const int64_t at = first + i * step;
    const T *a = (const T *)args.a + at, *b = (const T *)args.b + at, *h = (const T *)args.h + at + step;
    UNROLL
    for (int k = 0; k < AHEAD; k++, a += step, b += step, h += step) {
      if (k >= n) continue;
      p.a[k] = *(const wide *)a;
      p.b[k] = *(const wide *)b;
      if (!BACK || args.find) continue;
      if (i + k + 1 < args.length) p.h[k] = *(const wide *)h;
      else p.h[k] = initial();
    }
  }
  /* What is multiplied by: the gradient has conjugates. */
  __device__ static void factors(const wide &stored, R (&v)[WIDE]) {
    stored.widen(v);
    UNROLLED(w, WIDE) v[w] = BACK ? conjugate(v[w]) : v[w];
  }
  __device__ wide initial() const {
    if (there && args.initial) return *(const wide *)((const T *)args.initial + column);
    return {};
  }

  __device__ void run() const {
    __shared__ affine<R> memory[2][WARPS][WIDE][32];
    const int lane = threadIdx.x % 32;
    affine<R> carry[WIDE]; /* what the positions before take a state to, which began with carry.b */
    R start[WIDE];
    initial().widen(start);
    UNROLLED(w, WIDE) carry[w] = {1, BACK || args.find ? (R)0 : start[w]};
    affine<R> *const totals = (affine<R> *)args.totals + column;
    if (!args.find && there) {
      ONCE
      for (unsigned c = 0; c < blockIdx.y; c++) {
        UNROLLED(w, WIDE) carry[w].b = totals[c * args.columns + w](carry[w].b);
      }
    }
    positions now;
    fetch(now, begin + warp * AHEAD);
    int half = 0;
    ONCE
    for (int64_t round = begin; round < end; round += WARPS * AHEAD, half ^= 1) {
      const int64_t i = round + warp * AHEAD;
      const int n = count(i);
      positions next;
      fetch(next, i + WARPS * AHEAD);
      affine<R> own[WIDE];
      UNROLLED(w, WIDE) own[w] = {1, 0};
      UNROLLED(k, AHEAD) {
        if (k >= n) continue;
        R a[WIDE], b[WIDE];
        factors(now.a[k], a), now.b[k].widen(b);
        UNROLLED(w, WIDE) own[w] = then(own[w], BACK, a[w], b[w]);
      }
      UNROLLED(w, WIDE) memory[half][warp][w][lane] = own[w];
      __syncthreads();
      R s[WIDE];
      UNROLLED(other, WARPS) {
        UNROLLED(w, WIDE) {
          if (other == warp) s[w] = carry[w].b;
          const affine<R> more = memory[half][other][w][lane];
          carry[w].b = more(carry[w].b);
          if (args.find) carry[w].a *= more.a;
        }
      }
      T *y = (T *)args.y + first + i * step, *da = (T *)args.da + first + i * step;
      UNROLL
      for (int k = 0; k < AHEAD; k++, y += step, da += step) {
        if (k >= n || args.find) continue;
        R a[WIDE], b[WIDE], h[WIDE];
        factors(now.a[k], a), now.b[k].widen(b);
        if (BACK) factors(now.h[k], h);
        wide out, slope;
        UNROLLED(w, WIDE) {
          if (BACK) {
            b[w] += s[w];
            h[w] *= b[w];
            s[w] = a[w] * b[w];
          } else {
            b[w] = s[w] = a[w] * s[w] + b[w];
          }
        }
        out.narrow(b);
        if (there) *(wide *)y = out;
        if (!BACK) continue;
        slope.narrow(h);
        if (there) *(wide *)da = slope;
      }
      now = next;
    }
    if (!there || warp > 0) return;
    if (args.find) {
      UNROLLED(w, WIDE) totals[blockIdx.y * args.columns + w] = carry[w];
    } else if (BACK && args.dinitial && (int)blockIdx.y == args.chunks - 1) {
      UNROLLED(w, WIDE) ((T *)args.dinitial)[column + w] = (T)carry[w].b;
    }
  }
};

template <typename T, bool PACKS, bool BACK>
__device__ inline void scan_linear_columns(const scan_linear_args &args) {
  enum { N = PACKS ? TFU_LINEAR_BYTES / (int)sizeof(T) : 1 };
  linear_columns<T, N ? N : 1, BACK>(args).run();
}
#define KERNEL(name, packs, back, tag, T) \
  TFU_STAMP((TFU_LINEAR_THREADS), scan_linear_##name##_##tag, scan_linear_args, scan_linear_columns<T, packs, back>)
#define KERNELS(...) TFU_TYPES(KERNEL, __VA_ARGS__) TFU_COMPLEX_TYPES(KERNEL, __VA_ARGS__)
KERNELS(forward, true, false)
KERNELS(backward, true, true)
KERNELS(forward_single, false, false)
KERNELS(backward_single, false, true)
