/* Selective scans on the GPU: forward, and alone the states that the gradient begins its segments with. */
#include "kernels/scans/selective_scan.cuh"

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
TFU_TYPES(KERNEL_OF, selective_scan)
TFU_TYPES(KERNEL_OF, selective_scan_states)
