/* Recurrence by a persistent kernel: persistent_block.cuh says how. */
#include "kernels/recurrent/gate_scales.cuh"
#include "kernels/recurrent/persistent_block.cuh"

#if __CUDA_ARCH__ >= 800
/* What a cell makes of its gates, for V units, in stages: activations of i, f and o or of z and r, then that of the
 * candidate, then that of the next c. */
template <typename T, int V>
struct cell_of {
  enum { OUTPUT = 2, CANDIDATE, STATE, STAGES };
  float x[4][V], p[4][V], pre[4][V], v[STAGES][V], more[V];

  static __device__ bool has(const recurrence_sizes &s, int k) { return s.lstm || (k != OUTPUT && k != STATE); }
  __device__ float input(int k, int i) const {
    return k == OUTPUT ? pre[3][i] : k == CANDIDATE ? pre[2][i] : k == STATE ? more[i] : k == 1 ? pre[1][i] : pre[0][i];
  }
  /* What follows from a stage for the next one. */
  __device__ void end(const recurrence_sizes &s, int k, const float (&c)[V], bool counts) {
    UNROLLED(i, V) {
      if (!s.lstm && k == 1) pre[2][i] = x[2][i] + v[1][i] * p[2][i];
      if (s.lstm && k == CANDIDATE) more[i] = counts ? v[1][i] * c[i] + v[0][i] * v[CANDIDATE][i] : c[i];
    }
  }
  __device__ void run(const recurrence_sizes &s, const float (&c)[V], bool counts) {
    typedef typename math_of<T>::type math;
    UNROLLED(i, V) {
      UNROLLED(g, 4) pre[g][i] = x[g][i] + p[g][i];
      more[i] = p[2][i];
    }
    const bool sigmoid = s.recurrent_activation == TFU_ACT_sigmoid;
    const int rest = sigmoid ? s.activation == TFU_ACT_tanh ? STAGES : CANDIDATE : 0; /* beyond those that are usual */
    UNROLLED(k, STAGES) {
      if (k >= rest || !has(s, k)) continue;
      UNROLLED(i, V) v[k][i] = k < CANDIDATE ? math::sigmoid(input(k, i)) : math::tanh(input(k, i));
      end(s, k, c, counts);
    }
    ONCE
    for (int k = rest; k < STAGES; k++) {
      if (!has(s, k)) continue;
      float in[V], out[V];
      UNROLLED(i, V) in[i] = input(k, i);
      activate_all<T, false>(k < CANDIDATE ? s.recurrent_activation : s.activation, in, out, out);
      UNROLLED(j, STAGES)
        UNROLLED(i, V)
          if (j == k) v[j][i] = out[i];
      end(s, k, c, counts);
    }
  }
};

/* C multiplies h with the block's columns: what is done to h for each gate. */
template <typename T, typename C>
__device__ inline void persistent_steps(const persistent_args &a) {
  extern __shared__ __align__(16) char memory[];
  typedef block_of<T, persistent_args, false> block;
  enum { V = block::V, SLICE = block::SLICE };
  block b(a, memory);
  const recurrence_sizes &s = a.size;
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
      scales.multiply(b, rows, step > 0, turn, tile);
      wait_for_copies<0>();
      __syncthreads();
      if (b.works(turn)) {
        cell_of<T, V> cell = {};
        UNROLLED(g, 4) {
          if (g >= s.gates) continue;
          read_units(b.input(turn, s.gates, g) + b.mine, cell.x[g]);
          const int column = g * SLICE + b.mine % SLICE;
          UNROLLED(v, V)
            cell.p[g][v] =
                b.template sum<PERSISTENT_WARPS>(turn, b.r, column + v, 0) * scales.factor_of_sums() + bias[column + v];
        }
        float *const before = b.state(0, tile), *const state = b.state(1, tile);
        const bool there = b.there(tile), counts = there && b.counts(turn, tile, step);
        float c[V], after[V];
        UNROLLED(v, V) c[v] = state[v];
        cell.run(s, c, counts);
        UNROLLED(v, V) {
          const float h = s.lstm ? cell.v[cell.OUTPUT][v] * cell.v[cell.STATE][v]
                                 : cell.v[0][v] * before[v] + (1 - cell.v[0][v]) * cell.v[cell.CANDIDATE][v];
          after[v] = counts ? h : before[v];
        }
        const unsigned word = units_of<T>::narrow(after);
        const int64_t at = b.row(tile) * s.steps + step;
        if (there) tell_word((T *)a.y + at * s.units + b.unit, word);
        units_of<T>::widen(word, after);
        UNROLLED(v, V) before[v] = after[v], state[v] = cell.more[v];
        if (a.kept && there) {
          T *kept = (T *)a.kept + at * s.kept * s.units + b.unit;
          UNROLLED(g, 4)
            if (g < s.gates) write_units(kept + g * s.units, cell.pre[g]);
          write_units(kept + s.gates * s.units, cell.more);
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
  persistent_steps<T, no_scales<T>>(a);
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
TFU_SINGLES(PERSISTENT_KERNEL, recurrence_persistent_scaled, persistent_args)
