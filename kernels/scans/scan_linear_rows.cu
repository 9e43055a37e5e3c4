/* Linear recurrences along the last axis, on the GPU. The lanes of a warp, or fewer where rows are short, have a row,
 * or a chunk of it, and go over it pass by pass: a lane has PACK positions of a pass, which lie side by side, and lanes
 * learn by warp shuffle what those before them take a state to. The next pass is on its way meanwhile. Chunks are as in
 * scan_linear.cu. */
#include "kernels/scans/scan_linear.cuh"
#include "kernels/scans/scan_linear.h"

template <typename T, int PACK, bool BACK>
struct linear_rows {
  typedef acc<T> R;
  typedef side_by_side<T, PACK> pack;
  const scan_linear_args &args;
  int64_t row, begin, end; /* positions of the chunk */
  int lane;
  bool there;

  struct positions {
    pack a, b, h;
  };

  __device__ linear_rows(const scan_linear_args &args) : args(args), lane(threadIdx.x % args.lanes) {
    const int64_t own = ((int64_t)blockIdx.x * TFU_LINEAR_THREADS + threadIdx.x) / args.lanes;
    there = own < args.columns;
    row = there ? own : 0; /* a warp stays together, since its lanes ask each other */
    begin = blockIdx.y * args.chunk;
    end = min(args.length, begin + args.chunk);
  }
  /* Where the pack of the positions from i on begins. */
  __device__ int64_t at(int64_t i) const { return row * args.length + (args.flipped ? args.length - i - PACK : i); }
  __device__ void fetch(positions &p, int64_t i) const {
    if (i < end) {
      p.a = *(const pack *)((const T *)args.a + at(i));
      p.b = *(const pack *)((const T *)args.b + at(i));
    }
    if (BACK && !args.find && i < args.length) p.h = *(const pack *)((const T *)args.h + at(i));
  }
  /* Of a pack, in the order of the walk, and back. */
  __device__ void turn(R (&v)[PACK]) const {
    UNROLLED(k, PACK / 2) {
      const R low = v[k], high = v[PACK - 1 - k];
      v[k] = args.flipped ? high : low, v[PACK - 1 - k] = args.flipped ? low : high;
    }
  }
  __device__ void read(const pack &p, R (&v)[PACK]) const {
    p.widen(v);
    turn(v);
  }
  __device__ void write(void *to, int64_t i, R (&v)[PACK]) const {
    turn(v);
    pack p;
    p.narrow(v);
    *(pack *)((T *)to + at(i)) = p;
  }

  __device__ void run() const {
    const unsigned all = 0xffffffffu;
    const int lanes = args.lanes;
    affine<R> carry = {1, 0};
    const R initial = args.initial ? (R)((const T *)args.initial)[row] : (R)0;
    if (!BACK && !args.find) carry.b = initial;
    affine<R> *const totals = (affine<R> *)args.totals + row;
    if (!args.find) {
      ONCE
      for (unsigned c = 0; c < blockIdx.y; c++) carry.b = totals[c * args.columns](carry.b);
    }
    positions now;
    fetch(now, begin + lane * PACK);
    ONCE
    for (int64_t pass = begin; pass < end; pass += lanes * PACK) {
      const int64_t i = pass + lane * PACK;
      positions next;
      fetch(next, i + lanes * PACK);
      R a[PACK], b[PACK], h[PACK];
      read(now.a, a), read(now.b, b);
      UNROLLED(k, PACK) a[k] = BACK ? conjugate(a[k]) : a[k];
      affine<R> own = {1, 0};
      if (i < end) {
        UNROLLED(k, PACK) own = then(own, BACK, a[k], b[k]);
      }
      UNROLL
      for (int distance = 1; distance < 32; distance *= 2) {
        if (distance >= lanes) break;
        const affine<R> before = {__shfl_up_sync(all, own.a, distance, lanes),
                                  __shfl_up_sync(all, own.b, distance, lanes)};
        if (lane >= distance) own = {own.a * before.a, own(before.b)};
      }
      const R after = own(carry.b);
      R s = __shfl_up_sync(all, after, 1, lanes);
      if (lane == 0) s = carry.b;
      carry.b = __shfl_sync(all, after, lanes - 1, lanes);
      if (args.find) carry.a *= __shfl_sync(all, own.a, lanes - 1, lanes);
      if (!args.find) {
        if (BACK) {
          /* The state before a step is that of the position which follows. */
          R following[PACK];
          read(now.h, h), read(next.h, following);
          const R first = __shfl_sync(all, following[0], 0, lanes);
          R last = __shfl_down_sync(all, h[0], 1, lanes);
          if (lane == lanes - 1) last = first;
          if (i + PACK >= args.length) last = initial;
          UNROLLED(k, PACK) h[k] = k + 1 < PACK ? h[k + 1] : last;
        }
        UNROLLED(k, PACK) {
          if (BACK) {
            b[k] += s;
            h[k] = conjugate(h[k]) * b[k];
            s = a[k] * b[k];
          } else {
            b[k] = s = a[k] * s + b[k];
          }
        }
        if (i < end && there) {
          write(args.y, i, b);
          if (BACK) write(args.da, i, h);
        }
      }
      now = next;
    }
    if (lane > 0 || !there) return;
    if (args.find) totals[blockIdx.y * args.columns] = carry;
    else if (BACK && args.dinitial && (int)blockIdx.y == args.chunks - 1) ((T *)args.dinitial)[row] = (T)carry.b;
  }
};

template <typename T, bool PACKS, bool BACK>
__device__ inline void scan_linear_rows(const scan_linear_args &args) {
  linear_rows<T, PACKS ? packed<T>::N : 1, BACK>(args).run();
}
#define KERNEL(name, packs, back, tag, T) \
  TFU_STAMP((TFU_LINEAR_THREADS), scan_linear_rows_##name##_##tag, scan_linear_args, scan_linear_rows<T, packs, back>)
#define KERNELS(...) TFU_TYPES(KERNEL, __VA_ARGS__) TFU_COMPLEX_TYPES(KERNEL, __VA_ARGS__)
KERNELS(forward, true, false)
KERNELS(backward, true, true)
KERNELS(forward_single, false, false)
KERNELS(backward_single, false, true)
