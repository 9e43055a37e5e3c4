/* kernels_test.c - the CPU kernels, called the way a binding calls them: where data may lie, and threads. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/mman.h>

#include "check.h"
#include "ops/lists/rules.h"

static const tfu_op *const ops[] = {
#define X(stem) &tfu_##stem,
#include "ops.def"
#undef X
};

/* ---- kernels ---- */

/* One op on random data; everything that a test may vary. */
typedef struct sample {
  const tfu_op *op;
  tfu_dtype dtype;
  tfu_shape x;
  int64_t offset; /* elements from an aligned address to each tensor */
  int in_place;   /* out[0] is in[0] */
  int scratch;    /* how many allocations succeed */
} sample;

#define SAMPLE_TEXT(s) "%s %s %s", (s).op->name, tfu_dtype_name((s).dtype), tfu_show(&(s).x).text

static int takes_channels(const char *argument) { return strstr(argument, "scale") || strstr(argument, "bias"); }

static tfu_shape shape_of(const sample *s, const char *argument) {
  if (takes_channels(argument)) return (tfu_shape)SHAPE(tfu_cols(&s->x));
  return strstr(argument, "constant") ? (tfu_shape)SCALAR : s->x;
}

static void fill(tfu_tensor *t, unsigned seed) {
  for (int64_t i = 0, n = tfu_count(&t->shape); i < n; i++) {
    const float value = (float)((seed = seed * 1664525 + 1013904223) >> 8) * 0x1p-22f - 2;
    const double wide = value * 1.000000001;
    if (t->dtype == TFU_F64) tfu_store_f64(t->data, t->dtype, i, 1, &wide);
    else tfu_store_f32(t->data, t->dtype, i, 1, &value);
  }
}

/* Runs the sample and appends its outputs' bytes to `result`, which has room for them. */
static tfu_code run_sample(const sample *s, char *result) {
  run *r = start(s->op);
  void *blocks[2 * TFU_MAX_ARGS];
  int n = 0;
  const size_t size = tfu_dtype_size(s->dtype);
  r->most = s->scratch;
  r->call.attr[0].i = TFU_ACT_gelu;
  for (int out = 0; out < 2; out++) {
    for (int i = 0; (out ? s->op->out : s->op->in)[i]; i++) {
      tfu_tensor *t = out ? &r->call.out[i] : &r->call.in[i];
      *t = (tfu_tensor){.dtype = s->dtype, .shape = shape_of(s, (out ? s->op->out : s->op->in)[i])};
      if (tfu_count(&t->shape) == 0) continue; /* no data: nobody may touch it */
      char *block = malloc((size_t)(tfu_count(&t->shape) + s->offset) * size);
      blocks[n++] = block;
      t->data = block + s->offset * (int64_t)size;
      if (!out) fill(t, (unsigned)i + 1);
      else memset(t->data, 0x5a, (size_t)tfu_count(&t->shape) * size);
    }
  }
  if (s->in_place) r->call.out[0].data = r->call.in[0].data;
  const tfu_code code = finish(r, "test");
  for (int i = 0; code == TFU_OK && s->op->out[i]; i++) {
    const size_t bytes = (size_t)tfu_count(&r->call.out[i].shape) * size;
    if (bytes) memcpy(result, r->call.out[i].data, bytes);
    result += bytes;
  }
  if (code == TFU_EXHAUSTED) CHECK_FOR(strstr(r->err.text, "out of memory allocating"), "%s", r->err.text);
  while (n > 0) free(blocks[--n]);
  free(r);
  return code;
}

/* Elements of all outputs. */
static int64_t outputs(const sample *s) {
  int64_t n = 0;
  for (int i = 0; s->op->out[i]; i++) {
    const tfu_shape shape = shape_of(s, s->op->out[i]);
    n += tfu_count(&shape);
  }
  return n;
}

static int is_ours(const tfu_op *op) {
  /* The samples know these ops' arguments; a new op's own tests are its cases in Python. */
  return op == &tfu_square || op == &tfu_square_grad || op == &tfu_add_constant || op == &tfu_add_constant_grad ||
         op == &tfu_scale_bias_act || op == &tfu_scale_bias_act_grad;
}

/* Neither an odd address nor sharing memory changes a bit. */
static void test_placement(void) {
  static const tfu_shape shapes[] = {SHAPE(1), SHAPE(7, 3), SHAPE(2, 5, 129), SHAPE(70, 1030), SHAPE(33000, 3)};
  for (int i = 0; i < TFU_COUNT(ops) * TFU_COUNT(shapes) * TFU_FLOATS; i++) {
    const sample plain = {.op = ops[i / TFU_COUNT(shapes) / TFU_FLOATS],
                          .dtype = i % TFU_FLOATS,
                          .x = shapes[i / TFU_FLOATS % TFU_COUNT(shapes)],
                          .scratch = 8};
    if (!is_ours(plain.op)) continue;
    sample odd = plain, shared = plain;
    odd.offset = 1;
    shared.in_place = plain.op->in_place;
    const size_t bytes = (size_t)outputs(&plain) * tfu_dtype_size(plain.dtype);
    char *results = malloc(3 * bytes);
    CHECK(run_sample(&plain, results) == TFU_OK && run_sample(&odd, results + bytes) == TFU_OK);
    CHECK(run_sample(&shared, results + 2 * bytes) == TFU_OK);
    CHECK_FOR(!memcmp(results, results + bytes, bytes), SAMPLE_TEXT(plain));
    CHECK_FOR(!memcmp(results, results + 2 * bytes, bytes), SAMPLE_TEXT(plain));
    free(results);
  }
}

/* Where an optimizer's new weights lie: by themselves, where the gradients do, or where the old weights do, beside new
 * slots that lie where the old ones do. */
typedef enum place { APART, IN_GRADIENTS, IN_OLD, PLACES } place;

enum { UPDATED = 3 };
static const int64_t updated[UPDATED] = {5, 40000, 1}; /* elements of each tensor; the second is several tasks */
static const int slots_of[TFU_RULE_COUNT] = {
#define X(name, slots) [TFU_RULE_##name] = slots,
    TFU_RULES(X)
#undef X
};

/* The first step, from slots that are zero; appends the new weights' and slots' bytes to `result`. */
static tfu_code run_update(int rule, tfu_dtype dtype, place where, char *result) {
  static const double wide[] = {0.125, 0.0625, 1.5, 0.75, 0.875, 0.25, 0.125, 1e-7, 0, 3, 300, 1, 8};
  const int changed = UPDATED * (1 + slots_of[rule]), double_too = tfu_real(dtype) == TFU_F64;
  float narrow[TFU_COUNT(wide)];
  int64_t step = 0, elements;
  tfu_shape unused[TFU_MAX_ARGS];
  tfu_lists lists;
  run *r = start(&tfu_tensors_update);
  r->call.attr[0].i = rule;
  r->call.attr[1].i = UPDATED;
  r->call.attr[2].i = changed - UPDATED;
  CHECK(tfu_lists_open(&r->call, &lists) == TFU_OK);
  tfu_tensor *old = lists.in[1].at, *new = lists.out[0].at, *gradients = lists.in[0].at; /* slots follow the weights */
  for (int i = 0; i < UPDATED + changed; i++) {
    gradients[i] =
        (tfu_tensor){calloc((size_t)updated[i % UPDATED], tfu_dtype_size(dtype)), dtype, SHAPE(updated[i % UPDATED])};
    if (i < 2 * UPDATED) fill(&gradients[i], (unsigned)i + 1);
  }
  for (int i = 0; i < changed; i++) {
    new[i] = (where == IN_GRADIENTS && i < UPDATED ? gradients : old)[i];
    if (where == APART || (where == IN_GRADIENTS && i >= UPDATED))
      new[i].data = malloc((size_t)updated[i % UPDATED] * tfu_dtype_size(dtype));
  }
  for (int i = 0; i < TFU_COUNT(wide); i++) narrow[i] = (float)wide[i];
#define NUMBERS(at, ...) (tfu_tensor){double_too ? (void *)&wide[at] : &narrow[at], tfu_real(dtype), __VA_ARGS__}
  lists.in[3].at[0] = NUMBERS(0, SCALAR);
  lists.in[4].at[0] = (tfu_tensor){&step, TFU_I64, SCALAR};
  lists.in[5].at[0] = NUMBERS(1, SHAPE(TFU_HYPERS));
  lists.in[6].at[0] = NUMBERS(1 + TFU_HYPERS, SHAPE(UPDATED));
  lists.in[7].at[0] = NUMBERS(1 + TFU_HYPERS + UPDATED, SCALAR);
#undef NUMBERS
  tfu_code code = tfu_infer(&r->call, unused, &elements);
  if (code == TFU_OK) code = tfu_execute(&r->call, "test", 0);
  for (int i = 0; i < changed; i++) {
    const size_t bytes = (size_t)updated[i % UPDATED] * tfu_dtype_size(dtype);
    memcpy(result, new[i].data, bytes);
    result += bytes;
    if (new[i].data != old[i].data &&new[i].data != gradients[i].data) free(new[i].data);
  }
  for (int i = 0; i < UPDATED + changed; i++) free(gradients[i].data);
  while (r->n > 0) free(r->held[--r->n]);
  tfu_lists_close(&r->call);
  free(r);
  return code;
}

/* Memory that is shared changes no bit of a step. */
static void test_updates_in_place(void) {
  CHECK(tfu_tensors_update.in_place); /* what out[0] shares in a graph is in[0] */
  for (int i = 0; i < TFU_RULE_COUNT * TFU_FLOATS; i++) {
    const int rule = i / TFU_FLOATS;
    const tfu_dtype dtype = i % TFU_FLOATS;
    size_t bytes = 0;
    for (int k = 0; k < UPDATED; k++)
      bytes += (size_t)updated[k] * tfu_dtype_size(dtype) * (size_t)(1 + slots_of[rule]);
    char *results = calloc(PLACES, bytes);
    for (int where = 0; where < PLACES; where++) {
      CHECK(run_update(rule, dtype, where, results + (size_t)where * bytes) == TFU_OK);
      CHECK_FOR(!memcmp(results, results + (size_t)where * bytes, bytes), "rule %d %s, place %d", rule,
                tfu_dtype_name(dtype), where);
    }
    free(results);
  }
}

/* Sums over nothing are zero, whichever dimension is empty. */
static void test_empty(void) {
  static const tfu_shape shapes[] = {SHAPE(0), SHAPE(0, 8), SHAPE(3, 0, 8), SHAPE(5, 0)};
  for (int i = 0; i < TFU_COUNT(ops) * TFU_COUNT(shapes) * TFU_FLOATS; i++) {
    const sample s = {.op = ops[i / TFU_COUNT(shapes) / TFU_FLOATS],
                      .dtype = i % TFU_FLOATS,
                      .x = shapes[i / TFU_FLOATS % TFU_COUNT(shapes)],
                      .scratch = 8};
    if (!is_ours(s.op) || outputs(&s) == 0) continue;
    const size_t bytes = (size_t)outputs(&s) * tfu_dtype_size(s.dtype);
    char results[8 * 2 * sizeof(double)], zeros[sizeof results] = {0};
    memset(results, 0x5a, sizeof results);
    CHECK_FOR(run_sample(&s, results) == TFU_OK && !memcmp(results, zeros, bytes), "%s", s.op->name);
  }
}

static void test_scratch(void) {
  int refused = 0;
  for (int i = 0; i < TFU_COUNT(ops); i++) {
    sample s = {.op = ops[i], .dtype = TFU_BF16, .x = SHAPE(50, 20)};
    char results[(50 * 20 + 20 + 20) * sizeof(uint16_t)];
    if (!is_ours(s.op)) continue;
    for (; s.scratch < 8 && run_sample(&s, results) == TFU_EXHAUSTED; s.scratch++) refused++;
    CHECK_FOR(s.scratch < 8 && run_sample(&s, results) == TFU_OK, "%s", s.op->name);
  }
  CHECK(refused == 1 + 2 + 3); /* AddConstantGrad's sums; scale and bias; these and the sums */
}

typedef struct sums {
  char threads[8];
  sample sample;
  char bytes[1 << 22];
} sums;

static int child_sums(void *arg) {
  sums *s = arg;
  setenv("TFUSE_NUM_THREADS", s->threads, 1); /* read when the child starts its own threads */
  return tfu_threads() == atoi(s->threads) && run_sample(&s->sample, s->bytes) == TFU_OK;
}

/* One thread or many: the same bits. */
static void test_thread_counts(void) {
  static const tfu_shape shapes[] = {SHAPE(1, 100003), SHAPE(4099, 20), SHAPE(130, 1031), SHAPE(100003, 1)};
  static const char *const threads[] = {"1", "2", "7"};
  sums *s = mmap(NULL, 3 * sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  static const tfu_op *const tested[] = {&tfu_add_constant_grad, &tfu_scale_bias_act, &tfu_scale_bias_act_grad};
  for (int i = 0; i < 3 * TFU_COUNT(shapes) * TFU_FLOATS; i++) {
    const sample one = {
        .op = tested[i % 3], .dtype = i / 3 % TFU_FLOATS, .x = shapes[i / 3 / TFU_FLOATS], .scratch = 8};
    const size_t bytes = (size_t)outputs(&one) * tfu_dtype_size(one.dtype);
    for (int k = 0; k < 3; k++) {
      s[k].sample = one;
      strcpy(s[k].threads, threads[k]);
      CHECK_FOR(bytes <= sizeof s->bytes && in_child(child_sums, &s[k]), SAMPLE_TEXT(one));
      CHECK_FOR(!memcmp(s[0].bytes, s[k].bytes, bytes), SAMPLE_TEXT(one));
    }
  }
  munmap(s, 3 * sizeof *s);
}

/* Eight callers at once, each with its own data. */
static void *run_all(void *unused) {
  (void)unused;
  intptr_t right = 1;
  for (int i = 0; i < TFU_COUNT(ops); i++) {
    const sample s = {.op = ops[i], .dtype = TFU_F32, .x = SHAPE(130, 1031), .scratch = 8};
    if (!is_ours(s.op)) continue;
    const size_t bytes = (size_t)outputs(&s) * sizeof(float);
    char *results = malloc(2 * bytes);
    right &= run_sample(&s, results) == TFU_OK && run_sample(&s, results + bytes) == TFU_OK;
    right &= !memcmp(results, results + bytes, bytes);
    free(results);
  }
  return (void *)right;
}

static void test_concurrent_calls(void) {
  enum { THREADS = 8 };
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, run_all, NULL) == 0);
  for (int i = 0; i < THREADS; i++) {
    void *right = NULL;
    pthread_join(threads[i], &right);
    CHECK(right);
  }
}

int main(void) {
  setenv("TFUSE_NUM_THREADS", "3", 1); /* more than one, however many cores there are */
  test_placement();
  test_updates_in_place();
  test_empty();
  test_scratch();
  test_thread_counts();
  test_concurrent_calls();
  return verdict();
}
