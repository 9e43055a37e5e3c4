/* The loss of softmax(x) against labels or probabilities, and its gradient (ops/rows/cross_entropy.c). One look at the
 * logits, by online softmax, and at the probabilities is enough: so a row of any length has one block, and comes in
 * chunks where registers cannot hold it. The gradient is elementwise, and blocks that share a row need not agree.
 * docs/design.md#words says what a look is. */
#include "kernels/rows/cross_entropy.h"

#include "kernels/core/device/online_softmax.cuh"
#include "kernels/core/device/rows.cuh"

__device__ inline int64_t label_of(const cross_entropy_args &a, int64_t row) {
  return a.wide ? ((const long long *)a.labels)[row] : ((const int *)a.labels)[row];
}
/* A row's label. One that is no class is not to be read by: the row's loss is NaN, its gradient zero. */
struct row_label {
  int64_t label;
  bool ignored, valid;
  __device__ row_label(const cross_entropy_args &a, int64_t label) : label(label) {
    ignored = label == a.ignore;
    valid = !ignored && label >= 0 && label < a.rows.cols;
  }
};

/* What one look at a row's logits finds: their maximum and the sum of exponentials; and their sum, for smoothing. */
template <typename T>
struct logits_of {
  online_softmax<T> powers;
  acc<T> sum;
};
template <typename T>
struct join_logits {
  template <typename W>
  __device__ void lanes(logits_of<T> &v, W width) const {
    v.powers.join_lanes(width, online_softmax<T>::unit());
    add_up().lanes(v.sum, width);
  }
};

/* Once the row's threads agree on maximum and sums, the leader writes
 *
 *   loss = log(sum) + (1 - smoothing) * (max - x[label]) + smoothing * (max - mean of x) + z_loss * lse^2,
 *
 * the formula of ops/rows/cross_entropy.c in an order in which large logits do not cancel. */
template <typename T, int PACKS>
__device__ inline void sparse_cross_entropy(const cross_entropy_args &a) {
  enum { N = packed<T>::N };
  typedef acc<T> R;
  const int64_t cols = a.rows.cols;
  typename rows<T, PACKS, 1, true>::walk walk(a.rows, {(const T *)a.x});
  for (; walk.more(); walk.next()) {
    logits_of<T> total = {online_softmax<T>::none(), 0};
    row_sum<R, false> sum;
    /* Where every thread needs one, they are on their way together with the rows. */
    const int64_t early = PACKS == THREAD && walk.active() ? label_of(a, walk.row) : 0;
    walk.template look<true, true>([&](const auto &p, int, const int4(&bits)[1]) {
      R x[N];
      if (a.smoothing != 0) {
        widen_place<T>(p, bits[0], (R)0, x);
        sum += sum_of(x);
      }
      widen_place<T>(p, bits[0], -infinity<R>(), x);
      total.powers.add(x, online_softmax<T>::unit());
    });
    total.sum = sum.sum;
    total = walk.all_reduce(total, join_logits<T>());
    total.powers.settle();
    if (!walk.active() || !walk.is_leader()) continue;
    const row_label label(a, PACKS == THREAD ? early : label_of(a, walk.row));
    const R shift = total.powers.shift(), log_sum = log_of(total.powers.sum), lse = shift + log_sum;
    R picked = 0;
    if (label.valid) {
      if constexpr (PACKS == THREAD) picked = (R)walk.element(0, (int)label.label);
      else picked = (R)((const T *)a.x)[walk.row * cols + label.label];
    }
    const R part = a.smoothing;
    R loss = log_sum + (1 - part) * (shift - picked) + (R)a.z_loss * lse * lse;
    if (part != 0) loss += part * (shift - total.sum / cols);
    ((R *)a.loss)[walk.row] = label.valid ? loss : label.ignored ? 0 : (R)__int_as_float(0x7fc00000);
    ((R *)a.stats)[2 * walk.row] = shift;
    ((R *)a.stats)[2 * walk.row + 1] = total.powers.sum;
  }
  walk.finish();
}
TFU_ROW_KERNEL(sparse_cross_entropy, cross_entropy_args, TFU_CROSS_ENTROPY_ELEMENTS, 1024)
TFU_THREAD_ROW_KERNEL(sparse_cross_entropy, cross_entropy_args)

/* A row's softmax again, from (maximum, sum of exponentials), to the last digit: log(sum(exp(x))) alone would lose as
 * many as it has before the point. */
template <typename T>
struct row_softmax {
  typedef acc<T> R;
  R shift, sum, inverse, push; /* push: what z_loss adds to the weight of the probabilities */
  /* stats: how many numbers each row has there. */
  template <typename A>
  __device__ row_softmax(const A &a, int64_t row, int stats) {
    shift = ((const R *)a.stats)[stats * row];
    sum = ((const R *)a.stats)[stats * row + 1];
    inverse = 1 / sum;
    push = a.z_loss != 0 ? 2 * (R)a.z_loss * (shift + log_of(sum)) : 0;
  }
  __device__ R power(R x) const { return online_softmax<T>::power(x, shift, online_softmax<T>::unit()); }
  __device__ R of(R x) const { return quotient<T>(power(x), sum, inverse); }
};

/* dx = dloss * ((1 + push) * softmax(x) - t'), where t' is even at every class and target more at the label. */
template <typename T, int PACKS>
__device__ inline void sparse_cross_entropy_grad(const cross_entropy_args &a) {
  enum { N = packed<T>::N };
  typedef acc<T> R;
  const int64_t cols = a.rows.cols;
  const R even = (R)a.smoothing / cols, target = 1 - (R)a.smoothing;
  typename rows<T, PACKS, 1>::walk walk(a.rows, {(const T *)a.x});
  for (; walk.more(); walk.next()) {
    const int64_t row = walk.active() ? walk.row : 0;
    const row_softmax<T> softmax(a, row, 2);
    const row_label label(a, label_of(a, row));
    const R dloss = ((const R *)a.dloss)[row];
    const R weight = dloss * (1 + softmax.push) * softmax.inverse, less = dloss * even;
    T *dx = (T *)a.dx + row * cols;
    walk.template look<true, true>([&](const auto &p, int, const int4(&bits)[1]) {
      R x[N], d[N];
      widen_pack<T>(bits[0], x);
      UNROLLED(k, N) d[k] = label.valid ? softmax.power(x[k]) * weight - less : 0;
      const int64_t at = label.label - p.first;
      if (label.valid && at >= 0 && at < N) { /* a sure class is where terms cancel, so they are taken in this order */
        R own = 0;
        UNROLLED(k, N) own = k == at ? x[k] : own;
        const R y = softmax.of(own);
        own = dloss * ((y - (target + even)) + softmax.push * y);
        UNROLLED(k, N) d[k] = k == at ? own : d[k];
      }
      walk.store(dx, p, d);
    });
  }
}
TFU_ROW_KERNEL(sparse_cross_entropy_grad, cross_entropy_args, TFU_CROSS_ENTROPY_ELEMENTS, 1024)
TFU_THREAD_ROW_KERNEL(sparse_cross_entropy_grad, cross_entropy_args)

/* What one look at logits and probabilities t finds: sums of t, of t * (x - shift) and of x - shift, where shift is
 * that of the powers, which moves with their maximum. */
template <typename T>
struct targets_of {
  typedef acc<T> R;
  row_sum<R, false> weight, cost, even;
  R classes = 0;

  template <typename P, int N>
  __device__ void add(const P &p, const R (&x)[N], const R (&t)[N], R shift, bool smooth) {
    R own[N], far[N];
    classes += p.template count<N>();
    UNROLLED(k, N) {
      own[k] = p.owns(k) ? t[k] : 0;
      far[k] = p.owns(k) ? x[k] - shift : 0;
    }
    weight += sum_of(own);
    if (smooth) even += sum_of(far);
    UNROLLED(k, N) far[k] = own[k] == 0 ? 0 : own[k] * far[k]; /* no target costs nothing, at any logit */
    cost += sum_of(far);
  }
  /* The shift has risen by so much: each x - shift in the sums is less by that. */
  __device__ void rise(R by) {
    cost += -by * weight.sum;
    even += -by * classes;
  }
};

/* With t' = most * t + even, loss = (sum of t') * log(sum) - sum of t' * (x - max) + z_loss * lse^2. A thread's sums
 * are relative to the largest logit that it has met; once the row agrees on its maximum they are brought to that, and
 * only then added up. */
template <typename T, int PACKS>
__device__ inline void cross_entropy(const cross_entropy_args &a) {
  enum { N = packed<T>::N };
  typedef acc<T> R;
  const int64_t cols = a.rows.cols;
  const R most = 1 - (R)a.smoothing, even = (R)a.smoothing / cols;
  typename rows<T, PACKS, 2, true>::walk walk(a.rows, {(const T *)a.x, (const T *)a.targets});
  for (; walk.more(); walk.next()) {
    online_softmax<T> logits = online_softmax<T>::none();
    targets_of<T> targets;
    walk.template look<true, true>([&](const auto &p, int, const int4(&bits)[2]) {
      R x[N], t[N];
      widen_place<T>(p, bits[0], -infinity<R>(), x);
      widen_pack<T>(bits[1], t);
      const R before = logits.shift();
      logits.add(x, online_softmax<T>::unit());
      const R shift = logits.shift();
      if (shift != before) targets.rise(shift - before);
      targets.add(p, x, t, shift, even != 0);
    });
    const R own = logits.shift();
    logits = walk.all_reduce(logits, join_online_softmax<T>{online_softmax<T>::unit()});
    logits.settle();
    const R shift = logits.shift(), log_sum = log_of(logits.sum), lse = shift + log_sum;
    targets.rise(shift - own);
    const two<R> total = walk.all_reduce(
        two<R>{most * targets.cost.sum + (even != 0 ? even * targets.even.sum : 0), targets.weight.sum}, add_two());
    if (!walk.active() || !walk.is_leader()) continue;
    const R weight = most * total.b + (R)a.smoothing;
    ((R *)a.loss)[walk.row] = weight * log_sum - total.a + (R)a.z_loss * lse * lse;
    ((R *)a.stats)[3 * walk.row] = shift;
    ((R *)a.stats)[3 * walk.row + 1] = logits.sum;
    ((R *)a.stats)[3 * walk.row + 2] = weight;
  }
  walk.finish();
}
TFU_ROW_KERNEL(cross_entropy, cross_entropy_args, TFU_DENSE_ELEMENTS, 1024)

template <typename T, int PACKS>
__device__ inline void cross_entropy_grad(const cross_entropy_args &a) {
  enum { N = packed<T>::N };
  typedef acc<T> R;
  const int64_t cols = a.rows.cols;
  const R most = 1 - (R)a.smoothing, even = (R)a.smoothing / cols;
  typename rows<T, PACKS, 2, false, false>::walk walk(a.rows, {(const T *)a.x, (const T *)a.targets});
  for (; walk.more(); walk.next()) {
    const int64_t row = walk.active() ? walk.row : 0;
    const row_softmax<T> softmax(a, row, 3);
    const R dloss = ((const R *)a.dloss)[row], weight = ((const R *)a.stats)[3 * row + 2] + softmax.push;
    const R max = ((const R *)a.stats)[3 * row], log_sum = log_of(((const R *)a.stats)[3 * row + 1]);
    /* In 16 bits by fewer operations: one of the two that cancel for a sure class is rounded once more. */
    const R pull = dloss * weight * softmax.inverse, push = dloss * most, flat = dloss * even;
    T *dx = (T *)a.dx + walk.row * cols, *dtargets = (T *)a.dtargets + walk.row * cols;
    walk.template look<true, true>([&](const auto &p, int, const int4(&bits)[2]) {
      R x[N], t[N];
      widen_pack<T>(bits[0], x);
      widen_pack<T>(bits[1], t);
      if (a.dtargets) {
        R d[N];
        UNROLLED(k, N) d[k] = dloss * most * (log_sum - (x[k] - max));
        walk.store(dtargets, p, d);
      }
      if constexpr (sizeof(T) == 2) {
        UNROLLED(k, N) x[k] = softmax.power(x[k]) * pull - (push * t[k] + flat);
      } else {
        UNROLLED(k, N) x[k] = dloss * (weight * softmax.of(x[k]) - (most * t[k] + even));
      }
      walk.store(dx, p, x);
    });
  }
}
TFU_ROW_KERNEL(cross_entropy_grad, cross_entropy_args, TFU_DENSE_ELEMENTS, 1024)
