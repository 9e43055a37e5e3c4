/* quantized_linear.h - arguments and attributes of the quantized linear ops, and how their kernels lie in memory. */
#ifndef TFUSE_QUANTIZED_LINEAR_H_
#define TFUSE_QUANTIZED_LINEAR_H_

#include "ops/products/linear.h"
#include "tfuse.h"

/* In this order for both ops. */
enum {
  TFU_QUANT_ACTIVATION,
  TFU_QUANT_TF32,
  TFU_QUANT_BITS,
  TFU_QUANT_GROUP,
  TFU_QUANT_ORDER,
  TFU_QUANT_DIVIDE,
  TFU_QUANT_ROWS
};
enum { TFU_QUANT_BY_ROWS, TFU_QUANT_BY_COLUMNS, TFU_QUANT_TILES };
#define TFU_QUANT_ATTRS                                                                                \
  TFU_LINEAR_ATTRS, "bits: int = 8", "group: int = 0", "order: {'rows', 'columns', 'tiles'} = 'rows'", \
      "divide: bool = false", "quantize_rows: bool = false", TFU_T_FLOATS, TFU_K_KEPT, "Q: {int8, uint8} = DT_INT8"

/* Those of the gradient are the same but for dy and pre in the place of x and residual. */
enum {
  TFU_QUANT_X,
  TFU_QUANT_KERNEL,
  TFU_QUANT_SCALE,
  TFU_QUANT_ZERO,
  TFU_QUANT_INPUT_SCALE,
  TFU_QUANT_GROUPS,
  TFU_QUANT_BIAS,
  TFU_QUANT_RESIDUAL
};
enum { TFU_QUANT_DY = TFU_QUANT_X, TFU_QUANT_PRE = TFU_QUANT_RESIDUAL };
enum { TFU_QUANT_DX, TFU_QUANT_DBIAS };

/* Fails unless v is a vector of that size, one value per `per`. An empty vector means "not given". */
TFU_MUST_USE tfu_code tfu_quant_vector(const char *name, const tfu_shape *v, const char *per, int64_t size,
                                       tfu_error *err);

/* A tile of the order 'tiles': that many rows and columns of the kernel. */
enum { TFU_QUANT_TILE_ROWS = 16, TFU_QUANT_TILE_COLUMNS = 64 };
static inline int64_t tfu_quant_tile_bytes(int64_t bits) {
  return TFU_QUANT_TILE_ROWS * TFU_QUANT_TILE_COLUMNS * bits / 8;
}

/* Scratch that QuantizedLinear may want beside that of Linear: w or codes, x as it is rounded, and sums. */
static inline size_t tfu_quant_room(int64_t rows, int64_t inputs, int64_t outputs, size_t size, int quantize_rows) {
  const size_t w = (size_t)(inputs * outputs) * (size + (quantize_rows ? 1 : 0));
  return w + (size_t)(rows * inputs) * (size + 1) + (size_t)(rows * outputs) * (quantize_rows ? 4 : 0) +
         (size_t)rows * 8 + 4096;
}

#endif
