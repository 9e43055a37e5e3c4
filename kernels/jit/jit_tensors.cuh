/* jit_tensors.cuh - the inputs and outputs of a jit kernel, each in its own type, as packs of N elements.
 *
 * JIT_SINGLE has a bit for each input that is one number, JIT_MOVES one for each that has another value in the next
 * column, JIT_AXES says along how many axes elements or rows are counted (0: inputs that are not single are dense). */
#pragma once

#include "jit_args.h"
#include "jit_types.cuh"

#ifdef JIT_SMALL /* all sizes fit 32 bits, whose division is shorter */
typedef uint32_t jit_index;
#else
typedef int64_t jit_index;
#endif

/* The indices of element or row number `at`. */
struct jit_place {
  int64_t at;
  int64_t index[JIT_AXES ? JIT_AXES : 1];
  __device__ jit_place(const jit_args &a, int64_t at) : at(at) {
    jit_index rest = (jit_index)at;
    UNROLLED(i, JIT_AXES) {
      const jit_index size = (jit_index)a.size[i], whole = i + 1 < JIT_AXES ? rest / size : 0;
      index[i] = rest - whole * size;
      rest = whole;
    }
  }
  __device__ int64_t offset(const jit_args &a, int input) const {
    if (!JIT_AXES) return at;
    int64_t offset = 0;
    UNROLLED(i, JIT_AXES) offset += index[i] * a.stride[input][i];
    return offset;
  }
};

/* Inputs I and up. */
template <int N, int I, typename... T>
struct jit_inputs {
  __device__ void load(const jit_args &, const jit_place &, int64_t) {}
  __device__ void get(int, R *) const {}
};
template <int N, int I, typename T, typename... Rest>
struct jit_inputs<N, I, T, Rest...> {
  enum { MOVES = (JIT_MOVES >> I & 1) && !(JIT_SINGLE >> I & 1), M = MOVES ? N : 1 };
  pack<T, M> own;
  jit_inputs<N, I + 1, Rest...> rest;

  /* Columns col … col + N of the place. */
  __device__ void load(const jit_args &a, const jit_place &place, int64_t col) {
    const int64_t at = JIT_SINGLE >> I & 1 ? 0 : place.offset(a, I);
    own.load((const T *)a.in[I] + at + (MOVES ? col : 0));
    rest.load(a, place, col);
  }
  __device__ void get(int k, R *x) const {
    x[I] = own.template get<R>(MOVES ? k : 0);
    rest.get(k, x);
  }
};

/* Outputs I and up; `at` is the place of the first of N elements, `y` their values. */
template <int N, int I, typename... U>
struct jit_outputs {
  static __device__ void store(const jit_args &, int64_t, const R (*)[N]) {}
};
template <int N, int I, typename U, typename... Rest>
struct jit_outputs<N, I, U, Rest...> {
  static __device__ void store(const jit_args &a, int64_t at, const R (*y)[N]) {
    pack<U, N> own;
    UNROLL
    for (int k = 0; k < N; k += set_step<U>::N)
      own.set(k, y[I][k], y[I][k + set_step<U>::N - 1 < N ? k + set_step<U>::N - 1 : k]);
    own.store((U *)a.out[I] + at);
    jit_outputs<N, I + 1, Rest...>::store(a, at, y);
  }
};
