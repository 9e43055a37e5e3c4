/* attention_step.cuh - which keys of a sequence a warp takes (attention_step.h), where they lie in the cache, and their
 * way from there to shared memory. */
#pragma once

#include "kernels/attention/attention_step.h"
#include "kernels/core/device/mma.cuh"

#if __CUDA_ARCH__ >= 800
/* A sequence's place and its keys: those of steps first .. first + count, cut into `runs` of `span` keys each. */
struct decode_sequence {
  const attention_step_args &a;
  const int64_t *table; /* its row of it */
  int length, first, count, span, runs;

  template <int STEP>
  __device__ void cut() {
    enum { MOST = STEP * DECODE_RUNS };
    span = max((count + MOST - 1) / MOST, 1) * STEP;
    runs = (count + span - 1) / span;
  }
  __device__ decode_sequence(const attention_step_args &a, int b)
      : a(a),
        table(a.table + (int64_t)b * a.width),
        length((int)min(max(a.lengths[b], (int64_t)0), (int64_t)a.keys_most)) {
    first = a.left < 0 ? 0 : max(length - 1 - a.left, 0);
    count = length - first;
  }
};

/* Where a step lies in the cache. Its page is asked for long before it is needed. */
struct decode_place {
  int64_t page;
  int rest; /* of the step, within the page */

  static __device__ decode_place none() { return {-1, 0}; }
  static __device__ decode_place of(const decode_sequence &s, int step) {
    const int number = (int)divide((unsigned)step, s.a.page);
    return {s.table[number], step - number * (int)s.a.page.by};
  }
  /* Its row; -1: no such page. */
  __device__ int row(const attention_step_args &a) const {
    return page < 0 || page >= a.pages ? -1 : (int)page * (int)a.page.by + rest;
  }
};

/* A warp's way over its runs, STEP keys at a time; keys are counted from the first of the sequence's. Beyond the last
 * run `at` is at most twice their number, and some: that fits 32 bits without a sign. */
template <int STEP>
struct decode_walk {
  unsigned run, at, end, count, span, stride;

  __device__ decode_walk(const decode_sequence &s, int split, int warp)
      : run(warp * s.a.splits + split), count(s.count), span(s.span), stride(DECODE_WARPS * s.a.splits) {
    begin();
  }
  __device__ bool more() const { return at < count; }
  __device__ bool ends_run() const { return at + STEP >= end; }
  __device__ void next() {
    if (!ends_run()) at += STEP;
    else run += stride, begin();
  }

 private:
  __device__ void begin() { at = run * span, end = min(at + span, count); }
};

#if __CUDA_ARCH__ >= 890
/* Two codes of float8_e4m3fn, and what they are in T, which has them all. */
template <typename T>
__device__ inline unsigned widen_float8(unsigned codes);
template <>
__device__ inline unsigned widen_float8<f16>(unsigned codes) {
  unsigned halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((uint16_t)codes));
  return halves;
}
template <>
__device__ inline unsigned widen_float8<bf16>(unsigned codes) {
  const float2 v = pair_of<f16>::widen(widen_float8<f16>(codes));
  return pair_of<bf16>::narrow(v.x, v.y);
}
__device__ inline unsigned narrow_float8(float first, float second) {
  uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
  return codes;
}
#endif

/* A warp's tiles on their way from memory to its ring: keys and values of the same steps in turn, each a group of
 * copies, which is closed even where nothing is left to load.
 *
 * C is what the cache has: T, or uint8_t for float8_e4m3fn. A slot of the latter has rows of DECODE_ROW bytes as they
 * come, not permuted; it is half as long, and a tile of T, to which one slot at a time is widened, lies behind the last
 * one. */
template <typename T, int D, typename C>
struct decode_ring {
  enum { STEP = DECODE_STEP(D), EACH = 16 / sizeof(C), CHUNKS = D / EACH, PER_LANE = STEP * CHUNKS / 32 };
  enum { IS_WIDE = sizeof(C) == sizeof(T), SLOT = STEP * DECODE_ROW(D) * sizeof(C) };
  typedef tile<T, DECODE_ROW(D)> tile_of;
  const decode_sequence &s;
  decode_walk<STEP> walk;
  const C *keys, *values; /* of the key head */
  int64_t stride;
  unsigned ring;
  decode_place next; /* of key lane % STEP of the tile after */
  int row;           /* of that key of the tile that is loaded; -1: zeros */
  bool some;         /* is there such a tile */

  __device__ decode_ring(const decode_sequence &s, int split, int warp, int key_head, unsigned ring)
      : s(s), walk(s, split, warp), stride((int64_t)s.a.key_heads * D), ring(ring) {
    keys = (const C *)s.a.keys + key_head * D;
    values = (const C *)s.a.values + key_head * D;
    look_up();
  }
  /* A slot whose copies are there, to be read before the next is asked for. By a warp. */
  __device__ tile_of ready(int i) const {
    if (IS_WIDE) return {ring + i * SLOT};
    const tile_of wide = {ring + DECODE_SLOTS * SLOT};
    widen(i, wide);
    __syncwarp();
    return wide;
  }

  __device__ void load_keys(int to) {
    row = next.row(s.a);
    some = walk.more();
    if (some) {
      walk.next();
      look_up();
    }
    load(to, keys);
  }
  __device__ void load_values(int to) { load(to, values); }

 private:
  __device__ void look_up() {
    const unsigned j = walk.at + lane_id() % STEP;
    next = walk.more() && j < walk.end ? decode_place::of(s, s.first + (int)j) : decode_place::none();
  }
  __device__ unsigned chunk(int slot, int r, int c) const {
    const unsigned at = ring + slot * SLOT;
    return IS_WIDE ? tile_of{at}.chunk(r, c) : at + r * DECODE_ROW(D) + c * 16;
  }
  __device__ void load(int to, const C *from) const {
    if (some) {
      UNROLLED(i, PER_LANE) {
        const int r = (32 * i + (int)lane_id()) / CHUNKS, c = (32 * i + (int)lane_id()) % CHUNKS;
        const int place = __shfl_sync(0xffffffffu, row, r);
        copy_pack(chunk(to, r, c), from + max(place, 0) * stride + c * EACH, place < 0 ? 0 : 16);
      }
    }
    close_copies();
  }
  __device__ void widen(int slot, const tile_of &wide) const {
#if __CUDA_ARCH__ >= 890
    UNROLLED(i, PER_LANE) {
      const int r = (32 * i + (int)lane_id()) / CHUNKS, c = (32 * i + (int)lane_id()) % CHUNKS;
      const int4 v = load_shared(chunk(slot, r, c));
      store_shared(wide.chunk(r, 2 * c), make_int4(widen_float8<T>(v.x), widen_float8<T>((unsigned)v.x >> 16),
                                                   widen_float8<T>(v.y), widen_float8<T>((unsigned)v.y >> 16)));
      store_shared(wide.chunk(r, 2 * c + 1), make_int4(widen_float8<T>(v.z), widen_float8<T>((unsigned)v.z >> 16),
                                                       widen_float8<T>(v.w), widen_float8<T>((unsigned)v.w >> 16)));
    }
#endif
  }
};
#endif
