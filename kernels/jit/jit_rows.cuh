/* jit_rows.cuh - the walk of rows kernels. JIT_LANES threads have a row: some of a warp, so that a block has several
 * rows, or a whole block. A thread has packs lane, lane + JIT_LANES … of it: JIT_PACKS of them, which stay in registers
 * for all passes, or where that is 0, any number, read again in each pass. */
#pragma once

#include "jit_tensors.cuh"

#define JIT_R_1 r[0],
#define JIT_R_2 JIT_R_1 r[1],
#define JIT_R_3 JIT_R_2 r[2],
#define JIT_R_4 JIT_R_3 r[3],
#define JIT_R_5 JIT_R_4 r[4],
#define JIT_R_6 JIT_R_5 r[5],
#define JIT_R_7 JIT_R_6 r[6],
#define JIT_R_8 JIT_R_7 r[7],
#define JIT_R_9 JIT_R_8 r[8],
#define JIT_R_10 JIT_R_9 r[9],
#define JIT_R_11 JIT_R_10 r[10],
#define JIT_R_12 JIT_R_11 r[11],
#define JIT_R_0

/* What the source says of pass i. */
template <int PASS>
struct jit_pass;
#define JIT_DEFINE_PASS(i)                                                                \
  template <>                                                                             \
  struct jit_pass<i> {                                                                    \
    static __device__ R map(const R *r, const R *x, R n) {                                \
      return JIT_CALL(JIT_NAME, _map##i)(JIT_R_##i JIT_ARGS_X, n);                        \
    }                                                                                     \
    static __device__ R reduce(R a, R b) { return JIT_CALL(JIT_NAME, _reduce##i)(a, b); } \
    static __device__ R identity() { return JIT_CALL(JIT_NAME, _identity##i)(); }         \
  };
JIT_DEFINE_PASS(0)
#if JIT_PASSES > 1
JIT_DEFINE_PASS(1)
#endif
#if JIT_PASSES > 2
JIT_DEFINE_PASS(2)
#endif
#if JIT_PASSES > 3
JIT_DEFINE_PASS(3)
#endif
#if JIT_PASSES > 4
JIT_DEFINE_PASS(4)
#endif
#if JIT_PASSES > 5
JIT_DEFINE_PASS(5)
#endif
#if JIT_PASSES > 6
JIT_DEFINE_PASS(6)
#endif
#if JIT_PASSES > 7
JIT_DEFINE_PASS(7)
#endif
#if JIT_PASSES > 8
JIT_DEFINE_PASS(8)
#endif
#if JIT_PASSES > 9
JIT_DEFINE_PASS(9)
#endif
#if JIT_PASSES > 10
JIT_DEFINE_PASS(10)
#endif
#if JIT_PASSES > 11
JIT_DEFINE_PASS(11)
#endif
#if JIT_PASSES > 12
#error "a rows kernel has at most 12 passes"
#endif

/* One row, as a thread sees it. */
struct jit_row {
  typedef jit_inputs<JIT_N, 0, JIT_TYPES_IN> inputs;
  enum { STEP = JIT_LANES * JIT_N };
  const jit_args &a;
  const jit_place place;
  const int64_t first; /* column */
  inputs held[JIT_PACKS ? JIT_PACKS : 1];

  __device__ jit_row(const jit_args &a, int64_t row, int lane) : a(a), place(a, row), first(lane * JIT_N) {
    UNROLLED(p, JIT_PACKS)
      if (first + p * STEP < a.cols) held[p].load(a, place, first + p * STEP);
  }

  /* each(col, packs) for every pack of the thread. */
  template <typename F>
  __device__ void walk(F each) {
    if constexpr (JIT_PACKS > 0) {
      UNROLLED(p, JIT_PACKS)
        if (first + p * STEP < a.cols) each(first + p * STEP, held[p]);
    } else {
#ifdef JIT_LARGE
#pragma unroll 1
#else
#pragma unroll 4
#endif
      for (int64_t col = first; col < a.cols; col += STEP) {
        inputs in;
        in.load(a, place, col);
        each(col, in);
      }
    }
  }
};

/* Values of all lanes of a row as one, the same bits for each of them: a warp's by shuffles, those of warps through
 * shared memory. */
template <int PASS>
__device__ inline R jit_joined(R v, R (&parts)[32]) {
  typedef jit_pass<PASS> pass;
  enum { WIDTH = JIT_LANES < 32 ? JIT_LANES : 32, WARPS = JIT_LANES / 32 };
  UNROLL
  for (int o = WIDTH / 2; o > 0; o /= 2) v = pass::reduce(v, __shfl_xor_sync(~0u, v, o));
  if constexpr (WARPS > 1) {
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    v = threadIdx.x % 32 < WARPS ? parts[threadIdx.x % 32] : pass::identity();
    UNROLL
    for (int o = 16; o > 0; o /= 2) v = pass::reduce(v, __shfl_xor_sync(~0u, v, o));
  }
  return __shfl_sync(~0u, v, 0, WIDTH);
}

template <int PASS>
struct jit_passes {
  static __device__ void run(jit_row &row, R *r, R n, R (*parts)[32]) {
    typedef jit_pass<PASS> pass;
    R sum = pass::identity();
    row.walk([&](int64_t, const jit_row::inputs &in) {
      UNROLLED(k, JIT_N) {
        R x[JIT_INPUTS];
        in.get(k, x);
        sum = pass::reduce(sum, pass::map(r, x, n));
      }
    });
    r[PASS] = jit_joined<PASS>(sum, parts[PASS]);
    jit_passes<PASS + 1>::run(row, r, n, parts);
  }
};
template <>
struct jit_passes<JIT_PASSES> {
  static __device__ void run(jit_row &, R *, R, R (*)[32]) {}
};

extern "C" __global__ void __launch_bounds__(JIT_THREADS) JIT_ENTRY(const jit_args a) {
  __shared__ R parts[JIT_PASSES][32];
  const int64_t own = (int64_t)blockIdx.x * (JIT_THREADS / JIT_LANES) + threadIdx.x / JIT_LANES;
  const int64_t number = own < a.n ? own : a.n - 1; /* a warp's threads go together */
  const int lane = threadIdx.x % JIT_LANES;
  const R n = (R)a.cols;
  R r[JIT_PASSES];
  jit_row row(a, number, lane);
  jit_passes<0>::run(row, r, n, parts);
  if (own >= a.n) return;
#if JIT_POST
  row.walk([&](int64_t col, const jit_row::inputs &in) {
    R values[JIT_OUTPUTS][JIT_N];
    UNROLLED(k, JIT_N) {
      R x[JIT_INPUTS], y[JIT_OUTPUTS];
      in.get(k, x);
      JIT_CALL(JIT_NAME, _post)(JIT_CALL(JIT_R_, JIT_PASSES) JIT_ARGS_X, n, JIT_ARGS_Y);
      UNROLLED(o, JIT_OUTPUTS) values[o][k] = y[o];
    }
    jit_outputs<JIT_N, 0, JIT_TYPES_OUT>::store(a, number * a.cols + col, values);
  });
#else
  if (lane == 0) {
    const R y[1][1] = {{JIT_CALL(JIT_NAME, _final)(JIT_CALL(JIT_R_, JIT_PASSES) n)}};
    jit_outputs<1, 0, JIT_TYPES_OUT>::store(a, number, y);
  }
#endif
}
