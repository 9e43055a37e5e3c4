/* quantized_kernel.h - a kernel of 8 or 4 bits in memory, in any of the orders of ops/products/quantized_linear.c.
 *
 * A tile has rows 16 i .. 16 i + 15 and columns 64 j .. 64 j + 63. As a right factor of tensor cores (mma.m16n8k16),
 * lane 4 g + t has of every eight columns column g, and of the rows 2 t, 2 t + 1, 2 t + 8, 2 t + 9. So row 8 h + 2 t +
 * e of column 8 c + g is value (c, h, e) of lane 4 g + t, h, e = 0, 1 and c = 0 .. 7. A lane has them in 16 bytes side
 * by side; with 8 bits, columns from 32 on in 512 bytes of their own. In the words of these bytes
 *
 *   8 bits: word c % 4, byte 2 e + h
 *   4 bits: word c / 2, half byte 4 e + 2 (c % 2) + h
 *
 * so that the two of a row pair lie 16 bits apart, as the two halves of a register that tensor cores take. */
#ifndef TFUSE_QUANTIZED_KERNEL_H_
#define TFUSE_QUANTIZED_KERNEL_H_

#include <stdint.h>

enum { QUANT_BY_ROWS, QUANT_BY_COLUMNS, QUANT_TILES, QUANT_TILE_ROWS = 16, QUANT_TILE_COLUMNS = 64 };
/* Inputs whose products, of 7 bits by 8, can be summed in int32. */
enum { QUANT_WHOLE_INPUTS = 1 << 17 };

typedef struct quantized_kernel {
  const uint8_t *codes, *zero;            /* zero may be NULL */
  const void *scale, *input_scale;        /* input_scale, in the type of x, may be NULL */
  const float *groups;                    /* of each row; NULL: row / group */
  int64_t inputs, outputs, group, scales; /* scales: how many groups have some; group is at least 1 */
  int bits, order, divide, is_signed;
  int wide; /* scale is in the arithmetic type, not in that of x */
} quantized_kernel;

#ifdef TFU_DEVICE
#define QUANT_INLINE __device__ inline
#else
#define QUANT_INLINE static inline
#endif

/* The number that a code of so many bits is. */
QUANT_INLINE int quant_value(unsigned code, int bits, int is_signed) {
  const int sign = is_signed << (bits - 1);
  return ((int)code ^ sign) - sign;
}

/* Half byte or byte `at` of `codes`. */
QUANT_INLINE unsigned quant_code(const uint8_t *codes, int64_t at, int bits) {
  return bits == 8 ? codes[at] : codes[at >> 1] >> (at & 1) * 4 & 15;
}

/* Which byte, or half byte, of a tile is row r, column c of it. */
QUANT_INLINE int quant_place(int r, int c, int bits) {
  const int h = r / 8, t = r % 8 / 2, e = r % 2, g = c % 8, block = c / 8, lane = 4 * g + t;
  return bits == 8 ? block / 4 * 512 + lane * 16 + block % 4 * 4 + 2 * e + h
                   : lane * 32 + block / 2 * 8 + 4 * e + 2 * (block % 2) + h;
}

/* kernel[i][o], as a number. */
QUANT_INLINE int quant_at(const quantized_kernel *k, int64_t i, int64_t o) {
  int64_t at;
  if (k->order == QUANT_TILES) {
    at = (o / QUANT_TILE_COLUMNS * (k->inputs / QUANT_TILE_ROWS) + i / QUANT_TILE_ROWS) *
         (QUANT_TILE_ROWS * QUANT_TILE_COLUMNS);
    at += quant_place((int)(i % QUANT_TILE_ROWS), (int)(o % QUANT_TILE_COLUMNS), k->bits);
    return quant_value(quant_code(k->codes, at, k->bits), k->bits, k->bits == 8);
  }
  if (k->bits == 8) at = k->order == QUANT_BY_ROWS ? i * k->outputs + o : o * k->inputs + i;
  else at = (k->order == QUANT_BY_ROWS ? i * ((k->outputs + 1) / 2) + o / 2 : o / 2 * k->inputs + i) * 2 + o % 2;
  return quant_value(quant_code(k->codes, at, k->bits), k->bits, k->is_signed);
}

/* The group of row i. One that does not exist is the nearest that does. */
QUANT_INLINE int64_t quant_group(const quantized_kernel *k, int64_t i) {
  if (!k->groups) return i / k->group;
  const float g = k->groups[i];
  return g > 0 ? (g < (float)k->scales ? (int64_t)g : k->scales - 1) : 0;
}

/* Where the scale of a group's column lies, and its zero. */
QUANT_INLINE int64_t quant_scale_at(const quantized_kernel *k, int64_t g, int64_t o) {
  return k->order == QUANT_BY_COLUMNS ? o * k->scales + g : g * k->outputs + o;
}

#ifndef TFU_DEVICE
#include "tfuse.h"

/* kernel[i][first] .., n numbers; first is a multiple of a tile's columns. */
void tfu_quant_line(const quantized_kernel *k, int64_t i, int64_t first, int n, int16_t *line);

/* That of a call of QuantizedLinear or its gradient. */
quantized_kernel tfu_quantized_kernel(const tfu_call *call);

/* QuantizedLinear of rows that are rounded, on the CPU, where there is one group and no float64. What each column is
 * multiplied with, and what is subtracted before, are in the arithmetic type; zero may be NULL. */
TFU_MUST_USE tfu_code tfu_quantized_whole_cpu(tfu_call *call, const quantized_kernel *k, const void *by,
                                              const void *zero, int *served);

/* QuantizedLinear of x, whose rows have been rounded if they shall be, and its gradient, by the ops on w in the type of
 * x, which `dequantize` writes. */
typedef struct quantized_parts {
  tfu_code (*dequantize)(tfu_call *call, const quantized_kernel *k, const tfu_tensor *w);
  tfu_compute_fn *linear, *linear_grad;
} quantized_parts;
TFU_MUST_USE tfu_code tfu_quantized_linear_by_parts(tfu_call *call, const tfu_tensor *x, const quantized_parts *parts);
TFU_MUST_USE tfu_code tfu_quantized_linear_grad_by_parts(tfu_call *call, const quantized_parts *parts);
#endif

#endif
