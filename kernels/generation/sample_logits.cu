/* sample_logits on the GPU: a block for each row, which reads its logits from the cache a few times. Which words are
 * kept is found by radix select: of keys in the order of floats, the digits of the last one that is kept, from the
 * highest on, each by a histogram of those that share the digits before. */
#include "kernels/core/device/pack.cuh"
#include "kernels/generation/draw.h"
#include "kernels/generation/sample.h"

enum { WARPS = SAMPLE_THREADS / 32, DIGITS = 2048, DIGIT_BITS = 11, LEVELS = 3 };

/* The words down to a key are kept, and of those that have it the first `equal`. */
struct cut {
  uint32_t key, equal;
};

struct shared_room {
  uint32_t count[DIGITS];
  unsigned long long mass[DIGITS];
  unsigned long long warp_mass[WARPS];
  uint32_t warp_count[WARPS], warp_key[WARPS], warp_index[WARPS];
  float warp_score[WARPS];
  uint32_t digit, count_before;
  unsigned long long mass_before;
};

/* Warp w has words [w * chunk, (w + 1) * chunk), lane by lane, so that what comes first has the lower warp, step and
 * lane. */
template <typename T, typename F>
__device__ inline void each_word(const sample_args &a, int64_t row, F visit) {
  const T *x = (const T *)a.logits + row * a.words;
  const int64_t chunk = (a.words + WARPS - 1) / WARPS, begin = threadIdx.x / 32 * chunk;
  const int64_t end = min(begin + chunk, a.words);
#pragma unroll 4
  for (int64_t i = begin; i < end; i += 32) {
    const int64_t at = i + threadIdx.x % 32;
    const bool there = at < end;
    visit((uint32_t)at, there ? (float)(acc<T>)x[there ? at : 0] : __int_as_float(0x7fffffff), there);
  }
}

/* The largest key, and the first word that has it. */
__device__ inline void largest(shared_room &s, uint32_t &key, uint32_t &index) {
  for (int step = 16; step; step /= 2) {
    const uint32_t other = __shfl_xor_sync(~0u, key, step), at = __shfl_xor_sync(~0u, index, step);
    if (other > key || (other == key && at < index)) key = other, index = at;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) s.warp_key[threadIdx.x / 32] = key, s.warp_index[threadIdx.x / 32] = index;
  __syncthreads();
  for (int w = 0; w < WARPS; w++) {
    const uint32_t other = s.warp_key[w], at = s.warp_index[w];
    if (other > key || (other == key && at < index)) key = other, index = at;
  }
}

/* Finds the digit, from the highest down, at which the words so far are `most_count` in number, or have more than
 * `most_mass`; what is before it is added to count_before and mass_before. Each thread has two digits. */
__device__ inline void find_digit(shared_room &s, uint32_t most_count, unsigned long long most_mass) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = DIGITS - 1 - 2 * (int)threadIdx.x;
  const uint32_t mine = s.count[first] + s.count[first - 1];
  const unsigned long long mass = s.mass[first] + s.mass[first - 1];
  uint32_t count_to = mine;
  unsigned long long mass_to = mass;
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t c = __shfl_up_sync(~0u, count_to, step);
    const unsigned long long m = __shfl_up_sync(~0u, mass_to, step);
    if (lane >= step) count_to += c, mass_to += m;
  }
  if (lane == 31) s.warp_count[warp] = count_to, s.warp_mass[warp] = mass_to;
  const uint32_t count_before = s.count_before;
  const unsigned long long mass_before = s.mass_before;
  __syncthreads();
  uint32_t count = count_before + count_to - mine;
  unsigned long long sum = mass_before + mass_to - mass;
  for (int w = 0; w < warp; w++) count += s.warp_count[w], sum += s.warp_mass[w];
  __syncthreads();
  for (int d = first; d > first - 2; d--) {
    const uint32_t here = s.count[d];
    const bool before = count < most_count && sum <= most_mass;
    const bool after = count + here < most_count && sum + s.mass[d] <= most_mass;
    if (here && before && !after) s.digit = (uint32_t)d, s.count_before = count, s.mass_before = sum;
    count += here, sum += s.mass[d];
  }
  __syncthreads();
}

/* The words that are kept where they are at most `most_count`, and have at most `most_mass` before the last of them. */
template <typename T>
__device__ inline cut select(const sample_args &a, int64_t row, shared_room &s, float most, float temperature,
                             uint32_t most_count, unsigned long long most_mass) {
  uint32_t prefix = 0;
  if (threadIdx.x == 0) s.count_before = 0, s.mass_before = 0;
  for (int level = 0; level < LEVELS; level++) {
    const int shift = max(32 - DIGIT_BITS * (level + 1), 0), known = 32 - DIGIT_BITS * level;
    __syncthreads();
    for (int d = threadIdx.x; d < DIGITS; d += SAMPLE_THREADS) s.count[d] = 0, s.mass[d] = 0;
    if (threadIdx.x == 0) s.digit = DIGITS; /* none: all are kept */
    __syncthreads();
    each_word<T>(a, row, [&](uint32_t, float x, bool there) {
      const uint32_t key = sample_key(x);
      if (!there || !key || (known < 32 && key >> known != prefix)) return;
      const uint32_t digit = key >> shift & (level == LEVELS - 1 ? (1u << (32 - 2 * DIGIT_BITS)) - 1 : DIGITS - 1);
      atomicAdd(&s.count[digit], 1);
      atomicAdd(&s.mass[digit], sample_mass(x, most, temperature));
    });
    __syncthreads();
    find_digit(s, most_count, most_mass);
    if (s.digit == DIGITS) return {0, ~0u};
    prefix = prefix << (level == LEVELS - 1 ? 32 - 2 * DIGIT_BITS : DIGIT_BITS) | s.digit;
  }
  /* Words that have this key are alike: so many of them until one of the two is reached. */
  const unsigned long long each = s.mass[s.digit] / s.count[s.digit], left = most_mass - s.mass_before;
  const unsigned long long by_mass = each ? left / each + 1 : ~0u;
  return {prefix,
          (uint32_t)min((unsigned long long)(most_count - s.count_before), min(by_mass, (unsigned long long)~0u))};
}

/* How many words with this key each warp's chunk comes after. */
template <typename T>
__device__ inline uint32_t equal_before(const sample_args &a, int64_t row, shared_room &s, uint32_t key) {
  uint32_t mine = 0;
  each_word<T>(a, row, [&](uint32_t, float x, bool there) { mine += there && sample_key(x) == key; });
  for (int step = 16; step; step /= 2) mine += __shfl_xor_sync(~0u, mine, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) s.warp_count[threadIdx.x / 32] = mine;
  __syncthreads();
  uint32_t before = 0;
  for (int w = 0; w < (int)threadIdx.x / 32; w++) before += s.warp_count[w];
  return before;
}

template <typename T>
__device__ inline void sample_logits(const sample_args &a) {
  __shared__ shared_room s;
  const int64_t row = blockIdx.x;
  const float temperature = a.temperature[row], top_p = a.top_p[row];
  const int64_t top_k = a.top_k[row];
  uint32_t key = 0, index = 0;
  each_word<T>(a, row, [&](uint32_t i, float x, bool there) {
    const uint32_t k = sample_key(x);
    if (there && k > key) key = k, index = i;
  });
  largest(s, key, index);
  if (!(temperature > 0) || !key) {
    if (threadIdx.x == 0) a.ids[row] = key ? index : 0;
    return;
  }
  const float most = (float)(acc<T>)((const T *)a.logits)[row * a.words + index];
  cut last = {0, ~0u};
  if (top_k > 0 && top_k < a.words) last = select<T>(a, row, s, most, temperature, (uint32_t)top_k, ~0ull);
  if (top_p < 1) {
    unsigned long long all = 0;
    each_word<T>(a, row, [&](uint32_t, float x, bool there) {
      if (there && x == x) all += sample_mass(x, most, temperature);
    });
    for (int step = 16; step; step /= 2) all += __shfl_xor_sync(~0u, all, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) s.warp_mass[threadIdx.x / 32] = all;
    __syncthreads();
    all = 0;
    for (int w = 0; w < WARPS; w++) all += s.warp_mass[w];
    const unsigned long long limit = (unsigned long long)((double)fmaxf(top_p, 0) * (double)all);
    const cut by_mass = select<T>(a, row, s, most, temperature, ~0u, limit);
    if (by_mass.key > last.key || (by_mass.key == last.key && by_mass.equal < last.equal)) last = by_mass;
  }
  uint32_t rank = last.equal == ~0u ? 0 : equal_before<T>(a, row, s, last.key);
  uint32_t best = 0;
  index = 0;
  each_word<T>(a, row, [&](uint32_t i, float x, bool there) {
    const uint32_t k = sample_key(x), equal = __ballot_sync(~0u, there && k == last.key);
    const uint32_t mine = rank + __popc(equal & ((1u << threadIdx.x % 32) - 1));
    rank += __popc(equal);
    if (!there || !k || k < last.key || (k == last.key && mine >= last.equal)) return;
    const uint32_t score =
        sample_key(sample_score(x, most, temperature, (uint64_t)a.seeds[row], (uint64_t)a.steps[row], i));
    if (score > best) best = score, index = i;
  });
  largest(s, best, index);
  if (threadIdx.x == 0) a.ids[row] = index;
}
#define SAMPLE_OF_(function, args, tag, T) TFU_STAMP((SAMPLE_THREADS), function##_##tag, args, function<T>)
TFU_TYPES(SAMPLE_OF_, sample_logits, sample_args)
