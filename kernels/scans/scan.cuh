/* scan.cuh - what scans are made of on the GPU: states that join, and how tiles of one row tell each other theirs.
 *
 * A state says all that matters of a stretch of values: its sum, its maximum and the like. join(a, b) is the state of a
 * stretch a with b behind it. States are always joined in the same order, so that results repeat bit for bit. */
#pragma once

#include "kernels/core/device/shared.cuh"
#include "kernels/scans/scan.h"

template <typename R>
struct pair {
  R a, b;
};

template <typename R>
__device__ inline R lowest() {
  return -(R)__int_as_float(0x7f800000);
}
template <>
__device__ inline int64_t lowest<int64_t>() {
  return (int64_t)0x8000000000000000;
}

/* A number that is the same all the time, of which the compiler shall not know that: it would make a copy of a loop for
 * each of its values. */
__device__ inline int hidden(int v) {
  asm volatile("" : "+r"(v));
  return v;
}

/* NaN is larger than all. */
__device__ inline float larger(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
#else
  return a > b || a != a ? a : b;
#endif
}
__device__ inline double larger(double a, double b) { return a > b || a != a ? a : b; }
__device__ inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Sums, products and maxima, by a number that is the same for all threads: one kernel serves the three. */
template <typename R>
struct plain_scan {
  enum { FACTOR = 0 };
  typedef R real;
  typedef R state;
  int kind, storage;
  __device__ R none() const {
    return kind == TFU_SCAN_SUM        ? (R)0
           : kind == TFU_SCAN_PROD     ? (R)1
           : storage == TFU_STORED_I32 ? (R)(int)0x80000000
                                       : lowest<R>();
  }
  __device__ R of(R x, R) const { return x; }
  __device__ R join(R a, R b) const {
    const R sum = a + b, product = a * b, most = larger(a, b);
    return kind == TFU_SCAN_SUM ? sum : kind == TFU_SCAN_PROD ? product : most;
  }
  __device__ R value(R s) const { return s; }
};

/* Sums alone, in rows, where nothing but arithmetic is in memory's way. */
template <typename R>
struct sum_scan {
  enum { FACTOR = 0 };
  typedef R real;
  typedef R state;
  int kind, storage;
  __device__ R none() const { return 0; }
  __device__ R of(R x, R) const { return x; }
  __device__ R join(R a, R b) const { return a + b; }
  __device__ R value(R s) const { return s; }
};

/* log(sum of exp(x)): a is the maximum, b the sum of exp(x - a). */
template <typename R>
struct lse_scan {
  enum { FACTOR = 0 };
  typedef R real;
  typedef pair<R> state;
  int kind, storage;
  static __device__ float exp_of(float x) { return __expf(x); }
  static __device__ double exp_of(double x) { return ::exp(x); }
  static __device__ float log_of(float x) { return ::logf(x); }
  static __device__ double log_of(double x) { return ::log(x); }
  __device__ state none() const { return {lowest<R>(), 0}; }
  __device__ state of(R x, R) const { return {x, 1}; }
  __device__ state join(state p, state q) const { return called_join(p.a, p.b, q.a, q.b); }
  __device__ R value(state s) const { return s.a + called_log(s.b); }
  /* Long enough to be there once. Of two equal infinities the difference would be NaN. */
  static __device__ __noinline__ state called_join(R a, R a_sum, R b, R b_sum) {
    const bool first = a >= b;
    const R high = first ? a : b, low = first ? b : a;
    const R part = low == high ? (R)1 : exp_of(low - high);
    return {high, first ? a_sum + b_sum * part : a_sum * part + b_sum};
  }
  static __device__ __noinline__ R called_log(R x) { return log_of(x); }
};

/* y_i = a_i * y_{i-1} + x_i: what comes in is multiplied by a, and b is added. All floats are computed in double here,
 * so that one kernel serves them: memory takes longer. */
struct recurrence_scan {
  enum { FACTOR = 1 };
  typedef double R;
  typedef R real;
  typedef pair<R> state;
  int kind, storage;
  __device__ state none() const { return {1, 0}; }
  __device__ state of(R x, R factor) const { return {factor, x}; }
  __device__ state join(state p, state q) const { return {p.a * q.a, q.a * p.b + q.b}; }
  __device__ R value(state s) const { return s.b; }
};

/* ---- storage ---- */

/* Four numbers that lie side by side, in the type that they are computed in: float32, float16 and bfloat16 in float,
 * integers in 64 bits, of which the lower 32 wrap around as those of int32 do. What they are stored in is the same for
 * all threads: one kernel serves all that are computed in one type. ANY: what is computed in double may be float32. */
template <bool ANY>
__device__ inline void load_four(unsigned from, int storage, float (&v)[4]) {
  if (storage <= TFU_STORED_F32) {
    widen_pack<float>(load_shared(from), v);
  } else {
    unsigned a, b;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "r"(from) : "memory");
    const bool brain = storage == TFU_STORED_BF16;
    const float2 p = brain ? pair_of<bf16>::widen(a) : pair_of<f16>::widen(a);
    const float2 q = brain ? pair_of<bf16>::widen(b) : pair_of<f16>::widen(b);
    v[0] = p.x, v[1] = p.y, v[2] = q.x, v[3] = q.y;
  }
}
template <bool ANY>
__device__ inline void store_four(unsigned to, int storage, const float (&v)[4]) {
  if (storage <= TFU_STORED_F32) {
    store_shared(to, narrow_pack<float>(v));
  } else {
    const bool brain = storage == TFU_STORED_BF16;
    const unsigned a = brain ? pair_of<bf16>::narrow(v[0], v[1]) : pair_of<f16>::narrow(v[0], v[1]);
    const unsigned b = brain ? pair_of<bf16>::narrow(v[2], v[3]) : pair_of<f16>::narrow(v[2], v[3]);
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(a), "r"(b) : "memory");
  }
}
template <bool ANY>
__device__ inline void load_four(unsigned from, int storage, double (&v)[4]) {
  if (ANY && storage != TFU_STORED_WIDE) {
    float w[4];
    widen_pack<float>(load_shared(from), w);
    UNROLL
    for (int n = 0; n < 4; n++) v[n] = w[n];
    return;
  }
  const int4 a = load_shared(from), b = load_shared(from + 16);
  v[0] = __hiloint2double(a.y, a.x), v[1] = __hiloint2double(a.w, a.z);
  v[2] = __hiloint2double(b.y, b.x), v[3] = __hiloint2double(b.w, b.z);
}
template <bool ANY>
__device__ inline void store_four(unsigned to, int storage, const double (&v)[4]) {
  if (ANY && storage != TFU_STORED_WIDE) {
    store_shared(to, narrow_pack<float>({(float)v[0], (float)v[1], (float)v[2], (float)v[3]}));
    return;
  }
  store_shared(to, narrow_pack<double>({v[0], v[1]}));
  store_shared(to + 16, narrow_pack<double>({v[2], v[3]}));
}
__device__ inline int64_t joined(int low, int high) {
  return (int64_t)((uint64_t)(uint32_t)high << 32 | (uint32_t)low);
}
__device__ inline int4 parted(int64_t a, int64_t b) {
  return make_int4((int)a, (int)(a >> 32), (int)b, (int)(b >> 32));
}
template <bool ANY>
__device__ inline void load_four(unsigned from, int storage, int64_t (&v)[4]) {
  const int4 a = load_shared(from);
  v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
  if (storage == TFU_STORED_WIDE) {
    const int4 b = load_shared(from + 16);
    v[0] = joined(a.x, a.y), v[1] = joined(a.z, a.w), v[2] = joined(b.x, b.y), v[3] = joined(b.z, b.w);
  }
}
template <bool ANY>
__device__ inline void store_four(unsigned to, int storage, const int64_t (&v)[4]) {
  const bool wide = storage == TFU_STORED_WIDE;
  store_shared(to, wide ? parted(v[0], v[1]) : make_int4((int)v[0], (int)v[1], (int)v[2], (int)v[3]));
  if (wide) store_shared(to + 16, parted(v[2], v[3]));
}

/* One float, in global memory. */
__device__ inline float load_one(const void *x, int storage) {
  if (storage <= TFU_STORED_F32) return *(const float *)x;
  const unsigned bits = *(const uint16_t *)x;
  return storage == TFU_STORED_BF16 ? __uint_as_float(bits << 16)
                                    : __half2float(__ushort_as_half((unsigned short)bits));
}
__device__ inline void store_one(void *y, int storage, float v) {
  if (storage <= TFU_STORED_F32) *(float *)y = v;
  else *(uint16_t *)y = storage == TFU_STORED_BF16 ? __bfloat16_as_ushort((bf16)v) : __half_as_ushort((f16)v);
}

/* ---- lanes ---- */

template <typename R>
__device__ inline R lane_before(R v, int distance, int width) {
  return __shfl_up_sync(0xffffffffu, v, distance, width);
}
template <typename R>
__device__ inline pair<R> lane_before(pair<R> v, int distance, int width) {
  return {lane_before(v.a, distance, width), lane_before(v.b, distance, width)};
}
template <typename R>
__device__ inline R of_lane(R v, int lane, int width) {
  return __shfl_sync(0xffffffffu, v, lane, width);
}
template <typename R>
__device__ inline pair<R> of_lane(pair<R> v, int lane, int width) {
  return {of_lane(v.a, lane, width), of_lane(v.b, lane, width)};
}

/* The state of all lanes up to this one, among `width` that stand side by side. */
template <typename OP>
__device__ inline typename OP::state scan_lanes(const OP &op, typename OP::state s, int width) {
  const int lane = threadIdx.x & (width - 1);
  ONCE
  for (int distance = 1; distance < width; distance *= 2) {
    const typename OP::state before = lane_before(s, distance, width);
    if (lane >= distance) s = op.join(before, s);
  }
  return s;
}

/* ---- tiles ---- */

/* A state on its way from one block to another: in words of 8 bytes, each beside a flag in one access of 16 bytes, so
 * that no fence is needed. */
template <typename S>
struct scan_slot {
  enum { WORDS = (sizeof(S) + 7) / 8 };
  ulonglong2 word[WORDS];

  __device__ void tell(const S &s) {
    unsigned long long bits[WORDS] = {};
    memcpy(bits, &s, sizeof s);
    UNROLL
    for (int i = 0; i < WORDS; i++)
      asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" ::"l"(&word[i]), "l"(bits[i]), "l"(1ull) : "memory");
  }
  __device__ S wait() const {
    unsigned long long bits[WORDS], told;
    UNROLL
    for (int i = 0; i < WORDS; i++) do {
        asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                     : "=l"(bits[i]), "=l"(told)
                     : "l"(&word[i])
                     : "memory");
      } while (!told);
    S s;
    memcpy(&s, bits, sizeof s);
    return s;
  }
};

/* What lies before a tile of a row, from the totals of the others. They are joined through a fixed tree: 32 tiles are a
 * group, 32 groups a large one. A tile waits for the totals of the tiles before it in its group, of the groups before
 * that in the large group, and for all that lies before the large group; the last tile of each tells the total of it.
 * So only one in 1024 tiles waits for a chain, and which sums are taken does not depend on who comes first.
 *
 * Blocks start in the order of their numbers, and a tile waits only for those before it. Called by a whole warp. */
template <typename OP>
__device__ inline typename OP::state state_before(const OP &op, scan_slot<typename OP::state> *slots, int tiles,
                                                  int groups, int tile, const typename OP::state &total) {
  enum { M = TFU_SCAN_GROUP };
  typedef typename OP::state S;
  const int lane = threadIdx.x % M;
  scan_slot<S> *slot = slots + tile, *end = slots + tiles; /* this tile's, then this group's; where its level's end */
  S all = total, before = op.none();
  int place = tile, length = groups;
  bool last = true;
  ONCE
  for (int level = 0; level < 2; level++) {
    if (last && lane == 0) slot->tell(all);
    const int within = place % M;
    S s = op.none();
    if (lane < within) s = (slot - within + lane)->wait();
    s = of_lane(scan_lanes(op, s, M), M - 1, M);
    all = op.join(s, all); /* of the group, as far as this tile */
    before = op.join(s, before);
    last = last && within == M - 1;
    place /= M;
    slot = end + place;
    end += length;
  }
  if (place > 0) {
    const S s = slot->wait();
    all = op.join(s, all), before = op.join(s, before);
  }
  if (last && lane == 0) (slot + 1)->tell(all);
  return before;
}
