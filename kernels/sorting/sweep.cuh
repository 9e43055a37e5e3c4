/* sweep.cuh - onesweep radix sort (Adinets and Merrill, 2022) of long rows: one launch for each digit, which reads and
 * writes every key once.
 *
 * A first launch counts the digits of all positions at once. Then, digit by digit, a block takes a tile of keys into
 * registers, ranks them, and says how many it has of each bucket. Where its keys go is known once the tiles before have
 * said the same: for each bucket a thread goes back from tile to tile, adding up, until it meets one that already knows
 * how many come before (decoupled look-back).
 *
 * A digit that is the same in a whole row moves nothing, so its launch does nothing for that row. Which of the two
 * buffers keys are in follows from the digits that are left to do. */
#pragma once

#include "kernels/core/device/look_back.cuh"
#include "kernels/sorting/radix.cuh"

extern __shared__ int4 shared_memory[];

template <typename K>
struct sweep_of {
  enum { ITEMS = TFU_SWEEP_BYTES / sizeof(K), DIGITS = sizeof(K), COPIES = 32 / sizeof(K), EACH = 8 };
};

/* ---- the digits of all positions ---- */

/* Several copies of the counts, one for every so many lanes, so that fewer meet at one. */
template <typename K, bool OF_16_BITS>
__device__ inline void count_digits(const sweep_args &a, unsigned *counts) {
  typedef sweep_of<K> sizes;
  const int64_t row = blockIdx.x / a.chunks, begin = row * a.cols, step = (int64_t)a.chunks * blockDim.x;
  unsigned *mine = counts + threadIdx.x % sizes::COPIES;
  ONCE
  for (int64_t at = (int64_t)(blockIdx.x % a.chunks) * blockDim.x + threadIdx.x; at < a.cols;
       at += sizes::EACH * step) {
    K keys[sizes::EACH];
    UNROLLED(i, sizes::EACH)
      if (at + i * step < a.cols) load_key(a.from, begin + at + i * step, OF_16_BITS, a.order, keys[i]);
    UNROLLED(i, sizes::EACH)
      if (at + i * step < a.cols) {
        UNROLLED(p, sizes::DIGITS)
          if (p < a.digits)
            atomicAdd(&mine[(p * TFU_BUCKETS + digit_of(keys[i], a.shift + 8 * p)) * sizes::COPIES], 1u);
      }
  }
}

template <typename K>
__device__ inline void radix_totals(const sweep_args &a) {
  typedef sweep_of<K> sizes;
  unsigned *counts = (unsigned *)shared_memory;
  const int64_t row = blockIdx.x / a.chunks;
  const int n = a.digits * TFU_BUCKETS;
  ONCE
  for (int i = threadIdx.x; i < n * sizes::COPIES; i += blockDim.x) counts[i] = 0;
  __syncthreads();
  if (sizeof(K) == 4 && a.of_16_bits) count_digits<K, true>(a, counts);
  else count_digits<K, false>(a, counts);
  __syncthreads();
  ONCE
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    unsigned sum = 0;
    UNROLLED(c, sizes::COPIES) sum += counts[i * sizes::COPIES + c];
    if (sum) atomicAdd(&a.starts[row * n + i], sum);
  }
}

/* Makes of a row's counts where buckets begin, a warp for each digit, and notes which digits have more than one bucket.
 */
extern "C" __global__ void __launch_bounds__(TFU_THREADS) radix_starts_any(const sweep_args a) {
  const int lane = threadIdx.x % 32, p = threadIdx.x / 32;
  if (p >= a.digits) return;
  uint32_t *counts = a.starts + ((int64_t)blockIdx.x * a.digits + p) * TFU_BUCKETS + lane * (TFU_BUCKETS / 32);
  unsigned v[TFU_BUCKETS / 32], sum = 0;
  bool alone = false;
  UNROLLED(i, TFU_BUCKETS / 32) {
    sum += v[i] = counts[i];
    alone = alone || v[i] == a.cols;
  }
  unsigned before = scan_warp(sum) - sum;
  UNROLLED(i, TFU_BUCKETS / 32) {
    counts[i] = before;
    before += v[i];
  }
  if (__ballot_sync(~0u, alone) == 0 && lane == 0) atomicAdd(&a.moving[blockIdx.x], 1u << p);
}

/* ---- one digit ---- */

/* What a tile says of a bucket: how many keys it has of it, or how many there are up to its end. Zero is nothing yet.
 */
enum { SAID_OWN = 1u << 30 };
#define SAID_ALL (1u << 31)

/* How many keys of a bucket the tiles before have. `said` is what the first tile of the row says of it. */
__device__ inline unsigned count_tiles_before(const uint32_t *said, int tile) {
  enum { AT_ONCE = 4 };
  unsigned before = 0;
  bool found = false;
  ONCE
  for (int t = tile - 1; !found;) {
    unsigned v[AT_ONCE];
    UNROLLED(i, AT_ONCE) v[i] = t >= i ? hear_word(said + (int64_t)(t - i) * TFU_BUCKETS) : 0;
    bool ready = true;
    UNROLLED(i, AT_ONCE) {
      ready = ready && v[i] && !found;
      if (!ready) continue;
      before += v[i] & (SAID_OWN - 1);
      found = v[i] & SAID_ALL;
      t--;
    }
  }
  return before;
}

template <typename K, bool RAW, bool OF_16_BITS>
__device__ inline void load_tile(const void *from, int64_t first, int left, tfu_order o, K *keys) {
  UNROLLED(i, sweep_of<K>::ITEMS) {
    keys[i] = ~(K)0;
    if (32 * i >= left) continue;
    if (RAW) keys[i] = ((const K *)from)[first + 32 * i];
    else load_key(from, first + 32 * i, OF_16_BITS, o, keys[i]);
  }
}

template <typename K, bool RAW, bool OF_16_BITS>
__device__ inline void store_tile(void *results, const K *sorted, const uint32_t *to, int n, tfu_order o) {
  UNROLLED(i, sweep_of<K>::ITEMS) {
    const int at = threadIdx.x + i * TFU_SWEEP_THREADS;
    if (at >= n) continue;
    if (RAW) ((K *)results)[to[i]] = sorted[at];
    else store_key(results, to[i], OF_16_BITS, o, sorted[at]);
  }
}

template <typename K>
__device__ inline void radix_sweep(const sweep_args &a) {
  enum { ITEMS = sweep_of<K>::ITEMS, TILE = ITEMS * TFU_SWEEP_THREADS, WARPS = TFU_SWEEP_THREADS / 32 };
  __shared__ unsigned of_warps[TFU_BUCKETS / 32];
  K *sorted = (K *)shared_memory;
  unsigned(*counts)[TFU_BUCKETS] = (unsigned(*)[TFU_BUCKETS])(sorted + TILE), *starts = counts[WARPS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, digit = threadIdx.x;
  unsigned *mine = counts[warp];
  UNROLL
  for (int d = 0; d < TFU_BUCKETS; d += 32) mine[d + lane] = 0;
  const unsigned ticket = take_ticket(a.tickets);
  const int64_t row = ticket / a.tiles, base = row * a.cols;
  const int tile = (int)(ticket % a.tiles);
  const unsigned some = a.moving[row], moving = some ? some : 1u; /* one has to write the results */
  if (!(moving >> a.digit & 1)) return;
  const bool first = !(moving & ((1u << a.digit) - 1)), last = moving >> a.digit == 1;
  const int to = __popc(moving >> (a.digit + 1)) & 1;
  const int64_t begin = (int64_t)(a.first_tile + tile) * TILE;
  const int n = a.cols - begin < TILE ? (int)(a.cols - begin) : TILE, own = warp * 32 * ITEMS + lane;

  K keys[ITEMS];
  unsigned ranks[ITEMS];
  if (!first) load_tile<K, true, false>(a.keys[1 - to], base + begin + own, n - own, a.order, keys);
  else if (sizeof(K) == 4 && a.of_16_bits)
    load_tile<K, false, true>(a.from, base + begin + own, n - own, a.order, keys);
  else load_tile<K, false, false>(a.from, base + begin + own, n - own, a.order, keys);
  /* The lanes of one digit take slots one after the other; the first of them says where the next ones go on. */
  UNROLLED(i, ITEMS) {
    const unsigned d = digit_of(keys[i], a.shift), alike = lanes_alike(d), below = __popc(alike & ((1u << lane) - 1));
    const unsigned start = mine[d];
    __syncwarp();
    if (below == 0) mine[d] = start + __popc(alike);
    __syncwarp();
    ranks[i] = start + below;
  }
  __syncthreads();

  uint32_t *said = a.said + row * a.tiles * TFU_BUCKETS + digit;
  unsigned total = 0, before = 0;
  if (digit < TFU_BUCKETS) {
    UNROLLED(w, WARPS) total += counts[w][digit];
    tell_word(said + (int64_t)tile * TFU_BUCKETS, total | (tile == 0 ? SAID_ALL : SAID_OWN));
    before = scan_warp(total);
    if (lane == 31) of_warps[warp] = before;
    before -= total;
  }
  __syncthreads();
  if (digit < TFU_BUCKETS) {
    UNROLLED(w, TFU_BUCKETS / 32) before += w < warp ? of_warps[w] : 0;
    unsigned start = before;
    UNROLLED(w, WARPS) {
      const unsigned here = counts[w][digit];
      counts[w][digit] = start;
      start += here;
    }
  }
  __syncthreads();
  UNROLLED(i, ITEMS) {
    ranks[i] += mine[digit_of(keys[i], a.shift)];
    sorted[ranks[i]] = keys[i];
  }
  if (digit < TFU_BUCKETS) {
    const int64_t at = (row * a.digits + a.digit) * TFU_BUCKETS + digit;
    const unsigned tiles_before = tile ? count_tiles_before(said, tile) : 0, start = a.starts[at] + tiles_before;
    if (tile) tell_word(said + (int64_t)tile * TFU_BUCKETS, (tiles_before + total) | SAID_ALL);
    if (a.next_starts && tile == a.tiles - 1) a.next_starts[at] = start + total;
    starts[digit] = start - before;
  }
  __syncthreads();
  uint32_t goes[ITEMS];
  UNROLLED(i, ITEMS) {
    const int at = threadIdx.x + i * TFU_SWEEP_THREADS;
    goes[i] = starts[digit_of(sorted[at], a.shift)] + at;
  }
  if (!last) store_tile<K, true, false>((K *)a.keys[to] + base, sorted, goes, n, a.order);
  else if (a.results && !a.decode) store_tile<K, true, false>((K *)a.results + base, sorted, goes, n, a.order);
  else if (a.results && sizeof(K) == 4 && a.of_16_bits)
    store_tile<K, false, true>((uint16_t *)a.results + base, sorted, goes, n, a.order);
  else if (a.results) store_tile<K, false, false>((K *)a.results + base, sorted, goes, n, a.order);
  if (!a.with_indices) return;

  /* What is moved along takes the same way, once the keys have left shared memory. */
  const void *from = first ? a.from_indices : a.indices[1 - to];
  const bool halves = first && a.halves;
  const int64_t here = base + begin + own;
  uint32_t *indices = (uint32_t *)shared_memory, *out = a.indices[to] + base, carried[ITEMS];
  UNROLLED(i, ITEMS) {
    carried[i] = (uint32_t)(begin + own) + 32 * i;
    if (!from || own + 32 * i >= n) continue;
    if (halves) carried[i] = ((const uint16_t *)from)[here + 32 * i];
    else carried[i] = ((const uint32_t *)from)[here + 32 * i];
  }
  __syncthreads();
  UNROLLED(i, ITEMS) indices[ranks[i]] = carried[i];
  __syncthreads();
  UNROLLED(i, ITEMS) {
    const int at = threadIdx.x + i * TFU_SWEEP_THREADS;
    if (at < n) out[goes[i]] = indices[at];
  }
}

#define SWEEP_KERNEL(name, tag, W) TFU_STAMP((TFU_SWEEP_THREADS, 2), name##_##tag, sweep_args, name<W>)
SWEEP_KERNEL(radix_totals, b32, uint32_t)
SWEEP_KERNEL(radix_totals, b64, uint64_t)
SWEEP_KERNEL(radix_sweep, b32, uint32_t)
SWEEP_KERNEL(radix_sweep, b64, uint64_t)
