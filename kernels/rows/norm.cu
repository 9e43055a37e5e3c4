/* Normalisation of rows: h = residual + dropout(x), y = (h - mean) * rstd * gamma + beta, and its gradient
 * (ops/rows/norm.c).
 *
 * Forward looks at a row for its mean, for its variance, and to write y; h replaces x on the first look. Backward looks
 * twice: with g = dy * gamma and n = (x - mean) * rstd, for the means of g and g * n, then to write
 * dx = rstd * (g - mean(g) - n * mean(g * n)) + dsum. Where a thread keeps its columns, so do their weights and, for
 * the gradients of these, their sums over rows. FULL kernels know residual and dropout. */
#include "kernels/rows/norm.h"

#include "kernels/core/device/drop.cuh"
#include "kernels/core/device/rows.cuh"

/* To little more than half a unit: Newton's step for a rounded guess r, with the product v * r in two parts. */
__device__ inline float rsqrt_of(float v) {
  const float r = rsqrtf(v), p = v * r, rest = fmaf(v, r, -p);
  const float error = fmaf(-p, r, 1.0f) - rest * r;
  return v < 1e30f ? fmaf(r, 0.5f * error, r) : r; /* infinity has no next guess */
}
__device__ inline double rsqrt_of(double v) { return 1 / sqrt(v); }

/* A weight for each of the thread's columns. */
template <typename R, int PACKS, int N>
struct column_weights {
  const R *data;
  R otherwise, value[PACKS ? PACKS : 1][N];

  /* Of the row with this number; NULL: all are `otherwise`. */
  template <typename W>
  __device__ column_weights(const void *weights, int64_t period, R otherwise, const W &walk) : otherwise(otherwise) {
    data = (const R *)weights;
    if (!W::fixed) return;
    if (data && period > 1) data += walk.row % period * walk.r.cols;
    UNROLL
    for (int i = 0; i < PACKS; i++)
      if (walk.has(i)) load_columns(data, whole_place{walk.column(i)}, otherwise, value[i]);
  }
  /* Those of a pack; asked for again where a thread's columns change. */
  template <typename W, typename P>
  __device__ R (&of(const W &walk, int64_t period, const P &p, int i))[N] {
    if (!W::fixed) load_columns(data ? data + walk.row % period * walk.r.cols : data, p, otherwise, value[0]);
    return value[i];
  }
};

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

/* RMS: the mean is 0, and there is no beta. */
template <typename T, int PACKS, bool RMS, bool FULL>
__device__ inline void norm(const norm_args &a) {
  enum { N = packed<T>::N, TENSORS = FULL ? 2 : 1 };
  typedef acc<T> R;
  typedef typename rows<T, PACKS, TENSORS>::walk rows_walk;
  const int64_t cols = a.rows.cols;
  const T *const tensors[2] = {(const T *)a.x, (const T *)a.residual};
  rows_walk walk(a.rows, (const T *const(&)[TENSORS])tensors);
  const dropping drop(a.seed, a.rate);
  const bool plain = !FULL || (!a.residual && !drop.on);
  const bool writes = walk.pass() != TFU_FIND;
  column_weights<R, PACKS, N> gamma(writes ? a.gamma : 0, a.period, 1, walk),
      beta(writes && !RMS ? a.beta : 0, a.period, 0, walk);
  const mean_over<T> mean_of(cols), mean_of_all(cols * a.rows.parts);
  for (; walk.more(); walk.next()) {
    const int64_t start = walk.row * cols;
    row_sum<R, rows_walk::fixed> sum;
    walk.template look<true, false>([&](const auto &p, int i, const int4(&bits)[TENSORS]) {
      R h[N];
      widen_place<T>(p, bits[0], (R)0, h);
      if (!plain) {
        if (drop.on) drop(start + p.first, h);
        if (a.residual) {
          R residual[N];
          widen_place<T>(p, bits[TENSORS - 1], (R)0, residual);
          UNROLL
          for (int k = 0; k < N; k++) h[k] += residual[k];
        }
        const int4 rounded = narrow_pack<T>(h);
        widen_place<T>(p, rounded, (R)0, h);
        if (walk.keeps()) walk.replace(i, rounded);
        walk.store((T *)a.sum + start, p, h);
      }
      sum += RMS ? dot_of(h, h) : sum_of(h);
    });
    /* Later looks find h in place of x; where rows are not kept, in the output that has it. */
    auto load = [&](const auto &p, const int4(&bits)[TENSORS], R(&h)[N]) {
      widen_place<T>(p, bits[0], (R)0, h);
      if constexpr (FULL && !rows_walk::fixed) {
        if (!plain && !walk.keeps()) widen_place<T>(p, walk.written((const T *)a.sum + start, p), (R)0, h);
      }
    };
    two<R> found = {0, 0}; /* sums of h and of (h - mean)^2 */
    if (walk.pass() != TFU_JOIN) found.a = walk.agree(sum.sum, add_up());
    R mean = RMS ? 0 : mean_of(found.a);
    if (!RMS && walk.pass() != TFU_JOIN) {
      row_sum<R, rows_walk::fixed> squares;
      walk.template look<false, false>([&](const auto &p, int, const int4(&bits)[TENSORS]) {
        R h[N];
        load(p, bits, h);
        UNROLL
        for (int k = 0; k < N; k++) h[k] = p.owns(k) ? h[k] - mean : 0;
        squares += dot_of(h, h);
      });
      found.b = walk.agree(squares.sum, add_up());
    }
    if (RMS) found.b = found.a;
    if (walk.pass() == TFU_FIND) {
      if (walk.active() && walk.leads()) ((two<R> *)a.rows.found)[walk.row] = found;
      continue;
    }
    if (walk.pass() == TFU_JOIN) {
      if (!RMS) mean = mean_of_all(walk.template sum_parts<two<R>>([](two<R> part) { return part.a; }));
      found.b = walk.template sum_parts<two<R>>([&](two<R> part) {
        const R off = RMS ? 0 : mean_of(part.a) - mean;
        return part.b + (R)cols * off * off;
      });
    }
    const R rstd = rsqrt_of(mean_of_all(found.b) + (R)a.epsilon);
    if (walk.active() && walk.leads() && walk.real_row() * a.rows.parts == walk.row)
      ((two<R> *)a.stats)[walk.real_row()] = two<R>{mean, rstd};
    walk.template look<false, true>([&](const auto &p, int i, const int4(&bits)[TENSORS]) {
      R h[N];
      load(p, bits, h);
      const R(&scale)[N] = gamma.of(walk, a.period, p, i), (&shift)[N] = beta.of(walk, a.period, p, i);
      UNROLL
      for (int k = 0; k < N; k++) h[k] = RMS ? h[k] * rstd * scale[k] : (h[k] - mean) * rstd * scale[k] + shift[k];
      walk.store((T *)a.y + start, p, h);
    });
  }
  walk.finish();
}

/* Adds v to sums that other threads of the row may have added to in earlier rows; agree() stands in between. */
template <typename P, typename R, int N>
__device__ inline void add_columns(R *sums, const P &p, R factor, const R (&v)[N]) {
  UNROLL
  for (int k = 0; k < N; k++)
    if (p.owns(k)) sums[p.first + k] += factor * v[k];
}

template <typename T, int PACKS, bool RMS, bool FULL>
__device__ inline void norm_grad(const norm_grad_args &a) {
  enum { N = packed<T>::N, QUANTITIES = RMS ? 1 : 2, TENSORS = FULL ? 3 : 2, HELD = PACKS ? PACKS : 1 };
  typedef acc<T> R;
  typedef typename rows<T, PACKS, TENSORS>::walk rows_walk;
  const int64_t cols = a.rows.cols;
  const T *const tensors[3] = {(const T *)a.dy, (const T *)a.x, (const T *)a.dsum};
  rows_walk walk(a.rows, (const T *const(&)[TENSORS])tensors);
  const dropping drop(a.seed, a.rate);
  const mean_over<T> mean_of(cols * a.rows.parts);
  column_weights<R, PACKS, N> gamma(a.gamma, a.period, 1, walk);
  R dgamma[HELD][N] = {}, dbeta[HELD][N] = {};
  const int64_t seat = a.joined ? blockIdx.y : walk.seat(), next_quantity = a.period * cols;
  R *const sums = (R *)a.partial + seat / a.period * QUANTITIES * next_quantity + seat % a.period * cols;
  if (a.partial && !rows_walk::fixed) {
    for (int64_t c = blockIdx.x * a.rows.lanes + walk.lane; c < cols; c += gridDim.x * a.rows.lanes)
      for (int q = 0; q < QUANTITIES; q++) sums[q * next_quantity + c] = 0;
    __syncthreads();
  }
  auto stats_of = [&](int64_t row) {
    return row < a.rows.rows ? ((const two<R> *)a.stats)[walk.real_row(row)] : two<R>{0, 0};
  };
  two<R> next = stats_of(walk.row);
  for (; walk.more(); walk.next()) {
    const R mean = RMS ? 0 : next.a, rstd = next.b;
    next = stats_of(walk.row + walk.step()); /* on its way while this row is computed */
    const int64_t start = walk.row * cols;
    R with_n = 0, of_g = 0; /* sums of g * (x - mean) and of g */
    walk.template look<true, false>([&](const auto &p, int i, const int4(&bits)[TENSORS]) {
      R dy[N], x[N];
      widen_place<T>(p, bits[0], (R)0, dy);
      widen_place<T>(p, bits[1], mean, x);
      const R(&scale)[N] = gamma.of(walk, a.period, p, i);
      UNROLL
      for (int k = 0; k < N; k++) x[k] = dy[k] * (x[k] - mean);
      with_n += dot_of(x, scale);
      if (!RMS) of_g += dot_of(dy, scale);
      if (rows_walk::fixed) {
        UNROLL
        for (int k = 0; k < N; k++) {
          dgamma[i][k] += x[k] * rstd;
          if (!RMS) dbeta[i][k] += dy[k];
        }
      } else if (a.partial) {
        add_columns(sums, p, rstd, x);
        if (!RMS) add_columns(sums + next_quantity, p, (R)1, dy);
      }
    });
    if (walk.pass() == TFU_JOIN) {
      with_n = walk.template sum_parts<two<R>>([](two<R> part) { return part.a; });
      of_g = walk.template sum_parts<two<R>>([](two<R> part) { return part.b; });
    } else if (RMS) {
      with_n = walk.agree(with_n, add_up());
    } else {
      const two<R> both = walk.agree(two<R>{with_n, of_g}, add_two());
      with_n = both.a, of_g = both.b;
    }
    if (walk.pass() == TFU_FIND) {
      if (walk.active() && walk.leads()) ((two<R> *)a.rows.found)[walk.row] = two<R>{with_n, of_g};
      continue;
    }
    const R mean_n = mean_of(with_n) * rstd, mean_g = RMS ? 0 : mean_of(of_g);
    walk.template look<false, true>([&](const auto &p, int i, const int4(&bits)[TENSORS]) {
      R d[N], x[N];
      widen_pack<T>(bits[0], d);
      widen_pack<T>(bits[1], x);
      const R(&scale)[N] = gamma.of(walk, a.period, p, i);
      UNROLL
      for (int k = 0; k < N; k++) d[k] = rstd * (d[k] * scale[k] - mean_g - (x[k] - mean) * rstd * mean_n);
      if (FULL && a.dsum) {
        R dsum[N];
        widen_pack<T>(bits[TENSORS - 1], dsum);
        UNROLL
        for (int k = 0; k < N; k++) d[k] += dsum[k];
      }
      if (FULL && drop.on) {
        walk.store((T *)a.dresidual + start, p, d);
        drop(start + p.first, d);
      }
      walk.store((T *)a.dx + start, p, d);
    });
  }
  walk.finish();
  if (!a.partial || !rows_walk::fixed) return;
  if (a.joined)
    join_sums<R, HELD * N * QUANTITIES>(
        a.rows.lanes, [&](int j) -> R & { return j < HELD * N ? dgamma[j / N][j % N] : dbeta[j / N - HELD][j % N]; });
  if (a.joined && threadIdx.x >= a.rows.lanes) return;
  UNROLL
  for (int i = 0; i < HELD; i++) {
    if (!walk.has(i)) continue;
    UNROLL
    for (int k = 0; k < N; k++) {
      sums[walk.column(i) + k] = dgamma[i][k];
      if (!RMS) sums[next_quantity + walk.column(i) + k] = dbeta[i][k];
    }
  }
}

/* Any rows go to the kernels that know everything: one each less to compile. */
#define STAMP(label, args, elements, threads, stamp, ...) \
  template <typename T, int PACKS>                        \
  __device__ inline void label(const args &a) {           \
    __VA_ARGS__(a);                                       \
  }                                                       \
  stamp(label, args, elements, threads)
STAMP(layer_plain, norm_args, TFU_NORM_ELEMENTS, TFU_NORM_THREADS, TFU_HELD_ROW_KERNEL, norm<T, PACKS, false, false>)
STAMP(layer_full, norm_args, TFU_NORM_ELEMENTS, TFU_NORM_THREADS, TFU_ROW_KERNEL, norm<T, PACKS, false, true>)
STAMP(rms_plain, norm_args, TFU_NORM_ELEMENTS, TFU_NORM_THREADS, TFU_HELD_ROW_KERNEL, norm<T, PACKS, true, false>)
STAMP(rms_full, norm_args, TFU_NORM_ELEMENTS, TFU_NORM_THREADS, TFU_ROW_KERNEL, norm<T, PACKS, true, true>)
STAMP(layer_grad_plain, norm_grad_args, TFU_NORM_GRAD_ELEMENTS, TFU_NORM_GRAD_THREADS, TFU_HELD_ROW_KERNEL,
      norm_grad<T, PACKS, false, false>)
STAMP(layer_grad_full, norm_grad_args, TFU_NORM_GRAD_ELEMENTS, TFU_NORM_GRAD_THREADS, TFU_ROW_KERNEL,
      norm_grad<T, PACKS, false, true>)
STAMP(rms_grad_plain, norm_grad_args, TFU_NORM_GRAD_ELEMENTS, TFU_NORM_GRAD_THREADS, TFU_HELD_ROW_KERNEL,
      norm_grad<T, PACKS, true, false>)
STAMP(rms_grad_full, norm_grad_args, TFU_NORM_GRAD_ELEMENTS, TFU_NORM_GRAD_THREADS, TFU_ROW_KERNEL,
      norm_grad<T, PACKS, true, true>)
