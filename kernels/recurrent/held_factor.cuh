/* held_factor.cuh - products of few rows with a factor that stays in registers, and rows that other blocks of the grid
 * may still be writing.
 *
 * Rows are read as they lie, in chunks of 64 bytes: lane 4 g + t has of rows g and g + 8 the 16 bytes from 16 t on, and
 * of columns g, g + 8, … of the held factor those of the same indices. The order of the summed index is free, so these
 * are a lane's parts of two steps of mma. Of at most eight rows (FEW) the product is computed transposed, by half as
 * many: two tiles of eight columns are the left factor then, and the same registers serve.
 *
 * A row that is exchanged begins as all ones, a NaN that nobody writes (tell_word), and each word of it is written
 * once: a word that is another is told. So words need no flag beside them and no fence, and who waits for them has them
 * when he sees that they are there. */
#pragma once

#include "kernels/core/device/mma.cuh"

#if __CUDA_ARCH__ >= 800
struct pack_bits {
  unsigned v[4];
};

/* From where all blocks see it: not from a multiprocessor's own cache. */
__device__ inline pack_bits hear_pack(const void *from) {
  pack_bits p;
  asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(p.v[0]), "=r"(p.v[1]), "=r"(p.v[2]), "=r"(p.v[3])
               : "l"(from)
               : "memory");
  return p;
}
__device__ inline bool is_told(const pack_bits &p) {
  return p.v[0] != ~0u && p.v[1] != ~0u && p.v[2] != ~0u && p.v[3] != ~0u;
}
__device__ inline void tell_word(void *to, unsigned v) {
  v = v == ~0u ? 0x7fff7fffu : v; /* a NaN in every type */
  asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(to), "r"(v) : "memory");
}

/* The lane's elements of a chunk, and all of it. */
template <typename T>
struct chunk_of {
  enum { LANE = 16 / (int)sizeof(T), ALL = 4 * LANE };
};

/* The lane's rows of the left factor: NULL is a row of zeros. Chunks `first`, first + step, … of them are multiplied,
 * up to element `length`. */
template <typename T>
struct heard_rows {
  const T *row[2];
  int first, step, length;

  __device__ int at(int chunk) const {
    return (first + chunk * step) * chunk_of<T>::ALL + (int)lane_id() % 4 * chunk_of<T>::LANE;
  }
  __device__ pack_bits hear(int r, int chunk) const {
    return row[r] && at(chunk) < length ? hear_pack(row[r] + at(chunk)) : pack_bits{{0, 0, 0, 0}};
  }
};

/* To what tensor cores keep of a float. */
__device__ inline unsigned rounded(unsigned v) {
  factor<float> f;
  f.set(0, __uint_as_float(v));
  return f.big[0];
}

/* TILES times 8 columns, CHUNKS chunks of them. */
template <typename T, int TILES, int CHUNKS>
struct held_factor {
  unsigned v[CHUNKS][TILES][4];

  /* Column n of the lane is where column(n) points to, NULL where it is of zeros, its elements `stride` apart. */
  template <typename F>
  __device__ void load(const heard_rows<T> &rows, int64_t stride, bool tf32, F column) {
    typedef typename bits_of<sizeof(T)>::type bits;
    enum { EACH = chunk_of<T>::LANE / 4 };
    UNROLLED(n, TILES) {
      const bits *from = (const bits *)column(n);
      UNROLLED(c, CHUNKS) {
        const int k = rows.at(c);
        UNROLLED(i, 4) {
          unsigned word = 0;
          UNROLLED(e, EACH)
            if (from && k < rows.length) word |= (unsigned)from[(k + EACH * i + e) * stride] << 16 * e;
          v[c][n][i] = EACH == 1 && tf32 ? rounded(word) : word;
        }
      }
    }
  }
};

/* Rows that are the same for all columns. */
struct no_change {
  __device__ no_change chunk(int, int) const { return *this; }
  template <typename P>
  __device__ void change(P &, const P &, int) const {}
};

/* acc += a chunk of the rows times that of the factor. change.change(a, from, n) makes a of the rows for tile n of
 * columns, where they are others than for tile n - 1. */
template <bool FEW, typename T, int TILES, typename C>
__device__ inline void multiply_chunk(float (&acc)[TILES][4], const pack_bits (&from)[2], const unsigned (&b)[TILES][4],
                                      int tiles, const C &change, T type, bool) {
  pack_bits a[2] = {from[0], from[1]};
  UNROLLED(n, TILES) {
    if (n >= tiles || (FEW && n % 2)) continue;
    change.change(a, from, n);
    UNROLLED(s, 2) {
      const unsigned *h = a[0].v + 2 * s, *l = a[1].v + 2 * s, *w = b[n] + 2 * s, *x = b[(n + 1) % TILES] + 2 * s;
      const unsigned left[4] = {FEW ? w[0] : h[0], FEW ? x[0] : l[0], FEW ? w[1] : h[1], FEW ? x[1] : l[1]};
      multiply(acc[n], left, FEW ? h[0] : w[0], FEW ? h[1] : w[1], type);
    }
  }
}

/* Of float, a product of tiles is rounded to two (factor<float>) or, with tf32, one of what tensor cores multiply;
 * those of the held factor are rounded already then. Sums that tensor cores make are short: they cut off where float
 * rounds. */
struct split_words {
  unsigned big[4], small[4];
  __device__ void set(int i, unsigned v) {
    factor<float> f;
    f.set(0, __uint_as_float(v));
    big[i] = f.big[0], small[i] = f.small[0];
  }
};
template <bool FEW>
__device__ inline void multiply_words(float (&sum)[4], const unsigned *h, const unsigned *l, const unsigned *w,
                                      const unsigned *x) {
  UNROLLED(s, 2) {
    const int i = 2 * s, j = i + 1;
    if (FEW) {
      const unsigned left[4] = {w[i], x[i], w[j], x[j]};
      multiply(sum, left, h[i], h[j], float());
    } else {
      const unsigned left[4] = {h[i], l[i], h[j], l[j]};
      multiply(sum, left, w[i], w[j], float());
    }
  }
}
template <bool FEW, int TILES, typename C>
__device__ inline void multiply_chunk(float (&acc)[TILES][4], const pack_bits (&from)[2], const unsigned (&b)[TILES][4],
                                      int tiles, const C &change, float, bool tf32) {
  split_words all[2], a[2];
  UNROLLED(r, FEW ? 1 : 2)
    UNROLLED(i, 4) all[r].set(i, from[r].v[i]);
  UNROLLED(r, 2) a[r] = all[r];
  UNROLLED(n, TILES) {
    if (n >= tiles || (FEW && n % 2)) continue;
    change.change(a, all, n);
    const int next = (n + 1) % TILES;
    float sum[4] = {};
    if (tf32) {
      multiply_words<FEW>(sum, a[0].big, a[1].big, b[n], b[next]);
    } else {
      split_words w, x;
      UNROLLED(i, 4) { /* for every tile of rows again: there is no room to keep what has been split, so it is hidden */
        unsigned one, other;
        asm volatile("mov.b32 %0, %1;" : "=r"(one) : "r"(b[n][i]));
        w.set(i, one);
        if (!FEW) continue;
        asm volatile("mov.b32 %0, %1;" : "=r"(other) : "r"(b[next][i]));
        x.set(i, other);
      }
      multiply_words<FEW>(sum, a[0].small, a[1].small, w.big, x.big);
      multiply_words<FEW>(sum, a[0].big, a[1].big, w.small, x.small);
      multiply_words<FEW>(sum, a[0].big, a[1].big, w.big, x.big);
    }
    UNROLLED(i, 4) acc[n][i] += sum[i];
  }
}

/* sum = rows times the factor, of which `tiles` times 8 columns count. Where `wait` is set, the rows are exchanged.
 * Loads of the next chunks begin when those before them have come, and so most likely find what they wait for; they are
 * on their way while those are multiplied. Where the rows have been told some time ago (`early`), all begin at once.
 * change.chunk(c, k) is what changes chunk c, of which the lane has the elements from k on. */
template <bool FEW, typename T, int TILES, int CHUNKS, typename C>
__device__ inline void multiply_held(float (&sum)[TILES][4], const heard_rows<T> &rows,
                                     const held_factor<T, TILES, CHUNKS> &held, int tiles, const C &change, bool wait,
                                     bool early, bool tf32) {
  enum { AT_ONCE = 4, ROWS = FEW ? 1 : 2 };
  UNROLLED(i, TILES * 4) sum[i / 4][i % 4] = 0;
  pack_bits a[2][AT_ONCE][2];
  UNROLLED(i, AT_ONCE)
    UNROLLED(r, ROWS) a[0][i][r] = rows.hear(r, i);
  auto begin_next = [&](int part) {
    if ((part + 1) * AT_ONCE < CHUNKS)
      UNROLLED(i, AT_ONCE)
        UNROLLED(r, ROWS) a[1 - part % 2][i][r] = rows.hear(r, (part + 1) * AT_ONCE + i);
  };
  UNROLLED(part, CHUNKS / AT_ONCE) {
    const int c = part * AT_ONCE, now = part % 2;
    if (early) begin_next(part);
    /* The first warp's first chunk of these: where it is beyond the end, all are, of all warps. */
    if (c * rows.step * chunk_of<T>::ALL < rows.length) {
      while (wait) { /* all that are not there yet at once: a load takes long */
        bool there = true;
        UNROLLED(i, AT_ONCE)
          UNROLLED(r, ROWS) there &= is_told(a[now][i][r]);
        if (there) break;
        UNROLLED(i, AT_ONCE)
          UNROLLED(r, ROWS)
            if (!is_told(a[now][i][r])) a[now][i][r] = rows.hear(r, c + i);
      }
      __syncwarp();
      if (!early) begin_next(part);
      UNROLLED(i, AT_ONCE)
        multiply_chunk<FEW>(sum, a[now][i], held.v[c + i], tiles, change.chunk(c + i, rows.at(c + i)), T(), tf32);
    }
  }
}
#endif
