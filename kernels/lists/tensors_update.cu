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

/* Called, not inlined: two powers are more code than the rest of a kernel. */
template <typename R>
__device__ __noinline__ numbers<R> read_numbers(const update_args &a, int tensor) {
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
  n.bias_1 = one - pow(n.beta_1, t);
  n.bias_2 = one - pow(n.beta_2, t);
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

/* Each rule changes a weight and its slots, given the gradient. */
struct sgd {
  enum { SLOTS = 0 };
  template <typename R>
  static __device__ void of(const numbers<R> &n, R g, R &w, R *) {
    w -= g * n.rate;
  }
};
struct momentum {
  enum { SLOTS = 1 };
  template <typename R>
  static __device__ void of(const numbers<R> &n, R g, R &w, R *s) {
    s[0] = s[0] * n.beta_1 - g * n.rate;
    w += s[0];
  }
};
struct nesterov {
  enum { SLOTS = 1 };
  template <typename R>
  static __device__ void of(const numbers<R> &n, R g, R &w, R *s) {
    s[0] = s[0] * n.beta_1 - g * n.rate;
    w += s[0] * n.beta_1 - g * n.rate;
  }
};
struct adam {
  enum { SLOTS = 2 };
  template <typename R>
  static __device__ void of(const numbers<R> &n, R g, R &w, R *s) {
    s[0] += (g - s[0]) * n.rest_1;
    s[1] += (g * g - s[1]) * n.rest_2;
    w -= s[0] * n.alpha / (sqrt(s[1]) + n.epsilon);
  }
};
struct amsgrad {
  enum { SLOTS = 3 };
  template <typename R>
  static __device__ void of(const numbers<R> &n, R g, R &w, R *s) {
    s[0] += (g - s[0]) * n.rest_1;
    s[1] += (g * g - s[1]) * n.rest_2;
    s[2] = s[2] > s[1] || s[2] != s[2] ? s[2] : s[1];
    w -= s[0] * n.alpha / (sqrt(s[2]) + n.epsilon);
  }
};
struct lion {
  enum { SLOTS = 1 };
  template <typename R>
  static __device__ void of(const numbers<R> &n, R g, R &w, R *s) {
    const R way = weighed(s[0], n.beta_1, g, n.rest_1);
    w -= n.rate * (way > 0 ? (R)1 : way < 0 ? (R)-1 : way);
    s[0] = weighed(s[0], n.beta_2, g, n.rest_2);
  }
};

template <typename R>
__device__ inline R lamb_update(const numbers<R> &n, R m, R v) {
  return m / n.bias_1 / (sqrt(v / n.bias_2) + n.epsilon);
}
/* Lamb's second pass: the slots are new already, the ratio is known. */
struct lamb {
  enum { SLOTS = 2 };
  template <typename R>
  static __device__ void of(const numbers<R> &n, R, R &w, R *s) {
    w -= n.ratio * n.rate * lamb_update(n, s[0], s[1]);
  }
};

template <typename R>
__device__ inline const numbers<R> &shared_numbers(const update_args &a, int tensor) {
  __shared__ numbers<R> n;
  if (threadIdx.x == 0) n = read_numbers<R>(a, tensor);
  __syncthreads();
  return n;
}

/* Elements up to here are taken four at a time, the rest one by one. */
__device__ inline int64_t whole_end(void *const *at, const tensors_chunk &c) {
  uintptr_t bits = 0;
  UNROLL
  for (int r = 0; r < TENSORS_ROLES; r++) bits |= (uintptr_t)at[r]; /* what is not used is NULL */
  return bits % 16 ? c.begin : c.end - (c.end - c.begin) % 4;
}

template <typename F, typename T, typename G>
__device__ inline void update(const update_args &a) {
  typedef acc<T> R;
  const tensors_chunk c = chunk_of_block(a.table);
  const numbers<R> n = shared_numbers<R>(a, c.tensor);
  void *const *at = a.table.at[c.tensor];
  const G *gradient = (const G *)at[GRADIENT];
  const T *weight = (const T *)at[WEIGHT];
  const int64_t whole = whole_end(at, c);
  acc<G> g[4];
  R w[4], s[4][4];
  _Pragma("unroll 1") /* its loads alone keep the memory busy */
      for (int64_t i = c.begin + threadIdx.x * 4; i < whole; i += TFU_THREADS * 4) {
    load4(gradient + i, g);
    load4(weight + i, w);
    UNROLL
    for (int k = 0; k < F::SLOTS; k++) load4((const T *)at[SLOT + k] + i, s[k]);
    UNROLL
    for (int j = 0; j < 4; j++) {
      R own[4];
      UNROLL
      for (int k = 0; k < F::SLOTS; k++) own[k] = s[k][j];
      w[j] = decayed(n, w[j]);
      F::of(n, prepared(n, (R)g[j]), w[j], own);
      UNROLL
      for (int k = 0; k < F::SLOTS; k++) s[k][j] = own[k];
    }
    store4((T *)at[NEW_WEIGHT] + i, w);
    UNROLL
    for (int k = 0; k < F::SLOTS; k++) store4((T *)at[NEW_SLOT + k] + i, s[k]);
  }
  _Pragma("unroll 1") for (int64_t i = whole + threadIdx.x; i < c.end; i += TFU_THREADS) {
    R one = decayed(n, (R)weight[i]), own[4];
    UNROLL
    for (int k = 0; k < F::SLOTS; k++) own[k] = (R)((const T *)at[SLOT + k])[i];
    F::of(n, prepared(n, (R)gradient[i]), one, own);
    ((T *)at[NEW_WEIGHT])[i] = (T)one;
    UNROLL
    for (int k = 0; k < F::SLOTS; k++) ((T *)at[NEW_SLOT + k])[i] = (T)own[k];
  }
}

/* Lamb's first pass: new slots, and the sums that the ratio is made of. */
template <typename T, typename G>
__device__ inline void lamb_slots(const update_args &a) {
  typedef acc<T> R;
  const tensors_chunk c = chunk_of_block(a.table);
  const numbers<R> n = shared_numbers<R>(a, c.tensor);
  void *const *at = a.table.at[c.tensor];
  double weights = 0, updates = 0;
  _Pragma("unroll 1") for (int64_t i = c.begin + threadIdx.x; i < c.end; i += TFU_THREADS) {
    const R g = prepared(n, (R)((const G *)at[GRADIENT])[i]), w = decayed(n, (R)((const T *)at[WEIGHT])[i]);
    R m = (R)((const T *)at[SLOT])[i], v = (R)((const T *)at[SLOT + 1])[i];
    m += (g - m) * n.rest_1;
    v += (g * g - v) * n.rest_2;
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

/* One block per tensor of the table. */
template <typename T>
__device__ inline void lamb_ratio(const update_args &a) {
  typedef acc<T> R;
  const int first = a.table.first[blockIdx.x], n = a.table.first[blockIdx.x + 1] - first;
  const double *chunks = a.chunks + 2 * (a.table.chunks_before + first);
  const R w = sqrt((R)block_fold(chunks, n, 2)), u = sqrt((R)block_fold(chunks + 1, n, 2));
  if (threadIdx.x == 0) a.ratios[a.table.base + blockIdx.x] = w > 0 && u > 0 ? w / u : (R)1;
}
TENSORS_KERNEL(lamb_ratio, update_args)

/* Gradients are of the weights' type, or 16 bits wide beside float32. */
#define STAMP(name, ...)                                                       \
  TENSORS_KERNEL_AS(name##_own_f32, update_args, __VA_ARGS__ float, float >)   \
  TENSORS_KERNEL_AS(name##_own_f16, update_args, __VA_ARGS__ f16, f16 >)       \
  TENSORS_KERNEL_AS(name##_own_bf16, update_args, __VA_ARGS__ bf16, bf16 >)    \
  TENSORS_KERNEL_AS(name##_own_f64, update_args, __VA_ARGS__ double, double >) \
  TENSORS_KERNEL_AS(name##_f16_f32, update_args, __VA_ARGS__ float, f16 >)     \
  TENSORS_KERNEL_AS(name##_bf16_f32, update_args, __VA_ARGS__ float, bf16 >)
STAMP(sgd, update < sgd, )
STAMP(momentum, update < momentum, )
STAMP(nesterov, update < nesterov, )
STAMP(adam, update < adam, )
STAMP(amsgrad, update < amsgrad, )
STAMP(lion, update < lion, )
STAMP(lamb, update < lamb, )
STAMP(lamb_slots, lamb_slots <)
