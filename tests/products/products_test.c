/* products_test.c - the CPU kernels of all that multiplies matrices, on tensors that begin anywhere. From Python none
 * do: TensorFlow copies slices that begin off 64 bytes. */
#include "ops/products/batched_matmul.h"
#include "ops/products/linear.h"
#include "ops/products/linear_cross_entropy.h"
#include "tests/check.h"

enum { ALIGNED = -1, SHIFTS = 3, LINE = 64 /* what an aligned address is a multiple of */, UNTOUCHED = 0x5a };

/* One op, and all but the numbers. */
typedef struct sample {
  const tfu_op *op;
  tfu_shape in[TFU_MAX_ARGS];
  tfu_value attr[TFU_MAX_ATTRS];
} sample;

/* ---- tensors ---- */

/* Of an argument, "x: T": T is the sample's own, S what that is computed in, L integers, some of 32 and some of 64
 * bits. */
static tfu_dtype dtype_of(const char *argument, tfu_dtype dtype) {
  const char kind = strrchr(argument, ' ')[1];
  if (kind == 'S') return tfu_real(dtype);
  return kind == 'T' ? dtype : dtype == TFU_F32 || dtype == TFU_BF16 ? TFU_I64 : TFU_I32;
}

/* Elements from an aligned address to tensor number i: 1, 2 or 3, other than those of its neighbours. */
static int64_t offset_of(int i, int shift) { return shift == ALIGNED ? 0 : 1 + (i + shift) % 3; }

/* What was allocated for it. */
static char *block_of(const tfu_tensor *t, int64_t offset) {
  return (char *)t->data - offset * (int64_t)tfu_dtype_size(t->dtype);
}

/* Memory that ends with the tensor, so that a sanitizer sees what is read or written after it. */
static void place(tfu_tensor *t, int64_t offset) {
  const size_t size = tfu_dtype_size(t->dtype), bytes = (size_t)(tfu_count(&t->shape) + offset) * size;
  void *block = NULL;
  if (tfu_count(&t->shape) == 0) return; /* no data: nobody may touch it */
  CHECK(posix_memalign(&block, LINE, bytes) == 0);
  memset(block, UNTOUCHED, bytes);
  t->data = (char *)block + (size_t)offset * size;
}

/* Numbers from -2 to 2; integers from 0 up to `classes`. */
static void fill(const tfu_tensor *t, unsigned seed, int64_t classes) {
  for (int64_t i = 0; i < tfu_count(&t->shape); i++) {
    seed = seed * 1664525 + 1013904223;
    const float value = (float)(seed >> 8) * 0x1p-22f - 2;
    const double wide = value * 1.000000001;
    if (t->dtype == TFU_I32) ((int32_t *)t->data)[i] = (int32_t)((seed >> 8) % classes);
    else if (t->dtype == TFU_I64) ((int64_t *)t->data)[i] = (int64_t)((seed >> 8) % classes);
    else if (t->dtype == TFU_F64) tfu_store_f64(t->data, t->dtype, i, 1, &wide);
    else tfu_store_f32(t->data, t->dtype, i, 1, &value);
  }
}

/* Whether nothing was written before an output's own first element. */
static int is_whole(const tfu_tensor *t, int64_t offset) {
  if (tfu_count(&t->shape) == 0) return 1;
  for (const char *at = block_of(t, offset); at < (char *)t->data; at++)
    if (*at != UNTOUCHED) return 0;
  return 1;
}

/* ---- runs ---- */

static size_t bytes_of(const tfu_tensor *t) { return (size_t)tfu_count(&t->shape) * tfu_dtype_size(t->dtype); }

static run *prepare(const sample *s, tfu_dtype dtype, int64_t classes, int shift) {
  run *r = start(s->op);
  tfu_shape out[TFU_MAX_ARGS];
  int64_t elements;
  memcpy(r->call.attr, s->attr, sizeof s->attr);
  for (int i = 0; s->op->in[i]; i++) {
    tfu_tensor *t = &r->call.in[i];
    *t = (tfu_tensor){.dtype = dtype_of(s->op->in[i], dtype), .shape = s->in[i]};
    place(t, offset_of(i, shift));
    fill(t, (unsigned)i + 1, classes);
  }
  CHECK_FOR(tfu_infer(&r->call, out, &elements) == TFU_OK, "%s: %s", s->op->name, r->err.text);
  for (int i = 0; s->op->out[i]; i++) {
    r->call.out[i] = (tfu_tensor){.dtype = dtype_of(s->op->out[i], dtype), .shape = out[i]};
    place(&r->call.out[i], offset_of(i + 1, shift));
  }
  return r;
}

static void release(run *r, int shift) {
  for (int i = 0; i < TFU_MAX_ARGS; i++) {
    if (r->call.in[i].data) free(block_of(&r->call.in[i], offset_of(i, shift)));
    if (r->call.out[i].data) free(block_of(&r->call.out[i], offset_of(i + 1, shift)));
  }
  free(r);
}

/* The same numbers at other addresses: the same bits. */
static void check_sample(const sample *s, tfu_dtype dtype, int64_t classes) {
  run *want = prepare(s, dtype, classes, ALIGNED);
  CHECK_FOR(finish(want, "test") == TFU_OK, "%s: %s", s->op->name, want->err.text);
  for (int shift = 0; shift < SHIFTS; shift++) {
    run *got = prepare(s, dtype, classes, shift);
    CHECK_FOR(finish(got, "test") == TFU_OK, "%s: %s", s->op->name, got->err.text);
    for (int i = 0; s->op->out[i]; i++) {
      const tfu_tensor *g = &got->call.out[i], *w = &want->call.out[i];
      CHECK_FOR(bytes_of(g) == 0 || !memcmp(g->data, w->data, bytes_of(w)), "%s, %s of %s %s, shift %d", s->op->name,
                s->op->out[i], tfu_dtype_name(dtype), tfu_show(&s->in[0]).text, shift);
      CHECK_FOR(is_whole(g, offset_of(i + 1, shift)), "%s, %s, shift %d", s->op->name, s->op->out[i], shift);
    }
    release(got, shift);
  }
  release(want, ALIGNED);
}

/* ---- all of them ---- */

/* Products of [m, k] and [k, n]; with and without what is optional, and either way round. */
static void check_products(int64_t m, int64_t k, int64_t n, tfu_dtype dtype) {
  const tfu_shape none = SHAPE(0), yes = SHAPE(0, 0), x = SHAPE(m, k), kernel = SHAPE(k, n), y = SHAPE(m, n);
  const tfu_shape bias = SHAPE(n), rows = SHAPE(m), shares = SHAPE(m, 1), transposed = SHAPE(n, k), one = SCALAR;
  const tfu_shape as = SHAPE(2, m, k), bs = SHAPE(2, k, n), ys = SHAPE(2, m, n), as_turned = SHAPE(2, k, m);
  const tfu_shape bs_turned = SHAPE(2, n, k), sides = SHAPE(m, 2 * n);
#define ACT(name) [TFU_LINEAR_ACTIVATION].i = TFU_ACT_##name
#define SCALE [TFU_BATCHED_SCALE].f = 0.75f
#define LOSS [TFU_LCE_SMOOTHING].f = 0.125f, [TFU_LCE_Z_LOSS].f = 0.0625f, [TFU_LCE_IGNORE].i = -1
  const sample samples[] = {
      {&tfu_linear, {x, kernel, none, none, none}, {ACT(linear)}},
      {&tfu_linear, {x, kernel, bias, y, yes}, {ACT(gelu)}},
      {&tfu_linear_grad, {y, x, kernel, bias, none}, {ACT(linear)}},
      {&tfu_linear_grad, {y, x, kernel, bias, y}, {ACT(gelu)}},
      {&tfu_batched_matmul, {as, kernel, none, none, none}, {SCALE}},
      {&tfu_batched_matmul, {as_turned, bs_turned, y, yes, yes}, {SCALE}}, /* summed over the batch */
      {&tfu_matmul_own, {as, bs}, {{0}}},
      {&tfu_matmul_own_grad, {ys, as, bs}, {{0}}},
      {&tfu_linear_cross_entropy, {x, kernel, none, rows, none, none, none, none}, {LOSS}},
      {&tfu_linear_cross_entropy, {x, kernel, bias, rows, shares, x, kernel, bias}, {LOSS}},
      {&tfu_linear_cross_entropy,
       {x, transposed, bias, rows, shares, x, transposed, bias},
       {LOSS, [TFU_LCE_TRANSPOSED].b = 1}},
      {&tfu_linear_cross_entropy_grad, {x, kernel, bias, rows, rows, x, kernel, bias}, {LOSS}},
      {&tfu_linear_cross_entropy_grad,
       {x, transposed, none, rows, rows, x, transposed, none},
       {LOSS, [TFU_LCE_TRANSPOSED].b = 1}},
      {&tfu_scale_linear_cross_entropy, {x, one}, {{0}}},
      {&tfu_gated, {y, y}, {ACT(silu)}}, /* what gated_linear is beside linear */
      {&tfu_gated, {sides, none}, {ACT(silu)}},
      {&tfu_gated_grad, {y, y, y}, {ACT(silu)}},
      {&tfu_gated_grad, {y, sides, none}, {ACT(silu)}},
  };
  for (int i = 0; i < TFU_COUNT(samples); i++) check_sample(&samples[i], dtype, n);
}

int main(void) {
  /* Few rows, whose kernel is multiplied where it lies; several blocks, pieces of sums, and chunks of rows. */
  static const int64_t sizes[][3] = {{1, 1, 1}, {5, 300, 48}, {7, 19, 35}, {130, 33, 150}, {515, 9, 17}};
  setenv("TFUSE_NUM_THREADS", "3", 1); /* more than one, however many cores there are */
  for (int dtype = 0; dtype < TFU_FLOATS; dtype++)
    for (int i = 0; i < TFU_COUNT(sizes); i++) check_products(sizes[i][0], sizes[i][1], sizes[i][2], (tfu_dtype)dtype);
  return verdict();
}
