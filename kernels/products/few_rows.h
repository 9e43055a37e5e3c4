/* few_rows.h - products of few rows of x with up to three kernels, as in decoding, where what takes time is reading the
 * kernels once:
 *
 *   y_i = act(x . kernel_i + bias_i) + residual, or y = act(x . kernel_0 + bias_0) * (x . kernel_1 + bias_1)
 *
 * and, where there is a gamma, x is normed: x * gamma / sqrt(mean(x^2) + epsilon).
 *
 * Kernels are of 16 bits, row by row, or in tiles of 8 or 4 bits with scales, as ops/products/quantized_linear.c has
 * them. For the latter, rows of x may be rounded to whole numbers, after the norm. */
#ifndef TFUSE_FEW_ROWS_H_
#define TFUSE_FEW_ROWS_H_

#include "kernels/core/gpu/tensor_map.h"

enum {
  FEW_ROWS_MOST = 64,  /* rows of x in a launch                                           */
  FEW_ROWS_STEP = 32,  /* rows of the kernel that a warp multiplies with at once: a stage */
  FEW_ROWS_WARPS = 8,  /* of a block; they take its stages in turn                        */
  FEW_ROWS_DEPTH = 2,  /* stages that a warp has on their way from memory                 */
  FEW_ROWS_SPLITS = 8, /* blocks at most that share the kernel's rows: a cluster          */
};

/* Bytes of a stage in shared memory: rows of the kernel, the columns of x that they are multiplied with, gamma of them.
 * A stage begins at a multiple of a row's bytes. */
#define FEW_ROWS_STAGE(tiles, columns) ((FEW_ROWS_STEP * (2 * ((columns) + 16 * (tiles)) + 4) + 255) / 256 * 256)

/* The same for tiles: a block has 64 columns, and its warps take units of rows in turn; of a gated unit, half of the
 * warps have one kernel's. A group of rows has scales of its own; it ends with a step. */
enum {
  FEW_ROWS_TILED_UNIT = 128,
  FEW_ROWS_TILED_STEP = 32,
  FEW_ROWS_TILED_HELD = 48, /* units that a block has, at most: x is in shared memory */
  FEW_ROWS_TILED_COLUMNS = 64
};

/* The same for many rows (many_rows.cu): a block has up to four times 64 columns at a time, by n = 64 or 128 rows of x;
 * so many rows of the kernel are a stage of its ring, which has all the shared memory that the sums leave. */
enum { MANY_ROWS_THREADS = 384, MANY_ROWS_UNITS = 4, MANY_ROWS_DEEP = 64 };
#define MANY_ROWS_STAGE(bits, n) \
  ((n)*MANY_ROWS_DEEP * 2 + MANY_ROWS_UNITS * FEW_ROWS_TILED_COLUMNS * MANY_ROWS_DEEP * (bits) / 8)
#define MANY_ROWS_SUMS (2 * 64 * (FEW_ROWS_TILED_COLUMNS + 4) * 4)
#define MANY_ROWS_STAGES(bits, n) ((220 * 1024 - MANY_ROWS_SUMS) / MANY_ROWS_STAGE(bits, n))
#define MANY_ROWS_SHARED(bits, n) (MANY_ROWS_STAGES(bits, n) * MANY_ROWS_STAGE(bits, n) + MANY_ROWS_SUMS)

/* For 8 * n rows of x: bytes of shared memory that so many units of x take, as bytes where they are whole; a warp's
 * ring; and what a block needs of both. The sums come in their place, and take no more. Two blocks shall have room on a
 * multiprocessor where x has 4096 columns, too: so rings are half as long where x is not bytes. */
#define FEW_ROWS_TILED_X(n, units, whole) ((n)*8 * FEW_ROWS_TILED_UNIT * (2 - (whole)) * (units))
#define FEW_ROWS_TILED_RING(n, whole) ((whole) && (n) == 1 ? 8192 : 4096)
#define FEW_ROWS_TILED_TILE(bits) (16 * FEW_ROWS_TILED_COLUMNS * (bits) / 8)
#define FEW_ROWS_TILED_SHARED(n, units, whole) \
  (FEW_ROWS_TILED_X(n, units, whole) + FEW_ROWS_WARPS * FEW_ROWS_TILED_RING(n, whole))

typedef struct few_rows_product {
  const void *kernel, *bias; /* bias may be NULL */
  const void *scale;         /* of tiles */
  void *y;
  int64_t outputs;
} few_rows_product;

typedef struct few_rows_args {
  few_rows_product of[3];   /* those after the last have no kernel */
  const void *x, *residual; /* residual is the first one's, and may be NULL */
  const float *gamma;       /* NULL: x as it is */
  int64_t inputs;
  float epsilon;
  int rows, activation, splits;
  int gated; /* of two products, which are one result */
  /* Of tiles: */
  int rounds;             /* rows of x are rounded to whole numbers up to 127, as normed            */
  const float *row_scale; /* of many rows, for the sums of each, or NULL: x was rounded before      */
  int group_shift;        /* 2 to its power is how many steps a group has                           */
  int wide;               /* scales are float                                                       */
} few_rows_args;

typedef struct many_rows_args {
  tfu_tensor_map x;
  few_rows_args of;
} many_rows_args;

/* By warpgroups (few_rows_wgmma.cu): a stage has so many terms of 128 columns of the kernel, and of r rows of x. */
enum {
  FEW_ROWS_WGMMA_TERMS = 64,
  FEW_ROWS_WGMMA_COLUMNS = 128,
  FEW_ROWS_WGMMA_STAGES = 12, /* at most                                            */
  FEW_ROWS_WGMMA_SPLITS = 4,  /* blocks at most that share the kernel's rows        */
};
#define FEW_ROWS_WGMMA_STAGE(r) (FEW_ROWS_WGMMA_TERMS * 2 * (FEW_ROWS_WGMMA_COLUMNS + (r)))

typedef struct few_rows_wgmma_args {
  tfu_tensor_map kernel[3], x;
  few_rows_args a;
  int stages; /* on their way from memory */
  int groups; /* of r rows */
} few_rows_wgmma_args;

#ifndef TFU_DEVICE
#include "tfuse.h"

/* Runs it where it is served: 16 bits, normed ones bfloat16, on a GPU with clusters, sizes that fill its loads. Rows
 * beyond FEW_ROWS_MOST take launches of their own. How a row's sum is split depends on the kernels' sizes alone: its
 * result is the same whatever other rows there are (tfu_call.invariant), and so is whether it is served. `constant`:
 * nothing that was queued before in the same graph writes kernels and gamma, which may be read ahead. */
TFU_MUST_USE tfu_code tfu_few_rows_run(tfu_call *call, few_rows_args a, tfu_dtype dtype, int constant, int *served);

/* The same by warpgroups, for any number of rows, where there is no gamma; on GPUs of compute capability 9.0. And
 * whether it would run, where x is not there yet. The bits are not those of tfu_few_rows_run. */
TFU_MUST_USE tfu_code tfu_few_rows_wgmma_serves(tfu_call *call, const few_rows_args *a, tfu_dtype dtype, int *served);
TFU_MUST_USE tfu_code tfu_few_rows_wgmma_run(tfu_call *call, few_rows_args a, tfu_dtype dtype, int constant,
                                             int *served);

/* The same for tiles of so many bits; group: rows of the kernel, at least 1, and as many as there are for one group.
 * And whether it would run, where x is not there yet: such as is scratch. */
TFU_MUST_USE tfu_code tfu_few_rows_tiled_serves(tfu_call *call, few_rows_args a, int64_t group, tfu_dtype dtype,
                                                int *served);
TFU_MUST_USE tfu_code tfu_few_rows_tiled_run(tfu_call *call, few_rows_args a, int bits, int64_t group, tfu_dtype dtype,
                                             int constant, int *served);

/* The same for many rows of x and one product, neither normed nor gated: bfloat16, where the GPU has wgmma. How a row's
 * sum is split depends on how many rows there are. */
TFU_MUST_USE tfu_code tfu_many_rows_serves(tfu_call *call, few_rows_args a, int64_t group, tfu_dtype dtype,
                                           int *served);
TFU_MUST_USE tfu_code tfu_many_rows_run(tfu_call *call, few_rows_args a, int bits, int64_t group, tfu_dtype dtype,
                                        int *served);

/* The .group_shift of groups of so many rows, or -1: they are not served. */
int tfu_few_rows_group_shift(const few_rows_args *a, int64_t group);
#endif

#endif
