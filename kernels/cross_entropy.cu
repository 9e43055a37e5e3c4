/* The loss of softmax(x) against labels or probabilities, and its gradient (ops/cross_entropy.c,
 * ops/sparse_cross_entropy.c). Labels need one look at the logits; probabilities two, since the loss is a sum of small
 * differences to log(sum(exp(x))), which must be known first. The gradient is elementwise. */
#include "kernels/cross_entropy.h"

#include "kernels/core/max_sum.cuh"
#include "kernels/core/rows.cuh"

/* A row's label. One that is no class is not to be read by: the row's loss is NaN, its gradient zero. */
struct row_label {
  int64_t label;
  bool ignored, valid;
  template <typename A>
  __device__ row_label(const A &a, int64_t row) {
    label = a.wide ? ((const long long *)a.labels)[row] : ((const int *)a.labels)[row];
    ignored = label == a.ignore;
    valid = !ignored && label >= 0 && label < a.rows.cols;
  }
};

/* What one look at a row's logits finds: their maximum and the sum of exponentials; and their sum, for smoothing. */
template <typename T>
struct logits_of {
  max_sum<T> powers;
  acc<T> sum;
  static __device__ void lanes(logits_of &v, int width) {
    max_sum<T>::lanes(v.powers, width);
    add_up::lanes(v.sum, width);
  }
};

template <typename T, int PACKS>
__device__ inline void sparse_cross_entropy(const cross_entropy_args &a) {
  enum { N = packed<T>::N };
  typedef acc<T> R;
  const int64_t cols = a.rows.cols;
  typename rows<T, PACKS, 1>::walk walk(a.rows, {(const T *)a.x}, {cols});
  for (; walk.more(); walk.next()) {
    logits_of<T> total = {max_sum<T>::none(), 0};
    walk.template look<true, true>([&](const auto &p, int, const int4(&bits)[1]) {
      R x[N];
      widen_place<T>(p, bits[0], -infinity<R>(), x);
      if (a.smoothing != 0) {
        R own[N];
        widen_place<T>(p, bits[0], (R)0, own);
        total.sum += sum_of(own);
      }
      UNROLL
      for (int k = 0; k < N; k++) x[k] *= max_sum<T>::unit();
      total.powers.add(x);
    });
    total = walk.template agree<logits_of<T>>(total);
    if (!walk.active() || !walk.leads()) continue;
    const row_label label(a, walk.row);
    const R shift = total.powers.natural_shift(), log_sum = log_of(total.powers.sum), lse = shift + log_sum;
    const R picked = label.valid ? (R)((const T *)a.x)[walk.row * cols + label.label] : 0, part = a.smoothing;
    R loss = log_sum + (1 - part) * (shift - picked) + (R)a.z_loss * lse * lse;
    if (part != 0) loss += part * (shift - total.sum / cols);
    ((R *)a.loss)[walk.row] = label.valid ? loss : label.ignored ? 0 : (R)__int_as_float(0x7fc00000);
    ((R *)a.stats)[2 * walk.row] = shift;
    ((R *)a.stats)[2 * walk.row + 1] = total.powers.sum;
  }
  walk.finish();
}
TFU_ROW_KERNEL(sparse_cross_entropy, cross_entropy_args, TFU_CROSS_ENTROPY_ELEMENTS)

/* A row's softmax again, from (maximum, sum of exponentials), to the last digit: log(sum(exp(x))) alone would lose as
 * many as it has before the point. */
template <typename T>
struct row_softmax {
  typedef acc<T> R;
  R shift, sum, inverse,
      push; /* shift is in max_sum's unit; push: what z_loss adds to the weight of the probabilities */
  template <typename A>
  __device__ row_softmax(const A &a, int64_t row, int stats) {
    shift = ((const R *)a.stats)[stats * row];
    sum = ((const R *)a.stats)[stats * row + 1];
    inverse = 1 / sum;
    push = a.z_loss != 0 ? 2 * (R)a.z_loss * (shift + log_of(sum)) : 0;
    shift *= max_sum<T>::unit();
  }
  __device__ R of(R x) const { return quotient<T>(max_sum<T>::power(x * max_sum<T>::unit() - shift), sum, inverse); }
};

template <typename T, int PACKS>
__device__ inline void sparse_cross_entropy_grad(const cross_entropy_grad_args &a) {
  enum { N = packed<T>::N };
  typedef acc<T> R;
  const int64_t cols = a.rows.cols;
  typename rows<T, PACKS, 1>::walk walk(a.rows, {(const T *)a.x}, {cols});
  for (; walk.more(); walk.next()) {
    const R even = (R)a.smoothing / cols, target = 1 - (R)a.smoothing;
    int64_t label = -1;
    row_softmax<T> softmax(a, walk.active() ? walk.row : 0, 2);
    R dloss = 0;
    if (walk.active()) {
      const row_label l(a, walk.row);
      label = l.valid ? l.label : -1;
      dloss = ((const R *)a.dloss)[walk.row];
    }
    T *dx = (T *)a.dx + walk.row * cols;
    walk.template look<true, true>([&](const auto &p, int, const int4(&bits)[1]) {
      R x[N];
      widen_pack<T>(bits[0], x);
      UNROLL
      for (int k = 0; k < N; k++) {
        const R y = softmax.of(x[k]), wanted = p.first + k == label ? target + even : even;
        x[k] = label < 0 ? 0 : dloss * ((y - wanted) + softmax.push * y);
      }
      store_place(dx, p, a.rows.aligned, x);
    });
  }
}
TFU_ROW_KERNEL(sparse_cross_entropy_grad, cross_entropy_grad_args, TFU_CROSS_ENTROPY_ELEMENTS)

template <typename T, int PACKS>
__device__ inline void cross_entropy(const cross_entropy_args &a) {
  enum { N = packed<T>::N };
  typedef acc<T> R;
  const int64_t cols = a.rows.cols;
  const R most = 1 - (R)a.smoothing, even = (R)a.smoothing / cols;
  typename rows<T, PACKS, 2>::walk walk(a.rows, {(const T *)a.x, (const T *)a.targets}, {cols, cols});
  for (; walk.more(); walk.next()) {
    max_sum<T> logits = max_sum<T>::none();
    walk.template look<true, false>([&](const auto &p, int, const int4(&bits)[2]) {
      R x[N];
      widen_place<T>(p, bits[0], -infinity<R>(), x);
      UNROLL
      for (int k = 0; k < N; k++) x[k] *= max_sum<T>::unit();
      logits.add(x);
    });
    logits = walk.template agree<max_sum<T>>(logits);
    const R shift = logits.natural_shift(), log_sum = log_of(logits.sum), lse = shift + log_sum;
    row_sum<R, decltype(walk)::fixed> loss, weights;
    walk.template look<false, true>([&](const auto &p, int, const int4(&bits)[2]) {
      R x[N], t[N];
      widen_pack<T>(bits[0], x);
      widen_pack<T>(bits[1], t);
      UNROLL
      for (int k = 0; k < N; k++) {
        t[k] = p.owns(k) ? most * t[k] + even : 0;
        x[k] = t[k] == 0 ? 0 : t[k] * (log_sum - (x[k] - shift));
      }
      loss += sum_of(x);
      weights += sum_of(t);
    });
    const two<R> total = walk.template agree<add_two>(two<R>{loss.sum, weights.sum});
    if (!walk.active() || !walk.leads()) continue;
    ((R *)a.loss)[walk.row] = total.a + (R)a.z_loss * lse * lse;
    ((R *)a.stats)[3 * walk.row] = shift;
    ((R *)a.stats)[3 * walk.row + 1] = logits.sum;
    ((R *)a.stats)[3 * walk.row + 2] = total.b;
  }
  walk.finish();
}
TFU_ROW_KERNEL(cross_entropy, cross_entropy_args, TFU_CROSS_ENTROPY_ELEMENTS)

template <typename T, int PACKS>
__device__ inline void cross_entropy_grad(const cross_entropy_grad_args &a) {
  enum { N = packed<T>::N };
  typedef acc<T> R;
  const int64_t cols = a.rows.cols;
  const R most = 1 - (R)a.smoothing, even = (R)a.smoothing / cols;
  typename rows<T, PACKS, 2>::walk walk(a.rows, {(const T *)a.x, (const T *)a.targets}, {cols, cols});
  for (; walk.more(); walk.next()) {
    const int64_t row = walk.active() ? walk.row : 0;
    const row_softmax<T> softmax(a, row, 3);
    const R dloss = ((const R *)a.dloss)[row], weight = ((const R *)a.stats)[3 * row + 2] + softmax.push;
    T *dx = (T *)a.dx + walk.row * cols;
    walk.template look<true, true>([&](const auto &p, int, const int4(&bits)[2]) {
      R x[N], t[N];
      widen_pack<T>(bits[0], x);
      widen_pack<T>(bits[1], t);
      UNROLL
      for (int k = 0; k < N; k++) x[k] = dloss * (weight * softmax.of(x[k]) - (most * t[k] + even));
      store_place(dx, p, a.rows.aligned, x);
    });
  }
}
TFU_ROW_KERNEL(cross_entropy_grad, cross_entropy_grad_args, TFU_CROSS_ENTROPY_ELEMENTS)
