/* Pooling of images at stride 2 over windows of 2 x 2 or 3 x 3, as most networks have it: all taps are unrolled, and
 * their positions are constants. A thread has a unit, 8 channels: forward of one position of the result, whose window
 * it goes through; in gradients of a quad of dx, two rows by two columns, which the same windows see. Sums are in the
 * order that pool.cu has, so both give the same bits.
 *
 * With p = i + before, a row i of x is tap 0 of window p / 2 where p is even, and of a window of 3 also tap 2 of the
 * window before; it is tap 1 of window p / 2 where p is odd. So the quad q, rows 2 q - before and the next, is seen by
 * window q, and, of windows of 3, by q - 1 in its tap 2. Along the columns it is the same. */
#include "kernels/convolution/pool.cuh"

/* A unit of `to`: images are counted in 64 bits, what is inside of one in 32. */
struct by_two_unit {
  int word, channel, h, w;
  int64_t image;
  __device__ by_two_unit(const pool_args &a, uint32_t unit) {
    uint32_t rest = divide(unit, a.by[0]);
    word = (int)(unit - rest * a.by[0].by), channel = word * UNIT;
    const uint32_t rows = divide(rest, a.by[1]);
    w = (int)(rest - rows * a.by[1].by);
    const uint32_t images = divide(rows, a.by[2]);
    h = (int)(rows - images * a.by[2].by), image = images;
  }
};

template <typename F>
__device__ inline void for_units_by_two(const pool_args &a, F run) {
  for (int64_t unit = (int64_t)blockIdx.x * TFU_THREADS + threadIdx.x; unit < a.units;
       unit += (int64_t)gridDim.x * TFU_THREADS)
    run(by_two_unit(a, (uint32_t)unit), unit);
}

/* A unit as it lies in memory: one or two packs. */
template <typename T>
struct unit_bits {
  enum { PACKS = UNIT * sizeof(T) / 16 };
  int4 pack[PACKS];
  /* Without a branch, so that many can be on their way: what is not there is `other` in all its words. */
  __device__ void load(const T *from, bool there, int other) {
    UNROLLED(i, PACKS) {
      pack[i] = make_int4(other, other, other, other);
      if (there) pack[i] = ((const int4 *)from)[i];
    }
  }
  __device__ void widen(acc<T> (&v)[UNIT]) const {
    UNROLLED(i, PACKS) {
      acc<T> part[packed<T>::N];
      widen_pack<T>(pack[i], part);
      UNROLLED(k, packed<T>::N) v[i * packed<T>::N + k] = part[k];
    }
  }
};

/* What a window sees of x: all of it is asked for before the first is used. Outside of x it is `other`. */
template <typename T, int SIZE>
struct window_bits {
  unit_bits<T> tap[SIZE * SIZE];
  __device__ window_bits(const pool_args &a, const by_two_unit &u, const T *image, int other) {
    const pool_axis &high = a.axis[1], &wide = a.axis[2];
    const int h = 2 * u.h - high.before, w = 2 * u.w - wide.before;
    UNROLLED(i, SIZE * SIZE) {
      const int row = h + i / SIZE, col = w + i % SIZE;
      const bool inside = (unsigned)row < (unsigned)high.in && (unsigned)col < (unsigned)wide.in;
      tap[i].load(image + (row * wide.in + col) * a.channels + u.channel, inside, other);
    }
  }
};

/* The image of x, or of dx, that a unit is in. */
__device__ inline int64_t input_image(const pool_args &a, const by_two_unit &u) {
  return u.image * ((int64_t)a.axis[1].in * a.axis[2].in * a.channels);
}

/* ---- forward ---- */

/* -infinity, once or twice. */
template <typename T>
struct least;
template <>
struct least<float> {
  enum : unsigned { BITS = 0xff800000u };
};
template <>
struct least<f16> {
  enum : unsigned { BITS = 0xfc00fc00u };
};
template <>
struct least<bf16> {
  enum : unsigned { BITS = 0xff80ff80u };
};

/* The greatest of each channel so far, and the number of its tap. The first of equals stays, and so does the first NaN.
 */
template <typename T>
struct greatest {
  float best[UNIT];
  unsigned where[UNIT];
  __device__ greatest(unsigned first) {
    UNROLLED(k, UNIT) best[k] = __uint_as_float(least<T>::BITS), where[k] = first;
  }
  __device__ void take(const unit_bits<T> &bits, unsigned here) {
    float v[UNIT];
    bits.widen(v);
    UNROLLED(k, UNIT) {
      const bool greater = !(v[k] <= best[k]) && best[k] == best[k];
      best[k] = greater ? v[k] : best[k], where[k] = greater ? here : where[k];
    }
  }
  __device__ void store(T *to) const { store_unit<T>(to, 0, UNIT, 1, best); }
  __device__ uint64_t positions() const {
    uint64_t word = 0;
    UNROLLED(k, UNIT) word |= (uint64_t)where[k] << 8 * k;
    return word;
  }
};

/* Of 16 bits: two channels of a register are compared at once, and nothing is widened. */
template <typename T, typename PAIR>
struct greatest_pairs {
  unsigned best[4], where[4];
  __device__ greatest_pairs(unsigned first) {
    UNROLLED(i, 4) best[i] = least<T>::BITS, where[i] = first * 0x10001u;
  }
  __device__ static PAIR pair(unsigned bits) { return *(const PAIR *)&bits; }
  __device__ void take_one(unsigned v, int i, unsigned here) {
    const unsigned greater = __hgtu2_mask(pair(v), pair(best[i])) & __heq2_mask(pair(best[i]), pair(best[i]));
    best[i] = (v & greater) | (best[i] & ~greater);
    where[i] = (here * 0x10001u & greater) | (where[i] & ~greater);
  }
  __device__ void take(const unit_bits<T> &bits, unsigned here) {
    const int4 v = bits.pack[0];
    take_one(v.x, 0, here), take_one(v.y, 1, here), take_one(v.z, 2, here), take_one(v.w, 3, here);
  }
  __device__ void store(T *to) const { store_bits(to, make_int4(best[0], best[1], best[2], best[3])); }
  __device__ uint64_t positions() const { /* the low byte of each half */
    const unsigned low = __byte_perm(where[0], where[1], 0x6420), high = __byte_perm(where[2], where[3], 0x6420);
    return (uint64_t)high << 32 | low;
  }
};
template <>
struct greatest<f16> : greatest_pairs<f16, __half2> {
  using greatest_pairs::greatest_pairs;
};
template <>
struct greatest<bf16> : greatest_pairs<bf16, __nv_bfloat162> {
  using greatest_pairs::greatest_pairs;
};

template <typename T, int SIZE>
__device__ inline void max_by_two(const pool_args &a) {
  for_units_by_two(a, [&](const by_two_unit &u, int64_t unit) {
    const window_bits<T, SIZE> seen(a, u, (const T *)a.from + input_image(a, u), a.zeros ? 0 : (int)least<T>::BITS);
    const int above = a.zeros ? 0 : max(a.axis[1].before - 2 * u.h, 0);
    const int left = a.zeros ? 0 : max(a.axis[2].before - 2 * u.w, 0);
    greatest<T> top((unsigned)(above * SIZE + left));
    UNROLLED(i, SIZE * SIZE) top.take(seen.tap[i], (unsigned)i);
    top.store((T *)a.to + unit * UNIT);
    if (a.positions) a.positions[unit] = (int64_t)top.positions();
  });
}

/* Places along an axis that window o averages over. */
template <int SIZE>
__device__ inline int averaged(const pool_args &a, const pool_axis &axis, int o) {
  const int from = 2 * o - axis.before;
  return a.zeros ? SIZE : min(from + SIZE, axis.in) - max(from, 0);
}

template <typename T, int SIZE>
__device__ inline void average_by_two(const pool_args &a) {
  for_units_by_two(a, [&](const by_two_unit &u, int64_t unit) {
    const window_bits<T, SIZE> seen(a, u, (const T *)a.from + input_image(a, u), 0);
    acc<T> sum[UNIT];
    UNROLLED(k, UNIT) sum[k] = 0;
    UNROLLED(i, SIZE * SIZE) {
      acc<T> v[UNIT];
      seen.tap[i].widen(v);
      UNROLLED(k, UNIT) sum[k] += v[k];
    }
    divide_unit<T>(averaged<SIZE>(a, a.axis[1], u.h) * averaged<SIZE>(a, a.axis[2], u.w), sum);
    store_unit<T>(a.to, unit * UNIT, UNIT, 1, sum);
  });
}

/* ---- backward ---- */

/* Quads of dx. load(u, there, oh, ow, window) fills in what is wanted of a window, for all that see the quad before the
 * first is used; add(window, tap, sum) is called for all pairs of a window and a position of the quad that it sees. */
template <typename T, int SIZE, typename WINDOW, typename Load, typename Add>
__device__ inline void store_quads(const pool_args &a, Load load, Add add) {
  enum { BACK = (SIZE - 1) / 2, WINDOWS = BACK + 1 }; /* along an axis */
  for_units_by_two(a, [&](const by_two_unit &u, int64_t) {
    const pool_axis &high = a.axis[1], &wide = a.axis[2];
    const int h = u.h + high.before / 2, w = u.w + wide.before / 2; /* the last windows that see the quad */
    WINDOW window[WINDOWS * WINDOWS];                               /* the first of them first */
    UNROLLED(i, WINDOWS * WINDOWS) {
      const int oh = h - BACK + i / WINDOWS, ow = w - BACK + i % WINDOWS;
      load(u, (unsigned)oh < (unsigned)high.out && (unsigned)ow < (unsigned)wide.out, oh, ow, window[i]);
    }
    T *const image = (T *)a.to + input_image(a, u);
    UNROLLED(position, 4) {
      const int row = position / 2, col = position % 2, i = 2 * h + row - high.before, j = 2 * w + col - wide.before;
      acc<T> sum[UNIT];
      UNROLLED(k, UNIT) sum[k] = 0;
      UNROLLED(n, WINDOWS * WINDOWS) {
        const int kh = row + 2 * (BACK - n / WINDOWS), kw = col + 2 * (BACK - n % WINDOWS);
        if (kh < SIZE && kw < SIZE) add(window[n], kh * SIZE + kw, sum);
      }
      if ((unsigned)i < (unsigned)high.in && (unsigned)j < (unsigned)wide.in)
        store_unit<T>(image, (i * wide.in + j) * a.channels + u.channel, UNIT, 1, sum);
    }
  });
}

__device__ inline int64_t window_unit(const pool_args &a, const by_two_unit &u, int oh, int ow) {
  return ((u.image * a.axis[1].out + oh) * a.axis[2].out + ow) * a.words + u.word;
}

/* dy of a window, and the taps of its greatest. */
template <typename T>
struct max_window {
  unit_bits<T> dy;
  uint64_t positions;
};

template <typename T, int SIZE>
__device__ inline void max_grad_by_two(const pool_args &a) {
  const auto load = [&](const by_two_unit &u, bool there, int oh, int ow, max_window<T> &w) {
    const int64_t unit = window_unit(a, u, oh, ow);
    w.dy.load((const T *)a.from + unit * UNIT, there, 0);
    w.positions = ~(uint64_t)0; /* which is no tap */
    if (there) w.positions = (uint64_t)a.positions[unit];
  };
  const auto add = [](const max_window<T> &w, int tap, acc<T>(&sum)[UNIT]) {
    acc<T> v[UNIT];
    w.dy.widen(v);
    UNROLLED(k, UNIT) sum[k] += (int)(w.positions >> 8 * k & 255) == tap ? v[k] : (acc<T>)0;
  };
  store_quads<T, SIZE, max_window<T>>(a, load, add);
}

/* dy of a window, and what of it each position gets. */
template <typename T>
struct average_window {
  unit_bits<T> dy;
  acc<T> share;
};

template <typename T, int SIZE>
__device__ inline void average_grad_by_two(const pool_args &a) {
  const auto load = [&](const by_two_unit &u, bool there, int oh, int ow, average_window<T> &w) {
    const int count = averaged<SIZE>(a, a.axis[1], oh) * averaged<SIZE>(a, a.axis[2], ow);
    w.dy.load((const T *)a.from + window_unit(a, u, oh, ow) * UNIT, there, 0);
    w.share = there ? 1 / (acc<T>)count : 0;
  };
  const auto add = [](const average_window<T> &w, int, acc<T>(&sum)[UNIT]) {
    acc<T> v[UNIT];
    w.dy.widen(v);
    UNROLLED(k, UNIT) sum[k] += v[k] * w.share;
  };
  store_quads<T, SIZE, average_window<T>>(a, load, add);
}

#define BY_TWO(name, tag, T)                            \
  TFU_KERNEL_AS_(name##_2_##tag, pool_args, name<T, 2>) \
  TFU_KERNEL_AS_(name##_3_##tag, pool_args, name<T, 3>)
TFU_SINGLES(BY_TWO, max_by_two)
TFU_SINGLES(BY_TWO, average_by_two)
TFU_SINGLES(BY_TWO, max_grad_by_two)
TFU_HALVES(BY_TWO, average_grad_by_two)
