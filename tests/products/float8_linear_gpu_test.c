/* float8_linear_gpu_test.c - what products and passes float8 layers are made of on a GPU, without one: against a
 * cuBLASLt and kernels of our own that compute on the host. Checked are layouts, scales, epilogues, fallbacks, and the
 * scales and histories that come next, against the CPU kernels. */
#include <math.h>

#include "kernels/products/float8_linear.h"
#include "kernels/products/linear.h"
#include "ops/products/float8_linear.h"
#include "tests/products/cublaslt_stand_in.h"

/* ---- kernels of its own ---- */

static double rounded(double v, int e5m2) { return float8_value(float8_code((float)v, e5m2), e5m2); }

/* The largest number is that of the first of the blocks. */
static void put_top(float *tops, int64_t count, double top) {
  for (int64_t i = 0; tops && i < count; i++) tops[i] = i ? 0 : (float)top;
}

static void codes(void *args, tfu_dtype dtype, const CUlaunchConfig *c) {
  const float8_codes_args *a = args;
  double top = 0;
  CHECK(a->cols % 16 == 0 && a->apart % 16 == 0 && (uintptr_t)a->x % 16 == 0 && (dtype == TFU_U8) == !a->scale);
  for (int64_t row = 0; row < a->apart; row++)
    for (int64_t col = 0; col < a->cols; col++) {
      uint8_t code = 0;
      if (row < a->rows) {
        const int64_t place = row * a->cols + col;
        const double v = a->scale ? at(a->x, dtype, place) : 0;
        code = a->scale ? (uint8_t)float8_code((float)v / *a->scale, a->e5m2) : ((const uint8_t *)a->x)[place];
        top = fmax(top, fabs(v));
        if (a->straight) a->straight[place] = code;
      }
      if (a->transposed) a->transposed[col * a->apart + row] = code;
    }
  put_top(a->tops, (int64_t)c->gridDimX * c->gridDimY, top);
}

static double scale_of_row(const float8_rows_args *a, tfu_dtype dtype, int64_t row) {
  double top = 0;
  for (int64_t i = 0; i < a->cols; i++) top = fmax(top, fabs(at(a->x, dtype, row * a->cols + i)));
  return top == 0 ? 1 : dtype == TFU_F64 ? top * float8_row_f64 : (float)top * float8_row_f32;
}

static void row_codes(void *args, tfu_dtype dtype, const CUlaunchConfig *c) {
  const float8_rows_args *a = args;
  CHECK(c->gridDimX == (a->by_warps ? (a->rows + 7) / 8 : a->rows) && a->cols % 16 == 0);
  for (int64_t row = 0; row < a->rows; row++) {
    a->scale[row] = (float)scale_of_row(a, dtype, row);
    for (int64_t i = 0; i < a->cols; i++)
      ((uint8_t *)a->y)[row * a->cols + i] =
          (uint8_t)float8_code((float)at(a->x, dtype, row * a->cols + i) / a->scale[row], 0);
  }
}

static void round_rows(void *args, tfu_dtype dtype, const CUlaunchConfig *c) {
  const float8_rows_args *a = args;
  for (int64_t row = 0; row < c->gridDimX; row++) {
    const double scale = scale_of_row(a, dtype, row);
    for (int64_t i = row * a->cols; i < (row + 1) * a->cols; i++)
      put(a->y, dtype, i, rounded(at(a->x, dtype, i) / scale, 0) * scale);
  }
}

static void round_all(void *args, tfu_dtype dtype, const CUlaunchConfig *c) {
  const float8_round_args *a = args;
  double top = 0;
  for (int64_t row = 0; row < a->rows; row++)
    for (int64_t col = 0; col < a->cols; col++) {
      const int64_t from = row * a->cols + col, to = a->transposed ? col * a->rows + row : from;
      const double scale = a->scale[row * a->scale_row + col * a->scale_col];
      if (a->codes) {
        put(a->y, dtype, to, float8_value(((const uint8_t *)a->x)[from], a->e5m2) * scale);
        continue;
      }
      const double v = at(a->x, dtype, from);
      top = fmax(top, fabs(v));
      put(a->y, dtype, to, rounded(dtype == TFU_F64 ? v / scale : (float)v / (float)scale, a->e5m2) * scale);
    }
  put_top(a->tops, (int64_t)c->gridDimX * c->gridDimY, top);
}

static void update(void *args, tfu_dtype dtype, const CUlaunchConfig *c) {
  const float8_update_args *a = args;
  (void)dtype;
  for (unsigned t = 0; t < c->gridDimX; t++) {
    float top = 0, before = 0;
    for (int64_t i = 0; i < a->of[t].tops_count; i++) top = fmaxf(top, a->of[t].tops[i]);
    for (int64_t i = 0; i < a->of[t].count; i++) {
      before = fmaxf(before, a->of[t].history[i]);
      a->of[t].new_history[i] = i ? a->of[t].history[(i + 1) % a->of[t].count] : top;
    }
    *a->of[t].new_scale = float8_next_scale(before, *a->of[t].scale, a->of[t].largest);
  }
}

static void spread(void *args, tfu_dtype dtype, const CUlaunchConfig *c) {
  const float8_spread_args *a = args;
  (void)dtype, (void)c;
  for (int64_t i = 0; i < a->count; i++) a->to[i] = *a->from;
}

static const host_kernel kernels[] = {HOST_PASSES,
                                      {"float8_codes", codes},
                                      {"float8_row_codes", row_codes},
                                      {"float8_rows", round_rows},
                                      {"float8_round", round_all},
                                      {"float8_update", update},
                                      {"float8_spread", spread},
                                      {"linear_sums", sum_rows},
                                      {"linear_finish", finish_rows},
                                      {NULL, NULL}};

/* ---- against the CPU ---- */

enum { PER_ROW = 1, PER_OUTPUT = 2, KEPT = 4, COLUMNS = 8 };
typedef struct layer {
  int64_t rows, inputs, outputs;
  int act, bias, residual, keep, how;
} layer;

static tfu_tensor scalar(float v) {
  tfu_tensor t = filled(TFU_F32, (tfu_shape){.rank = 0}, 1);
  *(float *)t.data = v;
  return t;
}

static tfu_tensor kernel_of(const layer *l, tfu_dtype dtype) {
  const tfu_shape shape =
      l->how & COLUMNS ? (tfu_shape)SHAPE(l->outputs, l->inputs) : (tfu_shape)SHAPE(l->inputs, l->outputs);
  if (!(l->how & KEPT)) return filled(dtype, shape, 2);
  tfu_tensor t = filled(TFU_F32, shape, 2); /* of which bytes are a quarter */
  for (int64_t i = 0; i < tfu_count(&shape); i++) ((uint8_t *)t.data)[i] = (uint8_t)(i * 37 % 112 + i % 2 * 128);
  t.dtype = TFU_U8;
  return t;
}

static tfu_tensor kernel_scale(const layer *l) {
  if (!(l->how & PER_OUTPUT)) return scalar(1.0f / 64);
  tfu_tensor t = filled(TFU_F32, (tfu_shape)SHAPE(l->outputs), 3);
  for (int64_t i = 0; i < l->outputs; i++) ((float *)t.data)[i] = (float)(i % 5 + 1) / 128;
  return t;
}

static void compare_all(const run *r, tfu_code (*on_gpu)(tfu_call *), const char *what, const layer *l) {
  const tfu_op *op = r->call.op;
  const tfu_dtype dtype = r->call.in[0].dtype;
  run *s = start(op);
  s->call = r->call;
  s->call.binding = s;
  s->call.err = &s->err;
  s->most = TFU_COUNT(s->held);
  for (int i = 0; op->out[i]; i++) s->call.out[i] = filled(r->call.out[i].dtype, r->call.out[i].shape, 99);
  CHECK_FOR(on_gpu(&s->call) == TFU_OK, "%s", s->err.text);
  const double epsilon = dtype == TFU_BF16 ? 0.02 : dtype == TFU_F16 ? 0.003 : 1e-5;
  for (int i = 0; op->out[i]; i++)
    for (int64_t e = 0; e < tfu_count(&r->call.out[i].shape); e++) {
      const tfu_dtype own = r->call.out[i].dtype;
      const double got = at(s->call.out[i].data, own, e), want = at(r->call.out[i].data, own, e);
      const double allowed = own != dtype ? 0 : epsilon * (4 + fabs(want) + (double)(l->inputs + l->rows) / 8);
      if (fabs(got - want) <= allowed) continue;
      CHECK_FOR(0, "%s of %s %s %lldx%lldx%lld act %d bias %d residual %d keep %d how %d at %lld: %g, not %g",
                op->out[i], what, tfu_dtype_name(dtype), (long long)l->rows, (long long)l->inputs,
                (long long)l->outputs, l->act, l->bias, l->residual, l->keep, l->how, (long long)e, got, want);
      break;
    }
  for (int i = 0; op->out[i]; i++) drop(s->call.out[i].data);
  end_run(s);
}

static void release(run *r) {
  for (int i = 0; i < TFU_MAX_ARGS; i++) drop(r->call.in[i].data), drop(r->call.out[i].data);
  free(r);
}

static void check_forward(const layer *l, tfu_dtype dtype) {
  const tfu_shape none = SHAPE(0), y = SHAPE(1, l->rows, l->outputs);
  run *r = start(&tfu_float8_linear);
  const tfu_tensor in[] = {
      filled(dtype, (tfu_shape)SHAPE(1, l->rows, l->inputs), 1),        kernel_of(l, dtype),
      l->how & PER_ROW ? filled(TFU_F32, none, 1) : scalar(1.0f / 256), kernel_scale(l),
      filled(dtype, l->bias ? (tfu_shape)SHAPE(l->outputs) : none, 3),  filled(dtype, l->residual ? y : none, 4),
      filled(dtype, l->keep ? (tfu_shape)SHAPE(0, 0) : none, 5)};
  memcpy(r->call.in, in, sizeof in);
  r->call.attr[TFU_FLOAT8_ACTIVATION].i = l->act;
  r->call.attr[TFU_FLOAT8_TF32].b = 1;
  r->call.attr[TFU_FLOAT8_ORDER].i = l->how & COLUMNS ? TFU_FLOAT8_BY_COLUMNS : TFU_FLOAT8_BY_ROWS;
  r->call.out[0] = filled(dtype, y, 6);
  r->call.out[1] = filled(dtype, l->keep ? y : none, 7);
  CHECK_FOR(finish(r, "test") == TFU_OK, "%s", r->err.text);
  compare_all(r, tfu_float8_linear_gpu, "forward", l);
  release(r);
}

static void check_gradient(const layer *l, tfu_dtype dtype) {
  static const int64_t lengths[] = {5, 1, 0};
  const tfu_shape none = SHAPE(0), y = SHAPE(l->rows, l->outputs), x = SHAPE(l->rows, l->inputs);
  const tfu_shape kernel = SHAPE(l->inputs, l->outputs), bias = SHAPE(l->outputs);
  run *r = start(&tfu_float8_linear_grad);
  tfu_tensor in[] = {filled(dtype, y, 1),
                     filled(dtype, x, 2),
                     kernel_of(l, dtype),
                     scalar(1.0f / 256),
                     scalar(1.0f / 64),
                     scalar(1.0f / 16384), /* some are beyond the largest */
                     filled(TFU_F32, (tfu_shape)SHAPE(lengths[l->act % 3]), 3),
                     filled(TFU_F32, (tfu_shape)SHAPE(lengths[(l->act + 1) % 3]), 4),
                     filled(TFU_F32, (tfu_shape)SHAPE(lengths[(l->act + 2) % 3]), 5),
                     filled(dtype, l->bias ? bias : none, 6),
                     filled(dtype, l->act != TFU_ACT_linear ? y : none, 7)};
  memcpy(r->call.in, in, sizeof in);
  r->call.attr[TFU_FLOAT8_ACTIVATION].i = l->act;
  r->call.attr[TFU_FLOAT8_TF32].b = 1;
  const tfu_shape out[] = {x, kernel, l->bias ? bias : none};
  for (int i = 0; i < 3; i++) r->call.out[i] = filled(dtype, out[i], 8);
  for (int i = 0; i < TFU_FLOAT8_TENSORS; i++) {
    const tfu_shape *history = &in[TFU_F8GRAD_HISTORY + i].shape;
    r->call.out[TFU_F8GRAD_NEW_SCALE + i] = filled(TFU_F32, history->dim[0] ? (tfu_shape){.rank = 0} : none, 9);
    r->call.out[TFU_F8GRAD_NEW_HISTORY + i] = filled(TFU_F32, *history, 9);
  }
  CHECK_FOR(finish(r, "test") == TFU_OK, "%s", r->err.text);
  compare_all(r, tfu_float8_linear_grad_gpu, "gradient", l);
  release(r);
}

static void check_everything(void) {
  static const int64_t sizes[][3] = {{3, 16, 32}, {17, 48, 16}, {5, 7, 3}, {2, 32, 8}};
  static const int acts[] = {TFU_ACT_linear, TFU_ACT_relu, TFU_ACT_gelu_tanh, TFU_ACT_silu};
  static const int hows[] = {0, PER_ROW | PER_OUTPUT | KEPT | COLUMNS, KEPT, PER_OUTPUT | KEPT, PER_ROW, PER_OUTPUT};
  for (int dtype = 0; dtype < TFU_FLOATS; dtype++)
    for (int s = 0; s < TFU_COUNT(sizes); s++) {
      forget_choices();
      for (int i = 0; i < TFU_COUNT(acts) * 8; i++) {
        layer l = {sizes[s][0], sizes[s][1], sizes[s][2], acts[i / 8], i & 1, i >> 1 & 1, i >> 2 & 1, 0};
        for (int h = 0; h < TFU_COUNT(hows); h++) l.how = hows[h], check_forward(&l, (tfu_dtype)dtype);
        l.how = 0;
        if (i % 8 < 2) check_gradient(&l, (tfu_dtype)dtype);
      }
    }
}

/* How many products of float8 there are, of all; and passes. */
static void check_cost(const layer *l, tfu_dtype dtype, int gradient, int want, int want_all, int want_passes) {
  for (int i = 0; i < 2; i++) { /* once it is decided on */
    float8_products = products = passes = 0;
    if (gradient) check_gradient(l, dtype);
    else check_forward(l, dtype);
  }
  CHECK_FOR(float8_products == want && products == want_all && passes == want_passes,
            "%d of %d products, %d passes of %s, %lldx%lldx%lld, act %d, how %d, gradient %d", float8_products,
            products, passes, tfu_dtype_name(dtype), (long long)l->rows, (long long)l->inputs, (long long)l->outputs,
            l->act, l->how, gradient);
}

static void test_costs(void) {
  const int kept = KEPT | COLUMNS;
  check_cost(&(layer){6, 16, 32, TFU_ACT_linear, 1, 0, 0, 0}, TFU_BF16, 0, 1, 1, 2); /* x, and kernel */
  check_cost(&(layer){6, 16, 32, TFU_ACT_linear, 1, 1, 0, kept}, TFU_BF16, 0, 1, 1, 1);
  check_cost(&(layer){6, 16, 32, TFU_ACT_gelu_tanh, 1, 0, 1, kept}, TFU_F16, 0, 1, 1, 1);
  check_cost(&(layer){6, 16, 32, TFU_ACT_linear, 1, 0, 0, kept | PER_ROW | PER_OUTPUT}, TFU_BF16, 0, 1, 1, 1);
  check_cost(&(layer){6, 16, 32, TFU_ACT_linear, 1, 0, 0, kept | PER_ROW}, TFU_BF16, 0, 1, 1,
             2);                                                                       /* a scale is spread */
  check_cost(&(layer){6, 16, 32, TFU_ACT_linear, 1, 0, 0, kept}, TFU_F32, 0, 1, 1, 2); /* bias is a pass */
  check_cost(&(layer){6, 16, 24, TFU_ACT_linear, 1, 0, 0, kept}, TFU_BF16, 0, 0, 1, 2);
  check_cost(&(layer){6, 16, 32, TFU_ACT_linear, 1, 0, 0, kept}, TFU_F64, 0, 0, 1, 2);
  check_cost(&(layer){6, 16, 32, TFU_ACT_linear, 0, 0, 0, 0}, TFU_BF16, 1, 2, 2, 4); /* dpre, kernel, x; updates */
  check_cost(&(layer){6, 16, 32, TFU_ACT_silu, 1, 0, 0, 0}, TFU_BF16, 1, 2, 2, 5);
  check_cost(&(layer){6, 16, 24, TFU_ACT_silu, 1, 0, 0, 0}, TFU_BF16, 1, 0, 2, 5);
}

int main(void) {
  host_kernels = kernels;
  if (!open_cache()) return 1;
  check_everything();
  test_costs();
  for (offset = 1; offset < 9; offset += 7) check_everything(); /* what is not on 16 bytes is no product of float8 */
  offset = 0;
  only_plain = 1;
  check_everything();
  missing = 1;
  float8_products = 0;
  check_everything();
  CHECK(float8_products == 0);
  close_cache();
  return verdict();
}
