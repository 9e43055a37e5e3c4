/* Attention (ops/attention/attention.c) of every kind: any dtype, any head_dim, any GPU. A warp has one query at a
 * time, or in the gradient one key. Its lanes first take one pair each, whose score a lane computes alone; then, for
 * these 32 scores, all of them add up the rows that are weighted, each lane some columns of the result. Registers have
 * room for 128 columns of it: of longer rows, the scores are computed again for every 128. */
#include "kernels/attention/attention_tile.cuh"
#include "kernels/core/device/online_softmax.cuh"

__device__ inline float exp_of(float x) { return expf(x); }
__device__ inline double exp_of(double x) { return exp(x); }
__device__ inline float tanh_of(float x) { return tanhf(x); }
__device__ inline double tanh_of(double x) { return tanh(x); }

template <typename R, typename F>
__device__ inline R over_lanes(R v, F join) {
  UNROLL
  for (int offset = 16; offset; offset /= 2) v = join(v, __shfl_xor_sync(0xffffffffu, v, offset));
  return v;
}
template <typename R>
__device__ inline R lanes_sum(R v) {
  return over_lanes(v, [](R a, R b) { return a + b; });
}

/* In chains of 16: one of all terms cost float32 more digits than TensorFlow's products do. */
template <typename T>
__device__ inline acc<T> dot(const T *x, const T *y, int n) {
  acc<T> sum = 0;
  for (int first = 0; first < n; first += 16) {
    acc<T> chain = 0;
    for (int c = first; c < n && c < first + 16; c++) chain += (acc<T>)x[c] * (acc<T>)y[c];
    sum += chain;
  }
  return sum;
}

/* A head of a sequence. */
template <typename T>
struct any_head {
  typedef acc<T> R;
  const attention_args &a;
  const tfu_sequence s;
  const int b, h, key_head;
  const attention_pairs<T> pairs;

  __device__ any_head(const attention_args &a, const tfu_sequence &s, int b, int h)
      : a(a), s(s), b(b), h(h), key_head(h / (a.heads / a.key_heads)), pairs(a, b, h) {}

  __device__ int64_t query_row(int i) const { return (s.first_query + i) * a.heads + h; }
  /* Negative: no such page. */
  __device__ int64_t key_row(int j) const {
    const int64_t row = tfu_key_row(&a, &s, b, j);
    return row < 0 ? -1 : row * a.key_heads + key_head;
  }
  __device__ const T *query(int i) const { return (const T *)a.query + query_row(i) * a.head_dim; }
  __device__ const T *doutput(int i) const { return (const T *)a.doutput + query_row(i) * a.value_dim; }
  __device__ int64_t stats_at(int i) const { return tfu_stats_at(&a, &s, b, h, i); }

  __device__ R product(int i, int j) const {
    const int64_t row = key_row(j);
    return row < 0 ? 0 : (R)a.scale * dot(query(i), (const T *)a.key + row * a.head_dim, a.head_dim);
  }
  /* Within the band. */
  __device__ R score(int i, int j) const {
    if (pairs.masked(i, j)) return -(R)INFINITE;
    R v = product(i, j);
    if (a.soft_cap > 0) v = (R)a.soft_cap * tanh_of(v / (R)a.soft_cap);
    return pairs.bias ? v + pairs.bias_of(i, j) : v;
  }
  /* The derivative of the soft cap there. */
  __device__ R slope(int i, int j) const {
    if (!(a.soft_cap > 0)) return 1;
    const R t = tanh_of(product(i, j) / (R)a.soft_cap);
    return 1 - t * t;
  }
  __device__ R left(int i, int j) const { return !a.seed ? (R)1 : pairs.stays(i, j) ? 1 / (1 - (R)a.rate) : (R)0; }

  /* The weight that a query gives a key, after dropout, and the gradient of its score. */
  __device__ void gradient(const attention_work &w, int i, int j, R *weight, R *ds) const {
    const int64_t at = stats_at(i);
    const R stats = ((const R *)a.stats)[at], keeps = left(i, j);
    const R p = stats == -(R)INFINITE ? 0 : exp_of(score(i, j) - stats);
    const R dp = keeps == 0 ? 0 : keeps * dot(doutput(i), (const T *)a.value + key_row(j) * a.value_dim, a.value_dim);
    *weight = p * keeps;
    *ds = p * (dp - ((const R *)w.rows)[2 * at + 1]);
  }
};

/* The sequence and the step of a row of queries or keys. A row that is in no sequence is behind the end of one. */
template <bool KEYS>
__device__ inline attention_place row_place(const attention_args &a, int64_t n) {
  const int heads = KEYS ? a.key_heads : a.heads, steps = KEYS ? a.keys : a.queries;
  const int64_t row = n / heads;
  const int h = (int)(n - row * heads);
  if (!a.ragged) return {tfu_sequence_of(&a, (int)(row / steps)), (int)(row / steps), h, (int)(row % steps), steps};
  const int64_t *splits = KEYS ? a.key_lengths : a.query_lengths;
  int low = 0, high = a.batch;
  while (high - low > 1) {
    const int mid = (low + high) / 2;
    if (splits[mid] <= row) low = mid;
    else high = mid;
  }
  tfu_sequence s = {};
  if (a.batch) s = tfu_sequence_of(&a, low);
  const int64_t first = KEYS ? s.first_key : s.first_query;
  if (row < first) s = {row, row, 0, 0, 0};
  return {s, low, h, (int)(row < first ? 0 : row - first), steps};
}

/* f(n) for a warp's numbers below `count`. */
template <typename F>
__device__ inline void for_warps(int64_t count, F f) {
  for (int64_t n = (int64_t)blockIdx.x * (TFU_THREADS / 32) + threadIdx.x / 32; n < count;
       n += (int64_t)gridDim.x * (TFU_THREADS / 32))
    f(n);
}
__device__ inline int64_t query_rows(const attention_args &a) {
  return (a.ragged ? 1 : (int64_t)a.batch) * a.queries * a.heads;
}
__device__ inline int64_t key_rows(const attention_args &a) {
  return (a.ragged ? 1 : (int64_t)a.batch) * a.keys * a.key_heads;
}

/* A lane's part of 128 columns of a row that is a sum: columns first + lane + 32 k. */
enum { PART = 128 };
template <typename T>
struct row_part {
  acc<T> v[PART / 32] = {};
  /* Adds each lane's weight times the row that it names; negative: none. */
  __device__ void add(acc<T> weight, int64_t row, const void *rows, int first, int dim) {
    ONCE
    for (int l = 0; l < 32; l++) {
      const acc<T> by = __shfl_sync(0xffffffffu, weight, l);
      const int64_t at = __shfl_sync(0xffffffffu, row, l);
      if (at < 0) continue;
      UNROLLED(k, PART / 32) {
        const int c = first + (int)lane_id() + 32 * k;
        if (c < dim) v[k] += by * (acc<T>)((const T *)rows)[at * dim + c];
      }
    }
  }
  __device__ void store(void *rows, int64_t row, int first, int dim, acc<T> by) const {
    UNROLLED(k, PART / 32) {
      const int c = first + (int)lane_id() + 32 * k;
      if (c < dim) ((T *)rows)[row * dim + c] = (T)(by == 0 ? 0 : v[k] * by);
    }
  }
};

/* Two passes over the keys: for the largest score and the sum of exponentials, which each lane keeps of its own keys
 * and the warp joins at the end; then for the output. */
template <typename T>
__device__ inline void any_forward(const attention_work &w) {
  typedef acc<T> R;
  const attention_args &a = w.a;
  for_warps(query_rows(a), [&](int64_t n) {
    const attention_place at = row_place<false>(a, n);
    const any_head<T> head(a, at.s, at.b, at.h);
    const int i = at.first, lane = lane_id();
    int first, end;
    tfu_band(&a, &at.s, i, &first, &end);
    const auto power = [](R v, R shift) { return exp_of(v - shift); };
    R high = -(R)INFINITE, sum = 0; /* by online softmax */
    for (int j = first + lane; j < end; j += 32) {
      const R v = head.score(i, j), top = v > high ? v : high;
      sum = sum * softmax_down(high, top, power) + power(v, softmax_shift(top));
      high = top;
    }
    const R top = over_lanes(high, [](R a, R b) { return a > b ? a : b; }), shift = softmax_shift(top);
    sum = lanes_sum(sum * softmax_down(high, top, power));
    const bool none = sum == 0;
    if (a.stats && lane == 0) ((R *)a.stats)[head.stats_at(i)] = none ? -(R)INFINITE : shift + log_of(sum);
    for (int c0 = 0; c0 < a.value_dim; c0 += PART) {
      row_part<T> out;
      for (int j0 = first; j0 < end; j0 += 32) {
        const int j = j0 + lane;
        const R weight = j < end ? exp_of(head.score(i, j) - shift) * head.left(i, j) : 0;
        out.add(weight, j < end ? head.key_row(j) : -1, a.value, c0, a.value_dim);
      }
      out.store(a.output, head.query_row(i), c0, a.value_dim, none ? 0 : 1 / sum);
    }
  });
}

/* Two numbers for each query: its stats in base 2, or infinity where it has no keys, so that its weights become zero;
 * and sum(doutput * output) - dstats. */
template <typename T>
__device__ inline void numbers(const attention_work &w) {
  typedef acc<T> R;
  const attention_args &a = w.a;
  for_warps(query_rows(a), [&](int64_t n) {
    const int64_t row = n / a.heads, h = n - row * a.heads;
    const int64_t dense = (row / a.queries * a.heads + h) * a.queries + row % a.queries;
    const int64_t at = a.ragged ? h * a.queries + row : dense;
    const T *output = (const T *)a.output + n * a.value_dim, *doutput = (const T *)a.doutput + n * a.value_dim;
    R sum = 0;
    _Pragma("unroll 4") for (int c = lane_id(); c < a.value_dim; c += 32) sum += (R)output[c] * (R)doutput[c];
    sum = lanes_sum(sum);
    const R stats = ((const R *)a.stats)[at];
    if (lane_id()) return;
    ((R *)w.rows)[2 * at] = stats == -(R)INFINITE ? (R)INFINITE : stats * (R)1.4426950408889634;
    ((R *)w.rows)[2 * at + 1] = sum - (a.dstats ? ((const R *)a.dstats)[at] : 0);
  });
}

template <typename T>
__device__ inline void any_by_query(const attention_work &w) {
  const attention_args &a = w.a;
  for_warps(query_rows(a), [&](int64_t n) {
    const attention_place at = row_place<false>(a, n);
    const any_head<T> head(a, at.s, at.b, at.h);
    const int i = at.first;
    int first, end;
    tfu_band(&a, &at.s, i, &first, &end);
    for (int c0 = 0; c0 < a.head_dim; c0 += PART) {
      row_part<T> dquery;
      for (int j0 = first; j0 < end; j0 += 32) {
        const int j = j0 + (int)lane_id();
        acc<T> weight = 0, ds = 0;
        if (j < end) {
          head.gradient(w, i, j, &weight, &ds);
          ds *= head.slope(i, j);
        }
        dquery.add(ds, j < end ? head.key_row(j) : -1, a.key, c0, a.head_dim);
      }
      dquery.store(a.dquery, head.query_row(i), c0, a.head_dim, first < end ? (acc<T>)a.scale : 0);
    }
  });
}

template <typename T>
__device__ inline void any_by_key(const attention_work &w) {
  const attention_args &a = w.a;
  const int group = a.heads / a.key_heads, dims = a.head_dim > a.value_dim ? a.head_dim : a.value_dim;
  for_warps(key_rows(a), [&](int64_t n) {
    const attention_place at = row_place<true>(a, n);
    const tfu_sequence &s = at.s;
    const int j = at.first;
    /* The queries whose band has this key. */
    const int64_t low = a.right < 0 ? 0 : (int64_t)j - s.shift - a.right;
    const int64_t high = a.left < 0 ? s.queries : (int64_t)j - s.shift + a.left + 1;
    const int begin = low < 0 ? 0 : (int)low;
    const int end = j >= s.keys ? 0 : high < s.queries ? (int)high : s.queries;
    for (int c0 = 0; c0 < dims; c0 += PART) {
      row_part<T> dkey, dvalue;
      for (int h = at.h * group; h < (at.h + 1) * group; h++) {
        const any_head<T> head(a, s, at.b, h);
        for (int i0 = begin; i0 < end; i0 += 32) {
          const int i = i0 + (int)lane_id();
          acc<T> weight = 0, ds = 0;
          if (i < end) {
            head.gradient(w, i, j, &weight, &ds);
            ds *= head.slope(i, j);
          }
          const int64_t row = i < end ? head.query_row(i) : -1;
          dkey.add(ds, row, a.query, c0, a.head_dim);
          dvalue.add(weight, row, a.doutput, c0, a.value_dim);
        }
      }
      dkey.store(a.dkey, n, c0, a.head_dim, begin < end ? (acc<T>)a.scale : 0);
      dvalue.store(a.dvalue, n, c0, a.value_dim, begin < end ? 1 : 0);
    }
  });
}

/* The gradient of one element of bias: the sum of ds over all pairs that it was stretched over. A warp's n counts along
 * the axes that bias has, and its lanes' m along the others. */
template <typename T>
__device__ inline void any_by_bias(const attention_work &w) {
  const attention_args &a = w.a;
  const int64_t size[4] = {a.batch, a.heads, a.queries, a.keys};
  int64_t elements = 1, pairs = 1;
  UNROLLED(d, 4) (a.bias_step[d] ? elements : pairs) *= size[d];
  for_warps(elements, [&](int64_t n) {
    int at[4];
    int64_t to = 0;
    const auto place = [&](int64_t rest, bool stretched) {
      UNROLL
      for (int d = 3; d >= 0; d--) {
        if ((a.bias_step[d] == 0) != stretched) continue;
        at[d] = (int)(rest % size[d]);
        rest /= size[d];
      }
    };
    place(n, false);
    UNROLLED(d, 4) to += a.bias_step[d] ? at[d] * a.bias_step[d] : 0;
    acc<T> sum = 0;
    for (int64_t m = lane_id(); m < pairs; m += 32) {
      place(m, true);
      const any_head<T> head(a, tfu_sequence_of(&a, at[0]), at[0], at[1]);
      int first, end;
      tfu_band(&a, &head.s, at[2], &first, &end);
      acc<T> weight, ds = 0;
      if (at[3] >= first && at[3] < end) head.gradient(w, at[2], at[3], &weight, &ds);
      sum += ds;
    }
    sum = lanes_sum(sum);
    if (lane_id() == 0) ((T *)a.dbias)[to] = (T)sum;
  });
}

#define STAMP(function, tag, T) TFU_TILE_KERNEL(function##_##tag, TFU_THREADS, 1, function<T>)
TFU_TYPES(STAMP, any_forward)
TFU_TYPES(STAMP, numbers)
TFU_TYPES(STAMP, any_by_query)
TFU_TYPES(STAMP, any_by_key)
TFU_TYPES(STAMP, any_by_bias)
