/* The k greatest of a row (selection by a threshold), by one block. The order is descending, so the least key is that
 * of the greatest number.
 *
 * The block keeps keys with their indices in shared memory. When it has enough, it sorts them by key and index, forgets
 * all but the first k, and from then on takes only what comes before the last of these. That number, the limit, is what
 * packs are compared with as they are read: in most there is nothing greater, and no key is made. What is equal to the
 * limit and comes later in the row is not taken either. The order of key and index is total, so it does not matter in
 * which order threads put what they keep.
 *
 * A long row is cut into parts; the keys that these give are then a row of their own, in which those that are equal are
 * still in the order of their indices. */
#include "kernels/sorting/top_k.h"

#include "kernels/sorting/radix.cuh"

extern __shared__ int4 shared_memory[];

/* ---- numbers, and keys ---- */

/* of: a number of type T as a key K; hit: whether a pack may have one that comes before the limit. Of floats all that
 * is not less or equal may, so that NaN does, too. */
template <typename T>
struct top_number;

template <>
struct top_number<float> {
  typedef uint32_t K;
  static __device__ K of(uint32_t bits, const tfu_order &o) { return tfu_to_key_32(bits, o); }
  static __device__ K bits(K key, const tfu_order &o) { return tfu_from_key_32(key, o); }
  static __device__ bool hit(int4 p, K limit) {
    const float l = __uint_as_float(limit);
    return !(__int_as_float(p.x) <= l) || !(__int_as_float(p.y) <= l) || !(__int_as_float(p.z) <= l) ||
           !(__int_as_float(p.w) <= l);
  }
};

/* Of 16 bits, in pairs. */
template <typename T>
struct top_half {
  typedef uint32_t K;
  static __device__ K of(uint16_t bits, const tfu_order &o) { return tfu_to_key_32((uint32_t)bits << 16, o); }
  static __device__ K bits(K key, const tfu_order &o) { return tfu_from_key_32(key, o) >> 16; }
  static __device__ bool greater(int two, float l) {
    const float2 v = pair_of<T>::widen((unsigned)two);
    return !(v.x <= l) || !(v.y <= l);
  }
  static __device__ bool hit(int4 p, K limit) {
    const float l = pair_of<T>::widen((unsigned)limit).x;
    return greater(p.x, l) || greater(p.y, l) || greater(p.z, l) || greater(p.w, l);
  }
};
template <>
struct top_number<f16> : top_half<f16> {};
template <>
struct top_number<bf16> : top_half<bf16> {};

template <>
struct top_number<double> {
  typedef uint64_t K;
  static __device__ K of(uint64_t bits, const tfu_order &o) { return tfu_to_key_64(bits, o); }
  static __device__ K bits(K key, const tfu_order &o) { return tfu_from_key_64(key, o); }
  static __device__ bool hit(int4 p, K limit) {
    const double l = __longlong_as_double((long long)limit);
    return !(__hiloint2double(p.y, p.x) <= l) || !(__hiloint2double(p.w, p.z) <= l);
  }
};

template <>
struct top_number<int> : top_number<float> {
  static __device__ bool hit(int4 p, K limit) {
    const int l = (int)limit;
    return p.x > l || p.y > l || p.z > l || p.w > l;
  }
};

__device__ inline int64_t two_words(int low, int high) {
  return (int64_t)((uint64_t)(uint32_t)high << 32 | (uint32_t)low);
}

template <>
struct top_number<int64_t> : top_number<double> {
  static __device__ bool hit(int4 p, K limit) {
    return two_words(p.x, p.y) > (int64_t)limit || two_words(p.z, p.w) > (int64_t)limit;
  }
};

/* Keys are their own. */
template <>
struct top_number<uint32_t> {
  typedef uint32_t K;
  static __device__ K of(K key, const tfu_order &) { return key; }
  static __device__ K bits(K key, const tfu_order &) { return key; }
  static __device__ bool hit(int4 p, K l) { return (K)p.x < l || (K)p.y < l || (K)p.z < l || (K)p.w < l; }
};
template <>
struct top_number<uint64_t> {
  typedef uint64_t K;
  static __device__ K of(K key, const tfu_order &) { return key; }
  static __device__ K bits(K key, const tfu_order &) { return key; }
  static __device__ bool hit(int4 p, K l) { return (K)two_words(p.x, p.y) < l || (K)two_words(p.z, p.w) < l; }
};

/* ---- what is kept ---- */

/* Sorts n entries, which become a power of two. */
template <typename K>
__device__ inline void sort_kept(K *keys, uint32_t *indices, int n) {
  int size = 2;
  while (size < n) size *= 2;
  ONCE
  for (int i = n + threadIdx.x; i < size; i += blockDim.x) keys[i] = ~(K)0, indices[i] = ~0u;
  ONCE
  for (int run = 2; run <= size; run *= 2) ONCE
  for (int by = run / 2; by > 0; by /= 2) {
    __syncthreads();
    ONCE
    for (int t = threadIdx.x; t < size / 2; t += blockDim.x) {
      const int i = 2 * t - (t & (by - 1)), j = i + by;
      const K a = keys[i], b = keys[j];
      const uint32_t p = indices[i], q = indices[j];
      if ((a > b || (a == b && p > q)) == ((i & run) == 0)) {
        keys[i] = b, keys[j] = a;
        indices[i] = q, indices[j] = p;
      }
    }
  }
  __syncthreads();
}

/* ---- a row, or a part of one ---- */

template <typename T>
__device__ inline void top_k(const top_args &a) {
  typedef top_number<T> number;
  typedef typename number::K K;
  typedef typename bits_of<sizeof(T)>::type B;
  enum { N = 16 / sizeof(T), STRIDE = TFU_THREADS * N };
  __shared__ int kept;
  const int64_t row = blockIdx.x / (unsigned)a.parts, begin = blockIdx.x % (unsigned)a.parts * a.part_cols;
  const int64_t end = begin + a.part_cols < a.cols ? begin + a.part_cols : a.cols;
  const B *x = (const B *)a.x + row * a.cols;
  const int room = 2 * a.enough;
  K *keys = (K *)shared_memory, last = 0;
  uint32_t *indices = (uint32_t *)(keys + room), last_index = 0;
  bool all = true; /* until there is a limit */
  K limit = 0;
  if (threadIdx.x == 0) kept = 0;
  __syncthreads();
  /* Packs begin on 16 bytes, the first of them perhaps before the row. */
  ONCE
  for (int64_t at = begin - (int64_t)((uintptr_t)(x + begin) % 16 / sizeof(T)) + threadIdx.x * N;
       at - (int64_t)threadIdx.x * N < end; at += TFU_TOP_PACKS * STRIDE) {
    int4 packs[TFU_TOP_PACKS];
    UNROLLED(p, TFU_TOP_PACKS)
      if (at + p * STRIDE >= begin && at + p * STRIDE + N <= end) packs[p] = *(const int4 *)(x + at + p * STRIDE);
    unsigned left = 0; /* a bit for each number that is to be looked at */
    UNROLLED(p, TFU_TOP_PACKS) {
      const int64_t first = at + p * STRIDE;
      if (first >= begin && first + N <= end) {
        if (all || number::hit(packs[p], limit)) left |= ((1u << N) - 1) << p * N;
      } else {
        UNROLLED(i, N)
          if (first + i >= begin && first + i < end) left |= 1u << (p * N + i);
      }
    }
    /* What there is no room for waits until the others are sorted, and may be beyond the limit then. */
    ONCE
    for (;;) {
      unsigned wait = 0;
      bool full = false;
      ONCE
      while (left) {
        const int bit = __ffs((int)left) - 1;
        left &= left - 1;
        const int64_t index = at + bit / N * STRIDE + bit % N;
        const K key = number::of(x[index], a.order);
        if (!all && !(key < last || (key == last && (uint32_t)index < last_index))) continue;
        const int slot = atomicAdd(&kept, 1);
        full = full || slot >= a.enough;
        if (slot < room) keys[slot] = key, indices[slot] = (uint32_t)index;
        else wait |= 1u << bit;
      }
      if (!__syncthreads_or(full)) break;
      const int n = kept < room ? kept : room;
      sort_kept(keys, indices, n);
      last = keys[a.k - 1], last_index = indices[a.k - 1];
      limit = number::bits(last, a.order);
      all = false;
      left = wait;
      if (threadIdx.x == 0) kept = a.k;
      __syncthreads();
    }
  }
  sort_kept(keys, indices, kept);
  const int64_t to = (int64_t)blockIdx.x * a.k;
  ONCE
  for (int j = threadIdx.x; j < a.k; j += blockDim.x) {
    const uint32_t index = a.from_indices ? a.from_indices[row * a.cols + indices[j]] : indices[j];
    a.indices[to + j] = (int32_t)index;
    if (a.keys) ((K *)a.keys)[to + j] = keys[j];
    if (!a.values) continue;
    const int64_t from = row * a.number_cols + index;
    if (a.of_16_bits) ((uint16_t *)a.values)[to + j] = ((const uint16_t *)a.numbers)[from];
    else ((K *)a.values)[to + j] = ((const K *)a.numbers)[from];
  }
}

#define TOP_K(name, tag, T) TFU_KERNEL_AS_(name##_##tag, top_args, top_k<T>)
TFU_TYPES(TOP_K, top_k_values)
TFU_KERNEL_AS_(top_k_whole_i32, top_args, top_k<int>)
TFU_KERNEL_AS_(top_k_whole_i64, top_args, top_k<int64_t>)
TFU_KERNEL_AS_(top_k_keys_b32, top_args, top_k<uint32_t>)
TFU_KERNEL_AS_(top_k_keys_b64, top_args, top_k<uint64_t>)
