/* The k greatest of a row, by one block. The order is descending, so the least key is that of the greatest number.
 *
 * The block keeps keys with their places in shared memory. When it has enough, it sorts them by key and place, forgets
 * all but the first k, and from then on takes only keys less than the last of these: what is equal to it comes later in
 * the row. Most of a row is read and not kept, and few rows are sorted more than three times. The order of key and
 * place is total, so it does not matter in which order threads put what they keep.
 *
 * A long row is cut into parts; the keys that these give are then a row of their own, in which those that are equal are
 * still in the order of their places. */
#include "kernels/sorting/top_k.h"

#include "kernels/sorting/radix.cuh"

extern __shared__ int4 shared_memory[];

/* Sorts n entries, which become a power of two. */
template <typename K>
__device__ inline void sort_kept(K *keys, uint32_t *places, int n) {
  int size = 2;
  while (size < n) size *= 2;
  ONCE
  for (int i = n + threadIdx.x; i < size; i += blockDim.x) keys[i] = ~(K)0, places[i] = ~0u;
  ONCE
  for (int run = 2; run <= size; run *= 2) ONCE
  for (int by = run / 2; by > 0; by /= 2) {
    __syncthreads();
    ONCE
    for (int t = threadIdx.x; t < size / 2; t += blockDim.x) {
      const int i = 2 * t - (t & (by - 1)), j = i + by;
      const K a = keys[i], b = keys[j];
      const uint32_t p = places[i], q = places[j];
      if ((a > b || (a == b && p > q)) == ((i & run) == 0)) {
        keys[i] = b, keys[j] = a;
        places[i] = q, places[j] = p;
      }
    }
  }
  __syncthreads();
}

template <typename K>
__device__ inline void top_k(const top_args &a) {
  __shared__ int kept;
  const int64_t row = blockIdx.x / (unsigned)a.parts, begin = blockIdx.x % (unsigned)a.parts * a.part_cols;
  const int64_t end = begin + a.part_cols < a.cols ? begin + a.part_cols : a.cols, chunk = TFU_TOP_EACH * blockDim.x;
  int room = 2; /* the power of two above what may be kept */
  while (room < a.enough + chunk) room *= 2;
  K *keys = (K *)shared_memory, limit = 0;
  uint32_t *places = (uint32_t *)(keys + room);
  bool all = true;
  if (threadIdx.x == 0) kept = 0;
  int n = 0; /* kept so far */
  ONCE
  for (int64_t at = begin; at < end;) {
    int64_t to = at + (all && a.enough < chunk ? a.enough : chunk);
    if (to > end) to = end;
    K now[TFU_TOP_EACH];
    UNROLL
    for (int i = 0; i < TFU_TOP_EACH; i++) {
      const int64_t here = at + i * blockDim.x + threadIdx.x;
      if (here >= to) continue;
      load_key(a.x, row * a.cols + here, look_again(a.narrow), a.order, now[i]);
    }
    __syncthreads();
    UNROLL
    for (int i = 0; i < TFU_TOP_EACH; i++) {
      const int64_t here = at + i * blockDim.x + threadIdx.x;
      const bool any = look_again(all);
      if (here >= to || !(any || now[i] < limit)) continue;
      const int slot = any ? n + (int)(here - at) : atomicAdd(&kept, 1);
      keys[slot] = now[i];
      places[slot] = (uint32_t)here;
    }
    __syncthreads();
    n = all ? n + (int)(to - at) : kept;
    at = to;
    if (n < a.enough && at < end) continue;
    sort_kept(keys, places, n);
    if (n >= a.k) {
      n = a.k;
      limit = keys[n - 1];
      all = false;
    }
    if (threadIdx.x == 0) kept = n;
  }
  const int64_t first = (int64_t)blockIdx.x * a.k;
  ONCE
  for (int j = threadIdx.x; j < a.k; j += blockDim.x) {
    const uint32_t place = a.from_places ? a.from_places[row * a.cols + places[j]] : places[j];
    a.places[first + j] = (int32_t)place;
    if (a.keys) ((K *)a.keys)[first + j] = keys[j];
    if (!a.values) continue;
    const int64_t from = row * a.number_cols + place;
    if (a.of_16_bits) ((uint16_t *)a.values)[first + j] = ((const uint16_t *)a.numbers)[from];
    else ((K *)a.values)[first + j] = ((const K *)a.numbers)[from];
  }
}

/* Named after floats of a key's size. */
TFU_KERNEL_AS_(top_k_f32, top_args, top_k<uint32_t>)
TFU_KERNEL_AS_(top_k_f64, top_args, top_k<uint64_t>)
