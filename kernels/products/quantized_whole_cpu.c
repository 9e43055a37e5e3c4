/* QuantizedLinear of rounded rows on the CPU: products of int8, summed in int32 (dots.h). Codes are transposed first,
 * so that both factors lie along the sum. */
#include <math.h>
#include <string.h>

#include "kernels/core/arithmetic.h"
#include "kernels/core/cpu/cpu.h"
#include "kernels/core/cpu/dots.h"
#include "kernels/products/quantized_kernel.h"
#include "ops/products/quantized_linear.h"

/* Results of a task, and rows that a column of codes is multiplied with at once. */
enum { ROWS = 64, COLUMNS = 64, AT_ONCE = TFU_DOTS };

typedef struct whole_job {
  quantized_kernel k;
  tfu_dtype dtype;
  const tfu_tensor *x, *bias, *residual, *y;
  const tfu_activation *act;
  int8_t *rows, *columns; /* [rows, inputs], [outputs, inputs] */
  float *row_scale, *row_sum, *by, *zero;
  int64_t n;
  tfu_dots *multiply;
} whole_job;

static void round_rows(void *arg, int64_t begin, int64_t end) {
  const whole_job *j = arg;
  const int64_t inputs = j->k.inputs;
  for (int64_t row = begin; row < end; row++) {
    float buffer[TFU_TILE], largest = 0;
    int64_t sum = 0;
    for (TFU_EACH_TILE(at, n, 0, inputs)) {
      const float *x = tfu_load_f32(j->x->data, j->dtype, row * inputs + at, (int)n, buffer);
      for (int64_t i = 0; i < n; i++) largest = !(fabsf(x[i]) <= largest) ? fabsf(x[i]) : largest;
    }
    const float by = 127 / (largest + 1e-7f);
    for (TFU_EACH_TILE(at, n, 0, inputs)) {
      const float *x = tfu_load_f32(j->x->data, j->dtype, row * inputs + at, (int)n, buffer);
      int8_t *to = j->rows + row * inputs + at;
      for (int64_t i = 0; i < n; i++) {
        const float v = rintf(x[i] * by);
        to[i] = v == v ? (int8_t)v : 0;
        sum += to[i];
      }
    }
    j->row_scale[row] = 1 / by; /* NaN where x has one, and so is all that comes of the row */
    j->row_sum[row] = (float)sum;
  }
}

/* n codes of row i from column `first` on, a multiple of a tile's columns, of which n is not more; each is `less` less.
 */
static void codes_of(const quantized_kernel *k, int64_t i, int64_t first, int n, int less, int8_t *line) {
  const uint8_t *codes = k->codes + i * k->outputs + first;
  if (k->order == QUANT_TILES) quant_tile_line(k, i, first / QUANT_TILE_COLUMNS, line);
  else if (k->order == QUANT_BY_ROWS && k->bits == 8)
    for (int c = 0; c < n; c++) line[c] = (int8_t)(codes[c] - less);
  else
    for (int c = 0; c < n; c++) line[c] = (int8_t)(quant_at(k, i, first + c) - less);
}

/* Codes of columns begin .. end, unsigned bytes 128 less, and what these subtract and multiply with. A square of codes
 * at a time, which stays in the cache: bytes of a column lie far apart, and in few of its lines. */
static void transpose_columns(void *arg, int64_t begin, int64_t end) {
  enum { SIDE = QUANT_TILE_COLUMNS };
  const whole_job *j = arg;
  const quantized_kernel *k = &j->k;
  const tfu_dtype dtype = k->wide ? TFU_F32 : j->dtype;
  const int tiles = k->order == QUANT_TILES, less = !tiles && k->bits == 8 && !k->is_signed ? 128 : 0;
  const int n = (int)(end - begin);
  for (int64_t i = 0; i < k->inputs; i += SIDE) {
    int8_t line[SIDE], square[SIDE][SIDE];
    const int some = (int)least(SIDE, k->inputs - i);
    for (int r = 0; r < some; r++) {
      codes_of(k, i + r, begin, n, less, line);
      for (int c = 0; c < n; c++) square[c][r] = line[c];
    }
    for (int c = 0; c < n; c++) memcpy(j->columns + (begin + c) * k->inputs + i, square[c], (size_t)some);
  }
  for (int64_t o = begin; o < end; o++) {
    float by, zero = k->zero ? (float)quant_value(k->zero[o], 8, k->is_signed) : 0;
    by = *tfu_load_f32(k->scale, dtype, o, 1, &by);
    if (tiles) zero = *tfu_load_f32(k->scale, dtype, k->outputs + o, 1, &zero);
    j->by[o] = k->divide ? 1 / by : by;
    j->zero[o] = zero - (float)less;
  }
}

static void finish(const whole_job *j, int64_t row, int64_t col, int n, float *line) {
  float bias[COLUMNS], ones[COLUMNS], buffer[COLUMNS];
  const int64_t at = row * j->k.outputs + col;
  const float *given = tfu_count(&j->bias->shape) ? tfu_load_f32(j->bias->data, j->dtype, col, n, bias) : NULL;
  for (int i = 0; i < n; i++) {
    line[i] = (line[i] - j->zero[col + i] * j->row_sum[row]) * j->by[col + i] * j->row_scale[row];
    bias[i] = given ? given[i] : -0.0f;
    ones[i] = 1;
  }
  j->act->value_f32(line, line, ones, bias, n);
  if (tfu_count(&j->residual->shape)) {
    const float *residual = tfu_load_f32(j->residual->data, j->dtype, at, n, buffer);
    for (int i = 0; i < n; i++) line[i] += residual[i];
  }
  tfu_store_f32(j->y->data, j->dtype, at, n, line);
}

static void block(void *arg, int64_t task) {
  const whole_job *j = arg;
  const int64_t across = divide_up(j->k.outputs, COLUMNS), row = task / across * ROWS, col = task % across * COLUMNS;
  const int rows = least(ROWS, j->n - row), n = least(COLUMNS, j->k.outputs - col);
  for (int r = 0; r < rows; r += AT_ONCE) {
    const int some = least(AT_ONCE, rows - r);
    float lines[AT_ONCE][COLUMNS];
    for (int c = 0; c < n; c++) {
      int32_t sums[AT_ONCE];
      j->multiply(j->columns + (col + c) * j->k.inputs, j->rows + (row + r) * j->k.inputs, j->k.inputs, some, sums);
      for (int i = 0; i < some; i++) lines[i][c] = (float)sums[i];
    }
    for (int i = 0; i < some; i++) finish(j, row + r + i, col, n, lines[i]);
  }
}

tfu_code tfu_quantized_whole_cpu(tfu_call *call, const quantized_kernel *k, int *served) {
  whole_job j = {.k = *k,
                 .dtype = call->in[0].dtype,
                 .x = &call->in[TFU_QUANT_X],
                 .bias = &call->in[TFU_QUANT_BIAS],
                 .residual = &call->in[TFU_QUANT_RESIDUAL],
                 .y = &call->out[0],
                 .act = &tfu_activations[call->attr[TFU_QUANT_ACTIVATION].i],
                 .n = tfu_rows(&call->in[TFU_QUANT_X].shape),
                 .multiply = tfu_best_dots()};
  *served = k->scales == 1 && !k->groups && !k->input_scale && j.dtype != TFU_F64 && k->inputs > 0 &&
            k->inputs <= QUANT_WHOLE_INPUTS;
  if (!*served) return TFU_OK;
  TFU_SCRATCH(call, j.n * k->inputs, j.rows);
  TFU_SCRATCH(call, k->outputs * k->inputs, j.columns);
  TFU_SCRATCH(call, 2 * j.n, j.row_scale);
  TFU_SCRATCH(call, 2 * k->outputs, j.by);
  j.row_sum = j.row_scale + j.n;
  j.zero = j.by + k->outputs;
  tfu_parallel_ranges(j.n, 16, round_rows, &j);
  tfu_parallel_ranges(k->outputs, QUANT_TILE_COLUMNS, transpose_columns, &j);
  tfu_parallel(divide_up(j.n, ROWS) * divide_up(k->outputs, COLUMNS), block, &j);
  return TFU_OK;
}
