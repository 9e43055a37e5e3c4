/* The gradient of Recurrence by a persistent kernel: persistent_block.cuh says how. The two blocks of a cluster, which
 * have two gates each, add up what these give to the units of both. */
#include "kernels/recurrent/persistent_block.cuh"

#if __CUDA_ARCH__ >= 900
/* The barrier of a cluster, after which its blocks see what others have stored; and a store to one of them, given by
 * where it would be in this block. */
__device__ inline void meet_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ inline void store_remote(unsigned at, int rank, float v) {
  asm volatile("{.reg .b32 to; mapa.shared::cluster.u32 to, %0, %1; st.shared::cluster.f32 [to], %2;}" ::"r"(at),
               "r"(rank), "f"(v)
               : "memory");
}

/* Values and slopes of what was kept of a step, its gates and the LSTM's c: stage i of these, gates first. */
enum { GATE_STAGES = 3, BACK_STAGES = 5 };
__device__ inline int kept_of_stage(int i) { return i < 2 ? i : i == 2 ? 3 : i == 3 ? 2 : 4; }

/* The first COUNT stages with the usual activations. */
template <typename T, int COUNT, int V>
__device__ inline void usual_slopes(const recurrence_sizes &s, const float (&kept)[5][V], float (&value)[5][V],
                                    float (&slope)[5][V]) {
  typedef typename math_of<T>::type math;
  UNROLLED(i, COUNT) {
    const int k = kept_of_stage(i);
    if (!s.lstm && k >= 3) continue;
    UNROLLED(v, V) {
      value[k][v] = i < GATE_STAGES ? math::sigmoid(kept[k][v]) : math::tanh(kept[k][v]);
      slope[k][v] = i < GATE_STAGES ? math::sigmoid_grad(kept[k][v]) : math::tanh_grad(kept[k][v]);
    }
  }
}
template <typename T, int V>
__device__ inline void slopes_of(const recurrence_sizes &s, const float (&kept)[5][V], float (&value)[5][V],
                                 float (&slope)[5][V]) {
  const bool sigmoid = s.recurrent_activation == TFU_ACT_sigmoid;
  if (sigmoid && s.activation == TFU_ACT_tanh) {
    usual_slopes<T, BACK_STAGES>(s, kept, value, slope);
    return;
  }
  if (sigmoid) usual_slopes<T, GATE_STAGES>(s, kept, value, slope);
  ONCE
  for (int i = sigmoid ? GATE_STAGES : 0; i < BACK_STAGES; i++) {
    const int k = kept_of_stage(i);
    if (!s.lstm && k >= 3) continue;
    float in[V], out[V], by[V];
    UNROLLED(v, V)
      in[v] = k == 0 ? kept[0][v] : k == 1 ? kept[1][v] : k == 2 ? kept[2][v] : k == 3 ? kept[3][v] : kept[4][v];
    activate_all<T, true>(i < GATE_STAGES ? s.recurrent_activation : s.activation, in, out, by);
    UNROLLED(j, BACK_STAGES)
      UNROLLED(v, V)
        if (j == k) value[j][v] = out[v], slope[j][v] = by[v];
  }
}

/* The thread's units of a step; step -1 is what is left for the first states. */
template <typename T, typename B>
__device__ inline void back_gates(const persistent_back_args &a, const B &b, const float *sums, T *dp, int turn,
                                  int tile, int64_t step) {
  enum { V = B::V, SLICE = B::SLICE };
  const recurrence_sizes &s = a.size;
  const int sources = s.kept + 2;
  const bool there = b.there(tile);
  float *const direct = b.state(0, tile), *const state = b.state(1, tile);
  float dh[V], dc[V], more[V];
  UNROLLED(v, V) dh[v] = 0, dc[v] = state[v];
  UNROLLED(g, 4) {
    if (step + 1 == s.steps || g >= s.gates) continue;
    float scale[V];
    if (a.scale) read_units(b.scale(tile, g), scale);
    UNROLLED(v, V) {
      const float through = sums[g * PERSISTENT_ROWS * SLICE + b.mine + v];
      dh[v] += a.scale ? through * scale[v] : through;
    }
  }
  UNROLLED(v, V) dh[v] += direct[v];
  if (step < 0) {
    const int64_t at = b.row(tile) * s.units + b.unit;
    if (there) write_units((T *)a.dh + at, dh);
    if (there && a.dc) write_units((T *)a.dc + at, dc);
    return;
  }
  read_units(b.input(turn, sources, s.kept) + b.mine, more);
  UNROLLED(v, V) dh[v] += more[v];
  float kept[5][V], before[V] = {}, d[4][V], dgate[V];
  UNROLLED(i, 5)
    if (i < s.kept) read_units(b.input(turn, sources, i) + b.mine, kept[i]);
  if (step > 0 || (s.lstm ? a.c : a.h)) read_units(b.input(turn, sources, s.kept + 1) + b.mine, before);
  const bool counts = there && b.counts(turn, tile, step);
  float value[5][V], slope[5][V];
  slopes_of<T>(s, kept, value, slope);
  UNROLLED(v, V) {
    float rest = 0, dc_before = dc[v];
    if (s.lstm) {
      const float all = dc[v] + dh[v] * value[3][v] * slope[4][v];
      d[0][v] = all * value[2][v] * slope[0][v];
      d[1][v] = all * before[v] * slope[1][v];
      d[2][v] = dgate[v] = all * value[0][v] * slope[2][v];
      d[3][v] = dh[v] * value[4][v] * slope[3][v];
      dc_before = all * value[1][v];
    } else {
      dgate[v] = dh[v] * (1 - value[0][v]) * slope[2][v];
      d[0][v] = dh[v] * (before[v] - value[2][v]) * slope[0][v];
      d[1][v] = dgate[v] * kept[3][v] * slope[1][v];
      d[2][v] = dgate[v] * value[1][v];
      d[3][v] = 0;
      rest = dh[v] * value[0][v];
    }
    if (!counts) {
      d[0][v] = d[1][v] = d[2][v] = d[3][v] = dgate[v] = 0;
      rest = dh[v], dc_before = dc[v];
    }
    direct[v] = rest, state[v] = dc_before;
  }
  if (!there) return;
  const int64_t at = (b.row(tile) * s.steps + step) * s.gates * s.units + b.unit;
  UNROLLED(g, 4)
    if (g < s.gates) tell_word(dp + at + g * s.units, units_of<T>::narrow(d[g]));
  if (!a.dproduct) return;
  UNROLLED(g, 3) write_units((T *)a.dgates + at + g * s.units, g == 2 ? dgate : d[g]);
}

template <typename T>
__device__ inline void recurrence_persistent_back(const persistent_back_args &a) {
  extern __shared__ __align__(16) char memory[];
  typedef block_of<T, persistent_back_args, true> block;
  enum { V = block::V, SLICE = block::SLICE, ROWS = PERSISTENT_ROWS };
  block b(a, memory);
  const recurrence_sizes &s = a.size;
  const int sources = s.kept + 2;
  const int64_t width = s.gates * s.units;
  T *const dp = (T *)(a.dproduct ? a.dproduct : a.dgates);
  /* What dp of a gate gives to dh of the block's units, from the block that has that gate. */
  auto sums = [&](int turn, int gate) {
    return (float *)(memory + a.at.sums) + (turn * s.gates + gate) * ROWS * SLICE;
  };
  for (int tile = 0; tile < b.tiles; tile++) {
    float dc[V];
    read_units(b.there(tile) ? element<T>(a.dlast, b.row(tile) * s.units + b.unit) : NULL, dc);
    UNROLLED(v, V) b.state(0, tile)[v] = 0, b.state(1, tile)[v] = dc[v]; /* by two threads, the same */
    for (int g = 0; a.scale && g < s.gates; g++) {
      const int64_t at = (b.row(tile) * s.gates + g) * s.units + b.unit;
      *(unsigned *)b.scale(tile, g) = b.there(tile) ? *(const unsigned *)element<T>(a.scale, at) : 0;
    }
  }
  /* Sources: what was kept, dy, and what the LSTM's c or the GRU's h was before the step. */
  auto prefetch = [&](int turn, int tile, int64_t step) {
    b.prefetch(turn, tile, step, sources, [&](int source, int64_t row) -> const T * {
      const int64_t at = row * s.steps + step;
      if (source < s.kept) return (const T *)a.kept + (at * s.kept + source) * s.units;
      if (source == s.kept) return (const T *)a.dy + at * s.units;
      if (step == 0) return element<T>(s.lstm ? a.c : a.h, row * s.units);
      return s.lstm ? (const T *)a.kept + ((at - 1) * s.kept + s.gates) * s.units : (const T *)a.y + (at - 1) * s.units;
    });
  };
  prefetch(0, 0, s.steps - 1);
  meet_cluster(); /* none writes to the memory of a block that has not begun */
  int turn = 0;
  for (int64_t step = s.steps - 1; step >= -1; step--) {
    for (int tile = 0; tile < b.tiles; tile++, turn ^= 1) {
      const bool last = step + 1 == s.steps; /* nothing comes from a step after it */
      if (!last) {
        b.template multiply<false>(b.rows(dp + (step + 1) * width, s.steps * width, tile), no_change(), true, 0);
        __syncthreads();
        UNROLLED(i, 2 * ROWS * 2 * SLICE / TFU_THREADS) {
          const int at = i * TFU_THREADS + threadIdx.x, column = at % (2 * SLICE), r = at / (2 * SLICE) % ROWS;
          const int half = at / (2 * SLICE) / ROWS, gate = 2 * b.rank + half;
          if (gate < s.gates)
            store_remote(shared_address(sums(turn, gate) + r * SLICE + column % SLICE), column / SLICE,
                         b.template sum<PERSISTENT_WARPS / 2>(0, r, column, PERSISTENT_WARPS / 2 * half));
        }
      }
      wait_for_copies<0>();
      meet_cluster();
      if (b.works(turn)) back_gates(a, b, sums(turn, 0), dp, turn, tile, step);
      if (tile + 1 < b.tiles) {
        if (step >= 0) prefetch(turn ^ 1, tile + 1, step);
      } else if (step > 0) {
        prefetch(turn ^ 1, 0, step - 1);
      }
    }
  }
}
#else
template <typename T>
__device__ inline void recurrence_persistent_back(const persistent_back_args &) {}
#endif

TFU_SINGLES(PERSISTENT_KERNEL, recurrence_persistent_back, persistent_back_args)
