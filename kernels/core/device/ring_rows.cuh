/* ring_rows.cuh - the walk over long rows that stay in shared memory: a persistent kernel, which prefetches the next.
 */
#pragma once

#include "kernels/core/device/row_team.cuh"

/* Rows of whole, aligned packs, longer than registers hold. A block lives as long as there are rows. It takes its share
 * of one in r.tiles groups of GROUP packs a thread, and the ring, which is [r.slots][tensors][GROUP][threads] packs,
 * has room for some groups more: those of the next rows are on their way while this row is computed, and each group
 * that the last look is done with is filled again at once. So loads and stores overlap, though nothing else may be
 * resident.
 *
 * A thread fetches what it looks at itself, in slots of its own: no barrier is needed but for what the team agrees on.
 * Pack i of group g is pack lane + (g * GROUP + i) * lanes of the share. Looks after the first find the first tensor
 * alone. Compute capability 8.0 is the least. */
template <typename T, int TENSORS>
struct ring_rows : row_team<OVER_CLUSTER> {
  enum { N = packed<T>::N, GROUP = TFU_RING_PACKS };
  static constexpr bool fixed = true;

  __device__ ring_rows(const tfu_row_plan &rows, const T *const (&tensors)[TENSORS]) : row_team<OVER_CLUSTER>(rows) {
    extern __shared__ int4 ring[];
    const int first = (int)blockIdx.x * r.share + lane, end = ((int)blockIdx.x + 1) * r.share;
    column_of_first = first * N;
    room = (end < r.packs ? end : r.packs) - first;
    mine = (unsigned)__cvta_generic_to_shared(ring + threadIdx.x);
    pack_bytes = blockDim.x * 16;
    UNROLLED(t, TENSORS) from[t] = (const char *)tensors[t];
    fetch_from(row);
    unsigned slot = 0;
    ONCE
    for (int g = 0; g < r.slots; g++) fetch(slot), slot = after(slot);
  }

  /* A block has one row at a time, which is whole. */
  __device__ bool more() const { return row < r.rows; }
  __device__ void next() { row += step(); }
  static constexpr __device__ bool active() { return true; }
  static constexpr __device__ int pass() { return TFU_WHOLE; }
  static constexpr __device__ int parts() { return 1; }
  __device__ bool keeps() const { return true; }
  __device__ int column(int) const { return 0; }
  __device__ bool has(int) const { return false; }

  template <bool FIRST, bool LAST, typename F>
  __device__ void look(F f) {
    int column = column_of_first, left = room;
    unsigned slot = oldest;
    ONCE
    for (int g = 0; g < r.tiles; g++) {
      if (FIRST) wait_for_copies(r.slots - 1 - g); /* so many were closed after this one */
      at = mine + slot;
      if (left > (GROUP - 1) * r.lanes) visit<FIRST, GROUP>(f, column, left);
      else visit<FIRST, GROUP - 1>(f, column, left);
      if (LAST) fetch(slot);
      slot = after(slot);
      column += GROUP * r.lanes * N;
      left -= GROUP * r.lanes;
    }
    if (LAST) oldest = slot;
  }

  /* Inside a look. For the looks to come: */
  __device__ void replace(int i, int4 bits) const { store_shared(at + i * pack_bytes, bits); }
  template <typename R>
  __device__ void store(T *to, const whole_place &p, const R (&v)[N]) const {
    store_bits(to + p.first, narrow_pack<T>(v));
  }

 private:
  const char *from[TENSORS];
  /* The thread's place in the ring, the group's that a look is at, and the bytes from a pack to the next. */
  unsigned mine, at = 0, pack_bytes;
  unsigned oldest = 0;       /* the current row's first group, in bytes from the ring's */
  int room, column_of_first; /* packs from the thread's first to the end of its share; that pack's first column */
  /* What is fetched next: the row, which of its groups, the packs of the thread from there on, and the bytes from the
   * tensors to the first. */
  int64_t fetch_row, fetch_at;
  int fetch_group, fetch_left;

  __device__ unsigned after(unsigned slot) const {
    const unsigned group = r.tensors * GROUP * pack_bytes;
    return slot + group == r.slots * group ? 0 : slot + group;
  }

  /* COUNT is GROUP where all packs are there: apart, so that the common case has no branches. */
  template <bool FIRST, int COUNT, typename F>
  __device__ void visit(F f, int column, int left) {
    int4 bits[COUNT][TENSORS];
    UNROLLED(i, COUNT) {
      UNROLLED(t, (FIRST ? TENSORS : 1))
        if (t == 0 || t < r.tensors) bits[i][t] = load_shared(at + (t * GROUP + i) * pack_bytes);
    }
    UNROLLED(i, COUNT)
      if (COUNT == GROUP || i * r.lanes < left) f(whole_place{column + i * r.lanes * N}, i, bits[i]);
  }

  __device__ void fetch_from(int64_t row) {
    fetch_row = row;
    fetch_at = (row * r.cols + column_of_first) * (int64_t)sizeof(T);
    fetch_group = 0;
    fetch_left = row < r.rows ? room : 0;
  }
  /* The next group on its way. It is closed even where nothing is left to fetch, so that groups can be counted. */
  __device__ void fetch(unsigned slot) {
    UNROLLED(t, TENSORS) {
      UNROLLED(i, GROUP)
        if ((t == 0 || t < r.tensors) && i * r.lanes < fetch_left)
          copy_pack(mine + slot + (t * GROUP + i) * pack_bytes, from[t] + fetch_at + i * pack_bytes);
    }
    close_copies();
    fetch_at += GROUP * pack_bytes;
    fetch_left -= GROUP * r.lanes;
    if (++fetch_group == r.tiles) fetch_from(fetch_row + step());
  }
};
