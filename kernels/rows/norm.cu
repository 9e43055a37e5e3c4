/* Normalisation of rows: h = residual + dropout(x), y = (h - mean) * rstd * gamma + beta, and its gradient
 * (ops/rows/norm.c).
 *
 * Forward looks at a row for its mean, for its variance, and to write y; h replaces x on the first look. Backward looks
 * twice: with g = dy * gamma and n = (x - mean) * rstd, for the means of g and g * n, then to write
 * dx = rstd * (g - mean(g) - n * mean(g * n)) + dsum. Where a thread keeps its columns, their weights stay in its
 * registers and, for the gradients of these, their sums over rows. FULL kernels know residual and dropout; those for
 * any rows know everything. docs/design.md#words says what look and seat mean, rows.cuh what found does. */
#include "kernels/rows/norm.h"

#include "kernels/core/device/drop.cuh"
#include "kernels/core/device/overlap.cuh"
#include "kernels/core/device/rows.cuh"

/* To little more than half a unit: Newton's step for a rounded guess r, with the product v * r in two parts. */
__device__ inline float rsqrt_of(float v) {
  const float r = rsqrtf(v), p = v * r, rest = fmaf(v, r, -p);
  const float error = fmaf(-p, r, 1.0f) - rest * r;
  return v < 1e30f ? fmaf(r, 0.5f * error, r) : r; /* infinity has no next guess */
}
__device__ inline double rsqrt_of(double v) { return 1 / sqrt(v); }

/* Which weights are those of a thread's rows. All its rows have the same, since the grid takes whole periods. */
template <typename W>
__device__ inline int64_t weights_of(const W &walk, int period) {
  return period == 1 ? 0 : (unsigned)walk.seat() % (unsigned)period * walk.r.cols;
}

/* A weight for each of the thread's columns. */
template <typename R, int PACKS, int N>
struct column_weights {
  const R *data;
  R otherwise, value[PACKS ? PACKS : 1][N];

  /* NULL: all are `otherwise`. */
  template <typename W>
  __device__ column_weights(const void *weights, int period, R otherwise, const W &walk) : otherwise(otherwise) {
    data = weights ? (const R *)weights + weights_of(walk, period) : 0;
    UNROLLED(i, PACKS)
      if (walk.has(i)) load_columns(data, whole_place{walk.column(i)}, otherwise, value[i]);
  }
  /* Those of a pack; read when they are asked for where the thread does not keep them. */
  template <typename P>
  __device__ void of(const P &p, int i, R (&v)[N]) const {
    if constexpr (PACKS == 0) {
      load_columns(data, p, otherwise, v);
    } else {
      UNROLLED(k, N) v[k] = value[i][k];
    }
  }
};

/* Dropout of a pack at its place. */
template <typename R, int N>
__device__ inline void drop_at(const dropping &drop, int64_t at, const whole_place &, R (&v)[N]) {
  drop.whole(at, v);
}
template <typename R, int N>
__device__ inline void drop_at(const dropping &drop, int64_t at, const any_place &, R (&v)[N]) {
  drop(at, v);
}

/* The number of columns, and division by it. */
template <typename T>
struct mean_over {
  acc<T> count, inverse;
  __device__ mean_over(int64_t cols) : count((acc<T>)cols), inverse(1 / count) {}
  __device__ acc<T> operator()(acc<T> sum) const {
    const acc<T> q = sum * inverse, rest = fma(-count, q, sum);
    return sizeof(T) == 2 || !(rest == rest) ? q : fma(rest, inverse, q); /* infinity has no rest */
  }
};

/* RMS: the mean is 0, and there is no beta. EITHER: as the arguments say. */
enum { LAYER, RMS, EITHER };

/* The variance has a look of its own, about the mean: as a difference of two sums it would cancel. Of a split row the
 * first launch makes h and finds what each part has, about the part's own mean; the second is given h as x, joins what
 * the parts have found, and writes y.
 *
 * ALONE: a block lives for one row. It holds the row alone, and takes the weights from the cache when it writes: with
 * 64 registers a thread there are 32 warps on a multiprocessor, of which some always wait for memory. */
template <typename T, int PACKS, int KIND, bool FULL, bool ALONE = false>
__device__ inline void norm_rows(const norm_args &a) {
  enum { N = packed<T>::N, TENSORS = FULL ? 2 : 1, WEIGHTS = ALONE || PACKS < 0 ? 0 : PACKS };
  typedef acc<T> R;
  typedef typename rows<T, PACKS, TENSORS, false, !ALONE>::walk rows_walk;
  start_those_after(); /* a product of few rows comes next in a decoder, and reads its kernel ahead */
  const bool rms = KIND == EITHER ? a.rms : KIND == RMS;
  const int64_t cols = a.rows.cols;
  const T *const tensors[2] = {(const T *)a.x, (const T *)a.residual};
  rows_walk walk(a.rows, (const T *const(&)[TENSORS])tensors);
  const dropping drop(a.seed, a.rate);
  const bool plain = !FULL || (!a.residual && !drop.on);
  const bool writes = walk.pass() != TFU_FIND;
  column_weights<R, WEIGHTS, N> gamma(writes ? a.gamma : 0, a.period, 1, walk),
      beta(writes && !rms ? a.beta : 0, a.period, 0, walk);
  const mean_over<T> mean_of(cols), mean_of_all(cols * walk.parts());
  for (; walk.more(); walk.next()) {
    const int64_t start = walk.row * cols;
    row_sum<R, (PACKS > 0)> sum;
    walk.template look<true, false>([&](const auto &p, int i, const int4(&bits)[TENSORS]) {
      R h[N];
      widen_place<T>(p, bits[0], (R)0, h);
      if (!plain) {
        if (drop.on) drop_at(drop, start + p.first, p, h);
        if (a.residual) {
          R residual[N];
          widen_place<T>(p, bits[TENSORS - 1], (R)0, residual);
          UNROLLED(k, N) h[k] += residual[k];
        }
        const int4 rounded = narrow_pack<T>(h);
        widen_place<T>(p, rounded, (R)0, h);
        if (walk.keeps()) walk.replace(i, rounded);
        walk.store((T *)a.sum + start, p, h);
      }
      sum += rms ? dot_of(h, h) : sum_of(h);
    });
    /* Later looks find h in place of x; where rows are not kept, in the output that has it. */
    auto load = [&](const auto &p, const int4(&bits)[TENSORS], R(&h)[N]) {
      widen_place<T>(p, bits[0], (R)0, h);
      if constexpr (FULL && !rows_walk::fixed) {
        if (!plain && !walk.keeps()) widen_place<T>(p, walk.written((const T *)a.sum + start, p), (R)0, h);
      }
    };
    two<R> found = {0, 0}; /* sums of h and of (h - mean)^2 */
    if (walk.pass() != TFU_JOIN) found.a = walk.all_reduce(sum.sum, add_up());
    R mean = rms ? 0 : mean_of(found.a);
    if (!rms && walk.pass() != TFU_JOIN) {
      row_sum<R, (PACKS > 0)> squares;
      walk.template look<false, false>([&](const auto &p, int, const int4(&bits)[TENSORS]) {
        R h[N];
        load(p, bits, h);
        UNROLLED(k, N) h[k] = p.owns(k) ? h[k] - mean : 0;
        squares += dot_of(h, h);
      });
      found.b = walk.all_reduce(squares.sum, add_up());
    }
    if (rms) found.b = found.a;
    if (walk.pass() == TFU_FIND) {
      if (walk.active() && walk.is_leader()) ((two<R> *)a.rows.found)[walk.row] = found;
      continue;
    }
    if (walk.pass() == TFU_JOIN) {
      /* About the mean of all: each part's squares about its own mean, and for each column what that mean is off. */
      if (!rms) mean = mean_of_all(walk.template sum_parts<two<R>>([](two<R> part) { return part.a; }));
      found.b = walk.template sum_parts<two<R>>([&](two<R> part) {
        const R off = rms ? 0 : mean_of(part.a) - mean;
        return part.b + (R)cols * off * off;
      });
    }
    const R rstd = rsqrt_of(mean_of_all(found.b) + (R)a.epsilon);
    if (walk.active() && walk.is_leader() && walk.real_row() * walk.parts() == walk.row)
      ((two<R> *)a.stats)[walk.real_row()] = two<R>{mean, rstd};
    walk.template look<false, true>([&](const auto &p, int i, const int4(&bits)[TENSORS]) {
      R h[N], scale[N], shift[N];
      load(p, bits, h);
      gamma.of(p, i, scale);
      beta.of(p, i, shift);
      UNROLLED(k, N) h[k] = KIND == RMS ? h[k] * rstd * scale[k] : (h[k] - mean) * rstd * scale[k] + shift[k];
      walk.store((T *)a.y + start, p, h);
    });
  }
  walk.finish();
}

/* Adds v to sums that other threads of the row may have added to in earlier rows; all_reduce() stands in between. */
template <typename P, typename R, int N>
__device__ inline void add_columns(R *sums, const P &p, R factor, const R (&v)[N]) {
  UNROLLED(k, N)
    if (p.owns(k)) sums[p.first + k] += factor * v[k];
}

/* dgamma and dbeta are sums over rows. A thread of held rows has the same columns in every row: it sums these in its
 * registers, and writes them once, at the end, to its seat's row of a.partial. In any rows its columns change from row
 * to row, so the sums grow in that row of a.partial itself, where only the threads of this seat write. The host then
 * folds the seats' rows. */
template <typename T, int PACKS, int KIND, bool FULL>
__device__ inline void norm_rows_grad(const norm_grad_args &a) {
  enum { N = packed<T>::N, TENSORS = FULL ? 3 : 2, HELD = PACKS ? PACKS : 1, SUMS = HELD * N * (KIND == RMS ? 1 : 2) };
  typedef acc<T> R;
  typedef typename rows<T, PACKS, TENSORS>::walk rows_walk;
  const bool rms = KIND == EITHER ? a.rms : KIND == RMS;
  const int64_t cols = a.rows.cols;
  const T *const tensors[3] = {(const T *)a.dy, (const T *)a.x, (const T *)a.dsum};
  rows_walk walk(a.rows, (const T *const(&)[TENSORS])tensors);
  const dropping drop(a.seed, a.rate);
  const mean_over<T> mean_of(cols * walk.parts());
  column_weights<R, PACKS, N> gamma(a.gamma, a.period, 1, walk);
  R dgamma[HELD][N] = {}, dbeta[HELD][N] = {};
  const int seat = a.joined ? blockIdx.y : walk.seat();
  const int64_t next_quantity = a.period * cols;
  R *const sums = (R *)a.partial + (int64_t)(seat / a.period) * (rms ? 1 : 2) * next_quantity + seat % a.period * cols;
  if (a.partial && !rows_walk::fixed) {
    ONCE
    for (int64_t c = blockIdx.x * a.rows.lanes + walk.lane; c < cols; c += gridDim.x * a.rows.lanes) {
      sums[c] = 0;
      if (!rms) sums[next_quantity + c] = 0;
    }
    __syncthreads();
  }
  auto stats_of = [&](int64_t row) {
    return row < a.rows.rows ? ((const two<R> *)a.stats)[walk.real_row(row)] : two<R>{0, 0};
  };
  two<R> next = stats_of(walk.row);
  for (; walk.more(); walk.next()) {
    const R mean = rms ? 0 : next.a, rstd = next.b;
    next = stats_of(walk.row + walk.step()); /* on its way while this row is computed */
    const int64_t start = walk.row * cols;
    R with_n = 0, of_g = 0; /* sums of g * (x - mean) and of g */
    walk.template look<true, false>([&](const auto &p, int i, const int4(&bits)[TENSORS]) {
      R dy[N], x[N], scale[N];
      widen_place<T>(p, bits[0], (R)0, dy);
      widen_place<T>(p, bits[1], mean, x);
      gamma.of(p, i, scale);
      UNROLLED(k, N) x[k] = dy[k] * (x[k] - mean);
      with_n += dot_of(x, scale);
      if (!rms) of_g += dot_of(dy, scale);
      if (rows_walk::fixed) {
        UNROLLED(k, N) {
          dgamma[i][k] += x[k] * rstd;
          if (!rms) dbeta[i][k] += dy[k];
        }
      } else if (a.partial) {
        add_columns(sums, p, rstd, x);
        if (!rms) add_columns(sums + next_quantity, p, (R)1, dy);
      }
    });
    if (walk.pass() == TFU_JOIN) {
      with_n = walk.template sum_parts<two<R>>([](two<R> part) { return part.a; });
      of_g = walk.template sum_parts<two<R>>([](two<R> part) { return part.b; });
    } else if (KIND == RMS) {
      with_n = walk.all_reduce(with_n, add_up());
    } else {
      const two<R> both = walk.all_reduce(two<R>{with_n, of_g}, add_two());
      with_n = both.a, of_g = both.b;
    }
    if (walk.pass() == TFU_FIND) {
      if (walk.active() && walk.is_leader()) ((two<R> *)a.rows.found)[walk.row] = two<R>{with_n, of_g};
      continue;
    }
    const R mean_n = mean_of(with_n) * rstd, mean_g = rms ? 0 : mean_of(of_g);
    walk.template look<false, true>([&](const auto &p, int i, const int4(&bits)[TENSORS]) {
      R d[N], x[N], scale[N];
      widen_pack<T>(bits[0], d);
      widen_pack<T>(bits[1], x);
      gamma.of(p, i, scale);
      UNROLLED(k, N) d[k] = rstd * (d[k] * scale[k] - mean_g - (x[k] - mean) * rstd * mean_n);
      if (FULL && a.dsum) {
        R dsum[N];
        widen_pack<T>(bits[TENSORS - 1], dsum);
        UNROLLED(k, N) d[k] += dsum[k];
      }
      if (FULL && drop.on) {
        walk.store((T *)a.dresidual + start, p, d);
        drop_at(drop, start + p.first, p, d);
      }
      walk.store((T *)a.dx + start, p, d);
    });
  }
  walk.finish();
  if (!a.partial || !rows_walk::fixed) return;
  if (a.joined)
    join_sums<R, SUMS>(a.rows.lanes,
                       [&](int j) -> R & { return j < HELD * N ? dgamma[j / N][j % N] : dbeta[j / N - HELD][j % N]; });
  if (a.joined && threadIdx.x >= a.rows.lanes) return;
  UNROLLED(i, HELD) {
    if (!walk.has(i)) continue;
    store_columns(sums, whole_place{walk.column(i)}, dgamma[i]);
    if (!rms) store_columns(sums + next_quantity, whole_place{walk.column(i)}, dbeta[i]);
  }
}

/* Any rows have one kernel for all. */
#define STAMP(label, args, elements, threads, ...) \
  template <typename T, int PACKS>                 \
  __device__ inline void label(const args &a) {    \
    __VA_ARGS__(a);                                \
  }                                                \
  TFU_HELD_ROW_KERNEL(label, args, elements, threads)
STAMP(layer_plain, norm_args, TFU_NORM_ELEMENTS, TFU_NORM_THREADS, norm_rows<T, PACKS, LAYER, false>)
STAMP(layer_full, norm_args, TFU_NORM_ELEMENTS, TFU_NORM_THREADS, norm_rows<T, PACKS, LAYER, true>)
STAMP(rms_plain, norm_args, TFU_NORM_ELEMENTS, TFU_NORM_THREADS, norm_rows<T, PACKS, RMS, false>)
STAMP(rms_full, norm_args, TFU_NORM_ELEMENTS, TFU_NORM_THREADS, norm_rows<T, PACKS, RMS, true>)
STAMP(layer_grad_plain, norm_grad_args, TFU_NORM_GRAD_ELEMENTS, TFU_NORM_GRAD_THREADS,
      norm_rows_grad<T, PACKS, LAYER, false>)
STAMP(layer_grad_full, norm_grad_args, TFU_NORM_GRAD_ELEMENTS, TFU_NORM_GRAD_THREADS,
      norm_rows_grad<T, PACKS, LAYER, true>)
STAMP(rms_grad_plain, norm_grad_args, TFU_NORM_GRAD_ELEMENTS, TFU_NORM_GRAD_THREADS,
      norm_rows_grad<T, PACKS, RMS, false>)
STAMP(rms_grad_full, norm_grad_args, TFU_NORM_GRAD_ELEMENTS, TFU_NORM_GRAD_THREADS, norm_rows_grad<T, PACKS, RMS, true>)

TFU_RING_ROW_KERNEL(layer_plain, norm_args)
TFU_RING_ROW_KERNEL(layer_full, norm_args)
TFU_RING_ROW_KERNEL(rms_plain, norm_args)
TFU_RING_ROW_KERNEL(rms_full, norm_args)

#define STAMP_ALONE(label, kind, tag, T)                             \
  TFU_STAMP((TFU_NORM_ALONE_THREADS), label##_long_##tag, norm_args, \
            norm_rows<T, packs_of_elements<T>(TFU_NORM_ELEMENTS), kind, false, true>)
TFU_SINGLES(STAMP_ALONE, layer_alone, LAYER)
TFU_SINGLES(STAMP_ALONE, rms_alone, RMS)

template <typename T, int PACKS>
__device__ inline void norm(const norm_args &a) {
  norm_rows<T, PACKS, EITHER, true>(a);
}
TFU_ANY_ROW_KERNEL(norm, norm_args)
template <typename T, int PACKS>
__device__ inline void norm_grad(const norm_grad_args &a) {
  norm_rows_grad<T, PACKS, EITHER, true>(a);
}
TFU_ANY_ROW_KERNEL(norm_grad, norm_grad_args)
