/* mma.cuh - products of tiles on tensor cores: 16 x 16 results from tiles in shared memory. Compute capability 8.0 on.
 *
 * A tile is rows of D elements, D * sizeof(T) a multiple of 128 bytes. Its 16-byte chunks lie permuted (swizzle): chunk
 * c of row r at place c ^ (r % 8). So eight rows of one column, which is what a matrix load takes, come from different
 * banks. A tile begins at a multiple of its row's bytes; then the permutation is one XOR of a lane's own address.
 *
 * Results are in the accumulators' layout: float[4] per 16 x 8, lane 4 g + t having columns 2 t and 2 t + 1 of rows g
 * and g + 8. Two such side by side are, narrowed, the left factor of a next product: chained products need no memory.
 *
 * float is multiplied as float: every factor is split into two of TF32's 11 bits, big and small, and three products are
 * added; where the caller allows it (tf32), big alone is multiplied. Tensor cores cut off where float rounds; so they
 * sum 16 terms at most, or 8 where that shows (TERMS), and those sums are added outside. */
#pragma once

#include "kernels/core/device/shared.cuh"

__device__ inline unsigned lane_id() { return threadIdx.x % 32; }

#if __CUDA_ARCH__ >= 800
__device__ inline unsigned shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ inline void copy_8_bytes(unsigned to, const void *from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void store_8_bytes(unsigned to, float2 v) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(v.x), "f"(v.y) : "memory");
}
__device__ inline void store_4_bytes(unsigned to, unsigned v) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}

__device__ inline void load_matrices(unsigned at, unsigned (&v)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(at)
               : "memory");
}
__device__ inline void load_matrices_transposed(unsigned at, unsigned (&v)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(at)
               : "memory");
}

__device__ inline void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, bf16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, f16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline void multiply(float (&c)[4], const unsigned *a, unsigned b0, unsigned b1, float) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Bytes, by 16 of which a lane has four: those of rows g and g + 8 of the left factor, of column g of the right one. */
__device__ inline void multiply(int (&c)[4], const unsigned (&a)[2], unsigned b) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(b));
}

/* A lane's part of a factor of 16 x 16 elements, as mma wants it. Of the right one, the columns 0 .. 7 are v[0] and
 * v[1], the others v[2] and v[3]. */
template <typename T>
struct factor {
  unsigned v[4];
};
template <>
struct factor<float> {
  /* Left: two of 16 x 8, four numbers each. Right: [column / 8][row / 8][2]. The order of the summed index is free: a
   * lane takes neighbours, which lie side by side in memory and in the accumulators. */
  unsigned big[8], small[8];
  __device__ void set(int i, float x) {
    /* Rounded by hand: the conversion instruction is four of them. Of small, whose 12 bits are one too many, tensor
     * cores cut off the last. The NaN that GPUs make, 0x7fffffff, must not be carried into the sign: it would be a
     * zero. */
    big[i] = ((unsigned)min(__float_as_int(x), 0x7fffefff) + 0x1000u) & 0xffffe000u;
    small[i] = __float_as_uint(x - __uint_as_float(big[i]));
  }
};

/* c, d += left x right: columns 0 .. 7 and 8 .. 15. */
template <typename T, int TERMS = 16>
__device__ inline void multiply_add(float (&c)[4], float (&d)[4], const factor<T> &left, const factor<T> &right, bool) {
  multiply(c, left.v, right.v[0], right.v[1], T());
  multiply(d, left.v, right.v[2], right.v[3], T());
}
template <typename T, int TERMS = 16>
__device__ inline void multiply_add(float (&c)[4], float (&d)[4], const factor<float> &left, const factor<float> &right,
                                    bool tf32) {
  float sum[2][4] = {};
  if (!tf32) {
    UNROLLED(i, 4) {
      const int n = i / 2, k = i % 2, r = n * 4 + k * 2;
      multiply(sum[n], left.small + 4 * k, right.big[r], right.big[r + 1], float());
      multiply(sum[n], left.big + 4 * k, right.small[r], right.small[r + 1], float());
    }
  }
  UNROLLED(i, 4) {
    const int n = i / 2, k = i % 2, r = n * 4 + k * 2;
    multiply(sum[n], left.big + 4 * k, right.big[r], right.big[r + 1], float());
    if (TERMS == 8 && k == 0)
      UNROLLED(j, 4) (n ? d : c)[j] += sum[n][j], sum[n][j] = 0;
  }
  UNROLLED(i, 4) c[i] += sum[0][i], d[i] += sum[1][i];
}

/* The left factor that two neighbouring results make. */
template <typename T>
__device__ inline factor<T> narrow_results(const float (&c)[4], const float (&d)[4]) {
  return {{pair_of<T>::narrow(c[0], c[1]), pair_of<T>::narrow(c[2], c[3]), pair_of<T>::narrow(d[0], d[1]),
           pair_of<T>::narrow(d[2], d[3])}};
}
template <>
__device__ inline factor<float> narrow_results(const float (&c)[4], const float (&d)[4]) {
  factor<float> f;
  const int from[4] = {0, 2, 1, 3};
  UNROLLED(i, 4) f.set(i, c[from[i]]), f.set(4 + i, d[from[i]]);
  return f;
}

/* A tile in shared memory and the factors read from it; rows and columns are multiples of 16.
 *
 * A matrix load takes four matrices of 8 x 8, and lane l says where row l % 8 of matrix l / 8 begins. Down a factor
 * first (lanes_down), matrices 0 and 1 are rows 0 .. 7 and 8 .. 15 of the first eight columns; across first
 * (right_transposed), they are the first and the second eight columns of rows 0 .. 7. */
template <typename T, int D>
struct tile {
  enum { ROW = D * (int)sizeof(T), CHUNKS = ROW / 16, N = packed<T>::N };
  unsigned at;

  __device__ unsigned chunk(int row, int c) const { return at + row * ROW + ((c ^ (row & 7)) << 4); }

  /* Left: rows row .. row + 15 by columns k .. k + 15. */
  __device__ factor<T> left(int row, int k) const {
    factor<T> f;
    load_matrices((lanes_down() ^ (k * 2)) + row * ROW, f.v);
    return f;
  }
  /* Right, transposed: its columns are rows n .. n + 15, its rows are columns k .. k + 15. */
  __device__ factor<T> right_transposed(int n, int k) const {
    const unsigned l = lane_id(), row = (l & 7) + (l >> 4) * 8;
    factor<T> f;
    load_matrices(((at + row * ROW + (((l >> 3 & 1) ^ (l & 7)) << 4)) ^ (k * 2)) + n * ROW, f.v);
    return f;
  }
  /* Right, as it lies: rows k .. k + 15 by columns n .. n + 15. */
  __device__ factor<T> right(int k, int n) const {
    factor<T> f;
    load_matrices_transposed((lanes_down() ^ (n * 2)) + k * ROW, f.v);
    return f;
  }

 private:
  __device__ unsigned lanes_down() const {
    const unsigned l = lane_id();
    return at + (l & 15) * ROW + (((l >> 4) ^ (l & 7)) << 4);
  }
};

template <int D>
struct tile<float, D> {
  enum { ROW = D * 4, CHUNKS = ROW / 16, N = 4 };
  unsigned at;

  __device__ unsigned chunk(int row, int c) const { return at + row * ROW + ((c ^ (row & 7)) << 4); }

  __device__ factor<float> left(int row, int k) const {
    factor<float> f;
    UNROLLED(s, 2) {
      const unsigned p = (pairs() ^ ((k + 8 * s) * 4)) + row * ROW;
      const float2 upper = two(p), lower = two(p + 8 * ROW);
      f.set(4 * s, upper.x), f.set(4 * s + 1, lower.x), f.set(4 * s + 2, upper.y), f.set(4 * s + 3, lower.y);
    }
    return f;
  }
  __device__ factor<float> right_transposed(int n, int k) const {
    factor<float> f;
    UNROLLED(i, 4) {
      const float2 v = two((pairs() ^ ((k + 8 * (i % 2)) * 4)) + (n + 8 * (i / 2)) * ROW);
      f.set(2 * i, v.x), f.set(2 * i + 1, v.y);
    }
    return f;
  }
  __device__ factor<float> right(int k, int n) const {
    const unsigned g = lane_id() / 4, row = lane_id() % 4 * 2;
    const unsigned p = at + row * ROW + (((g >> 2) ^ row) << 4) + (g & 3) * 4;
    factor<float> f;
    UNROLLED(i, 4) {
      const int down = (k + 8 * (i % 2)) * ROW, across = (n + 8 * (i / 2)) * 4;
      f.set(2 * i, one((p ^ across) + down));
      f.set(2 * i + 1, one((p ^ 16 ^ across) + down + ROW)); /* in odd rows the chunks of a pair have changed places */
    }
    return f;
  }

 private:
  /* Columns 2 t and 2 t + 1 of row g. */
  __device__ unsigned pairs() const {
    const unsigned g = lane_id() / 4, t = lane_id() % 4;
    return at + g * ROW + (((t >> 1) ^ g) << 4) + (t & 1) * 8;
  }
  static __device__ float one(unsigned p) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(p) : "memory");
    return v;
  }
  static __device__ float2 two(unsigned p) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(p) : "memory");
    return v;
  }
};

/* acc = left x right transposed, over their D columns: 16 * M rows of left, from `row` on, by 8 * N rows of right. Of
 * float, 32 columns are work enough for one iteration of a loop. */
template <int TERMS = 16, typename T, int D, int M, int N>
__device__ inline void multiply_rows(float (&acc)[M][N][4], const tile<T, D> &left, int row, const tile<T, D> &right,
                                     bool tf32) {
  enum { AT_ONCE = sizeof(T) == 2 ? D / 16 : 2 };
  UNROLLED(i, M * N * 4) acc[i / 4 / N][i / 4 % N][i % 4] = 0;
  _Pragma("unroll AT_ONCE") for (int k = 0; k < D; k += 16) {
    factor<T> l[M];
    UNROLLED(m, M) l[m] = left.left(row + 16 * m, k);
    UNROLL
    for (int n = 0; n < N; n += 2) {
      const factor<T> r = right.right_transposed(8 * n, k);
      UNROLLED(m, M) multiply_add<T, TERMS>(acc[m][n], acc[m][n + 1], l[m], r, tf32);
    }
  }
}

/* Results as left factors of a next product: 16-bit ones narrowed at once, since that frees half of their registers;
 * float as it is, since its factors take four times as many. */
template <typename T, int M, int N>
struct left_factors {
  factor<T> f[M][N / 2];
  __device__ left_factors(const float (&p)[M][N][4]) {
    UNROLLED(i, M * N / 2) {
      const int m = i / (N / 2), k = i % (N / 2);
      f[m][k] = narrow_results<T>(p[m][2 * k], p[m][2 * k + 1]);
    }
  }
  __device__ factor<T> at(int m, int k) const { return f[m][k / 2]; }
};
template <int M, int N>
struct left_factors<float, M, N> {
  const float (&p)[M][N][4];
  __device__ left_factors(const float (&p)[M][N][4]) : p(p) {}
  __device__ factor<float> at(int m, int k) const { return narrow_results<float>(p[m][k], p[m][k + 1]); }
};

/* acc += p x right: p is 16 * M rows by 8 * N columns, right 8 * N rows by D columns. */
template <int TERMS = 16, typename T, int D, int M, int N>
__device__ inline void multiply_results(float (&acc)[M][D / 8][4], const left_factors<T, M, N> &p,
                                        const tile<T, D> &right, bool tf32) {
  UNROLL
  for (int k = 0; k < N; k += 2) {
    factor<T> l[M];
    UNROLLED(m, M) l[m] = p.at(m, k);
    UNROLL
    for (int n = 0; n < D / 8; n += 2) {
      const factor<T> r = right.right(8 * k, 8 * n);
      UNROLLED(m, M) multiply_add<T, TERMS>(acc[m][n], acc[m][n + 1], l[m], r, tf32);
    }
  }
}
#endif
