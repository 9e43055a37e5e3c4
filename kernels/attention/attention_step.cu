/* DecodeAttention (ops/generation/decode_attention.c), flash decoding in one launch; attention_step.h says how work is
 * cut up.
 *
 * A block has one sequence, one key head and all query heads that share it, which are the rows of one product on tensor
 * cores, and of the sequence's runs every splits-th one. Its warps take these in turn, each with a ring of tiles of its
 * own in shared memory, filled by asynchronous copies (prefetch): no warp waits for another before all are done. Then
 * the parts of all runs are joined, over the blocks of a cluster where several share a sequence.
 *
 * What takes time is reading keys and values. So they are asked for before the kernels that run before this one have
 * ended (programmatic dependent launch): these make query, key and value of the new step, and do not write the cache.
 * Every block rotates the queries and the new key for itself. The new key and value are not read from the cache, where
 * the first block of the cluster puts them: they take the place of what was read there. */
#include "kernels/attention/attention_step.h"

#include "kernels/attention/attention_softmax.cuh"
#include "kernels/attention/attention_step.cuh"
#include "kernels/core/device/cluster.cuh"
#include "kernels/core/device/overlap.cuh"
#include "kernels/core/device/rotation.cuh"
#include "kernels/core/device/row_team.cuh"

#if __CUDA_ARCH__ >= 900
enum { THREADS = 32 * DECODE_WARPS };

/* The queries of the group and the new key, rotated and rounded to T, the new value: to shared memory. A thread has the
 * same pair of several rows, which are rotated by one angle. Key and value are rounded to C before, which the cache
 * has. */
template <typename T, int D, typename C>
struct decode_new {
  enum { PAIRS = D / 2, AT_ONCE = THREADS / PAIRS, ROWS = DECODE_GROUP + 1, TURNS = (ROWS + AT_ONCE - 1) / AT_ONCE };
  typedef tile<T, DECODE_ROW(D)> tile_of;
  float sine, cosine;
  int first, second; /* the pair's elements */
  bool rotates;

  __device__ decode_new(const attention_step_args &a, int b) {
    const int pair = threadIdx.x % PAIRS;
    rotates = a.positions && pair < a.rope.half;
    first = rotates ? pair : 2 * pair;
    second = rotates ? pair + (int)a.rope.half : 2 * pair + 1;
    sine = 0, cosine = 1;
    __builtin_assume(pair < 1 << TFU_ROPE_POWERS);
    if (rotates) sine_cosine<T>(frequency<T>(a.rope, pair) * (fraction)a.positions[b], &sine, &cosine);
  }

  __device__ void put(const attention_step_args &a, int b, int key_head, const tile_of &queries, unsigned key,
                      unsigned value) const {
    const T *query = (const T *)a.query + ((int64_t)b * a.key_heads + key_head) * a.group * D;
    const int64_t own = ((int64_t)b * a.key_heads + key_head) * D;
    const int begin = threadIdx.x / PAIRS;
    T u[TURNS], v[TURNS];
    UNROLLED(i, TURNS) {
      const int row = begin + i * AT_ONCE;
      if (begin >= AT_ONCE || row > a.group) break;
      const T *from = row < a.group ? query + row * D : (const T *)a.key + own;
      u[i] = from[first], v[i] = from[second];
    }
    if (threadIdx.x < D / 8) {
      int4 v = *((const int4 *)((const T *)a.value + own) + threadIdx.x);
      if (sizeof(C) < sizeof(T)) v = make_int4(rounded(v.x), rounded(v.y), rounded(v.z), rounded(v.w));
      store_shared(value + threadIdx.x * 16, v);
    }
    for (int i = threadIdx.x; i < (16 - a.group) * (D / 8); i += THREADS)
      store_shared(queries.chunk(a.group + i / (D / 8), i % (D / 8)), make_int4(0, 0, 0, 0));
    UNROLLED(i, TURNS) {
      const int row = begin + i * AT_ONCE;
      if (begin >= AT_ONCE || row > a.group) break;
      float x = (float)u[i], y = (float)v[i];
      if (rotates) rotate<T>(sine, cosine, x, y);
      const auto at = [&](int e) { return row < a.group ? queries.chunk(row, e / 8) + e % 8 * 2 : key + e * 2; };
      unsigned both = pair_of<T>::narrow(x, y);
      if (sizeof(C) < sizeof(T) && row == a.group) both = rounded(both);
      store_half(at(first), both & 0xffff);
      store_half(at(second), both >> 16);
    }
  }
  /* D elements from shared memory to the cache, 16 bytes by each thread. */
  static __device__ void keep(unsigned from, C *to) {
    if (sizeof(C) == sizeof(T)) {
      if (threadIdx.x < D / 8) store_bits(to + threadIdx.x * 8, load_shared(from + threadIdx.x * 16));
    } else if (threadIdx.x < D / 16) {
      const int4 u = load_shared(from + threadIdx.x * 32), v = load_shared(from + threadIdx.x * 32 + 16);
      store_bits(to + threadIdx.x * 16, make_int4(codes(u.x, u.y), codes(u.z, u.w), codes(v.x, v.y), codes(v.z, v.w)));
    }
  }

 private:
  static __device__ unsigned code(unsigned pair) {
    const float2 v = pair_of<T>::widen(pair);
    return narrow_float8(v.x, v.y);
  }
  static __device__ unsigned codes(unsigned low, unsigned high) { return code(low) | code(high) << 16; }
  static __device__ unsigned rounded(unsigned pair) { return widen_float8<T>(code(pair)); }
};

/* A row of D elements in shared memory takes the place of row r of a tile. By a warp, which then may read it. */
template <int D, typename TILE>
__device__ inline void replace_row(const TILE &to, int r, unsigned from) {
  if (lane_id() < D / 8) store_shared(to.chunk(r, lane_id()), load_shared(from + lane_id() * 16));
  __syncwarp();
}

/* The parts of a sequence's runs, run r in block r % splits of the cluster, there the r / splits-th. */
template <int D, bool FAR>
struct decode_runs {
  enum { PITCH = DECODE_PITCH(D) };
  unsigned mine;
  int group, bits; /* bits: of the number of splits */

  __device__ unsigned at(int run, int row, int column) const {
    unsigned place = mine + (((run >> bits) * group + row) * PITCH + column) * 4;
    if (FAR) asm("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(place) : "r"(run & ((1 << bits) - 1)));
    return place;
  }
  __device__ float2 read(int run, int row, int column) const {
    float2 v;
    if (FAR)
      asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];"
                   : "=f"(v.x), "=f"(v.y)
                   : "r"(at(run, row, column))
                   : "memory");
    else asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at(run, row, column)) : "memory");
    return v;
  }
};

/* output = sum of weight_r * part_r, with weight_r = 2^(max_r - max) / sum over r of 2^(max_r - max) * sum_r. A warp
 * has 64 elements of a query, those of the cluster take them in turn; lane r has the weight of run r. All is asked for
 * at once, and parts before their weights are known. Without keys there are no runs, and output is zero. */
template <typename T, int D, bool FAR>
__device__ inline void join(const attention_step_args &a, const decode_runs<D, FAR> &parts, int runs, int split,
                            T *output) {
  enum { ACROSS = (D + 63) / 64, AHEAD = 16 };
  const int lane = lane_id();
  ONCE
  for (int i = split * DECODE_WARPS + threadIdx.x / 32; i < a.group * ACROSS; i += a.splits * DECODE_WARPS) {
    const int row = i / ACROSS, column = i % ACROSS * 64 + 2 * lane;
    float2 part[AHEAD], sums = make_float2(0, 0);
    const auto load = [&](int run) {
      UNROLLED(k, AHEAD) part[k] = run + k < runs && column < D ? parts.read(run + k, row, column) : make_float2(0, 0);
    };
    load(0);
    const float2 own = lane < runs ? parts.read(lane, row, D) : make_float2(-INFINITE, 0);
    float top = own.x;
    for_offsets(whole_warp(), [&](int offset) { top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, offset)); });
    const float by = lane < runs ? exp2_of(own.x - top) : 0;
    float sum = by * own.y;
    for_offsets(whole_warp(), [&](int offset) { sum += __shfl_xor_sync(0xffffffffu, sum, offset); });
    const float weight = by / sum;
    ONCE
    for (int run = 0; run < runs; run += AHEAD) {
      if (run) load(run);
      UNROLLED(k, AHEAD) {
        const float w = __shfl_sync(0xffffffffu, weight, run + k);
        sums.x = fmaf(part[k].x, w, sums.x);
        sums.y = fmaf(part[k].y, w, sums.y);
      }
    }
    if (column < D) *(unsigned *)(output + row * D + column) = pair_of<T>::narrow(sums.x, sums.y);
  }
}

/* Of the numbers of groups of copies: tile n is there when all but the last SLOTS - 1 groups are, since SLOTS are
 * closed before the first tile is waited for and one more after each. Tile n + SLOTS goes where tile n was. */
template <typename T, int D, typename C>
__device__ inline void attention_step(const attention_step_args &a) {
  enum { STEP = DECODE_STEP(D), N = STEP / 8, ROW = DECODE_ROW(D), SLOTS = DECODE_SLOTS, HELD = D <= 128 ? D / 16 : 1 };
  static_assert(SLOTS == 3, "keys take the slot of values, and values that of keys");
  typedef tile<T, ROW> tile_of;
  extern __shared__ __align__(1024) char memory[];
  const int warp = threadIdx.x / 32, split = (int)(blockIdx.x % (unsigned)a.splits);
  const int place = (int)(blockIdx.x / (unsigned)a.splits), key_head = place % a.key_heads, b = place / a.key_heads;
  const int bits = __ffs(a.splits) - 1;
  const unsigned base = shared_address(memory);
  const tile_of queries = {base + DECODE_WARPS * SLOTS * STEP * tile_of::ROW};
  const unsigned new_key = queries.at + 16 * tile_of::ROW, new_value = new_key + D * 2, parts = new_value + D * 2;

  start_those_after();
  decode_sequence s(a, b);
  s.cut<STEP>();
  const int64_t put_at = a.places[b];
  decode_ring<T, D, C> ring(s, split, warp, key_head, base + warp * SLOTS * STEP * tile_of::ROW);
  const decode_place last = s.length > 0 ? decode_place::of(s, s.length - 1) : decode_place::none();
  decode_walk<STEP> walk = ring.walk;
  ring.load_keys(0);
  ring.load_values(1);
  ring.load_keys(2);
  /* The step whose key and value are the new ones, counted like the walk's; none: beyond all. */
  const int last_row = last.row(a);
  const unsigned fresh = last_row >= 0 && last_row == put_at ? s.count - 1 : ~0u;
  typedef decode_new<T, D, C> made_of;
  const made_of made(a, b);
  wait_for_those_before();
  made.put(a, b, key_head, queries, new_key, new_value);
  __syncthreads();
  if (split == 0 && put_at >= 0 && put_at < (int64_t)a.pages * a.page.by) {
    const int64_t to = (put_at * a.key_heads + key_head) * D;
    made_of::keep(new_key, (C *)a.keys + to);
    made_of::keep(new_value, (C *)a.values + to);
  }

  factor<T> held[HELD];
  if (D <= 128)
    UNROLLED(k, HELD) held[k] = queries.left(0, 16 * k);
  const bool capped = a.soft_cap > 0;
  const float inside = capped ? a.scale / a.soft_cap : a.scale * LOG2_E, outside = a.soft_cap * LOG2_E;
  online_softmax_rows<1> softmax;
  float out[1][D / 8][4] = {};
  int slot = 0;
  ONCE
  for (; walk.more(); walk.next()) {
    const int values_slot = slot < SLOTS - 1 ? slot + 1 : 0;
    const bool is_fresh = fresh - walk.at < STEP && fresh < walk.end;
    float p[1][N][4] = {};
    wait_for_copies<SLOTS - 1>();
    __syncwarp();
    const tile_of keys = ring.ready(slot);
    if (is_fresh) replace_row<D>(keys, fresh - walk.at, new_key);
    UNROLLED(k, D / 16) {
      const factor<T> left = D <= 128 ? held[D <= 128 ? k : 0] : queries.left(0, 16 * k);
      UNROLLED(n, N / 2)
        multiply_add<T>(p[0][2 * n], p[0][2 * n + 1], left, keys.right_transposed(16 * n, 16 * k), false);
    }
    __syncwarp();
    ring.load_values(slot);
    for_results(p, [&](float &v, int, int column) {
      v = capped ? outside * tanh_for<T>(v * inside) : v * inside;
      if (walk.at + column >= walk.end) v = -INFINITE;
    });
    softmax.add(p, out, 1.0f);
    wait_for_copies<SLOTS - 1>();
    __syncwarp();
    const tile_of values = ring.ready(values_slot);
    if (is_fresh) replace_row<D>(values, fresh - walk.at, new_value);
    UNROLLED(k, N / 2) {
      const factor<T> left = narrow_results<T>(p[0][2 * k], p[0][2 * k + 1]);
      UNROLLED(n, D / 16) multiply_add<T>(out[0][2 * n], out[0][2 * n + 1], left, values.right(16 * k, 16 * n), false);
    }
    __syncwarp();
    ring.load_keys(values_slot);
    slot = values_slot < SLOTS - 1 ? values_slot + 1 : 0;
    if (!walk.ends_run()) continue;
    UNROLLED(k, 2) {
      const int row = lane_id() / 4 + 8 * k, t = lane_id() % 4;
      const float sum = softmax.total(0, k);
      if (row >= a.group) continue;
      const unsigned part = parts + ((walk.run >> bits) * a.group + row) * DECODE_PITCH(D) * 4;
      UNROLLED(n, D / 8) store_8_bytes(part + (8 * n + 2 * t) * 4, make_float2(out[0][n][2 * k], out[0][n][2 * k + 1]));
      if (t == 0) store_8_bytes(part + D * 4, make_float2(softmax.high[0][k], sum));
    }
    softmax = online_softmax_rows<1>();
    UNROLLED(i, D / 2) out[0][i / 4][i % 4] = 0;
  }

  T *output = (T *)a.output + ((int64_t)b * a.key_heads + key_head) * a.group * D;
  if (a.splits == 1) {
    __syncthreads();
    return join(a, decode_runs<D, false>{parts, a.group, bits}, s.runs, split, output);
  }
  cluster_barrier();
  join(a, decode_runs<D, true>{parts, a.group, bits}, s.runs, split, output);
  leave_cluster();
}
#define DECODE_(label, dim, T, C) \
  TFU_STAMP((THREADS, dim <= 128 ? 3 : 2), label, __grid_constant__ attention_step_args, attention_step<T, dim, C>)
#else /* there are no clusters: it is not served */
__device__ inline void not_here(const attention_step_args &) {}
#define DECODE_(label, dim, T, C) TFU_STAMP((32), label, attention_step_args, not_here)
#endif
#define DECODE_OF_(dim, tag, T)                    \
  DECODE_(attention_step_##dim##_##tag, dim, T, T) \
  DECODE_(attention_step_##dim##_e4m3_##tag, dim, T, uint8_t)
TFU_HALVES(DECODE_OF_, 64)
TFU_HALVES(DECODE_OF_, 96)
TFU_HALVES(DECODE_OF_, 128)
TFU_HALVES(DECODE_OF_, 256)
