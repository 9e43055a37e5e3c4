/* The gradient of selective scans on the GPU goes over segments backwards. Of each it computes the states of all steps
 * again, from those that were kept before it: the factors and states of HELD steps stay in registers while it goes back
 * through them. What channels give to b and c is summed over the four of a thread, then over the threads of a block
 * through shared memory, and over strips by another kernel, in a fixed order. */
#include "kernels/scans/selective_scan.cuh"

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
