/* float8_linear on the CPU: factors are rounded to float8, and multiplied as the numbers that these stand for, in the
 * arithmetic type. */
#ifndef REAL
#include "ops/products/float8_linear.h"

#include <tgmath.h>

#include "kernels/core/cpu/cpu.h"
#include "kernels/core/recycle.h"
#include "kernels/elementwise/scale_bias_act.h"
#include "kernels/products/float8_linear.h"

typedef struct round_job {
  tfu_tensor from;              /* floats that are rounded, or codes */
  int64_t rows, cols;           /* of it, as it is stored */
  const float *scale;           /* NULL: each row has its own */
  int64_t scale_row, scale_col; /* from that of one row, or column, to the next */
  int64_t to_row, to_col;       /* the same of what is written */
  int e5m2, rounded;            /* rounded: else it is copied */
  void *to;                     /* of the arithmetic type */
  void *tops;                   /* the largest |v| of each row, of the arithmetic type */
} round_job;

typedef uint32_t word_f32;
typedef uint64_t word_f64;

#define TFU_SELF "kernels/products/float8_linear_cpu.c"
#include "kernels/core/cpu/stamp.h"
TFU_BY_REAL(tfu_float8_linear_cpu)
TFU_BY_REAL(tfu_float8_linear_grad_cpu)

#else

/* ---- rounding ---- */

static inline FN(word) FN(bits)(REAL v) {
  FN(word) bits;
  memcpy(&bits, &v, sizeof bits);
  return bits;
}
static inline REAL FN(real)(FN(word) bits) {
  REAL v;
  memcpy(&v, &bits, sizeof v);
  return v;
}

/* A format in the bits of REAL: the exponent of the least normal number, and how far above a number's exponent that of
 * the number is beside which a step is the last bit. */
typedef struct FN(format) {
  FN(word) least, up;
  REAL largest;
} FN(format);
static FN(format) FN(format_of)(int e5m2) {
  const float8_format f = float8_of(e5m2);
  const int digits = sizeof(REAL) == sizeof(double) ? 52 : 23;
  const FN(word) one = FN(bits)(1);
  return (FN(format)){.least = one + ((FN(word))f.least << digits),
                      .up = (FN(word))(digits - f.fraction) << digits,
                      .largest = (REAL)f.largest};
}

/* v in the precision of float8, as float8_code rounds it: adding and taking away 1.5 * 2^k, beside which steps of that
 * size are the last bit, rounds to the nearest, of two to the even one. */
static inline REAL FN(nearest)(REAL v, FN(format) f) {
  const FN(word) sign = (FN(word))1 << (8 * sizeof v - 1), infinity = FN(bits)((REAL)INFINITY);
  const FN(word) magnitude = FN(bits)(v) & ~sign, exponent = magnitude & infinity;
  const REAL a = FN(real)(magnitude), magic = FN(real)((exponent < f.least ? f.least : exponent) + f.up) * (REAL)1.5;
  const REAL near = (a + magic) - magic, most = a >= f.largest ? f.largest : near;
  return magnitude > infinity ? v : FN(real)(FN(bits)(most) | (FN(bits)(v) & sign));
}

/* line[i] = v[i], rounded where it is divided by by[i], for n numbers. */
static void FN(round_line)(REAL *line, const REAL *v, const REAL *by, int e5m2, int n) {
  const FN(format) f = FN(format_of)(e5m2);
  TFU_VECTORISED(i, n) line[i] = FN(nearest)(v[i] / by[i], f) * by[i];
}

/* NaN where one is. */
static REAL FN(larger)(REAL a, REAL b) { return a > b || a != a ? a : b; }

static void FN(round_rows)(void *arg, int64_t begin, int64_t end) {
  const round_job *j = arg;
  const int codes = tfu_float8_kept(&j->from), e5m2 = j->e5m2;
  for (int64_t row = begin; row < end; row++) {
    REAL buffer[TFU_TILE], top = 0, own = 1;
    REAL *to = (REAL *)j->to + row * j->to_row;
    for (TFU_EACH_TILE(at, n, 0, codes ? 0 : j->cols)) {
      const REAL *v = FN(tfu_load)(j->from.data, j->from.dtype, row * j->cols + at, (int)n, buffer);
      for (int64_t i = 0; i < n; i++) top = FN(larger)(top, fabs(v[i]));
    }
    if (j->tops) ((REAL *)j->tops)[row] = top;
    if (top * FN(float8_row) > 0 && isfinite(top)) own = top * FN(float8_row);
    for (TFU_EACH_TILE(at, n, 0, j->cols)) {
      const uint8_t *code = (const uint8_t *)j->from.data + row * j->cols + at;
      const REAL *v = codes ? NULL : FN(tfu_load)(j->from.data, j->from.dtype, row * j->cols + at, (int)n, buffer);
      REAL by[TFU_TILE], line[TFU_TILE];
      for (int64_t i = 0; i < n; i++)
        by[i] = j->scale ? (REAL)j->scale[row * j->scale_row + (at + i) * j->scale_col] : own;
      if (codes)
        for (int64_t i = 0; i < n; i++) line[i] = (REAL)float8_value(code[i], e5m2) * by[i];
      else if (j->rounded) FN(round_line)(line, v, by, e5m2, (int)n);
      else memcpy(line, v, (size_t)n * sizeof *line);
      for (int64_t i = 0; i < n; i++) to[(at + i) * j->to_col] = line[i];
    }
  }
}

/* Runs the job, which has from, scale and format, into scratch: *w, in the order of rows. */
static tfu_code FN(round_all)(tfu_call *call, round_job *j, int columns, tfu_tensor *w) {
  j->rows = tfu_rows(&j->from.shape);
  j->cols = tfu_cols(&j->from.shape);
  j->to_row = columns ? 1 : j->cols;
  j->to_col = columns ? j->rows : 1;
  *w = j->from;
  w->dtype = tfu_real(call->in[0].dtype);
  if (columns) w->shape = (tfu_shape){.rank = 2, .dim = {j->cols, j->rows}};
  TFU_TRY(tfu_scratch(call, (size_t)(j->rows * j->cols) * sizeof(REAL), &w->data));
  TFU_TRY(tfu_scratch(call, (size_t)j->rows * sizeof(REAL), &j->tops));
  j->to = w->data;
  tfu_parallel_ranges(j->rows, 1, FN(round_rows), j);
  return TFU_OK;
}

static tfu_code FN(round_kernel)(tfu_call *call, const tfu_tensor *kernel, const tfu_tensor *scale, round_job *j,
                                 tfu_tensor *w) {
  const int columns = call->attr[TFU_FLOAT8_ORDER].i == TFU_FLOAT8_BY_COLUMNS, many = scale->shape.rank == 1;
  *j = (round_job){
      .from = *kernel, .scale = scale->data, .scale_row = many && columns, .scale_col = many && !columns, .rounded = 1};
  return FN(round_all)(call, j, columns, w);
}

/* ---- forward ---- */

static tfu_code FN(tfu_float8_linear_cpu)(tfu_call *call) {
  const tfu_tensor *scale = &call->in[TFU_FLOAT8_X_SCALE];
  round_job of_x = {.from = call->in[TFU_FLOAT8_X], .scale = tfu_given_data(scale), .rounded = 1}, of_kernel;
  tfu_recycled space;
  tfu_tensor x, w;
  TFU_TRY(FN(round_all)(call, &of_x, 0, &x));
  TFU_TRY(FN(round_kernel)(call, &call->in[TFU_FLOAT8_KERNEL], &call->in[TFU_FLOAT8_KERNEL_SCALE], &of_kernel, &w));
  tfu_recycled_open(&space, call);
  return tfu_linear_cpu(tfu_float8_as_linear(&space, &x, &w));
}

/* ---- backward ---- */

typedef struct FN(stored) {
  tfu_tensor from, to;
} FN(stored);

static void FN(store_tiles)(void *arg, int64_t begin, int64_t end) {
  const FN(stored) *s = arg;
  for (TFU_EACH_TILE(at, n, begin, end))
    FN(tfu_store)(s->to.data, s->to.dtype, at, (int)n, (const REAL *)s->from.data + at);
}

/* dpre in the type of dy, as an op between the activation and the product would have it: what is rounded to 16 bits
 * before has another largest number. */
static tfu_code FN(slope)(tfu_call *call, tfu_tensor *g) {
  const tfu_tensor *dy = &call->in[TFU_F8GRAD_DY];
  FN(stored) s;
  TFU_TRY(tfu_act_grad_cpu(call, call->attr[TFU_FLOAT8_ACTIVATION].i, dy, &call->in[TFU_F8GRAD_PRE], g,
                           &call->out[TFU_F8GRAD_DBIAS]));
  if (g->dtype == dy->dtype) return TFU_OK;
  s.from = *g;
  TFU_TRY(tfu_scratch_like(call, *dy, &s.to));
  tfu_parallel_ranges(tfu_count(&dy->shape), tfu_task_size(tfu_count(&dy->shape), TFU_TILE), FN(store_tiles), &s);
  *g = s.to;
  return TFU_OK;
}

static tfu_code FN(update)(tfu_call *call, int i, const round_job *j) {
  const tfu_tensor *history = &call->in[TFU_F8GRAD_HISTORY + i];
  const int64_t n = history->shape.dim[0];
  if (n == 0) return TFU_OK;
  const float *old = history->data, scale = *(const float *)call->in[TFU_F8GRAD_SCALE + i].data;
  const float largest = float8_of(i == TFU_FLOAT8_OF_DY).largest;
  float *next = call->out[TFU_F8GRAD_NEW_HISTORY + i].data, before = 0;
  REAL top = 0;
  for (int64_t row = 0; row < j->rows; row++) top = FN(larger)(top, ((const REAL *)j->tops)[row]);
  for (int64_t k = 0; k < n; k++) {
    before = old[k] > before || old[k] != old[k] ? old[k] : before;
    next[k] = k == 0 ? (float)top : old[(k + 1) % n];
  }
  *(float *)call->out[TFU_F8GRAD_NEW_SCALE + i].data = float8_next_scale(before, scale, largest);
  return TFU_OK;
}

static tfu_code FN(tfu_float8_linear_grad_cpu)(tfu_call *call) {
  const tfu_tensor *x = &call->in[TFU_F8GRAD_X], *kernel = &call->in[TFU_F8GRAD_KERNEL];
  const tfu_tensor *scale = &call->in[TFU_F8GRAD_SCALE];
  const void *dy_scale = tfu_given_data(&scale[TFU_FLOAT8_OF_DY]);
  tfu_tensor w = {.shape = {.rank = 1}}, g, rounded = w; /* empty vectors */
  round_job of[TFU_FLOAT8_TENSORS] = {{.rows = 0}};
  tfu_recycled space;
  TFU_TRY(tfu_float8_check(call));
  TFU_TRY(FN(slope)(call, &g));
  of[TFU_FLOAT8_OF_DY] = (round_job){.from = g, .scale = dy_scale, .e5m2 = 1, .rounded = dy_scale != NULL};
  TFU_TRY(FN(round_all)(call, &of[TFU_FLOAT8_OF_DY], 0, &g));
  if (tfu_given(&x->shape)) {
    of[TFU_FLOAT8_OF_X] = (round_job){.from = *x, .scale = tfu_given_data(&scale[TFU_FLOAT8_OF_X]), .rounded = 1};
    TFU_TRY(FN(round_all)(call, &of[TFU_FLOAT8_OF_X], 0, &rounded));
  }
  if (tfu_given(&kernel->shape))
    TFU_TRY(FN(round_kernel)(call, kernel, &scale[TFU_FLOAT8_OF_KERNEL], &of[TFU_FLOAT8_OF_KERNEL], &w));
  for (int i = 0; i < TFU_FLOAT8_TENSORS; i++) TFU_TRY(FN(update)(call, i, &of[i]));
  tfu_recycled_open(&space, call);
  return tfu_linear_grad_cpu(tfu_float8_as_linear_grad(&space, &g, &rounded, &w));
}
#endif
