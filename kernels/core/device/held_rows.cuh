/* held_rows.cuh - the walk over rows that fit in registers; the next ones are prefetched. */
#pragma once

#include "kernels/core/device/row_team.cuh"

/* Rows of whole, aligned packs, at most PACKS of them per thread, in registers. With AHEAD the next rows are on their
 * way to shared memory, where each thread has slots of its own: for blocks that live long, having sums over rows to
 * keep. Without, a block lives for one row, and other blocks work while it waits.
 *
 * A thread's pack i is pack lane + i * lanes of its block's share, so that neighbours read what lies side by side. In
 * shared memory the ring is [SLOTS][tensors][PACKS][threads] packs: while a row is in registers, SLOTS - 1 are on their
 * way. With CHUNKS a share may have more packs than that, and comes in r.chunks pieces of lanes * PACKS packs, each of
 * which goes through the ring as a row does. */
template <typename T, int PACKS, int TENSORS, bool CHUNKS, bool AHEAD_OF_ROWS>
struct held_rows : row_team<(PACKS > 1 ? OVER_CLUSTER : OVER_WARP)> {
  typedef row_team<(PACKS > 1 ? OVER_CLUSTER : OVER_WARP)> team;
  using team::active, team::lane, team::r, team::row, team::step;
#if __CUDA_ARCH__ >= 800
  enum {AHEAD = AHEAD_OF_ROWS};
#else
  enum { AHEAD = 0 };
#endif
  enum { N = packed<T>::N, SLOTS = TFU_HELD_SLOTS };
  static constexpr bool fixed = true; /* a thread's columns are the same in every row */

  __device__ held_rows(const tfu_row_plan &rows, const T *const (&tensors)[TENSORS]) : team(rows) {
    extern __shared__ int4 ring[];
    const int first = (int)blockIdx.x * r.share + lane;
    const int end = ((int)blockIdx.x + 1) * r.share < r.packs ? ((int)blockIdx.x + 1) * r.share : r.packs;
    column_of_first = first * N;
    room = end - first;
    slots = (unsigned)__cvta_generic_to_shared(ring + threadIdx.x);
    UNROLLED(t, TENSORS) from[t] = (const char *)tensors[t];
    offset = (row * r.cols + column_of_first) * (int64_t)sizeof(T);
    jump = step() * r.cols * (int64_t)sizeof(T);
    fetch_row = row;
    ONCE
    for (int i = 0; i < (AHEAD ? SLOTS - 1 : 0); i++) fetch();
  }

  __device__ bool keeps() const { return true; }
  __device__ bool has(int i) const { return i * r.lanes < room; } /* in rows of one chunk */
  /* The first column of the thread's pack i. */
  __device__ int column(int i) const { return column_of_first + i * r.lanes * N; }
  __device__ void replace(int i, int4 pack) { bits[0][i] = pack; }
  template <typename R>
  __device__ void store(T *to, const whole_place &p, const R (&v)[N]) const {
    store_bits(to + p.first, narrow_pack<T>(v));
  }

  template <bool FIRST, bool LAST, typename F>
  __device__ void look(F f) {
    if constexpr (CHUNKS) {
      static_assert(FIRST && LAST, "a row that comes in chunks is looked at once");
      ONCE
      for (int chunk = 0; chunk < r.chunks; chunk++) {
        receive();
        visit(f, column_of_first + chunk * PACKS * r.lanes * N, room - chunk * PACKS * r.lanes);
      }
    } else {
      if (FIRST) receive();
      visit(f, column_of_first, room);
    }
  }

 private:
  int4 bits[TENSORS][PACKS];
  const char *from[TENSORS];
  int64_t offset; /* bytes from the tensors to the packs to fetch */
  int64_t jump;   /* bytes from a row to the next */
  int64_t fetch_row;
  int room, column_of_first; /* packs from the thread's first to the end of its share; that pack's first column */
  int fetch_chunk = 0;
  unsigned slots, slot = 0;

  /* Apart, so that the common case has no branches: all of the threads' packs are there. */
  template <typename F>
  __device__ void visit(F f, int column, int room) {
    if (!active()) return;
    if (room > (PACKS - 1) * r.lanes) {
      UNROLLED(i, PACKS) visit_pack(f, column, i);
    } else {
      UNROLLED(i, PACKS - 1)
        if (i * r.lanes < room) visit_pack(f, column, i);
    }
  }
  template <typename F>
  __device__ void visit_pack(F f, int column, int i) {
    int4 packs[TENSORS];
    UNROLLED(t, TENSORS) packs[t] = bits[t][i];
    f(whole_place{column + i * r.lanes * N}, i, packs);
  }

  __device__ unsigned place_of(unsigned slot, int t, int i) const {
    return slots + (((slot * r.tensors + t) * PACKS) + i) * (blockDim.x * 16);
  }

  /* The next row, or chunk of one, on its way. Its group is closed even where nothing is left to fetch, so that groups
   * can be counted. */
  __device__ void fetch() {
    const int left = CHUNKS ? room - fetch_chunk * PACKS * r.lanes : room;
    if (fetch_row < r.rows) {
      UNROLLED(t, TENSORS) {
        UNROLLED(i, PACKS)
          if (t < r.tensors && i * r.lanes < left) copy_pack(place_of(slot, t, i), from[t] + offset + i * r.lanes * 16);
      }
    }
    close_copies();
    slot = slot + 1 == SLOTS ? 0 : slot + 1;
    advance();
  }
  __device__ void advance() {
    const int chunk_bytes = PACKS * r.lanes * 16;
    if (CHUNKS && ++fetch_chunk < r.chunks) {
      offset += chunk_bytes;
      return;
    }
    offset += CHUNKS ? jump - (r.chunks - 1) * chunk_bytes : jump;
    fetch_chunk = 0;
    fetch_row += step();
  }

  __device__ void receive() {
    if constexpr (AHEAD) receive_copied();
    else load();
  }
  __device__ void receive_copied() {
    wait_for_copies<SLOTS - 2>();
    const unsigned oldest = slot + 1 == SLOTS ? 0 : slot + 1;
    UNROLLED(t, TENSORS) {
      UNROLLED(i, PACKS)
        if (t < r.tensors) bits[t][i] = load_shared(place_of(oldest, t, i)); /* what is not there is not looked at */
    }
    fetch();
  }
  __device__ void load() {
    const int left = CHUNKS ? room - fetch_chunk * PACKS * r.lanes : room;
    UNROLLED(t, TENSORS) {
      UNROLLED(i, PACKS)
        if (active() && t < r.tensors && i * r.lanes < left)
          bits[t][i] = load_once(from[t] + offset + i * r.lanes * 16);
    }
    advance();
  }
};
