/* attention_test.c - attention on the CPU against its formula, in tensors without a byte to spare: odd sizes, all
 * dtypes, ragged sequences, pages; the gradient against differences of the output. */
#include <math.h>

#include "tests/check.h"

typedef struct sizes {
  int batch, queries, keys, heads, key_heads, head_dim, value_dim;
  int align, left, right, masked;
  float soft_cap;
} sizes;

static const sizes some[] = {
    {1, 1, 1, 1, 1, 1, 1, 0, -1, -1, 0, 0},    {2, 3, 5, 4, 2, 7, 9, 0, -1, -1, 1, 0},
    {1, 65, 67, 2, 1, 17, 16, 0, -1, 0, 1, 0}, {1, 66, 129, 3, 3, 5, 33, 1, 9, 2, 0, 0},
    {2, 1, 70, 4, 4, 40, 40, 1, -1, 0, 1, 0},  {1, 4, 3, 6, 2, 64, 1, 1, 1, -1, 1, 0},
    {1, 5, 0, 2, 1, 8, 8, 0, -1, -1, 0, 0},    {1, 3, 4, 2, 2, 0, 3, 0, -1, -1, 1, 0},
    {2, 2, 3, 0, 2, 4, 4, 0, -1, -1, 0, 0},    {1, 66, 67, 4, 2, 17, 16, 0, -1, 0, 1, 1.5f},
    {2, 1, 70, 2, 1, 40, 9, 0, -1, -1, 0, 2},
};

static double number(uint32_t *state) { /* from -1 to 1 */
  *state = *state * 1664525u + 1013904223u;
  return (double)(int32_t)*state / 2147483648.0;
}

static tfu_tensor tensor(tfu_dtype dtype, tfu_shape shape) {
  return (tfu_tensor){malloc(tfu_dtype_size(dtype) * (size_t)tfu_count(&shape) + 1), dtype, shape};
}

/* Filled with numbers that float16 and bfloat16 hold exactly. */
static tfu_tensor random_tensor(tfu_dtype dtype, tfu_shape shape, uint32_t seed) {
  tfu_tensor t = tensor(dtype, shape);
  for (int64_t i = 0; i < tfu_count(&shape); i++) {
    const double v = rint(number(&seed) * 64) / 32;
    const float f = (float)v;
    if (dtype == TFU_F64) ((double *)t.data)[i] = v;
    else if (dtype == TFU_BOOL) ((uint8_t *)t.data)[i] = v > -1;
    else tfu_store_f32(t.data, dtype, i, 1, &f);
  }
  return t;
}

static double at(const tfu_tensor *t, int64_t i) {
  float buffer;
  return t->dtype == TFU_F64 ? ((const double *)t->data)[i] : *tfu_load_f32(t->data, t->dtype, i, 1, &buffer);
}

static run *attention(tfu_dtype dtype, const sizes *s) {
  run *r = start(&tfu_attention);
  const tfu_shape none = SHAPE(0);
  const tfu_tensor in[] = {
      random_tensor(dtype, (tfu_shape)SHAPE(s->batch, s->queries, s->heads, s->head_dim), 1),
      random_tensor(dtype, (tfu_shape)SHAPE(s->batch, s->keys, s->key_heads, s->head_dim), 2),
      random_tensor(dtype, (tfu_shape)SHAPE(s->batch, s->keys, s->key_heads, s->value_dim), 3),
      s->masked ? random_tensor(dtype, (tfu_shape)SHAPE(s->heads, 1, s->keys), 4) : tensor(dtype, none),
      s->masked ? random_tensor(TFU_BOOL, (tfu_shape)SHAPE(s->batch, 1, s->queries, s->keys), 5)
                : tensor(TFU_BOOL, none),
      tensor(TFU_I64, none),
      tensor(TFU_I64, none),
      tensor(TFU_I64, none)};
  memcpy(r->call.in, in, sizeof in);
  r->call.out[0] = tensor(dtype, (tfu_shape)SHAPE(s->batch, s->queries, s->heads, s->value_dim));
  r->call.out[1] = tensor(tfu_real(dtype), (tfu_shape)SHAPE(s->batch, s->heads, s->queries));
  const tfu_value attr[] = {{.f = 0.5f},        {.i = s->align}, {.i = s->left}, {.i = s->right},
                            {.f = s->soft_cap}, {.f = 0},        {.b = 0}};
  memcpy(r->call.attr, attr, sizeof attr);
  return r;
}

static void release(run *r) {
  for (int i = 0; i < TFU_MAX_ARGS; i++) free(r->call.in[i].data), free(r->call.out[i].data);
  free(r);
}

/* The score of a pair; -infinity where the query does not attend to the key. */
static double score(const run *r, const sizes *s, int b, int h, int i, int j) {
  const tfu_tensor *in = r->call.in;
  const int group = s->heads / s->key_heads, place = i + (s->align ? s->keys - s->queries : 0);
  if ((s->left >= 0 && j < place - s->left) || (s->right >= 0 && j > place + s->right)) return -INFINITY;
  if (s->masked && !((uint8_t *)in[4].data)[((int64_t)b * s->queries + i) * s->keys + j]) return -INFINITY;
  double sum = 0;
  for (int d = 0; d < s->head_dim; d++)
    sum += at(&in[0], (((int64_t)b * s->queries + i) * s->heads + h) * s->head_dim + d) *
           at(&in[1], (((int64_t)b * s->keys + j) * s->key_heads + h / group) * s->head_dim + d);
  const double v = 0.5 * sum, cap = s->soft_cap;
  return (cap ? cap * tanh(v / cap) : v) + (s->masked ? at(&in[3], h * s->keys + j) : 0);
}

static void check_row(const run *r, const sizes *s, int b, int h, int i, double error) {
  const int group = s->heads / s->key_heads;
  double most = -INFINITY, total = 0;
  for (int j = 0; j < s->keys; j++) most = fmax(most, score(r, s, b, h, i, j));
  for (int j = 0; j < s->keys; j++) total += most == -INFINITY ? 0 : exp(score(r, s, b, h, i, j) - most);
  const double lse = most + log(total), stats = at(&r->call.out[1], ((int64_t)b * s->heads + h) * s->queries + i);
  CHECK_FOR(total == 0 ? stats == -INFINITY : fabs(stats - lse) < 1e-5 * (1 + fabs(lse)), "stats %g, not %g", stats,
            lse);
  for (int d = 0; d < s->value_dim; d++) {
    double want = 0;
    for (int j = 0; j < s->keys && total > 0; j++)
      want += exp(score(r, s, b, h, i, j) - lse) *
              at(&r->call.in[2], (((int64_t)b * s->keys + j) * s->key_heads + h / group) * s->value_dim + d);
    const double got = at(&r->call.out[0], (((int64_t)b * s->queries + i) * s->heads + h) * s->value_dim + d);
    CHECK_FOR(fabs(got - want) <= error, "%s, query %d of head %d: %g, not %g", tfu_dtype_name(r->call.in[0].dtype), i,
              h, got, want);
  }
}

static void test_formula(void) {
  const double errors[] = {[TFU_F32] = 1e-5, [TFU_F16] = 2e-3, [TFU_BF16] = 2e-2, [TFU_F64] = 1e-13};
  for (int k = 0; k < TFU_COUNT(some); k++)
    for (int dtype = 0; dtype < TFU_FLOATS; dtype++) {
      const sizes *s = &some[k];
      run *r = attention(dtype, s);
      const tfu_code code = finish(r, "test");
      CHECK_FOR(code == TFU_OK, "%s", r->err.text);
      for (int b = 0; b < s->batch; b++)
        for (int h = 0; h < s->heads; h++)
          for (int i = 0; i < s->queries; i++) check_row(r, s, b, h, i, errors[dtype]);
      release(r);
    }
}

/* A call of the gradient with doutput, dstats and all of the bias wanted, after the call of attention. */
static run *gradient(const run *f) {
  run *g = start(&tfu_attention_grad);
  const tfu_dtype dtype = f->call.in[0].dtype;
  g->call.in[0] = random_tensor(dtype, f->call.out[0].shape, 8);
  for (int i = 0; i < 8; i++) g->call.in[1 + i] = f->call.in[i];
  g->call.in[9] = f->call.out[0];
  g->call.in[10] = f->call.out[1];
  g->call.in[11] = random_tensor(tfu_real(dtype), f->call.out[1].shape, 9);
  g->call.in[12] = f->call.in[3];
  for (int i = 0; i < 4; i++) g->call.out[i] = tensor(dtype, f->call.in[i].shape);
  memcpy(g->call.attr, f->call.attr, sizeof g->call.attr);
  return g;
}

/* The sum of output * doutput + stats * dstats: what the gradient is of. */
static double loss(const run *f, const run *g) {
  double sum = 0;
  for (int k = 0; k < 2; k++)
    for (int64_t i = 0; i < tfu_count(&f->call.out[k].shape); i++) {
      const double v = at(&f->call.out[k], i);
      sum += isinf(v) ? 0 : v * at(&g->call.in[k ? 11 : 0], i);
    }
  return sum;
}

/* Along a random direction of each input, in double. */
static void test_gradient(void) {
  const double step = 1e-5;
  for (int k = 0; k < TFU_COUNT(some); k++) {
    const sizes *s = &some[k];
    run *f = attention(TFU_F64, s);
    CHECK(finish(f, "test") == TFU_OK);
    run *g = gradient(f);
    CHECK_FOR(finish(g, "test") == TFU_OK, "%s", g->err.text);
    for (int i = 0; i < 4; i++) {
      const tfu_tensor *x = &f->call.in[i];
      const int64_t n = tfu_count(&x->shape);
      const tfu_tensor direction = random_tensor(TFU_F64, x->shape, 20 + (uint32_t)i);
      double want = 0, got = 0, side[2];
      for (int64_t e = 0; e < n; e++) want += at(&g->call.out[i], e) * at(&direction, e);
      for (int sign = 0; sign < 2; sign++) {
        const double move = sign ? -step : step;
        for (int64_t e = 0; e < n; e++) ((double *)x->data)[e] += move * at(&direction, e);
        CHECK(finish(f, "test") == TFU_OK);
        side[sign] = loss(f, g);
        for (int64_t e = 0; e < n; e++) ((double *)x->data)[e] -= move * at(&direction, e);
      }
      got = (side[0] - side[1]) / (2 * step);
      CHECK_FOR(fabs(got - want) <= 1e-6 * (1 + fabs(want)), "sizes %d, input %d: %g, not %g", k, i, want, got);
      free(direction.data);
    }
    for (int i = 0; i < 4; i++) free(g->call.out[i].data);
    free(g->call.in[0].data), free(g->call.in[11].data), free(g);
    release(f);
  }
}

/* Two sequences one after the other are what each of them is alone; so are pages. */
static void test_ragged_and_paged(void) {
  const sizes s = {1, 9, 9, 2, 1, 6, 6, 1, -1, 0, 0, 0};
  const int starts[] = {0, 2, 9};
  run *whole = attention(TFU_F32, &s);
  int64_t splits[] = {0, 2, 9};
  for (int i = 0; i < 3; i++) whole->call.in[i].shape = (tfu_shape)SHAPE(9, i ? 1 : 2, 6);
  for (int i = 5; i < 7; i++) {
    free(whole->call.in[i].data);
    whole->call.in[i] = tensor(TFU_I64, (tfu_shape)SHAPE(3));
    memcpy(whole->call.in[i].data, splits, sizeof splits);
  }
  whole->call.out[0].shape = (tfu_shape)SHAPE(9, 2, 6);
  whole->call.out[1].shape = (tfu_shape)SHAPE(2, 9);
  CHECK_FOR(finish(whole, "test") == TFU_OK, "%s", whole->err.text);
  for (int b = 0; b < 2; b++) {
    const sizes part = {1, starts[b + 1] - starts[b], starts[b + 1] - starts[b], 2, 1, 6, 6, 1, -1, 0, 0, 0};
    run *r = attention(TFU_F32, &part), *paged = start(&tfu_paged_attention);
    for (int i = 0; i < 3; i++)
      memcpy(r->call.in[i].data, (float *)whole->call.in[i].data + starts[b] * (i ? 6 : 12),
             (size_t)(part.keys * (i ? 6 : 12)) * sizeof(float));
    CHECK(finish(r, "test") == TFU_OK);
    const size_t bytes = (size_t)part.queries * 12 * sizeof(float);
    CHECK(!memcmp(r->call.out[0].data, (float *)whole->call.out[0].data + starts[b] * 12, bytes));
    /* Pages of one step, the last first. */
    paged->call.in[0] = r->call.in[0];
    paged->call.in[3] = tensor(TFU_I64, (tfu_shape)SHAPE(1, part.keys));
    paged->call.in[4] = tensor(TFU_I64, (tfu_shape)SHAPE(1));
    *(int64_t *)paged->call.in[4].data = part.keys;
    for (int i = 1; i < 3; i++) paged->call.in[i] = tensor(TFU_F32, (tfu_shape)SHAPE(part.keys, 1, 1, 6));
    for (int j = 0; j < part.keys; j++) {
      ((int64_t *)paged->call.in[3].data)[j] = part.keys - 1 - j;
      for (int i = 1; i < 3; i++)
        memcpy((float *)paged->call.in[i].data + (part.keys - 1 - j) * 6, (float *)r->call.in[i].data + j * 6, 24);
    }
    paged->call.out[0] = tensor(TFU_F32, r->call.out[0].shape);
    memcpy(paged->call.attr, r->call.attr, sizeof r->call.attr);
    CHECK_FOR(finish(paged, "test") == TFU_OK, "%s", paged->err.text);
    CHECK(!memcmp(paged->call.out[0].data, r->call.out[0].data, bytes));
    ((int64_t *)paged->call.in[3].data)[0] = part.keys;
    CHECK(finish(paged, "test") == TFU_INVALID);
    CHECK_FOR(strstr(paged->err.text, "table[0, 0] must be from 0 to"), "%s", paged->err.text);
    paged->call.in[0].data = NULL;
    release(paged);
    release(r);
  }
  release(whole);
}

int main(void) {
  test_formula();
  test_gradient();
  test_ragged_and_paged();
  return verdict();
}
