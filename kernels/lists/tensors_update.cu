/* Optimizer steps over tables of tensors; formulas, and which memory may be shared: ops/lists/tensors_update.c. Every
 * element is read before it is written, by the same thread. A block reads the few numbers of the step once. */
#include "kernels/lists/tensors_update.h"

#include "kernels/lists/tensors_walk.h"

template <typename R>
struct numbers {
  R rate, decay, beta_1, beta_2, rest_1, rest_2, epsilon;
  R factor, divisor, bound;       /* of the gradient: what scales and clips it      */
  R bias_1, bias_2, alpha, ratio; /* 1 - beta^t; the step of adam; lamb's ratio */
};

/* Called, not inlined: a power is more code than a rule. */
template <typename R>
__device__ __noinline__ R power(R x, R y) {
  return pow(x, y);
}

/* A gradient becomes g * factor / divisor, cut off at the bound. With one norm for each tensor that is g * clip /
 * max(norm, clip), with one for all g * clip * min(1 / norm, 1 / clip), and that divided by the scale; norm - norm is
 * 0, or NaN where the norm is not finite. */
template <typename R>
__device__ inline numbers<R> read_numbers(const update_args &a, int tensor) {
  const R *hyper = (const R *)a.hyper, one = 1;
  numbers<R> n;
  n.rate = *(const R *)a.rate;
  n.decay = hyper[DECAY], n.beta_1 = hyper[BETA_1], n.beta_2 = hyper[BETA_2];
  n.rest_1 = hyper[REST_1], n.rest_2 = hyper[REST_2], n.epsilon = hyper[EPSILON];
  n.bound = hyper[CLIP_VALUES] != 0 ? hyper[CLIP] : (R)__int_as_float(0x7f800000);
  n.factor = n.divisor = 1;
  const R scale = a.scale ? *(const R *)a.scale : one; /* norms are those of what comes in, before it is divided */
  if (a.norm && a.each) {
    const R norm = ((const R *)a.norm)[a.table.base + tensor] / scale;
    n.factor = hyper[CLIP];
    n.divisor = norm > n.factor || norm != norm ? norm : n.factor;
  } else if (a.norm) {
    const R clip = hyper[CLIP], norm = *(const R *)a.norm / scale, by_norm = one / norm, by_clip = one / clip;
    n.factor = clip * (by_norm < by_clip ? by_norm : by_clip) + (norm - norm);
  }
  n.divisor *= scale;
  const R t = (R)(*(const int64_t *)a.step + 1);
  n.bias_1 = one - power(n.beta_1, t);
  n.bias_2 = one - power(n.beta_2, t);
  n.alpha = n.rate * sqrt(n.bias_2) / n.bias_1;
  n.ratio = a.ratios ? (R)a.ratios[a.table.base + tensor] : one;
  return n;
}

template <typename R>
__device__ inline R prepared(const numbers<R> &n, R g) {
  g *= n.factor;
  if (n.divisor != 1) g /= n.divisor;
  return g < -n.bound ? -n.bound : g > n.bound ? n.bound : g;
}

template <typename R>
__device__ inline R decayed(const numbers<R> &n, R w) {
  return n.decay != 0 ? w - w * n.decay * n.rate : w;
}

/* Rounded after each step, as Keras's are: lion asks for the sign of a difference that may be nothing at all. */
__device__ inline float weighed(float a, float x, float b, float y) {
  return __fadd_rn(__fmul_rn(a, x), __fmul_rn(b, y));
}
__device__ inline double weighed(double a, double x, double b, double y) {
  return __dadd_rn(__dmul_rn(a, x), __dmul_rn(b, y));
}

template <typename R>
__device__ inline R lamb_update(const numbers<R> &n, R m, R v) {
  return m / n.bias_1 / (sqrt(v / n.bias_2) + n.epsilon);
}

enum { MOST_SLOTS = NEW_WEIGHT - SLOT };

/* A rule changes a weight and its slots, given the gradient and its square. Of lamb this is the second walk: the slots
 * are new already, the ratio is known. */
template <typename R>
__device__ inline void apply(int rule, const numbers<R> &n, R g, R square, R &w, R (&s)[MOST_SLOTS]) {
  switch (rule) {
    case UPDATE_sgd: w -= g * n.rate; return;
    case UPDATE_momentum:
    case UPDATE_nesterov:
      s[0] = s[0] * n.beta_1 - g * n.rate;
      w += rule == UPDATE_momentum ? s[0] : s[0] * n.beta_1 - g * n.rate;
      return;
    case UPDATE_adam:
    case UPDATE_amsgrad:
      s[0] += (g - s[0]) * n.rest_1;
      s[1] += (square - s[1]) * n.rest_2;
      if (rule == UPDATE_amsgrad) s[2] = s[2] > s[1] || s[2] != s[2] ? s[2] : s[1];
      w -= s[0] * n.alpha / (sqrt(rule == UPDATE_amsgrad ? s[2] : s[1]) + n.epsilon);
      return;
    case UPDATE_lion: {
      const R way = weighed(s[0], n.beta_1, g, n.rest_1);
      w -= n.rate * (way > 0 ? (R)1 : way < 0 ? (R)-1 : way);
      s[0] = weighed(s[0], n.beta_2, g, n.rest_2);
      return;
    }
    case UPDATE_lamb: w -= n.ratio * n.rate * lamb_update(n, s[0], s[1]); return;
  }
}

template <typename R>
__device__ inline const numbers<R> &shared_numbers(const update_args &a, int tensor) {
  __shared__ numbers<R> n;
  if (threadIdx.x == 0) n = read_numbers<R>(a, tensor);
  __syncthreads();
  return n;
}

/* Elements up to here are taken four at a time, the rest one by one. `squares`: where these lie, or NULL. */
__device__ inline int64_t whole_end(void *const *at, const void *squares, const tensors_chunk &c) {
  uintptr_t bits = (uintptr_t)squares;
  UNROLLED(r, TENSORS_ROLES) bits |= (uintptr_t)at[r]; /* slots that a rule has not are the weight's */
  return bits % 16 ? c.begin : c.end - (c.end - c.begin) % 4;
}

/* One gradient, or four; T is the weights' type. */
template <typename T>
__device__ inline acc<T> load_gradient(int kind, const void *from, int64_t i) {
  if (sizeof(T) == 4 && kind == GRADIENTS_F16) return ((const f16 *)from)[i];
  if (sizeof(T) == 4 && kind == GRADIENTS_BF16) return ((const bf16 *)from)[i];
  return ((const T *)from)[i];
}
template <typename T>
__device__ inline void load_gradients(int kind, const void *from, int64_t i, acc<T> (&g)[4]) {
  if constexpr (sizeof(T) == 4) {
    if (kind == GRADIENTS_F16) return load4((const f16 *)from + i, g);
    if (kind == GRADIENTS_BF16) return load4((const bf16 *)from + i, g);
  }
  load4((const T *)from + i, g);
}

template <typename T>
__device__ inline const T *squares_of(const update_args &a, int kind, int tensor) {
  return kind == GRADIENTS_SQUARES ? (const T *)a.table.at[tensor][GRADIENT] + a.table.count[tensor] : NULL;
}

/* A block has one chunk of one tensor. A thread takes four neighbouring elements at a time, of the gradient, the weight
 * and each slot, s[slot][element], and reads them all before it writes any. Rule, type of gradients and number of slots
 * are constants, or come with the arguments. Lamb needs no gradients and leaves its slots as they are. */
template <typename T>
__device__ inline void update(const update_args &a, int rule, int kind, int slots) {
  typedef acc<T> R;
  const tensors_chunk c = chunk_of_block(a.table);
  const numbers<R> n = shared_numbers<R>(a, c.tensor);
  void *const *at = a.table.at[c.tensor];
  const T *weight = (const T *)at[WEIGHT], *squares = squares_of<T>(a, kind, c.tensor);
  const int64_t whole = whole_end(at, squares, c);
  const bool reads = rule != UPDATE_lamb;
  R g[4] = {}, q[4] = {}, w[4], s[MOST_SLOTS][4] = {};
  ONCE /* its loads alone keep the memory busy */
  for (int64_t i = c.begin + threadIdx.x * 4; i < whole; i += TFU_THREADS * 4) {
    if (reads) load_gradients<T>(kind, at[GRADIENT], i, g);
    if (reads && squares) load4(squares + i, q);
    load4(weight + i, w);
    UNROLLED(k, MOST_SLOTS)
      if (k < slots) load4((const T *)at[SLOT + k] + i, s[k]);
    UNROLLED(j, 4) {
      R own[MOST_SLOTS] = {s[0][j], s[1][j], s[2][j]};
      w[j] = decayed(n, w[j]);
      const R ready = prepared(n, g[j]);
      apply(rule, n, ready, squares ? q[j] : ready * ready, w[j], own);
      UNROLLED(k, MOST_SLOTS) s[k][j] = own[k];
    }
    store4((T *)at[NEW_WEIGHT] + i, w);
    UNROLLED(k, MOST_SLOTS)
      if (k < slots && reads) store4((T *)at[NEW_SLOT + k] + i, s[k]);
  }
  ONCE
  for (int64_t i = whole + threadIdx.x; i < c.end; i += TFU_THREADS) {
    R one = decayed(n, (R)weight[i]), own[MOST_SLOTS] = {};
    UNROLLED(k, MOST_SLOTS)
      if (k < slots) own[k] = (R)((const T *)at[SLOT + k])[i];
    const R ready = prepared(n, reads ? load_gradient<T>(kind, at[GRADIENT], i) : (R)0);
    apply(rule, n, ready, reads && squares ? (R)squares[i] : ready * ready, one, own);
    ((T *)at[NEW_WEIGHT])[i] = (T)one;
    UNROLLED(k, MOST_SLOTS)
      if (k < slots && reads) ((T *)at[NEW_SLOT + k])[i] = (T)own[k];
  }
}

/* Every rule, by a.rule; and adam in float32 by itself, with gradients of each kind. */
template <typename T>
__device__ inline void update_any(const update_args &a) {
  update<T>(a, a.rule, a.gradients, a.slots);
}
TENSORS_KERNEL(update_any, update_args)
template <int KIND>
__device__ inline void adam(const update_args &a) {
  update<float>(a, UPDATE_adam, KIND, 2);
}
TFU_KERNEL_AS_(adam_own_f32, __grid_constant__ update_args, adam<GRADIENTS_OWN>)
TFU_KERNEL_AS_(adam_f16_f32, __grid_constant__ update_args, adam<GRADIENTS_F16>)
TFU_KERNEL_AS_(adam_bf16_f32, __grid_constant__ update_args, adam<GRADIENTS_BF16>)
TFU_KERNEL_AS_(adam_squares_f32, __grid_constant__ update_args, adam<GRADIENTS_SQUARES>)

/* Lamb's first pass: new slots, and the sums that the ratio is made of. */
template <typename T>
__device__ inline void lamb_slots(const update_args &a) {
  typedef acc<T> R;
  const tensors_chunk c = chunk_of_block(a.table);
  const numbers<R> n = shared_numbers<R>(a, c.tensor);
  void *const *at = a.table.at[c.tensor];
  const T *squares = squares_of<T>(a, a.gradients, c.tensor);
  double weights = 0, updates = 0;
  ONCE
  for (int64_t i = c.begin + threadIdx.x; i < c.end; i += TFU_THREADS) {
    const R g = prepared(n, load_gradient<T>(a.gradients, at[GRADIENT], i)), square = squares ? (R)squares[i] : g * g,
            w = decayed(n, (R)((const T *)at[WEIGHT])[i]);
    R m = (R)((const T *)at[SLOT])[i], v = (R)((const T *)at[SLOT + 1])[i];
    m += (g - m) * n.rest_1;
    v += (square - v) * n.rest_2;
    const R u = lamb_update(n, m, v);
    ((T *)at[NEW_SLOT])[i] = (T)m;
    ((T *)at[NEW_SLOT + 1])[i] = (T)v;
    weights += (double)(w * w);
    updates += (double)(u * u);
  }
  weights = block_sum(weights);
  updates = block_sum(updates);
  if (threadIdx.x) return;
  double *to = a.chunks + 2 * (a.table.chunks_before + blockIdx.x);
  to[0] = weights;
  to[1] = updates;
}
TENSORS_KERNEL(lamb_slots, update_args)

/* One block per tensor of the table. */
template <typename T>
__device__ inline void lamb_ratio(const update_args &a) {
  typedef acc<T> R;
  const int first = a.table.first[blockIdx.x], n = a.table.first[blockIdx.x + 1] - first;
  const double *chunks = a.chunks + 2 * (a.table.chunks_before + first);
  const R w = sqrt((R)block_fold(chunks, n, 2)), u = sqrt((R)block_fold(chunks + 1, n, 2));
  if (threadIdx.x == 0) a.ratios[a.table.base + blockIdx.x] = w > 0 && u > 0 ? w / u : (R)1;
}
TENSORS_KERNEL_REAL(lamb_ratio, update_args)
