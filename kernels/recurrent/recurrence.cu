/* The gates of a recurrence on the GPU, one step of all sequences at a time: a thread for each unit of each sequence
 * reads its gates, the products with h and its state, and writes the next state. Which cell and which activations is
 * known when the kernel runs: it waits for memory, not for them. */
#include "kernels/recurrent/recurrence.h"

#include "kernels/core/device/any_activation.cuh"

/* The derivative of any activation, beside activate(). */
template <typename T>
static __device__ __noinline__ acc<T> slope_at(int which, acc<T> v) {
  typedef typename math_of<T>::type math;
  switch (which) {
#define X(name) \
  case TFU_ACT_##name: return math::name##_grad(v);
    TFU_ACTIVATIONS(X)
#undef X
  }
  return 1;
}

/* The unit that a thread has: of sequence b, number u; i of all. */
struct unit_of {
  int64_t i, b, u, row; /* row: of [batch, steps], that of the step */
  bool there, counts;
  __device__ unit_of(const recurrence_sizes &s, const uint8_t *mask, int64_t step) {
    i = (int64_t)blockIdx.x * TFU_THREADS + threadIdx.x;
    there = i < s.batch * s.units;
    b = there ? i / s.units : 0;
    u = i - b * s.units;
    row = b * s.steps + step;
    counts = there && (!mask || mask[row]);
  }
};

template <typename T>
__device__ inline acc<T> given_at(const void *tensor, int64_t at) {
  return tensor ? (acc<T>)((const T *)tensor)[at] : 0;
}
template <typename T>
__device__ inline acc<T> wide_at(const void *tensor, int64_t at) {
  return tensor ? ((const acc<T> *)tensor)[at] : 0;
}

/* Each gate's own h. */
template <typename T>
__device__ inline void scale_h(const recurrence_sizes &s, const unit_of &at, const void *scale, acc<T> h,
                               void *scaled) {
  UNROLLED(g, 4)
    if (g < s.gates)
      ((T *)scaled)[(g * s.batch + at.b) * s.units + at.u] =
          (T)(h * (acc<T>)((const T *)scale)[(at.b * s.gates + g) * s.units + at.u]);
}
/* That of the first step. */
template <typename T>
__device__ inline void recurrence_scale(const recurrence_step_args &a) {
  const unit_of at(a.size, NULL, 0);
  if (at.there) scale_h<T>(a.size, at, a.scale, given_at<T>(a.h, at.i), a.scaled);
}
TFU_KERNEL(recurrence_scale, recurrence_step_args)

/* What the product of a gate, dp . recurrent_kernel^T, gives to h, where gates have an h of their own: times its scale.
 */
template <typename T>
__device__ inline acc<T> through_gate(const recurrence_sizes &s, const void *product, const void *scale, int g,
                                      int64_t i) {
  const int64_t b = i / s.units, u = i - b * s.units;
  const acc<T> by = scale ? (acc<T>)((const T *)scale)[(b * s.gates + g) * s.units + u] : 1;
  return wide_at<T>(product, g * s.batch * s.units + i) * by;
}
/* What the product of a step does; but for a candidate whose h is reset. */
template <typename T>
__device__ inline acc<T> through_product(const recurrence_sizes &s, const void *product, const void *scale, int64_t i) {
  if (!scale && !s.reset_before) return wide_at<T>(product, i);
  acc<T> sum = 0;
  UNROLLED(g, 4)
    if (g < (s.reset_before ? 2 : s.gates)) sum += through_gate<T>(s, product, scale, g, i);
  return sum;
}

/* What the activation of a gate is taken of; *p is h . recurrent_kernel + bias. */
template <typename T>
__device__ inline acc<T> sum_of(const recurrence_step_args &a, const unit_of &at, int g, acc<T> *p) {
  const recurrence_sizes &s = a.size;
  const int64_t column = g * s.units + at.u;
  const int64_t place =
      a.scale || s.reset_before ? (g * s.batch + at.b) * s.units + at.u : at.b * s.gates * s.units + column;
  *p = wide_at<T>(a.product, place) + given_at<T>(a.bias, column);
  return (acc<T>)((const T *)a.gates)[at.row * s.gates * s.units + column] + *p;
}

/* The candidate's own h, which is reset. */
template <typename T>
__device__ inline void recurrence_reset(const recurrence_step_args &a) {
  const recurrence_sizes &s = a.size;
  const unit_of at(s, NULL, a.step);
  if (!at.there) return;
  acc<T> p;
  const acc<T> reset = activate<T>(s.recurrent_activation, sum_of<T>(a, at, 1, &p));
  const acc<T> h = a.step > 0 ? (acc<T>)((const T *)a.y)[(at.row - 1) * s.units + at.u] : given_at<T>(a.h, at.i);
  const acc<T> scale = a.scale ? (acc<T>)((const T *)a.scale)[(at.b * s.gates + 2) * s.units + at.u] : 1;
  ((T *)a.scaled)[(2 * s.batch + at.b) * s.units + at.u] = (T)(reset * h * scale);
}
TFU_KERNEL(recurrence_reset, recurrence_step_args)

template <typename T>
__device__ inline void recurrence_step(const recurrence_step_args &a) {
  typedef acc<T> R;
  const recurrence_sizes &s = a.size;
  const unit_of at(s, a.mask, a.step);
  if (!at.there) return;
  const bool lstm = s.lstm;
  T *y = (T *)a.y, *kept = (T *)a.kept;
  R *state = (R *)a.state;
  R pre[4], inner = 0;
  UNROLLED(g, 4) {
    if (g >= s.gates) continue;
    R p;
    pre[g] = sum_of<T>(a, at, g, &p);
    if (lstm || s.reset_before || g < 2) continue;
    const R x = (R)((const T *)a.gates)[at.row * s.gates * s.units + g * s.units + at.u];
    inner = p, pre[g] = x + activate<T>(s.recurrent_activation, pre[1]) * p;
  }
  const R before = a.step > 0 ? (R)y[(at.row - 1) * s.units + at.u] : given_at<T>(a.h, at.i);
  const R candidate = activate<T>(s.activation, pre[2]);
  R h, more = inner;
  if (lstm) {
    const R c = a.step > 0 ? state[at.i] : given_at<T>(a.c, at.i);
    const R next =
        activate<T>(s.recurrent_activation, pre[1]) * c + activate<T>(s.recurrent_activation, pre[0]) * candidate;
    more = at.counts ? next : c;
    h = activate<T>(s.recurrent_activation, pre[3]) * activate<T>(s.activation, more);
    state[at.i] = more;
  } else {
    const R z = activate<T>(s.recurrent_activation, pre[0]);
    h = z * before + (1 - z) * candidate;
  }
  const R after = at.counts ? h : before;
  y[at.row * s.units + at.u] = (T)after;
  if (a.scale) scale_h<T>(s, at, a.scale, after, a.scaled);
  if (!kept) return;
  kept += at.row * s.kept * s.units + at.u;
  UNROLLED(g, 4)
    if (g < s.gates) kept[g * s.units] = (T)pre[g];
  if (s.kept > s.gates) kept[s.gates * s.units] = (T)more;
}
TFU_KERNEL(recurrence_step, recurrence_step_args)

template <typename T>
__device__ inline void recurrence_back(const recurrence_back_args &a) {
  typedef acc<T> R;
  const recurrence_sizes &s = a.size;
  const unit_of at(s, a.mask, a.step);
  if (!at.there) return;
  const bool lstm = s.lstm;
  const T *kept = (const T *)a.kept + at.row * s.kept * s.units + at.u;
  R *direct = (R *)a.direct, *dstate = (R *)a.dstate;
  const bool last = a.step + 1 == s.steps; /* nothing comes from a step after it */
  const R after = last ? 0 : through_product<T>(s, a.product, a.scale, at.i) + direct[at.i];
  const R dh = after + (R)((const T *)a.dy)[at.row * s.units + at.u];
  R dp[4] = {0, 0, 0, 0}, dgate = 0, rest = dh, dc = 0;
  if (lstm) dc = last ? given_at<T>(a.dlast, at.i) : dstate[at.i];
  if (at.counts) {
    R value[4], slope[4];
    UNROLLED(g, 4) {
      if (g >= s.gates) continue;
      const int act = g == 2 ? s.activation : s.recurrent_activation;
      const R pre = (R)kept[g * s.units];
      value[g] = activate<T>(act, pre), slope[g] = slope_at<T>(act, pre);
    }
    const R more = s.reset_before ? 0 : (R)kept[s.gates * s.units];
    if (lstm) {
      const R c = a.step > 0 ? (R)kept[(s.gates - s.kept) * s.units] : given_at<T>(a.c, at.i);
      const R d = dc + dh * value[3] * slope_at<T>(s.activation, more);
      dp[0] = d * value[2] * slope[0];
      dp[1] = d * c * slope[1];
      dp[2] = dgate = d * value[0] * slope[2];
      dp[3] = dh * activate<T>(s.activation, more) * slope[3];
      dc = d * value[1];
      rest = 0;
    } else {
      const R before = a.step > 0 ? (R)((const T *)a.y)[(at.row - 1) * s.units + at.u] : given_at<T>(a.h, at.i);
      dgate = dh * (1 - value[0]) * slope[2];
      dp[0] = dh * (before - value[2]) * slope[0];
      dp[1] = dgate * more * slope[1]; /* where h is reset before, recurrence_reset_back has it */
      dp[2] = dgate * value[1];
      rest = dh * value[0];
    }
  }
  direct[at.i] = rest;
  if (lstm) dstate[at.i] = dc;
  UNROLLED(g, 4) {
    if (g >= s.gates) continue;
    const int64_t to = (at.row * s.gates + g) * s.units + at.u;
    ((T *)a.dgates)[to] = (T)(g == 2 ? dgate : dp[g]);
    if (a.dproduct) ((T *)a.dproduct)[to] = (T)dp[g];
  }
}
TFU_KERNEL(recurrence_back, recurrence_back_args)

/* What follows from the gradient of the reset h, the candidate's product: that of the gate, and of h. */
template <typename T>
__device__ inline void recurrence_reset_back(const recurrence_back_args &a) {
  typedef acc<T> R;
  const recurrence_sizes &s = a.size;
  const unit_of at(s, a.mask, a.step);
  if (!at.counts) return;
  const R d = through_gate<T>(s, a.product, a.scale, 2, at.i);
  const R pre = (R)((const T *)a.kept)[(at.row * s.kept + 1) * s.units + at.u];
  const R before = a.step > 0 ? (R)((const T *)a.y)[(at.row - 1) * s.units + at.u] : given_at<T>(a.h, at.i);
  ((T *)a.dgates)[(at.row * s.gates + 1) * s.units + at.u] = (T)(d * before * slope_at<T>(s.recurrent_activation, pre));
  ((R *)a.direct)[at.i] += d * activate<T>(s.recurrent_activation, pre);
}
TFU_KERNEL(recurrence_reset_back, recurrence_back_args)

template <typename T>
__device__ inline void recurrence_end(const recurrence_end_args &a) {
  const int64_t i = (int64_t)blockIdx.x * TFU_THREADS + threadIdx.x;
  if (i >= a.count) return;
  const acc<T> product = a.product ? through_product<T>(a.size, a.product, a.scale, i) : 0;
  ((T *)a.to)[i] = (T)(product + wide_at<T>(a.rest, i) + given_at<T>(a.same, i));
}
TFU_KERNEL(recurrence_end, recurrence_end_args)
