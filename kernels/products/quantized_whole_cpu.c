/* QuantizedLinear of rounded rows on the CPU: products of int8, summed in int32 (quads.h). */
#include <math.h>

#include "kernels/core/arithmetic.h"
#include "kernels/core/cpu/cpu.h"
#include "kernels/core/cpu/quads.h"
#include "kernels/core/cpu/workers.h"
#include "kernels/products/quantized_kernel.h"
#include "ops/products/quantized_linear.h"

/* Results of a task, which has fewer columns where all tasks would be few, and terms of which it has panels at once. */
enum { ROWS = 64, COLUMNS = 256, FEW_COLUMNS = TFU_QUAD_COLUMNS, TERMS = 128 };
_Static_assert((int)TFU_QUAD_COLUMNS == (int)QUANT_TILE_COLUMNS, "a panel has a tile's columns");

typedef struct whole_job {
  quantized_kernel k;
  tfu_dtype dtype;
  const tfu_tensor *x, *bias, *residual, *y;
  const tfu_activation *act;
  int8_t *rows; /* [rows, pitch] */
  float *row_scale, *row_sum;
  const float *by, *zero; /* of each column; zero may be NULL */
  int64_t n, pitch;
  int less; /* what is taken off unsigned bytes, so that they are signed ones */
  int columns;
  tfu_quads *multiply;
} whole_job;

typedef struct whole_space {
  int8_t panels[COLUMNS / TFU_QUAD_COLUMNS][TERMS * TFU_QUAD_COLUMNS];
  int32_t sums[ROWS][COLUMNS];
} whole_space;

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
      int8_t *to = j->rows + row * j->pitch + at;
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

/* Up to four terms of n columns from `first` on. */
static void pack(const whole_job *j, int64_t at, int terms, int64_t first, int n, int8_t *panel) {
  const quantized_kernel *k = &j->k;
  const int8_t *codes = (const int8_t *)k->codes;
  int8_t lines[4][TFU_QUAD_COLUMNS];
  int16_t line[TFU_QUAD_COLUMNS];
  if (k->bits == 8 && k->order == QUANT_BY_ROWS && !j->less) {
    tfu_quads_of_lines(panel, codes + at * k->outputs + first, k->outputs, terms, n);
    return;
  }
  if (k->bits == 8 && k->order == QUANT_BY_COLUMNS && !j->less) {
    tfu_quads_of_columns(panel, codes + first * k->inputs + at, k->inputs, terms, n);
    return;
  }
  for (int i = 0; i < terms; i++) {
    tfu_quant_line(k, at + i, first, n, line);
    for (int c = 0; c < n; c++) lines[i][c] = (int8_t)(line[c] - j->less);
  }
  tfu_quads_of_lines(panel, lines[0], TFU_QUAD_COLUMNS, terms, n);
}

static void finish(const whole_job *j, int64_t row, int64_t col, int n, float *line) {
  float bias[COLUMNS], ones[COLUMNS], buffer[COLUMNS];
  const int64_t at = row * j->k.outputs + col;
  const float *given = tfu_count(&j->bias->shape) ? tfu_load_f32(j->bias->data, j->dtype, col, n, bias) : NULL;
  for (int i = 0; i < n; i++) {
    const float zero = (j->zero ? j->zero[col + i] : 0) - (float)j->less;
    line[i] = (line[i] - zero * j->row_sum[row]) * j->by[col + i] * j->row_scale[row];
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

/* Lines of codes are read as wide as the task is: they may be as far apart as pages of memory are large. */
static void block(void *arg, int64_t task, void *space) {
  enum { PANEL = TFU_QUAD_COLUMNS };
  const whole_job *j = arg;
  whole_space *s = space;
  const int64_t across = divide_up(j->k.outputs, j->columns), row = task / across * ROWS,
                col = task % across * j->columns;
  const int rows = (int)least(ROWS, j->n - row), n = (int)least(j->columns, j->k.outputs - col);
  for (int64_t at = 0; at < j->k.inputs; at += TERMS) {
    const int terms = (int)least(TERMS, j->k.inputs - at);
    for (int t = 0; t < terms; t += 4)
      for (int c = 0; c < n; c += PANEL)
        pack(j, at + t, (int)least(4, terms - t), col + c, (int)least(PANEL, n - c), s->panels[c / PANEL] + t * PANEL);
    for (int c = 0; c < n; c += PANEL)
      j->multiply(&s->sums[0][c], COLUMNS, j->rows + row * j->pitch + at, j->pitch, rows, s->panels[c / PANEL], terms,
                  at > 0);
  }
  for (int r = 0; r < rows; r++) {
    float line[COLUMNS];
    for (int c = 0; c < n; c++) line[c] = (float)s->sums[r][c];
    finish(j, row + r, col, n, line);
  }
}

tfu_code tfu_quantized_whole_cpu(tfu_call *call, const quantized_kernel *k, const void *by, const void *zero,
                                 int *served) {
  whole_job j = {.k = *k,
                 .dtype = call->in[0].dtype,
                 .x = &call->in[TFU_QUANT_X],
                 .bias = &call->in[TFU_QUANT_BIAS],
                 .residual = &call->in[TFU_QUANT_RESIDUAL],
                 .y = &call->out[0],
                 .act = &tfu_activations[call->attr[TFU_QUANT_ACTIVATION].i],
                 .by = by,
                 .zero = zero,
                 .n = tfu_rows(&call->in[TFU_QUANT_X].shape),
                 .multiply = tfu_best_quads()};
  *served = k->scales == 1 && !k->groups && !k->input_scale && j.dtype != TFU_F64 && k->inputs > 0 &&
            k->inputs <= QUANT_WHOLE_INPUTS;
  if (!*served) return TFU_OK;
  const int64_t wide = 2 * COLUMNS * tfu_threads();
  j.columns = k->outputs >= wide ? COLUMNS : FEW_COLUMNS;
  j.pitch = divide_up(k->inputs, 4) * 4;
  j.less = k->order != QUANT_TILES && k->bits == 8 && !k->is_signed ? 128 : 0;
  TFU_SCRATCH(call, j.n * j.pitch, j.rows);
  TFU_SCRATCH(call, 2 * j.n, j.row_scale);
  j.row_sum = j.row_scale + j.n;
  tfu_parallel_ranges(j.n, 16, round_rows, &j);
  return tfu_parallel_with(call, divide_up(j.n, ROWS) * divide_up(k->outputs, j.columns), sizeof(whole_space), block,
                           &j);
}
