/* linear_gpu_test.c - what products and passes linear layers are made of on a GPU, without one: against a cuBLASLt and
 * kernels of our own that compute on the host. Checked are layouts, epilogues, fallbacks and which way is taken,
 * against the CPU kernels. */
#include <math.h>

#include "kernels/products/linear.h"
#include "ops/products/linear.h"
#include "tests/products/cublaslt_stand_in.h"

/* ---- kernels of its own ---- */

static const host_kernel kernels[] = {
    HOST_PASSES, {"linear_sums", sum_rows}, {"linear_finish", finish_rows}, {NULL, NULL}};

/* ---- against the CPU ---- */

typedef struct layer {
  int64_t rows, inputs, outputs;
  int act, bias, residual, keep;
} layer;

static void compare_all(const run *r, tfu_code (*on_gpu)(tfu_call *), const char *what, const layer *l,
                        tfu_dtype dtype) {
  const tfu_op *op = r->call.op;
  run *s = start(op);
  s->call = r->call;
  s->call.binding = s;
  s->call.err = &s->err;
  s->most = TFU_COUNT(s->held);
  for (int i = 0; op->out[i]; i++) s->call.out[i] = filled(dtype, r->call.out[i].shape, 99);
  CHECK_FOR(on_gpu(&s->call) == TFU_OK, "%s", s->err.text);
  const double epsilon = dtype == TFU_BF16 ? 0.02 : dtype == TFU_F16 ? 0.003 : dtype == TFU_F32 ? 1e-5 : 1e-12;
  for (int i = 0; op->out[i]; i++)
    for (int64_t e = 0; e < tfu_count(&r->call.out[i].shape); e++) {
      const double got = at(s->call.out[i].data, dtype, e), want = at(r->call.out[i].data, dtype, e);
      if (fabs(got - want) <= epsilon * (4 + fabs(want) + (double)l->inputs / 8)) continue;
      CHECK_FOR(0, "%s of %s %s %lldx%lldx%lld act %d bias %d residual %d keep %d at %lld: %g, not %g", op->out[i],
                what, tfu_dtype_name(dtype), (long long)l->rows, (long long)l->inputs, (long long)l->outputs, l->act,
                l->bias, l->residual, l->keep, (long long)e, got, want);
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
  run *r = start(&tfu_linear);
  const tfu_tensor in[] = {filled(dtype, (tfu_shape)SHAPE(1, l->rows, l->inputs), 1),
                           filled(dtype, (tfu_shape)SHAPE(l->inputs, l->outputs), 2),
                           filled(dtype, l->bias ? (tfu_shape)SHAPE(l->outputs) : none, 3),
                           filled(dtype, l->residual ? y : none, 4),
                           filled(dtype, l->keep ? (tfu_shape)SHAPE(0, 0) : none, 5)};
  memcpy(r->call.in, in, sizeof in);
  r->call.attr[TFU_LINEAR_ACTIVATION].i = l->act;
  r->call.out[0] = filled(dtype, y, 6);
  r->call.out[1] = filled(dtype, l->keep ? y : none, 7);
  CHECK_FOR(finish(r, "test") == TFU_OK, "%s", r->err.text);
  compare_all(r, tfu_linear_gpu, "forward", l, dtype);
  release(r);
}

static void check_gradient(const layer *l, tfu_dtype dtype, int dx, int dkernel) {
  const tfu_shape none = SHAPE(0), y = SHAPE(l->rows, l->outputs), x = SHAPE(l->rows, l->inputs);
  const tfu_shape kernel = SHAPE(l->inputs, l->outputs), bias = SHAPE(l->outputs);
  run *r = start(&tfu_linear_grad);
  const tfu_tensor in[] = {filled(dtype, y, 1), filled(dtype, dkernel ? x : none, 2),
                           filled(dtype, dx ? kernel : none, 3), filled(dtype, l->bias ? bias : none, 4),
                           filled(dtype, l->act != TFU_ACT_linear ? y : none, 5)};
  memcpy(r->call.in, in, sizeof in);
  r->call.attr[TFU_LINEAR_ACTIVATION].i = l->act;
  r->call.out[0] = filled(dtype, dx ? x : none, 6);
  r->call.out[1] = filled(dtype, dkernel ? kernel : none, 7);
  r->call.out[2] = filled(dtype, l->bias ? bias : none, 8);
  CHECK_FOR(finish(r, "test") == TFU_OK, "%s", r->err.text);
  compare_all(r, tfu_linear_grad_gpu, "gradient", l, dtype);
  release(r);
}

static void check_everything(void) {
  static const int64_t sizes[][3] = {{1, 1, 1}, {5, 7, 3}, {3, 4, 16}, {3, 0, 5}, {2, 35, 8}};
  static const int acts[] = {TFU_ACT_linear, TFU_ACT_relu, TFU_ACT_gelu_tanh, TFU_ACT_silu};
  for (int dtype = 0; dtype < TFU_FLOATS; dtype++)
    for (int s = 0; s < TFU_COUNT(sizes); s++) {
      forget_choices();
      for (int i = 0; i < TFU_COUNT(acts) * 8; i++) {
        const layer l = {sizes[s][0], sizes[s][1], sizes[s][2], acts[i / 8], i & 1, i >> 1 & 1, i >> 2 & 1};
        check_forward(&l, (tfu_dtype)dtype);
        if (i & 2) check_gradient(&l, (tfu_dtype)dtype, i >> 2 & 1 || !(i & 1), i & 1);
        else check_gradient(&l, (tfu_dtype)dtype, 1, 1);
      }
    }
}

/* How many products and passes a layer takes, once it is decided on. */
static void check_cost(const layer *l, tfu_dtype dtype, int want_products, int want_passes) {
  check_forward(l, dtype);
  products = passes = 0;
  check_forward(l, dtype);
  CHECK_FOR(products == want_products && passes == want_passes, "%d and %d, for activation %d", products, passes,
            l->act);
}
static void check_gradient_cost(const layer *l, int dx, int dkernel, int want_products, int want_passes) {
  check_gradient(l, TFU_BF16, dx, dkernel);
  products = passes = 0;
  check_gradient(l, TFU_BF16, dx, dkernel);
  CHECK_FOR(products == want_products && passes == want_passes, "%d and %d, for the gradient", products, passes);
}

static void test_costs(void) {
  check_cost(&(layer){6, 5, 8, TFU_ACT_linear, 1, 1, 0}, TFU_BF16, 1, 0);
  check_cost(&(layer){6, 5, 8, TFU_ACT_relu, 1, 0, 0}, TFU_BF16, 1, 0);
  check_cost(&(layer){6, 5, 8, TFU_ACT_gelu_tanh, 1, 0, 1}, TFU_BF16, 1, 0);
  check_cost(&(layer){6, 5, 7, TFU_ACT_gelu_tanh, 1, 0, 1}, TFU_BF16, 1, 1); /* no aux of 7 columns */
  check_cost(&(layer){6, 5, 8, TFU_ACT_gelu_tanh, 1, 0, 1}, TFU_F32, 1, 1);  /* exact, without TF32 */
  check_cost(&(layer){6, 5, 8, TFU_ACT_silu, 1, 1, 1}, TFU_BF16, 1, 1);
  check_gradient_cost(&(layer){6, 5, 8, TFU_ACT_linear, 1, 0, 0}, 1, 1, 2, 0);
  check_gradient_cost(&(layer){6, 5, 8, TFU_ACT_linear, 1, 0, 0}, 1, 0, 1, 1); /* no product has the sums */
  check_gradient_cost(&(layer){6, 5, 8, TFU_ACT_silu, 1, 0, 0}, 1, 1, 2, 1);
  pass_time = 1; /* then a pass beats an epilogue of relu and no bias, whose plain product has none, and one of sums */
  check_cost(&(layer){6, 9, 8, TFU_ACT_relu, 0, 0, 0}, TFU_BF16, 1, 1);
  check_gradient_cost(&(layer){6, 9, 8, TFU_ACT_linear, 1, 0, 0}, 1, 1, 2, 1);
}

/* Wherever tensors begin; but for the bias, which is then in a pass unless it begins on 16 bytes. */
static void test_offsets(void) {
  const float time = pass_time;
  pass_time = 5; /* or the pass may be there for being faster */
  for (offset = 1; offset < 4; offset++) check_everything();
  forget_choices();
  for (offset = 7; offset < 9; offset++) { /* what was chosen for a bias at an odd place is not taken at an even one */
    check_cost(&(layer){6, 5, 8, TFU_ACT_linear, 1, 1, 0}, TFU_BF16, 1, offset % 8 != 0);
    check_cost(&(layer){6, 5, 8, TFU_ACT_relu, 1, 0, 0}, TFU_BF16, 1, offset % 8 != 0);
    check_cost(&(layer){6, 5, 8, TFU_ACT_relu, 0, 0, 0}, TFU_BF16, 1, 0);
  }
  offset = 0;
  pass_time = time;
  forget_choices();
}

/* Without cuBLASLt our own product serves, beside the same passes. */
static void test_without_cublaslt(void) {
  missing = 1;
  products = own_products = 0;
  check_everything();
  CHECK(products == 0 && own_products > 0);
  own_products = passes = 0;
  check_forward(&(layer){6, 5, 8, TFU_ACT_gelu_tanh, 1, 0, 1}, TFU_F32);
  CHECK_FOR(own_products == 1 && passes == 1, "%d and %d", own_products, passes);
  missing = 0;
}

int main(void) {
  host_kernels = kernels;
  if (!open_cache()) return 1;
  check_everything();
  test_costs();
  test_offsets();
  test_without_cublaslt();
  only_plain = 1;
  check_everything();
  close_cache();
  return verdict();
}
