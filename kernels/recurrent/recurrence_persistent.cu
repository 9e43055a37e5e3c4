/* Recurrence by a persistent kernel: persistent_block.cuh says how. */
#include "kernels/recurrent/gate_scales.cuh"
#include "kernels/recurrent/persistent_block.cuh"

#if __CUDA_ARCH__ >= 800
/* What a cell makes of its gates, in stages, one activation each: of i, f, g, o and the next c, or of z, r and g. */
template <typename T>
struct cell_of {
  enum { STAGES = 5 };
  float x[4], p[4], pre[4], v[STAGES], more;

  template <bool USUAL>
  __device__ void run(const recurrence_sizes &s, float c, bool counts) {
    UNROLLED(g, 4) pre[g] = x[g] + p[g];
    more = p[2];
    _Pragma("unroll (USUAL ? 5 : 1)") for (int k = 0; k < STAGES; k++) {
      if (!s.lstm && k == 3) break;
      const float in = k == 0 ? pre[0] : k == 1 ? pre[1] : k == 2 ? pre[2] : k == 3 ? pre[3] : more;
      const bool candidate = k == 2 || k == 4;
      float out;
      if (USUAL) out = candidate ? math_of<T>::type::tanh(in) : math_of<T>::type::sigmoid(in);
      else out = value_at<T>(candidate ? s.activation : s.recurrent_activation, in);
      UNROLLED(i, STAGES)
        if (i == k) v[i] = out;
      if (!s.lstm && k == 1) pre[2] = x[2] + out * p[2];
      if (s.lstm && k == 3) more = counts ? v[1] * c + v[0] * v[2] : c;
    }
  }
};

/* C is what is done to h for each gate. */
template <typename T, typename C>
__device__ inline void persistent_steps(const persistent_args &a) {
  extern __shared__ __align__(16) char memory[];
  typedef block_of<T, persistent_args, false> block;
  enum { V = block::V, SLICE = block::SLICE };
  block b(a, memory);
  const recurrence_sizes &s = a.size;
  const bool usual = are_usual(s);
  float *bias = (float *)(memory + a.at.bias);
  for (int i = threadIdx.x; i < s.gates * SLICE; i += TFU_THREADS) {
    const int64_t unit = b.first_unit + i % SLICE;
    bias[i] = a.bias && unit < s.units ? (float)((const T *)a.bias)[i / SLICE * s.units + unit] : 0;
  }
  for (int tile = 0; tile < b.tiles; tile++) {
    float h[V], c[V];
    const int64_t at = b.row(tile) * s.units + b.unit;
    const bool there = b.there(tile);
    read_units(there ? element<T>(a.h, at) : NULL, h);
    read_units(there ? element<T>(a.c, at) : NULL, c);
    UNROLLED(v, V) b.state(0, tile)[v] = h[v], b.state(1, tile)[v] = c[v]; /* by two threads, the same */
  }
  auto prefetch = [&](int turn, int tile, int64_t step) {
    b.prefetch(turn, tile, step, s.gates, [&](int source, int64_t row) {
      return (const T *)a.gates + ((row * s.steps + step) * s.gates + source) * s.units;
    });
  };
  C scales(a, b.first_row, memory);
  prefetch(0, 0, 0);
  int turn = 0;
  for (int64_t step = 0; step < s.steps; step++) {
    for (int tile = 0; tile < b.tiles; tile++, turn ^= 1) {
      const heard_rows<T> rows = step ? b.rows((const T *)a.y + (step - 1) * s.units, s.steps * s.units, tile)
                                      : b.rows((const T *)a.h, s.units, tile);
      scales.take(tile);
      if (!C::CHANGES && b.is_few(tile)) b.template multiply<!C::CHANGES>(rows, scales, step > 0, turn);
      else b.template multiply<false>(rows, scales, step > 0, turn);
      wait_for_copies<0>();
      __syncthreads();
      if (b.works(turn)) {
        cell_of<T> cell[V];
        UNROLLED(g, 4) {
          if (g >= s.gates) continue;
          float x[V];
          read_units(b.input(turn, s.gates, g) + b.mine, x);
          const int column = g * SLICE + b.mine % SLICE;
          UNROLLED(v, V) {
            cell[v].x[g] = x[v];
            cell[v].p[g] =
                b.template sum<PERSISTENT_WARPS>(turn, b.r, column + v, 0) * scales.factor_of_sums() + bias[column + v];
          }
        }
        float *const before = b.state(0, tile), *const state = b.state(1, tile);
        const bool there = b.there(tile), counts = there && b.counts(turn, tile, step);
        UNROLLED(v, V) {
          if (usual) cell[v].template run<true>(s, state[v], counts);
          else cell[v].template run<false>(s, state[v], counts);
        }
        float after[V];
        UNROLLED(v, V) {
          const cell_of<T> &c = cell[v];
          const float h = s.lstm ? c.v[3] * c.v[4] : c.v[0] * before[v] + (1 - c.v[0]) * c.v[2];
          after[v] = counts ? h : before[v];
        }
        const unsigned word = units_of<T>::narrow(after);
        const int64_t at = b.row(tile) * s.steps + step;
        if (there) tell_word((T *)a.y + at * s.units + b.unit, word);
        units_of<T>::widen(word, after);
        UNROLLED(v, V) before[v] = after[v], state[v] = cell[v].more;
        if (a.kept && there) {
          T *kept = (T *)a.kept + at * s.kept * s.units + b.unit;
          float some[V];
          UNROLLED(g, 5) {
            if (g > s.gates) continue;
            UNROLLED(v, V) some[v] = g == s.gates ? cell[v].more : cell[v].pre[g % 4];
            write_units(kept + g * s.units, some);
          }
        }
      }
      if (tile + 1 < b.tiles) prefetch(turn ^ 1, tile + 1, step);
      else if (step + 1 < s.steps) prefetch(turn ^ 1, 0, step + 1);
    }
  }
  __syncthreads();
  for (int tile = 0; a.last && tile < b.tiles; tile++) {
    float c[V];
    UNROLLED(v, V) c[v] = b.state(1, tile)[v];
    if (b.there(tile)) write_units((T *)a.last + b.row(tile) * s.units + b.unit, c);
  }
}

template <typename T>
__device__ inline void recurrence_persistent(const persistent_args &a) {
  persistent_steps<T, no_scales>(a);
}
template <typename T>
__device__ inline void recurrence_persistent_scaled(const persistent_args &a) {
  persistent_steps<T, gate_scales<T>>(a);
}
#else
template <typename T>
__device__ inline void recurrence_persistent(const persistent_args &) {}
template <typename T>
__device__ inline void recurrence_persistent_scaled(const persistent_args &) {}
#endif

TFU_SINGLES(PERSISTENT_KERNEL, recurrence_persistent, persistent_args)
TFU_HALVES(PERSISTENT_KERNEL, recurrence_persistent_scaled, persistent_args)
