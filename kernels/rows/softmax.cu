/* softmax(x * scale + mask) of every row, or its logarithm, and the gradient (ops/rows/softmax.c has the formulas). A
 * row is looked at twice: for its maximum and the sum of exp(x - maximum), by online softmax, so that one look does,
 * and to write the result. docs/design.md#words says what a look is, rows.cuh what found is. */
#include "kernels/rows/softmax.h"

#include "kernels/core/device/online_softmax.cuh"

/* The mask's part for one row. */
template <typename T>
struct row_mask {
  typedef acc<T> R;
  const softmax_args &a;
  int64_t start;
  bool packs; /* it has a value for each column, else one for all: */
  R add = 0;
  unsigned keep = 0; /* the mask's byte four times over, like the four that apply() reads at once */
  __device__ row_mask(const softmax_args &a, int64_t row)
      : a(a), start(a.mask_kind ? tfu_stretch_row(&a.stretch, row) : 0), packs(a.stretch.column) {
    if (packs || row >= a.rows.rows) return;
    if (a.mask_kind == TFU_MASK_ADD) add = (R)((const T *)a.mask)[start];
    if (a.mask_kind == TFU_MASK_KEEP) keep = ((const uint8_t *)a.mask)[start] * 0x01010101u;
  }

  template <int N>
  __device__ void apply(const any_place &p, R (&x)[N]) const {
    UNROLLED(k, N) {
      const int64_t at = start + (p.first + k) * a.stretch.column;
      if (!p.owns(k)) x[k] = -infinity<R>();
      else if (a.mask_kind == TFU_MASK_ADD) x[k] += (R)((const T *)a.mask)[at];
      else if (a.mask_kind == TFU_MASK_KEEP && !((const uint8_t *)a.mask)[at]) x[k] = -infinity<R>();
    }
  }
  /* Where rows are whole packs, so are the mask's. */
  template <int N>
  __device__ void apply(const whole_place &p, R (&x)[N]) const {
    if (a.mask_kind == TFU_MASK_ADD) {
      R v[N];
      if (packs) widen_pack<T>(*(const int4 *)((const T *)a.mask + start + p.first), v);
      UNROLLED(k, N) x[k] += packs ? v[k] : add;
    } else if (a.mask_kind == TFU_MASK_KEEP) {
      const uint8_t *from = (const uint8_t *)a.mask + start + p.first;
      UNROLL
      for (int k = 0; k < N; k += 4) {
        const unsigned v = packs ? *(const unsigned *)(from + k) : keep;
        UNROLLED(j, 4) x[k + j] = v >> 8 * j & 0xff ? x[k + j] : -infinity<R>();
      }
    }
  }
};

/* GENERAL: with a mask, or a scale that is not positive, or in rows of any kind. Without, a thread has its part of the
 * row in registers: it takes the maximum of that part first. Of wider types it keeps the exponentials relative to it;
 * 16-bit ones take one instruction to compute again, and registers are worth more.
 *
 * Each thread finds maximum and sum of its own packs; then all threads of the row agree on those of the row. Of a split
 * row the first launch stops there and leaves what each part has found, and the second joins that instead. The last
 * look writes. */
template <typename T, int PACKS, bool GENERAL>
__device__ inline void softmax(const softmax_args &a) {
  enum { N = packed<T>::N, AT_HAND = PACKS > 0 && !GENERAL, KEEPS = AT_HAND && sizeof(T) > 2 };
  typedef acc<T> R;
  typename rows<T, PACKS, 1>::walk walk(a.rows, {(const T *)a.x});
  const R factor = (GENERAL ? (R)1 : (R)a.scale) * online_softmax<T>::unit();
  for (; walk.more(); walk.next()) {
    const row_mask<T> mask(a, walk.row);
    auto load = [&](const auto &p, const int4 &bits, R(&x)[N]) {
      widen_pack<T>(bits, x);
      if constexpr (GENERAL) {
        UNROLLED(k, N) x[k] *= (R)a.scale;
        mask.apply(p, x);
      }
    };
    online_softmax<T> total = online_softmax<T>::none();
    R e[KEEPS ? PACKS : 1][N];
    if constexpr (AT_HAND) {
      walk.template look<true, false>([&](const auto &, int, const int4(&bits)[1]) {
        R x[N];
        widen_pack<T>(bits[0], x);
        total.max = larger(total.max, largest_of(x));
      });
      const R shift = total.shift();
      walk.template look<false, false>([&](const auto &, int i, const int4(&bits)[1]) {
        R x[N];
        widen_pack<T>(bits[0], x);
        UNROLLED(k, N) x[k] = online_softmax<T>::accurate_power(x[k], shift, factor);
        UNROLLED(k, N)
          if (KEEPS) e[i][k] = x[k];
        total.sum += sum_of(x);
      });
    } else {
      walk.template look<true, false>([&](const auto &p, int, const int4(&bits)[1]) {
        R x[N];
        load(p, bits[0], x);
        total.add(x, factor);
      });
    }
    const R own = total.max;
    if (walk.pass() == TFU_JOIN) {
      total = online_softmax<T>::none();
      walk.template for_parts<online_softmax<T>>([&](const online_softmax<T> &part) { total.join(part, factor); });
      total.join_lanes(whole_warp(), factor);
    } else {
      total = walk.all_reduce(total, join_online_softmax<T>{factor});
    }
    if (walk.pass() == TFU_FIND) {
      if (walk.active() && walk.is_leader()) ((online_softmax<T> *)a.rows.found)[walk.row] = total;
      continue;
    }
    total.settle();
    /* A row with nothing but minus infinities: NaN by 0 / 0, unless a mask left nothing, which gives zeros. */
    const bool nothing = GENERAL && a.mask_kind == TFU_MASK_KEEP && total.sum == 0;
    const R shift = total.shift(), inverse = nothing ? 0 : 1 / total.sum;
    const R log_sum = a.log && !nothing ? log_of(total.sum) : 0;
    const R scale = GENERAL ? (R)1 : (R)a.scale;
    /* What makes results of the kept exponentials, which are relative to the thread's own maximum. */
    const R part = quotient<T>(online_softmax<T>::accurate_power(own, shift, factor), total.sum, inverse);
    T *y = (T *)a.y + walk.row * a.rows.cols;
    walk.template look<false, true>([&](const auto &p, int i, const int4(&bits)[1]) {
      R x[N];
      load(p, bits[0], x);
      if (a.log) {
        UNROLLED(k, N) x[k] = (x[k] - shift) * scale - log_sum;
      } else if (KEEPS) {
        UNROLLED(k, N) x[k] = e[i][k] * part;
      } else {
        UNROLLED(k, N) x[k] = quotient<T>(online_softmax<T>::accurate_power(x[k], shift, factor), total.sum, inverse);
      }
      walk.store(y, p, x);
    });
  }
  walk.finish();
}

template <typename T, int PACKS>
__device__ inline void softmax_plain(const softmax_args &a) {
  softmax<T, PACKS, false>(a);
}
template <typename T, int PACKS>
__device__ inline void softmax_general(const softmax_args &a) {
  softmax<T, PACKS, true>(a);
}
TFU_HELD_ROW_KERNEL(softmax_plain, softmax_args, TFU_SOFTMAX_ELEMENTS, 1024)
TFU_ROW_KERNEL(softmax_general, softmax_args, TFU_SOFTMAX_ELEMENTS, 1024)
TFU_RING_ROW_KERNEL(softmax_plain, softmax_args)
TFU_RING_ROW_KERNEL(softmax_general, softmax_args)
TFU_THREAD_ROW_KERNEL(softmax_general, softmax_args)

/* The first look finds the row's sum of dy * y, or of dy for the logarithm; the second writes dx. In split rows that
 * sum is found and joined as above. */
template <typename T, int PACKS>
__device__ inline void softmax_grad(const softmax_grad_args &a) {
  enum { N = packed<T>::N };
  typedef acc<T> R;
  typedef typename math_of<T>::type math;
  typename rows<T, PACKS, 2, false, false>::walk walk(a.rows, {(const T *)a.dy, (const T *)a.y});
  const R scale = a.scale;
  for (; walk.more(); walk.next()) {
    row_sum<R, decltype(walk)::fixed> sum;
    walk.template look<true, false>([&](const auto &p, int, const int4(&bits)[2]) {
      R dy[N], y[N];
      widen_place<T>(p, bits[0], (R)0, dy);
      widen_place<T>(p, bits[1], (R)0, y);
      sum += a.log ? sum_of(dy) : dot_of(dy, y);
    });
    R dot;
    if (walk.pass() == TFU_JOIN) {
      dot = walk.template sum_parts<R>([](R part) { return part; });
    } else {
      const two<R> total = walk.all_reduce(two<R>{sum.sum, sum.lost}, add_carefully());
      dot = total.a - total.b;
    }
    if (walk.pass() == TFU_FIND) {
      if (walk.active() && walk.is_leader()) ((R *)a.rows.found)[walk.row] = dot;
      continue;
    }
    T *dx = (T *)a.dx + walk.row * a.rows.cols;
    walk.template look<false, true>([&](const auto &p, int, const int4(&bits)[2]) {
      R dy[N], y[N];
      widen_pack<T>(bits[0], dy);
      widen_pack<T>(bits[1], y);
      UNROLLED(k, N) {
        if (!a.log) dy[k] = scale * (y[k] * (dy[k] - dot));
        else
          dy[k] =
              y[k] == -infinity<R>() ? 0 : scale * (dy[k] - math::exp_of(y[k]) * dot); /* what is masked stays out */
      }
      walk.store(dx, p, dy);
    });
  }
  walk.finish();
}
TFU_ROW_KERNEL(softmax_grad, softmax_grad_args, TFU_SOFTMAX_ELEMENTS, 1024)
TFU_THREAD_ROW_KERNEL(softmax_grad, softmax_grad_args)
