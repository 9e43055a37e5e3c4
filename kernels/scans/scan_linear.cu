/* Linear recurrences on the GPU: a thread has a column, or a chunk of it, and side by side with it lie those of the
 * others, so that memory is read and written once, in whole lines. Where columns are too few, chunks are gone over
 * twice: first for what each takes a state to, and then from the state that those before it lead to. The next positions
 * are fetched while these are computed. */
#include "kernels/scans/scan_linear.h"

#include "kernels/core/device/pack.cuh"

template <typename R>
struct affine {
  R a, b; /* s becomes a s + b */
};

template <typename T>
struct column_chunk {
  enum { K = TFU_LINEAR_AHEAD };
  const scan_linear_args &args;
  int64_t first, step, begin, end; /* where position 0 lies; to the next one; positions of the chunk */
  T a[K], b[K], h[K];
  __device__ column_chunk(const scan_linear_args &args, int64_t column) : args(args) {
    const int64_t outer = column / args.inner;
    first = outer * args.length * args.inner + (column - outer * args.inner);
    step = args.inner;
    if (args.flipped) first += (args.length - 1) * args.inner, step = -step;
    begin = blockIdx.y * args.chunk;
    end = min(args.length, begin + args.chunk);
  }
  /* Positions from i on, as far as there are any. Of the gradient also the states before each step, which are those
   * of the positions that follow here; the last of all has initial. */
  __device__ void fetch(int64_t i, int64_t column) {
    UNROLLED(k, K) {
      if (i + k >= end) continue;
      const int64_t at = first + (i + k) * step;
      a[k] = ((const T *)args.a)[at];
      b[k] = ((const T *)args.b)[at];
      if (!args.back || args.find) continue;
      if (i + k + 1 < args.length) h[k] = ((const T *)args.h)[at + step];
      else h[k] = args.initial ? ((const T *)args.initial)[column] : (T)0.0f;
    }
  }
};

template <typename T>
__device__ inline void scan_linear(const scan_linear_args &args) {
  typedef acc<T> R;
  enum { K = TFU_LINEAR_AHEAD };
  const int64_t column = (int64_t)blockIdx.x * TFU_LINEAR_THREADS + threadIdx.x;
  if (column >= args.columns) return;
  affine<R> *const totals = (affine<R> *)args.totals + column;
  column_chunk<T> now(args, column);
  R product = 1, s = 0;
  if (!args.find) {
    if (!args.back && args.initial) s = (R)((const T *)args.initial)[column];
    ONCE
    for (unsigned c = 0; c < blockIdx.y; c++) {
      const affine<R> t = totals[c * args.columns];
      s = t.a * s + t.b;
    }
  }
  now.fetch(now.begin, column);
  ONCE
  for (int64_t i = now.begin; i < now.end; i += K) {
    column_chunk<T> next = now;
    next.fetch(i + K, column);
    UNROLLED(k, K) {
      if (i + k >= now.end) continue;
      const R a = (R)now.a[k], b = (R)now.b[k];
      const int64_t at = now.first + (i + k) * now.step;
      if (args.back) {
        const R g = b + s;
        if (!args.find) {
          ((T *)args.y)[at] = (T)g;
          ((T *)args.da)[at] = (T)(g * (R)now.h[k]);
        }
        s = a * g;
      } else {
        s = a * s + b;
        if (!args.find) ((T *)args.y)[at] = (T)s;
      }
      product *= a;
    }
    UNROLLED(k, K) now.a[k] = next.a[k], now.b[k] = next.b[k], now.h[k] = next.h[k];
  }
  if (args.find) totals[blockIdx.y * args.columns] = {product, s};
  else if (args.dinitial && (int)blockIdx.y == args.chunks - 1) ((T *)args.dinitial)[column] = (T)s;
}

#define KERNEL(tag, T) TFU_STAMP((TFU_LINEAR_THREADS), scan_linear_##tag, scan_linear_args, scan_linear<T>)
KERNEL(f32, float)
KERNEL(f16, f16)
KERNEL(bf16, bf16)
KERNEL(f64, double)
