/* core_test.c - the C core without TensorFlow: shape rules, attributes, traces, threads, and the CPU kernels called the
 * way a binding calls them. Every failed check prints its line; the exit status says whether there was one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/core/cpu.h"
#include "kernels/core/cuda.h"
#include "kernels/core/driver.h"
#include "ops/core/bind.h"

static int failures;

#define CHECK(condition) check((condition) != 0, __LINE__, #condition, " ")
#define CHECK_FOR(condition, ...) check((condition) != 0, __LINE__, #condition, __VA_ARGS__)
#define CHECK_TEXT(got, want) check(!strcmp(got, want), __LINE__, #got, "is \"%s\", not \"%s\"", got, want)

__attribute__((format(printf, 4, 5))) static void check(int right, int line, const char *text, const char *format,
                                                        ...) {
  va_list ap;
  if (right) return;
  failures++;
  va_start(ap, format);
  printf("%s:%d: failed: %s ", __FILE__, line, text);
  vprintf(format, ap);
  puts("");
  va_end(ap);
}

static const tfu_op *const ops[] = {
#define X(stem) &tfu_##stem,
#include "ops.def"
#undef X
};

/* ---- shapes ---- */

#define SHAPE(...)                                                        \
  {                                                                       \
    .rank = TFU_COUNT(((int64_t[]){__VA_ARGS__})), .dim = { __VA_ARGS__ } \
  }
#define SCALAR \
  { .rank = 0 }
#define ANY \
  { .rank = TFU_UNKNOWN }
#define _ TFU_UNKNOWN

static int same_shape(const tfu_shape *a, const tfu_shape *b) {
  if (a->rank != b->rank) return 0;
  for (int i = 0; i < a->rank; i++)
    if (a->dim[i] != b->dim[i]) return 0;
  return 1;
}

/* Accepted: the outputs' shapes. Rejected: the message. */
static const struct rule {
  const tfu_op *op;
  tfu_shape in[4];
  tfu_shape out[3];
  const char *message;
} rules[] = {
    {&tfu_square, {SHAPE(2, 3)}, {SHAPE(2, 3)}, NULL},
    {&tfu_square, {SCALAR}, {SCALAR}, NULL},
    {&tfu_square, {SHAPE(_, 0)}, {SHAPE(_, 0)}, NULL},
    {&tfu_square, {ANY}, {ANY}, NULL},
    {&tfu_square_grad, {SHAPE(2, _), SHAPE(_, 3)}, {SHAPE(_, 3)}, NULL},
    {&tfu_square_grad, {ANY, SHAPE(2)}, {SHAPE(2)}, NULL},
    {&tfu_square_grad, {SHAPE(2), ANY}, {ANY}, NULL},
    {&tfu_square_grad, {SHAPE(2), SHAPE(3)}, {}, "dy must have the shape of x, [3], got [2]"},
    {&tfu_square_grad, {SCALAR, SHAPE(_)}, {}, "dy must have the shape of x, [?], got []"},

    {&tfu_add_constant, {SHAPE(2, _), SCALAR}, {SHAPE(2, _)}, NULL},
    {&tfu_add_constant, {SCALAR, SCALAR}, {SCALAR}, NULL},
    {&tfu_add_constant, {ANY, ANY}, {ANY}, NULL},
    {&tfu_add_constant, {SHAPE(2), SHAPE(1)}, {}, "constant must be a single number (shape []), got shape [1]"},
    {&tfu_add_constant, {ANY, SHAPE(_, 2)}, {}, "constant must be a single number (shape []), got shape [?, 2]"},
    {&tfu_add_constant_grad, {SHAPE(4, 5)}, {SCALAR}, NULL},
    {&tfu_add_constant_grad, {ANY}, {SCALAR}, NULL},

    {&tfu_scale_bias_act, {SHAPE(2, 3), SHAPE(3), SHAPE(3)}, {SHAPE(2, 3)}, NULL},
    {&tfu_scale_bias_act, {SHAPE(2, 3), SHAPE(0), SHAPE(0)}, {SHAPE(2, 3)}, NULL},
    {&tfu_scale_bias_act, {SHAPE(2, 3), SCALAR, SHAPE(_)}, {SHAPE(2, 3)}, NULL},
    {&tfu_scale_bias_act, {SHAPE(_, _), SHAPE(3), SHAPE(4)}, {SHAPE(_, _)}, NULL}, /* found out at run time */
    {&tfu_scale_bias_act, {SCALAR, SCALAR, SHAPE(0)}, {SCALAR}, NULL},
    {&tfu_scale_bias_act, {ANY, SHAPE(3), ANY}, {ANY}, NULL},
    {&tfu_scale_bias_act, {SHAPE(5, 0), SHAPE(0), SHAPE(0)}, {SHAPE(5, 0)}, NULL},
    {&tfu_scale_bias_act,
     {SHAPE(_, 3), SHAPE(4), SHAPE(0)},
     {},
     "scale must have 3 values, one per channel (last axis) of x [?, 3], got 4"},
    {&tfu_scale_bias_act,
     {SHAPE(2, 3), SHAPE(0), SHAPE(1)},
     {},
     "bias must have 3 values, one per channel (last axis) of x [2, 3], got 1"},
    {&tfu_scale_bias_act,
     {SHAPE(2, 3), SHAPE(2, 3), SHAPE(0)},
     {},
     "scale must be a vector with one value per channel of x, got shape [2, 3]"},
    {&tfu_scale_bias_act,
     {ANY, ANY, SCALAR},
     {},
     "bias must be a vector with one value per channel of x, got shape []"},
    {&tfu_scale_bias_act,
     {SCALAR, SHAPE(1), SHAPE(0)},
     {},
     "x must have at least one dimension to take a scale, got a single number"},
    {&tfu_scale_bias_act_grad, {SHAPE(2, 3), SHAPE(2, 3), SHAPE(3), SHAPE(0)}, {SHAPE(2, 3), SHAPE(3), SHAPE(0)}, NULL},
    {&tfu_scale_bias_act_grad, {ANY, SHAPE(_, 3), SCALAR, SHAPE(_)}, {SHAPE(_, 3), SCALAR, SHAPE(_)}, NULL},
    {&tfu_scale_bias_act_grad, {ANY, ANY, ANY, ANY}, {ANY, ANY, ANY}, NULL},
    {&tfu_scale_bias_act_grad,
     {SHAPE(2, 4), SHAPE(2, 3), SHAPE(3), SHAPE(0)},
     {},
     "dy must have the shape of x, [2, 3], got [2, 4]"},
    {&tfu_scale_bias_act_grad,
     {SHAPE(2, 3), SHAPE(2, 3), SHAPE(3), SHAPE(2)},
     {},
     "bias must have 3 values, one per channel (last axis) of x [2, 3], got 2"},
};

static void test_shape_rules(void) {
  for (int i = 0; i < TFU_COUNT(rules); i++) {
    const struct rule *r = &rules[i];
    tfu_shape out[TFU_MAX_ARGS];
    tfu_error err = {""};
    const tfu_code code = r->op->shape(r->in, out, NULL, &err);
    CHECK_FOR(code == (r->message ? TFU_INVALID : TFU_OK), "%s, rule %d", r->op->name, i);
    if (r->message) CHECK_TEXT(err.text, r->message);
    for (int k = 0; !r->message && r->op->out[k]; k++)
      CHECK_FOR(same_shape(&out[k], &r->out[k]), "%s, rule %d, output %d", r->op->name, i, k);
  }
}

/* What holds for every row, those to come included. */
static void test_rows(void) {
  for (int i = 0; i < TFU_COUNT(ops); i++) {
    const tfu_op *op = ops[i];
    tfu_shape in[TFU_MAX_ARGS], out[TFU_MAX_ARGS];
    tfu_error err;
    for (int k = 0; k < TFU_MAX_ARGS; k++) in[k] = (tfu_shape)ANY;
    CHECK_FOR(op->shape(in, out, NULL, &err) == TFU_OK, "%s", op->name);
    CHECK_FOR(op->cpu && op->gpu && op->doc && op->in[0] && op->out[0], "%s", op->name);
    CHECK_FOR(tfu_args(op->in) <= TFU_MAX_ARGS && tfu_args(op->out) <= TFU_MAX_ARGS, "%s", op->name);
    for (int k = 0; op->attr[k]; k++) {
      tfu_attr a;
      char word[64] = "";
      CHECK_FOR(tfu_attr_parse(op->attr[k], &a), "%s", op->attr[k]);
      if (a.kind != TFU_ATTR_CHOICE) continue;
      CHECK_FOR(sscanf(strchr(a.choices, '='), "= '%63[^']'", word) == 1, "%s", op->attr[k]);
      CHECK_FOR(tfu_attr_choice(&a, word, strlen(word)) >= 0, "%s", word); /* the default is one of the choices */
    }
  }
}

static void test_show(void) {
  tfu_shape widest = {.rank = TFU_MAX_RANK};
  for (int i = 0; i < TFU_MAX_RANK; i++) widest.dim[i] = INT64_MAX;
  const tfu_shape_text text = tfu_show(&widest);
  CHECK(strlen(text.text) == 8 * 19 + 7 * 2 + 2 && text.text[strlen(text.text) - 1] == ']');
  CHECK_TEXT(tfu_show(&(tfu_shape)SHAPE(2, _, 3)).text, "[2, ?, 3]");
  CHECK_TEXT(tfu_show(&(tfu_shape)SHAPE(0)).text, "[0]");
  CHECK_TEXT(tfu_show(&(tfu_shape)SCALAR).text, "[]");
  CHECK_TEXT(tfu_show(&(tfu_shape)ANY).text, "unknown rank");
}

static void test_counts(void) {
  const tfu_shape scalar = SCALAR, cube = SHAPE(2, 3, 5), empty = SHAPE(4, 0), none = SHAPE(0, 4);
  CHECK(tfu_count(&scalar) == 1 && tfu_rows(&scalar) == 1 && tfu_cols(&scalar) == 1);
  CHECK(tfu_count(&cube) == 30 && tfu_rows(&cube) == 6 && tfu_cols(&cube) == 5);
  CHECK(tfu_count(&empty) == 0 && tfu_rows(&empty) == 4 && tfu_cols(&empty) == 0);
  CHECK(tfu_count(&none) == 0 && tfu_rows(&none) == 0 && tfu_cols(&none) == 4);
  static const struct {
    const char *name, *tag;
    size_t size;
  } dtypes[TFU_DTYPES] = {{"float32", "f32", 4}, {"float16", "f16", 2}, {"bfloat16", "bf16", 2}, {"float64", "f64", 8}};
  for (int i = 0; i < TFU_DTYPES; i++) {
    CHECK_TEXT(tfu_dtype_name(i), dtypes[i].name);
    CHECK_TEXT(tfu_dtype_tag(i), dtypes[i].tag);
    CHECK(tfu_dtype_size(i) == dtypes[i].size);
  }
}

static void test_errors(void) {
  tfu_error err;
  char text[12];
  CHECK(tfu_fail(&err, TFU_INTERNAL, "%d of %s", 2, "x") == TFU_INTERNAL);
  CHECK_TEXT(err.text, "2 of x");
  tfu_explain_error(&tfu_square, &err, text, sizeof text); /* cut off, not written past the end */
  CHECK_TEXT(text, "Square: 2 o");
  CHECK(tfu_fail(&err, TFU_INVALID, "%1000d", 1) == TFU_INVALID && strlen(err.text) == sizeof err.text - 1);
}

/* ---- attributes ---- */

static void test_attributes(void) {
  static const struct {
    const char *text, *name;
    tfu_attr_kind kind;
  } good[] = {
      {"T: {float, half, bfloat16, double}", "T", TFU_ATTR_DTYPE},
      {"epsilon: float = 1e-6", "epsilon", TFU_ATTR_FLOAT},
      {"axis: int", "axis", TFU_ATTR_INT},
      {"groups: int >= 1 = 1", "groups", TFU_ATTR_INT},
      {" causal :bool = false", "causal", TFU_ATTR_BOOL},
      {"mode:{'a','b'} = 'b'", "mode", TFU_ATTR_CHOICE},
      {TFU_ACTIVATION_ATTR, "activation", TFU_ATTR_CHOICE},
  };
  static const char *const bad[] = {
      "",           "epsilon",        "epsilon:", "epsilon: string", "e: floats",
      "n: integer", "s: list(float)", ": float",  "epsilon = 1",     "a_name_of_more_than_thirty_one_letters: float"};
  tfu_attr a;
  for (int i = 0; i < TFU_COUNT(good); i++) {
    CHECK_FOR(tfu_attr_parse(good[i].text, &a) && a.kind == good[i].kind, "%s", good[i].text);
    CHECK_TEXT(a.name, good[i].name);
  }
  for (int i = 0; i < TFU_COUNT(bad); i++) CHECK_FOR(!tfu_attr_parse(bad[i], &a), "%s", bad[i]);

  CHECK(tfu_attr_parse("mode: {'a', 'bc', 'b'} = 'd'", &a));
  CHECK(tfu_attr_choice(&a, "a", 1) == 0 && tfu_attr_choice(&a, "bc", 2) == 1 && tfu_attr_choice(&a, "b", 1) == 2);
  CHECK(tfu_attr_choice(&a, "bcx", 2) == 1); /* the word need not end with a zero */
  CHECK(tfu_attr_choice(&a, "d", 1) == -1);  /* not among the choices, only after them */
  CHECK(tfu_attr_choice(&a, "", 0) == -1 && tfu_attr_choice(&a, ", ", 2) == -1 && tfu_attr_choice(&a, "abc", 3) == -1);
  CHECK(tfu_attr_parse(TFU_ACTIVATION_ATTR, &a));
#define X(name) CHECK(tfu_attr_choice(&a, #name, strlen(#name)) == TFU_ACT_##name);
  TFU_ACTIVATIONS(X)
#undef X
}

/* ---- calls ---- */

/* A binding for tests: scratch comes from malloc, until none is left. */
typedef struct run {
  tfu_call call;
  tfu_error err;
  void *held[8];
  int n, most;
} run;

static void *allocate(tfu_call *call, size_t bytes) {
  run *r = call->binding;
  return r->n == r->most ? NULL : (r->held[r->n++] = malloc(bytes));
}

static run *start(const tfu_op *op) {
  run *r = calloc(1, sizeof *r);
  r->most = TFU_COUNT(r->held);
  r->call = (tfu_call){.op = op, .err = &r->err, .allocate = allocate, .binding = r};
  return r;
}

static tfu_code finish(run *r, const char *route) {
  tfu_shape out[TFU_MAX_ARGS];
  int64_t elements;
  tfu_code code = tfu_infer(&r->call, out, &elements);
  for (int i = 0; code == TFU_OK && r->call.op->out[i]; i++) CHECK(same_shape(&out[i], &r->call.out[i].shape));
  if (code == TFU_OK) code = tfu_execute(&r->call, route, 0);
  while (r->n > 0) free(r->held[--r->n]);
  return code;
}

static void test_infer(void) {
  const int64_t big = (int64_t)1 << 40;
  static const struct {
    int64_t dim[3];
    int64_t elements; /* -1: too many */
  } sizes[] = {{{3, 5, 7}, 105},
               {{(int64_t)1 << 30, (int64_t)1 << 20, 1}, (int64_t)1 << 50},
               {{(int64_t)1 << 30, (int64_t)1 << 30, 1}, -1}, /* elements can be counted, bytes cannot */
               {{(int64_t)1 << 32, (int64_t)1 << 32, 1}, -1},
               {{(int64_t)1 << 32, (int64_t)1 << 32, 2}, -1}, /* wraps around to zero */
               {{INT64_MAX, INT64_MAX, INT64_MAX}, -1},
               {{0, INT64_MAX, INT64_MAX}, 0},
               {{INT64_MAX, INT64_MAX, 0}, 0}};
  run *r = start(&tfu_square);
  tfu_shape out[TFU_MAX_ARGS];
  int64_t elements;
  for (int i = 0; i < TFU_COUNT(sizes); i++) {
    r->call.in[0].shape = (tfu_shape)SHAPE(sizes[i].dim[0], sizes[i].dim[1], sizes[i].dim[2]);
    const tfu_code code = tfu_infer(&r->call, out, &elements);
    CHECK(code == (sizes[i].elements < 0 ? TFU_EXHAUSTED : TFU_OK));
    CHECK(code != TFU_OK || elements == sizes[i].elements);
  }
  r->call.in[0].shape = (tfu_shape)SHAPE(big, big);
  CHECK(tfu_infer(&r->call, out, &elements) == TFU_EXHAUSTED);
  CHECK_TEXT(r->err.text, "output y: T of shape [1099511627776, 1099511627776] is larger than any memory");

  r->call.op = &tfu_scale_bias_act_grad; /* all outputs count */
  for (int i = 0; i < 2; i++) r->call.in[i].shape = (tfu_shape)SHAPE(2, 3);
  r->call.in[2].shape = (tfu_shape)SCALAR;
  r->call.in[3].shape = (tfu_shape)SHAPE(3);
  CHECK(tfu_infer(&r->call, out, &elements) == TFU_OK && elements == 6 + 1 + 3);
  r->call.in[3].shape = (tfu_shape)SHAPE(4);
  CHECK(tfu_infer(&r->call, out, &elements) == TFU_INVALID);
  free(r);
}

int64_t tfu_trace_read(int64_t index, char *text, size_t size); /* for ctypes, so in no header */
void *tfu_trace_stream(void);

static void test_trace(void) {
  float x[6] = {1, 2, 3, 4, 5, 6}, y[6], sum;
  char text[512] = "x";
  const int64_t before = tfu_trace_read(-1, text, sizeof text);
  CHECK_TEXT(text, "");

  run *r = start(&tfu_square);
  r->call.in[0] = (tfu_tensor){x, TFU_F32, SHAPE(2, 3)};
  r->call.out[0] = (tfu_tensor){y, TFU_F32, SHAPE(2, 3)};
  CHECK(finish(r, "a route") == TFU_OK && y[0] == 1 && y[5] == 36);
  CHECK(tfu_trace_read(before, text, sizeof text) == before + 1);
  CHECK_TEXT(text, "Square\ta route\tCPU\tloop\tfloat32\t[2, 3]");
  CHECK(tfu_trace_read(before, text, 9) == before + 1);
  CHECK_TEXT(text, "Square\ta");
  CHECK(tfu_trace_read(before, text, 0) == before + 1);
  CHECK(tfu_trace_read(before + 1, text, sizeof text) == before + 1);
  CHECK_TEXT(text, "");

  for (int i = 0; i < 64; i++) CHECK(finish(r, "another") == TFU_OK);
  CHECK(tfu_trace_read(before, text, sizeof text) == before + 65);
  CHECK_TEXT(text, ""); /* pushed out */
  tfu_trace_read(before + 1, text, sizeof text);
  CHECK_TEXT(text, "Square\tanother\tCPU\tloop\tfloat32\t[2, 3]");
  CHECK(!tfu_trace_stream());
  free(r);

  r = start(&tfu_add_constant_grad); /* an error leaves no trace */
  r->most = 0;
  r->call.in[0] = (tfu_tensor){x, TFU_F32, SHAPE(6)};
  r->call.out[0] = (tfu_tensor){&sum, TFU_F32, SCALAR};
  CHECK(finish(r, "fails") == TFU_EXHAUSTED && tfu_trace_read(-1, text, sizeof text) == before + 65);
  free(r);
}

/* ---- images and the driver ---- */

static void test_images(void) {
  static const unsigned char code[1];
  static const tfu_image images[] = {{70, 0, code, 1},
                                     {80, 0, code, 1},
                                     {90, 0, code, 1},
                                     {100, 0, code, 1},
                                     {120, 0, code, 1},
                                     {90, 1, code, 1},
                                     {0}};
  static const tfu_image minors[] = {{86, 0, code, 1}, {80, 0, code, 1}, {0}}, none[] = {{0}};
  static const int want[][2] = {{60, -1}, {70, 0},  {75, 0},  {80, 1},  {86, 1},  {89, 1}, {90, 2},
                                {100, 3}, {103, 3}, {110, 5}, {120, 4}, {121, 4}, {130, 5}};
  for (int i = 0; i < TFU_COUNT(want); i++) {
    CHECK_FOR(tfu_image_for(images, want[i][0]) == want[i][1], "capability %d", want[i][0]);
  }
  /* The newest minor that the device has, in whatever order they stand. */
  CHECK(tfu_image_for(minors, 80) == 1 && tfu_image_for(minors, 86) == 0 && tfu_image_for(minors, 89) == 0);
  CHECK(tfu_image_for(minors, 90) == -1 && tfu_image_for(none, 90) == -1);
}

static void test_no_driver(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library) {
    printf("libcuda.so.1 is here: what happens without it is not tested\n");
    return;
  }
  const char *want = "the NVIDIA driver lacks libcuda.so.1: install driver 525 or later";
  const tfu_driver *driver;
  tfu_device device;
  tfu_error err = {""};
  CHECK(tfu_driver_get(&driver, &err) == TFU_PRECONDITION);
  CHECK_TEXT(err.text, want);
  err.text[0] = 0;
  CHECK(tfu_device_now(&device, &err) == TFU_PRECONDITION);
  CHECK_TEXT(err.text, want);
  for (int i = 0; i < TFU_COUNT(ops); i++) {
    float data[16] = {0};
    run *r = start(ops[i]);
    for (int k = 0; k < TFU_MAX_ARGS; k++) {
      r->call.in[k] = (tfu_tensor){data, TFU_F32, SHAPE(4)};
      r->call.out[k] = (tfu_tensor){data, TFU_F32, SHAPE(4)};
    }
    CHECK_FOR(tfu_execute(&r->call, "none", 1) == TFU_PRECONDITION, "%s", ops[i]->name);
    CHECK_TEXT(r->err.text, want);
    while (r->n > 0) free(r->held[--r->n]);
    free(r);
  }
}

/* ---- threads ---- */

enum { INDICES = 1000, THREADS = 8 };

typedef struct tally {
  _Atomic(int) seen[INDICES];
} tally;

static void count_one(void *arg, int64_t i) { ((tally *)arg)->seen[i]++; }

static int counted(int64_t tasks) {
  tally t = {{0}};
  int right = 1;
  tfu_parallel(tasks, count_one, &t);
  for (int64_t i = 0; i < INDICES; i++) right &= t.seen[i] == (i < tasks);
  return right;
}

static void count_nested(void *arg, int64_t i) {
  if (counted(i % 7 * 10)) ((tally *)arg)->seen[i]++;
}

static int counted_nested(void) {
  tally t = {{0}};
  int right = 1;
  tfu_parallel(100, count_nested, &t);
  for (int i = 0; i < 100; i++) right &= t.seen[i] == 1;
  return right;
}

/* Runs f in a child process; what it leaves in *shared can be read here. */
static int in_child(int (*f)(void *), void *shared) {
  int status = 1;
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60); /* ends it, should it hang */
    failures = 0;
    const int right = f(shared);
    fflush(stdout);
    _exit(!right || failures);
  }
  return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

static int child_counts(void *unused) {
  (void)unused;
  return tfu_threads() == 3 && counted(INDICES) && counted_nested();
}

static _Atomic(int) busy, enough;

/* No malloc: a sanitizer's does not survive a fork in the middle of it. */
static void *caller(void *unused) {
  (void)unused;
  intptr_t right = 1;
  busy++;
  for (int i = 0; i < 50 || !enough; i++) right &= counted(INDICES) & counted(i % 50) & counted_nested();
  return (void *)right;
}

static void test_parallel(void) {
  CHECK(counted(0) && counted(1) && counted(-1) && counted(2) && counted(INDICES));
  CHECK(counted_nested());
  CHECK(tfu_threads() == 3);

  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, caller, NULL) == 0);
  while (busy < THREADS) usleep(1000);
  for (int i = 0; i < 4; i++) CHECK(in_child(child_counts, NULL)); /* whatever the others hold just then */
  enough = 1;
  for (int i = 0; i < THREADS; i++) {
    void *right = NULL;
    pthread_join(threads[i], &right);
    CHECK(right);
  }
  CHECK(counted(INDICES));
}

/* ---- float16 and bfloat16 ---- */

static float decode(uint16_t bits, tfu_dtype dtype) {
  if (dtype == TFU_BF16) {
    const uint32_t wide = (uint32_t)bits << 16;
    float f;
    memcpy(&f, &wide, sizeof f);
    return f;
  }
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const float magnitude = exponent == 31  ? (fraction ? NAN : INFINITY)
                          : exponent == 0 ? ldexpf(fraction, -24)
                                          : ldexpf(1024 + fraction, exponent - 25);
  return bits >> 15 ? -magnitude : magnitude;
}

static uint16_t stored(float value, tfu_dtype dtype) {
  uint16_t bits = 0xbad;
  tfu_store_f32(&bits, dtype, 0, 1, &value);
  return bits;
}

/* Every value comes back as itself; what lies between two goes to the nearer one, the middle to the even one. */
static void test_storage(tfu_dtype dtype) {
  const uint16_t infinity = dtype == TFU_F16 ? 0x7c00 : 0x7f80;
  int wrong = 0;
  float buffer[1];
  for (uint32_t bits = 0; bits < 65536; bits++) {
    const uint16_t b = (uint16_t)bits, positive = b & 0x7fff;
    const float want = decode(b, dtype), got = *tfu_load_f32(&b, dtype, 0, 1, buffer);
    if (positive > infinity) {
      wrong += !isnan(got) || !isnan(decode(stored(got, dtype), dtype));
      continue;
    }
    wrong += got != want || stored(got, dtype) != b;
    if (b >= infinity) continue;
    const float next = b + 1 < infinity ? decode(b + 1, dtype) : want + (want - decode(b - 1, dtype));
    const float middle = isinf(next) ? ldexpf(511, 119) : want / 2 + next / 2; /* bfloat16 ends where float does */
    if (middle <= want || middle >= next) continue;                            /* below float's own precision */
    const uint16_t even = b & 1 ? b + 1 : b;
    wrong += stored(middle, dtype) != even || stored(-middle, dtype) != (even | 0x8000);
    wrong += stored(nextafterf(middle, INFINITY), dtype) != b + 1;
    wrong += stored(nextafterf(middle, 0), dtype) != b;
  }
  CHECK_FOR(wrong == 0, "%s", tfu_dtype_name(dtype));
  CHECK(stored(FLT_MAX, dtype) == infinity && stored(-FLT_MAX, dtype) == (infinity | 0x8000));
}

/* The same through a kernel: x + constant, in the bits of the dtype. */
static void test_rounding(void) {
  static const struct {
    tfu_dtype dtype;
    uint16_t x, constant, want;
  } sums[] = {
      {TFU_F16, 0x3c00, 0x1000, 0x3c00},  /* 1 + half a unit: a tie, down to even   */
      {TFU_F16, 0x3c01, 0x1000, 0x3c02},  /* up to even                             */
      {TFU_F16, 0x3c00, 0x1001, 0x3c01},  /* just above the tie                     */
      {TFU_F16, 0x7bff, 0x4c00, 0x7c00},  /* 65504 + 16: a tie, up to infinity      */
      {TFU_F16, 0x7bff, 0x4800, 0x7bff},  /* 65504 + 8                              */
      {TFU_F16, 0xfbff, 0xfbff, 0xfc00},  /* twice the lowest                       */
      {TFU_F16, 0x0001, 0x0001, 0x0002},  /* the smallest there is                  */
      {TFU_F16, 0x7c00, 0x3c00, 0x7c00},  /* infinity                               */
      {TFU_BF16, 0x4380, 0x3f80, 0x4380}, /* 256 + 1: a tie, down to even           */
      {TFU_BF16, 0x4381, 0x3f80, 0x4382}, /* 258 + 1: up to even                    */
      {TFU_BF16, 0x4380, 0x3f81, 0x4381}, /* just above the tie                     */
      {TFU_BF16, 0x7f7f, 0x7b00, 0x7f80}, /* largest + half a unit: up to infinity  */
      {TFU_BF16, 0x7f7f, 0x7a80, 0x7f7f}, /* largest + a quarter                    */
      {TFU_BF16, 0xff80, 0x3f80, 0xff80}, /* -infinity                              */
  };
  for (int i = 0; i < TFU_COUNT(sums) + 3; i++) {
    /* Then the sums that are no number: NaN + 1 in both, and infinity - infinity. */
    const int nan = i - TFU_COUNT(sums);
    uint16_t x = nan == 0 ? 0x7e00 : nan == 1 ? 0x7f81 : 0x7c00, constant = nan == 2 ? 0xfc00 : 0x3c00, y = 0;
    tfu_dtype dtype = nan == 1 ? TFU_BF16 : TFU_F16;
    if (nan < 0) x = sums[i].x, constant = sums[i].constant, dtype = sums[i].dtype;
    run *r = start(&tfu_add_constant);
    r->call.in[0] = (tfu_tensor){&x, dtype, SHAPE(1)};
    r->call.in[1] = (tfu_tensor){&constant, dtype, SCALAR};
    r->call.out[0] = (tfu_tensor){&y, dtype, SHAPE(1)};
    CHECK(finish(r, "test") == TFU_OK);
    CHECK_FOR(nan < 0 ? y == sums[i].want : isnan(decode(y, dtype)), "%s, sum %d, gave %04x", tfu_dtype_name(dtype), i,
              y);
    free(r);
  }
}

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
  for (int i = 0; i < TFU_COUNT(ops) * TFU_COUNT(shapes) * TFU_DTYPES; i++) {
    const sample plain = {.op = ops[i / TFU_COUNT(shapes) / TFU_DTYPES],
                          .dtype = i % TFU_DTYPES,
                          .x = shapes[i / TFU_DTYPES % TFU_COUNT(shapes)],
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

/* Sums over nothing are zero, whichever dimension is empty. */
static void test_empty(void) {
  static const tfu_shape shapes[] = {SHAPE(0), SHAPE(0, 8), SHAPE(3, 0, 8), SHAPE(5, 0)};
  for (int i = 0; i < TFU_COUNT(ops) * TFU_COUNT(shapes) * TFU_DTYPES; i++) {
    const sample s = {.op = ops[i / TFU_COUNT(shapes) / TFU_DTYPES],
                      .dtype = i % TFU_DTYPES,
                      .x = shapes[i / TFU_DTYPES % TFU_COUNT(shapes)],
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
  for (int i = 0; i < 3 * TFU_COUNT(shapes) * TFU_DTYPES; i++) {
    const sample one = {
        .op = tested[i % 3], .dtype = i / 3 % TFU_DTYPES, .x = shapes[i / 3 / TFU_DTYPES], .scratch = 8};
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
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, run_all, NULL) == 0);
  for (int i = 0; i < THREADS; i++) {
    void *right = NULL;
    pthread_join(threads[i], &right);
    CHECK(right);
  }
}

/* ---- activations ---- */

static const char *const activation_names[] = {
#define X(name) #name,
    TFU_ACTIVATIONS(X)
#undef X
};

typedef struct point {
  double value, slope;         /* of double */
  double value_f32, slope_f32; /* of float */
} point;

static point at(int act, double x) {
  point p = {x, x, 0, 0};
  float value = (float)x, slope = (float)x;
  tfu_activations[act].value_f64(&p.value, &p.value, &(double){1}, &(double){-0.0}, 1);
  tfu_activations[act].grad_f64(&p.slope, &p.slope, &(double){1}, &(double){-0.0}, 1);
  tfu_activations[act].value_f32(&value, &value, &(float){1}, &(float){-0.0f}, 1);
  tfu_activations[act].grad_f32(&slope, &slope, &(float){1}, &(float){-0.0f}, 1);
  p.value_f32 = value;
  p.slope_f32 = slope;
  return p;
}

/* The derivative is what the value's difference says, in double; float follows double, relatively so in the tails. */
static void test_activations(void) {
  for (int act = 0; act < TFU_ACTS; act++) {
    double value = 0, slope = 0, difference = 0;
    for (int i = -4000; i < 4000; i++) {
      const double x = (i + 0.5) * 0x1p-6, step = 1e-4;
      const point p = at(act, x);
      value = fmax(value, fabs(p.value_f32 - p.value) / (fabs(p.value) + 1e-30)); /* float may cut off below 1e-30 */
      slope = fmax(slope, fabs(p.slope_f32 - p.slope));
      difference = fmax(difference, fabs((at(act, x + step).value - at(act, x - step).value) / (2 * step) - p.slope));
    }
    CHECK_FOR(value < 1e-5 && slope < 1e-6 && difference < 1e-6, "%s: %.1e, %.1e, %.1e", activation_names[act], value,
              slope, difference);
  }
}

static int close_to(double got, double want) { return fabs(got - want) <= 1e-6 * fabs(want); } /* NaN is not */

/* Far out every activation is a line, to the end of the range: nothing overflows, nothing is left over. */
static void test_activation_ends(void) {
  for (int act = 1; act < TFU_ACTS; act++) {
    const int bounded = act == TFU_ACT_sigmoid || act == TFU_ACT_tanh;
    int right = 1;
    for (int i = 0; right && i < 2 * 36; i++) {
      const int up = i % 2;
      const double x = (up ? 1 : -1) * pow(10, 3 + i / 2); /* 1e3 … 1e38 */
      const double slope = up ? !bounded : act == TFU_ACT_leaky_relu ? 0.2 : 0;
      const double value = slope * x + (up ? bounded : act == TFU_ACT_elu || act == TFU_ACT_tanh ? -1 : 0);
      const point p = at(act, x);
      right = close_to(p.value, value) && close_to(p.value_f32, value) && close_to(p.slope, slope) &&
              close_to(p.slope_f32, slope);
      CHECK_FOR(right, "%s at %g: in double %g, slope %g; in float %g, slope %g; not %g, slope %g",
                activation_names[act], x, p.value, p.slope, p.value_f32, p.slope_f32, value, slope);
    }
  }
}

int main(void) {
  setenv("TFUSE_NUM_THREADS", "3", 1); /* more than one, however many cores there are */
  test_shape_rules();
  test_rows();
  test_show();
  test_counts();
  test_errors();
  test_attributes();
  test_infer();
  test_trace();
  test_images();
  test_no_driver();
  test_parallel();
  test_storage(TFU_F16);
  test_storage(TFU_BF16);
  test_rounding();
  test_placement();
  test_empty();
  test_scratch();
  test_thread_counts();
  test_concurrent_calls();
  test_activations();
  test_activation_ends();
  printf(failures ? "%d checks failed\n" : "all right\n", failures);
  return failures != 0;
}
