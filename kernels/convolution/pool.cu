/* Pooling: a thread has a unit, 8 channels at one position of the result, and goes through the positions that its
 * window sees. In gradients a unit of dx goes through the windows that see its position: every element is made by one
 * thread, in a fixed order. Neighbouring windows find in the cache what they share. Windows that most networks have are
 * served by pool_by_two.cu. */
#include "kernels/convolution/pool.cuh"

/* Where a unit is: its batch, its position along the three axes and in all, its first channel, and how many channels
 * there are of it. */
struct unit_place {
  int64_t batch, position;
  int at[3], word, channel, left;
  __device__ unit_place(const pool_args &a, int64_t unit, bool back) {
    if (a.by[0].by) {
      uint32_t rest = divide((uint32_t)unit, a.by[0]);
      word = (int)((uint32_t)unit - rest * a.by[0].by), position = rest;
      UNROLL
      for (int i = 2; i >= 0; i--) {
        const uint32_t outer = divide(rest, a.by[3 - i]);
        at[i] = (int)(rest - outer * a.by[3 - i].by), rest = outer;
      }
      batch = rest;
    } else {
      int64_t rest = unit / a.words;
      word = (int)(unit - rest * a.words), position = rest;
      UNROLL
      for (int i = 2; i >= 0; i--) {
        const int size = back ? a.axis[i].in : a.axis[i].out;
        const int64_t outer = rest / size;
        at[i] = (int)(rest - outer * size), rest = outer;
      }
      batch = rest;
    }
    channel = word * UNIT;
    left = min(a.channels - channel, (int)UNIT);
  }
};

/* Along an axis, what is gone through: the input's positions that window o sees, from `first` up to `end`, with those
 * outside where zeros count; or the windows that see position i. */
struct span {
  int first, end;
  __device__ static span seen(const pool_args &args, int axis, int o) {
    const pool_axis &a = args.axis[axis];
    const int from = o * a.stride - a.before;
    return {args.zeros ? from : max(from, 0), args.zeros ? from + a.size : min(from + a.size, a.in)};
  }
  __device__ static span seeing(const pool_axis &a, int i) {
    const int after = i + a.before - a.size + 1;
    return {after > 0 ? (after + a.stride - 1) / a.stride : 0, min((i + a.before) / a.stride + 1, a.out)};
  }
  __device__ int count() const { return end - first; }
};

/* Goes through all positions of three spans: each(d, h, w). Three at once, since what takes time is to wait for memory.
 */
template <typename F>
__device__ inline void through(const span (&s)[3], F each) {
  for (int d = s[0].first; d < s[0].end; d++)
    for (int h = s[1].first; h < s[1].end; h++)
      _Pragma("unroll 3") for (int w = s[2].first; w < s[2].end; w++) each(d, h, w);
}

/* run(unit_place, spans) for each unit of this thread. */
template <typename F>
__device__ inline void for_units(const pool_args &a, bool back, F run) {
  for (int64_t unit = (int64_t)blockIdx.x * TFU_THREADS + threadIdx.x; unit < a.units;
       unit += (int64_t)gridDim.x * TFU_THREADS) {
    const unit_place at(a, unit, back);
    span spans[3];
    UNROLLED(i, 3) spans[i] = back ? span::seeing(a.axis[i], at.at[i]) : span::seen(a, i, at.at[i]);
    run(unit, at, spans);
  }
}

__device__ inline int64_t input_position(const pool_args &a, int64_t batch, int d, int h, int w) {
  return ((batch * a.axis[0].in + d) * a.axis[1].in + h) * a.axis[2].in + w;
}
__device__ inline int64_t output_position(const pool_args &a, int64_t batch, int d, int h, int w) {
  return ((batch * a.axis[0].out + d) * a.axis[1].out + h) * a.axis[2].out + w;
}
/* The number of an input's position in the window at (od, oh, ow). */
__device__ inline int tap(const pool_args &a, int d, int h, int w, int od, int oh, int ow) {
  const int kd = d + a.axis[0].before - od * a.axis[0].stride, kh = h + a.axis[1].before - oh * a.axis[1].stride;
  return (kd * a.axis[1].size + kh) * a.axis[2].size + w + a.axis[2].before - ow * a.axis[2].stride;
}

/* A unit of x, which is 0 outside. */
template <typename T>
__device__ inline void load_x(const pool_args &a, const unit_place &at, int d, int h, int w, acc<T> (&v)[UNIT]) {
  const bool inside = (unsigned)d < (unsigned)a.axis[0].in && (unsigned)h < (unsigned)a.axis[1].in &&
                      (unsigned)w < (unsigned)a.axis[2].in;
  const int64_t position = input_position(a, at.batch, d, h, w) * a.channels + at.channel;
  load_unit<T>(a.from, position, inside ? at.left : 0, a.aligned && inside, v);
}

/* The greatest alone, where nobody wants to know its position: an instruction for each value. */
template <typename T>
__device__ inline void max_pool_bare(const pool_args &a) {
  for_units(a, false, [&](int64_t, const unit_place &at, const span(&seen)[3]) {
    acc<T> best[UNIT];
    UNROLLED(k, UNIT) best[k] = -(acc<T>)__int_as_float(0x7f800000);
    through(seen, [&](int d, int h, int w) {
      acc<T> v[UNIT];
      load_x<T>(a, at, d, h, w, v);
      UNROLLED(k, UNIT) best[k] = top_of(v[k], best[k]);
    });
    store_unit<T>(a.to, at.position * a.channels + at.channel, at.left, a.aligned, best);
  });
}

template <typename T>
__device__ inline void max_pool(const pool_args &a) {
  for_units(a, false, [&](int64_t unit, const unit_place &at, const span(&seen)[3]) {
    const int first = tap(a, seen[0].first, seen[1].first, seen[2].first, at.at[0], at.at[1], at.at[2]);
    acc<T> best[UNIT];
    unsigned where[UNIT];
    UNROLLED(k, UNIT) best[k] = -(acc<T>)__int_as_float(0x7f800000), where[k] = first;
    through(seen, [&](int d, int h, int w) {
      acc<T> v[UNIT];
      load_x<T>(a, at, d, h, w, v);
      const unsigned here = tap(a, d, h, w, at.at[0], at.at[1], at.at[2]);
      UNROLLED(k, UNIT) {
        const bool greater = !(v[k] <= best[k]) && best[k] == best[k]; /* the first NaN stays */
        best[k] = greater ? v[k] : best[k], where[k] = greater ? here : where[k];
      }
    });
    store_unit<T>(a.to, at.position * a.channels + at.channel, at.left, a.aligned, best);
    uint64_t word = 0;
    UNROLLED(k, UNIT) word |= (uint64_t)(k < at.left ? where[k] : 0) << 8 * k;
    a.positions[unit] = (int64_t)word;
  });
}

/* Units of sums: add(at, d, h, w, sum) for all that is gone through; then they are divided by many(spans). */
template <typename T, typename Add, typename Many>
__device__ inline void store_sums(const pool_args &a, bool back, Add add, Many many) {
  for_units(a, back, [&](int64_t unit, const unit_place &at, const span(&spans)[3]) {
    acc<T> sum[UNIT];
    UNROLLED(k, UNIT) sum[k] = 0;
    through(spans, [&](int d, int h, int w) { add(at, d, h, w, sum); });
    divide_unit<T>(many(spans), sum);
    store_unit<T>(a.to, at.position * a.channels + at.channel, at.left, a.aligned, sum);
  });
}

template <typename T>
__device__ inline void max_pool_grad(const pool_args &a) {
  const auto add = [&](const unit_place &at, int d, int h, int w, acc<T>(&sum)[UNIT]) {
    acc<T> v[UNIT];
    const int64_t position = output_position(a, at.batch, d, h, w);
    const uint64_t word = (uint64_t)a.positions[position * a.words + at.word];
    const unsigned here = tap(a, at.at[0], at.at[1], at.at[2], d, h, w);
    load_unit<T>(a.from, position * a.channels + at.channel, at.left, a.aligned, v);
    UNROLLED(k, UNIT) sum[k] += (unsigned)(word >> 8 * k & 255) == here ? v[k] : (acc<T>)0;
  };
  store_sums<T>(a, true, add, [](const span(&)[3]) { return 1; });
}

template <typename T>
__device__ inline void average_pool(const pool_args &a) {
  const auto add = [&](const unit_place &at, int d, int h, int w, acc<T>(&sum)[UNIT]) {
    acc<T> v[UNIT];
    load_x<T>(a, at, d, h, w, v);
    UNROLLED(k, UNIT) sum[k] += v[k];
  };
  store_sums<T>(a, false, add, [](const span(&s)[3]) { return (int64_t)s[0].count() * s[1].count() * s[2].count(); });
}

template <typename T>
__device__ inline void average_pool_grad(const pool_args &a) {
  const auto add = [&](const unit_place &at, int d, int h, int w, acc<T>(&sum)[UNIT]) {
    acc<T> v[UNIT];
    load_unit<T>(a.from, output_position(a, at.batch, d, h, w) * a.channels + at.channel, at.left, a.aligned, v);
    const acc<T> share =
        1 / ((acc<T>)span::seen(a, 0, d).count() * span::seen(a, 1, h).count() * span::seen(a, 2, w).count());
    UNROLLED(k, UNIT) sum[k] += v[k] * share;
  };
  store_sums<T>(a, true, add, [](const span(&)[3]) { return 1; });
}

TFU_KERNEL(max_pool, pool_args)
TFU_KERNEL(max_pool_bare, pool_args)
TFU_KERNEL(max_pool_grad, pool_args)
TFU_KERNEL(average_pool, pool_args)
TFU_KERNEL(average_pool_grad, pool_args)
