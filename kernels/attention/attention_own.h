/* attention_own.h - how our own attention kernels cut up their work. Host and device. */
#ifndef TFUSE_KERNELS_ATTENTION_OWN_H_
#define TFUSE_KERNELS_ATTENTION_OWN_H_

#include "kernels/attention/attention.h"

#define TFU_MOST_SPLITS 512 /* of the keys, in decoding */
#define TFU_JOIN_THREADS 1024

typedef struct attention_work {
  attention_args a;
  int tiles;   /* of a head: of a sequence's queries or keys; where ragged, of all sequences together */
  int aligned; /* tensors begin, and rows of heads are, in whole chunks of 16 bytes */
  float *rows; /* of the gradient: two numbers for each query, placed as in stats: its stats in base 2, and
                  sum(doutput * output) - dstats */
  /* Of decoding: keys go to `splits` blocks; for each of a sequence's queries, [batch, key_heads, queries, heads that
   * share a key head], and each split, what it found: maximum (base 2), sum, and the output's value_dim numbers. */
  int splits;
  float *parts;
} attention_work;

/* X(kind, bytes of an element, largest head_dim, warps, blocks, steps, stages): a block of threads has `warps`, each
 * with 16 * blocks rows, which stay in shared memory; tiles of `steps` rows pass by, `stages` pairs of them in memory
 * at a time.
 *
 * FORWARD: queries stay, keys and values pass. BY_QUERY: queries and the output's gradient stay, keys and values pass.
 * BY_KEY: keys and values stay, queries and the output's gradient pass. DECODE: 16 rows of queries stay, for all warps,
 * and each warp has tiles of keys and values of its own pass.
 *
 * By measurement on an H200, B4 H16 S4096 D128 in bfloat16. BY_QUERY with 32 rows of a warp takes 2.34 ms, with 16 rows
 * 2.83, with 16 rows and 64 steps 2.60: fewer reads of shared memory. BY_KEY has registers for 16 rows; 64 steps take
 * 3.56 ms, 32 steps in two stages 3.64, in one 4.38. Shared memory of at most 80 KiB, 95 with dropout, lets two blocks
 * be on a multiprocessor, and one where a block has no more than 99 KiB. */
enum { TFU_FORWARD, TFU_FORWARD_FULL, TFU_BY_QUERY, TFU_BY_KEY, TFU_DECODE };
#define TFU_ATTENTION_BLOCKS(X)            \
  X(TFU_FORWARD, 2, 64, 4, 2, 64, 1)       \
  X(TFU_FORWARD, 2, 128, 4, 2, 64, 1)      \
  X(TFU_FORWARD_FULL, 2, 64, 4, 1, 64, 1)  \
  X(TFU_FORWARD_FULL, 2, 128, 4, 1, 64, 1) \
  X(TFU_FORWARD_FULL, 2, 256, 4, 1, 32, 1) \
  X(TFU_FORWARD_FULL, 4, 64, 4, 2, 32, 1)  \
  X(TFU_FORWARD_FULL, 4, 128, 4, 2, 16, 1) \
  X(TFU_FORWARD_FULL, 4, 256, 2, 1, 16, 1) \
  X(TFU_BY_QUERY, 2, 64, 4, 2, 32, 2)      \
  X(TFU_BY_QUERY, 2, 128, 4, 2, 32, 1)     \
  X(TFU_BY_QUERY, 2, 256, 2, 1, 16, 2)     \
  X(TFU_BY_QUERY, 4, 64, 4, 2, 32, 1)      \
  X(TFU_BY_QUERY, 4, 128, 4, 1, 16, 1)     \
  X(TFU_BY_QUERY, 4, 256, 1, 1, 16, 1)     \
  X(TFU_BY_KEY, 2, 64, 4, 2, 32, 2)        \
  X(TFU_BY_KEY, 2, 128, 4, 1, 64, 1)       \
  X(TFU_BY_KEY, 2, 256, 4, 1, 16, 1)       \
  X(TFU_BY_KEY, 4, 64, 4, 2, 16, 2)        \
  X(TFU_BY_KEY, 4, 128, 4, 1, 16, 1)       \
  X(TFU_BY_KEY, 4, 256, 1, 1, 16, 1)       \
  X(TFU_DECODE, 2, 64, 4, 1, 16, 4)        \
  X(TFU_DECODE, 2, 128, 4, 1, 16, 2)       \
  X(TFU_DECODE, 2, 256, 4, 1, 16, 1)       \
  X(TFU_DECODE, 4, 64, 4, 1, 16, 2)        \
  X(TFU_DECODE, 4, 128, 4, 1, 16, 1)       \
  X(TFU_DECODE, 4, 256, 2, 1, 16, 1)

/* The largest head_dim of tiles whose BY_KEY kernel makes dkey and dvalue in the same blocks; above it, a grid has
 * twice as many, those for dvalue with a y of 1. */
#define TFU_MOST_BOTH 128

/* Bytes of shared memory for dropout of a warp's results: a query's keys are a run. */
#define TFU_DROP_BYTES(runs, length) (((length) / 8 + 1) * (runs)*16)

#ifdef TFU_DEVICE
/* A warp's OWN rows are M times 16 and the STEPS of a tile N times 8: results of tensor cores are 16 x 8. ROWS are
 * those of all warps. */
template <int KIND, int SIZE, int D>
struct attention_block;
#define X(kind, size, d, warps, blocks, steps, stages)                                                       \
  template <>                                                                                                \
  struct attention_block<kind, size, d> {                                                                    \
    enum { WARPS = warps, THREADS = 32 * warps, M = blocks, OWN = 16 * blocks, ROWS = 16 * blocks * warps }; \
    enum { STEPS = steps, N = steps / 8, STAGES = stages };                                                  \
  };
TFU_ATTENTION_BLOCKS(X)
#undef X
#endif
#endif
