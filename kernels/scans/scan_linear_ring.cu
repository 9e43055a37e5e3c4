/* Linear recurrences of many columns on the GPU: what the columns of a block read next is on its way to a ring buffer
 * in shared memory (cp.async) while a thread for each column goes over the positions that are there. So enough of
 * memory is on its way although there are few threads: each column has one, from its first position to its last.
 *
 * A stage of the ring has TFU_RING_ROWS positions of each tensor. A stage is fetched anew once all threads have come
 * together after they were done with it. Rows are whole packs, and begin with one. */
#include "kernels/core/device/shared.cuh"
#include "kernels/scans/scan_linear.h"

template <typename T, bool BACK>
struct linear_ring {
  enum {
    COLUMNS = TFU_RING_THREADS,
    ROWS = TFU_RING_ROWS,
    STAGES = TFU_RING_STAGES,
    TENSORS = BACK ? 3 : 2,
    N = packed<T>::N,
    PACKS = COLUMNS / N, /* of a row */
    ROW = PACKS * 16,
    TENSOR = ROWS * ROW,
    STAGE = TENSORS * TENSOR
  };
  const scan_linear_args &args;
  int64_t outer, column; /* the block's first of inner */
  unsigned ring;

  __device__ linear_ring(const scan_linear_args &args, void *memory) : args(args) {
    const unsigned strips = (unsigned)((args.inner + COLUMNS - 1) / COLUMNS);
    outer = blockIdx.x / strips;
    column = (int64_t)(blockIdx.x % strips) * COLUMNS;
    ring = (unsigned)__cvta_generic_to_shared(memory);
  }
  /* Where position i of the walk lies, the first of inner. */
  __device__ int64_t row_of(int64_t i) const {
    return (outer * args.length + (args.flipped ? args.length - 1 - i : i)) * args.inner;
  }
  __device__ unsigned slot(int64_t stage) const { return ring + (unsigned)(stage % STAGES) * STAGE; }

  /* Stages beyond the last have nothing to fetch, but are closed as others are, so that groups are counted alike. */
  __device__ void fetch(int64_t stage) const {
    UNROLL
    for (int n = threadIdx.x; n < ROWS * PACKS; n += COLUMNS) {
      const int row = n / PACKS, pack = n % PACKS;
      const int64_t i = stage * ROWS + row, at = column + pack * N;
      if (i >= args.length || at >= args.inner) continue;
      const unsigned to = slot(stage) + row * ROW + pack * 16;
      copy_pack(to, (const T *)args.a + row_of(i) + at);
      copy_pack(to + TENSOR, (const T *)args.b + row_of(i) + at);
      if (BACK && i + 1 < args.length) copy_pack(to + 2 * TENSOR, (const T *)args.h + row_of(i + 1) + at);
    }
    close_copies();
  }

  __device__ acc<T> read(int64_t stage, int tensor, int row) const {
    const char *from = (const char *)__cvta_shared_to_generic(slot(stage) + tensor * TENSOR + row * ROW);
    return (acc<T>)((const T *)from)[threadIdx.x];
  }

  __device__ void run() const {
    typedef acc<T> R;
    const int64_t stages = (args.length + ROWS - 1) / ROWS, mine = column + threadIdx.x;
    const bool there = mine < args.inner;
    const R initial = there && args.initial ? (R)((const T *)args.initial)[outer * args.inner + mine] : (R)0;
    R s = BACK ? (R)0 : initial;
    ONCE
    for (int stage = 0; stage < STAGES - 1; stage++) fetch(stage);
    ONCE
    for (int64_t stage = 0; stage < stages; stage++) {
      wait_for_copies<STAGES - 2>(); /* this stage is there, as far as this thread fetched it */
      __syncthreads();               /* and by the others; all are done with the stage before, whose place is next */
      fetch(stage + STAGES - 1);
      R a[ROWS], b[ROWS], h[ROWS];
      UNROLLED(r, ROWS) {
        a[r] = read(stage, 0, r), b[r] = read(stage, 1, r);
        if (BACK) h[r] = read(stage, TENSORS - 1, r);
      }
      UNROLLED(r, ROWS) {
        const int64_t i = stage * ROWS + r;
        if (i >= args.length || !there) continue;
        const int64_t at = row_of(i) + mine;
        if (BACK) {
          const R g = b[r] + s, before = i + 1 < args.length ? h[r] : initial;
          ((T *)args.y)[at] = (T)g;
          ((T *)args.da)[at] = (T)(g * before);
          s = a[r] * g;
        } else {
          s = a[r] * s + b[r];
          ((T *)args.y)[at] = (T)s;
        }
      }
    }
    if (BACK && there && args.dinitial) ((T *)args.dinitial)[outer * args.inner + mine] = (T)s;
  }
};

template <typename T, bool BACK>
__device__ inline void run_ring(const scan_linear_args &args) {
  extern __shared__ int4 memory[];
  linear_ring<T, BACK>(args, memory).run();
}

#define RING(name, back, tag, T) \
  TFU_STAMP((TFU_RING_THREADS), scan_linear_ring_##name##_##tag, scan_linear_args, run_ring<T, back>)
TFU_SINGLES(RING, forward, false)
TFU_SINGLES(RING, backward, true)
