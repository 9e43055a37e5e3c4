/* jit_test.c - sizes as text, shape rules and programs of the op Jit, on the CPU. */
#include <math.h>

#include "kernels/jit/jit_args.h"
#include "kernels/jit/program.h"
#include "tests/jit/jit_calls.h"

/* ---- sizes ---- */

static void test_sizes(void) {
  tfu_tensor x[] = {{.shape = SHAPE(6, 10)}, {.shape = SHAPE(3)}};
  const tfu_list in = {x, 2};
  tfu_error err = {""};
  static const struct {
    const char *text;
    int64_t value;
  } right[] = {{"7", 7},       {"0.1", 10},     {"0.-1", 10},          {"1.0 * 2 + 1", 7}, {"(0.n + 255) / 256", 1},
               {"0.0 % 4", 2}, {"-3 + 0.0", 3}, {"2 * (1 + 1.-1)", 8}, {"10 - 2 - 3", 5},  {"0.n", 60}};
  for (int i = 0; i < TFU_COUNT(right); i++) {
    tfu_sizes s = {.at = right[i].text, .what = "size", .in = &in, .err = &err};
    int64_t value = -1;
    CHECK_FOR(tfu_sizes_expression(&s, &value) == TFU_OK && value == right[i].value && !*s.at, "%s is %lld",
              right[i].text, (long long)value);
  }
  static const struct {
    const char *text, *error;
  } wrong[] = {{"", "wants a number"},
               {"2.0", "input 2 is named, there are 2"},
               {"0.2", "axis 2 of input 0 is named, which is [6, 10]"},
               {"0.-3", "axis -3 of input 0"},
               {"1 / (3 - 1.0)", "division by 0"},
               {"(1", "wants )"},
               {"99999999999999999999", "a smaller number"},
               {"9223372036854775807 * 2", "a smaller product"},
               {"9223372036854775807 + 1", "a smaller sum"},
               {"-(-9223372036854775807 - 1)", "a smaller number before"},
               {"0 - (-9223372036854775807 - 1)", "a smaller sum"}};
  for (int i = 0; i < TFU_COUNT(wrong); i++) {
    tfu_sizes s = {.at = wrong[i].text, .what = "size", .in = &in, .err = &err};
    int64_t value;
    CHECK_FOR(tfu_sizes_expression(&s, &value) != TFU_OK && strstr(err.text, wrong[i].error), "%s gives %s",
              wrong[i].text, err.text);
  }
}

/* Whoever writes a graph writes these texts: however deep they are, there is an answer. */
static void test_deep_sizes(void) {
  static const struct {
    const char *before, *after;
    int each; /* levels of one */
  } kinds[] = {{"-", "", 1}, {"(", ")", 1}, {"-(", ")", 2}, {"(1 * -", ")", 2}};
  static const int times[] = {TFU_JIT_DEEPEST / 2, TFU_JIT_DEEPEST / 2 + 1, TFU_JIT_DEEPEST, TFU_JIT_DEEPEST + 1,
                              1000000};
  for (int k = 0; k < TFU_COUNT(kinds); k++)
    for (int i = 0; i < TFU_COUNT(times); i++) {
      char *text = calloc((size_t)times[i], 16), *end = text;
      int64_t value = 0;
      for (int n = 0; n < times[i]; n++) end = stpcpy(end, kinds[k].before);
      *end++ = '7';
      for (int n = 0; n < times[i]; n++) end = stpcpy(end, kinds[k].after);
      const char *wrong = tfu_jit_size(text, &value);
      const int right = times[i] * kinds[k].each <= TFU_JIT_DEEPEST ? !*wrong && llabs(value) == 7
                                                                    : strstr(wrong, "may nest 64 deep") != NULL;
      CHECK_FOR(right, "%d times %s: %s", times[i], kinds[k].before, wrong);
      free(text);
    }
  int64_t value;
  CHECK(!*tfu_jit_size(" -7 / 2 ", &value) && value == -3);
  CHECK_TEXT(tfu_jit_size("2 3", &value), "size: wants an operator at \"3\"");
}

static void test_shapes(void) {
  static const struct {
    int kind;
    const char *shapes, *error;
    tfu_shape in[2], out[2];
  } cases[] = {
      {TFU_JIT_ELEMENTWISE, "broadcast", NULL, {SHAPE(4, 1, 3), SHAPE(5, 1)}, {SHAPE(4, 5, 3), SHAPE(4, 5, 3)}},
      {TFU_JIT_ELEMENTWISE, "broadcast", NULL, {SCALAR, SHAPE(0, 1)}, {SHAPE(0, 1), SHAPE(0, 1)}},
      {TFU_JIT_ELEMENTWISE, "broadcast", "beta must broadcast", {SHAPE(4), SHAPE(3)}, {SCALAR, SCALAR}},
      {TFU_JIT_ROWS, "row", NULL, {SHAPE(4, 3), SHAPE(3)}, {SHAPE(4), SHAPE(4)}},
      {TFU_JIT_ROWS, "row keep", NULL, {SHAPE(4, 3), SHAPE(4, 1)}, {SHAPE(4, 1), SHAPE(4, 1)}},
      {TFU_JIT_ROWS, "row same 1", NULL, {SHAPE(4, 3), SHAPE(4, 1)}, {SHAPE(4), SHAPE(4)}},
      {TFU_JIT_ROWS, "row keep same 1", NULL, {SHAPE(4, 3), SCALAR}, {SHAPE(4, 1), SHAPE(4, 1)}},
      {TFU_JIT_ROWS, "row same 1", "beta must be the same along a row", {SHAPE(4, 3), SHAPE(3)}, {SCALAR, SCALAR}},
      {TFU_JIT_ROWS, "row same 2", "is no number of an input", {SHAPE(4, 3), SCALAR}, {SCALAR, SCALAR}},
      {TFU_JIT_ROWS, "like 0; like 0", NULL, {SHAPE(4, 3), SCALAR}, {SHAPE(4, 3), SHAPE(4, 3)}},
      {TFU_JIT_ROWS, "row", "x must have at least one dimension", {SCALAR, SCALAR}, {SCALAR, SCALAR}},
      {TFU_JIT_ROWS, "row", "beta must broadcast to the shape of x", {SHAPE(4, 3), SHAPE(2, 3)}, {SCALAR, SCALAR}},
      {TFU_JIT_RAW, "0.0, 0.1 / 2, 4; like 1", NULL, {SHAPE(4, 6), SHAPE(3)}, {SHAPE(4, 3, 4), SHAPE(3)}},
      {TFU_JIT_RAW, "; like 1, 7", NULL, {SHAPE(4, 6), SHAPE(3)}, {SCALAR, SHAPE(3, 7)}},
      {TFU_JIT_RAW, "1; 2; 3", "more lists than the 2 outputs", {SHAPE(4), SHAPE(3)}, {SCALAR, SCALAR}},
      {TFU_JIT_RAW, "1; 0.0 - 5", "output 1 would be -1", {SHAPE(4), SHAPE(3)}, {SCALAR, SCALAR}},
      {TFU_JIT_RAW, "1 2; 3", "wants a comma", {SHAPE(4), SHAPE(3)}, {SCALAR, SCALAR}},
  };
  for (int i = 0; i < TFU_COUNT(cases); i++) {
    jit_test t = {.name = "k", .shapes = cases[i].shapes, .kind = cases[i].kind, .inputs = 2, .outputs = 2};
    tfu_call call;
    tfu_lists lists;
    tfu_error err = {""};
    for (int k = 0; k < 2; k++) t.in[k] = (tfu_tensor){.shape = cases[i].in[k]};
    const tfu_code code = jit_open(&t, &call, &lists, &err);
    CHECK_FOR(cases[i].error ? code != TFU_OK && strstr(err.text, cases[i].error) != NULL : code == TFU_OK, "%s: %s",
              cases[i].shapes, err.text);
    for (int k = 0; k < 2 && code == TFU_OK; k++)
      CHECK_FOR(same_shape(&t.out[k].shape, &cases[i].out[k]), "%s: %s", cases[i].shapes,
                tfu_show(&t.out[k].shape).text);
    tfu_lists_close(&call);
  }
}

/* Axes along which all inputs move alike are one. */
static void test_plan(void) {
  jit_test t = {.name = "k", .inputs = 3, .outputs = 1};
  tfu_call call;
  tfu_lists lists;
  tfu_error err;
  jit_args a;
  t.in[0] = (tfu_tensor){.shape = SHAPE(4, 5, 6, 1)};
  t.in[1] = (tfu_tensor){.shape = SHAPE(5, 6, 1)};
  t.in[2] = (tfu_tensor){.shape = SCALAR};
  CHECK(jit_open(&t, &call, &lists, &err) == TFU_OK);
  const jit_plan p = jit_plan_of(&lists, &t.out[0].shape, 0, &a);
  CHECK(p.axes == 2 && a.n == 120 && a.size[0] == 30 && a.size[1] == 4 && p.moves == 3 && p.single == 4);
  CHECK(a.stride[0][0] == 1 && a.stride[0][1] == 30 && a.stride[1][0] == 1 && a.stride[1][1] == 0 && !a.stride[2][0]);
  tfu_lists_close(&call);
}

/* ---- programs ---- */

static void test_wrong_programs(void) {
  static const struct {
    const char *text, *error;
  } wrong[] = {{"x0 =y0", "before any section"},
               {"body: x0 foo =y0", "\"foo\" is no word"},
               {"body: x7 =y0", "there is no \"x7\""},
               {"body: x0 =y1", "there is no \"=y1\""},
               {"body: x4294967295 =y0", "there is no \"x4294967295\""},
               {"body: a =y0", "\"a\" is not known"},
               {"map0: b", "\"b\" is not known"},
               {"map0: x0 reduce0: a b add identity0: x0", "\"x0\" is not known"},
               {"map0: x0 reduce0: a b add identity0: 0 final: x0", "\"x0\" is not known"},
               {"body: x0 add =y0", "too few operands"},
               {"body: x0 x0 =y0", "leaves 1 values, 0 wanted"},
               {"body: t0 =y0", "read before it is set"},
               {"map0: x0 reduce0: a b add", "wants the sections"},
               {"map0: x0 x0 reduce0:", "leaves 2 values, 1 wanted"},
               {"map99: x0", "is no section"},
               {"what: x0", "is no section"}};
  for (int i = 0; i < TFU_COUNT(wrong); i++) {
    jit_program p = {.passes = 0};
    tfu_error err = {""};
    CHECK_FOR(jit_program_read(wrong[i].text, 1, 1, &p, &err) != TFU_OK && strstr(err.text, wrong[i].error), "%s: %s",
              wrong[i].text, err.text);
    jit_program_free(&p);
  }
}

/* Every function, on two numbers and a third. */
static void test_functions(void) {
  static const struct {
    const char *name;
    int operands;
    double value;
  } all[] = {{"add", 2, 1.75},
             {"sub", 2, -1.25},
             {"mul", 2, 0.375},
             {"div", 2, 0.25 / 1.5},
             {"neg", 1, -0.25},
             {"pow", 2, 0.125},
             {"select", 3, 1.5},
             {"abs", 1, 0.25},
             {"sqrt", 1, 0.5},
             {"rsqrt", 1, 2},
             {"min", 2, 0.25},
             {"max", 2, 1.5},
             {"floor", 1, 0},
             {"ceil", 1, 1},
             {"lt", 2, 1},
             {"le", 2, 1},
             {"gt", 2, 0},
             {"ge", 2, 0},
             {"eq", 2, 0},
             {"ne", 2, 1},
             {"and", 2, 1},
             {"or", 2, 1},
             {"not", 1, 0},
             {"exp", 1, exp(0.25)},
             {"log", 1, log(0.25)},
             {"log1p", 1, log1p(0.25)},
             {"expm1", 1, expm1(0.25)},
             {"tanh", 1, tanh(0.25)},
             {"sin", 1, sin(0.25)},
             {"cos", 1, cos(0.25)},
             {"erf", 1, erf(0.25)},
             {"sigmoid", 1, 1 / (1 + exp(-0.25))},
             {"softplus", 1, log1p(exp(0.25))}};
  for (int i = 0; i < TFU_COUNT(all); i++)
    for (int wide = 0; wide < 2; wide++) {
      char program[64];
      double x = 0.25, y = 1.5, z = -3, got = NAN;
      float xf = 0.25f, yf = 1.5f, zf = -3, gotf = NAN;
      const tfu_dtype type = wide ? TFU_F64 : TFU_F32;
      snprintf(program, sizeof program, "body: x0 %s %s %s =y0", all[i].operands > 1 ? "x1" : "",
               all[i].operands > 2 ? "x2" : "", all[i].name);
      jit_test t = {.name = "f",
                    .program = program,
                    .inputs = 3,
                    .outputs = 1,
                    .in = {{wide ? (void *)&x : &xf, type, SCALAR},
                           {wide ? (void *)&y : &yf, type, SCALAR},
                           {wide ? (void *)&z : &zf, type, SCALAR}},
                    .out = {{wide ? (void *)&got : &gotf, type, SCALAR}}};
      tfu_error err = {""};
      CHECK_FOR(jit_run(&t, 0, &err) == TFU_OK, "%s: %s", all[i].name, err.text);
      CHECK_FOR(wide ? fabs(got - all[i].value) <= 1e-15 * fabs(got) : fabs(gotf - all[i].value) <= 3e-7 * fabs(gotf),
                "%s is %g, not %g", all[i].name, wide ? got : gotf, all[i].value);
    }
}

/* Inputs that broadcast, of several dtypes, over more than a block, and outputs of all. */
static void test_elements(void) {
  enum { ROWS = 7, COLS = 300 };
  static float x[ROWS * COLS];
  static int32_t column[COLS];
  static int64_t y[ROWS * COLS];
  static uint8_t positive[ROWS * COLS];
  double row[ROWS];
  for (int i = 0; i < ROWS * COLS; i++) x[i] = (float)(i % 11) - 5;
  for (int i = 0; i < COLS; i++) column[i] = i;
  for (int i = 0; i < ROWS; i++) row[i] = 1000 * i;
  jit_test t = {.name = "k",
                .program = "body: x0 x1 add x2 add =t0 t0 =y0 x0 0 gt =y1",
                .inputs = 3,
                .outputs = 2,
                .in = {{x, TFU_F32, SHAPE(ROWS, COLS)}, {column, TFU_I32, SHAPE(COLS)}, {row, TFU_F64, SHAPE(ROWS, 1)}},
                .out = {{y, TFU_I64, SCALAR}, {positive, TFU_BOOL, SCALAR}}};
  tfu_error err = {""};
  CHECK_FOR(jit_run(&t, 0, &err) == TFU_OK, "%s", err.text);
  int wrong = 0;
  for (int i = 0; i < ROWS * COLS; i++)
    wrong += y[i] != i % 11 - 5 + i % COLS + 1000 * (i / COLS) || positive[i] != (i % 11 > 5);
  CHECK_FOR(!wrong, "%d values", wrong);
}

/* What no integer is becomes the nearest. */
static void test_integers(void) {
  float x[] = {NAN, INFINITY, -INFINITY, 3e9f, -3e9f, 1.75f, -1.75f, 1e19f, 0x1p31f, -0x1p31f, 0x1p63f, -0x1p63f};
  enum { N = TFU_COUNT(x) };
  int32_t y[N];
  int64_t u[N];
  jit_test t = {.name = "k",
                .program = "body: x0 =y0 x0 =y1",
                .inputs = 1,
                .outputs = 2,
                .in = {{x, TFU_F32, SHAPE(N)}},
                .out = {{y, TFU_I32, SCALAR}, {u, TFU_I64, SCALAR}}};
  tfu_error err = {""};
  CHECK(jit_run(&t, 0, &err) == TFU_OK);
  static const int32_t small[N] = {0,  INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN, 1,
                                   -1, INT32_MAX, INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN};
  static const int64_t large[N] = {0,  INT64_MAX, INT64_MIN,    3000000000,    -3000000000, 1,
                                   -1, INT64_MAX, 2147483648LL, -2147483648LL, INT64_MAX,   INT64_MIN};
  for (int i = 0; i < N; i++)
    CHECK_FOR(y[i] == small[i] && u[i] == large[i], "%g: %d, %lld", x[i], y[i], (long long)u[i]);
}

/* Rows of every length: their maximum, and the sum of what is below it by less than 1; and rows without columns. */
static void test_rows(void) {
  static const char program[] =
      "map0: x0 reduce0: a b max identity0: -1e30 map1: r0 x0 sub 1 lt reduce1: a b add identity1: 0 final: r1 n div";
  static double x[5 * 700], y[5];
  for (int cols = 0; cols < 700; cols += cols < 10 ? 1 : 137) {
    for (int i = 0; i < 5 * cols; i++) x[i] = (double)(i * 7919 % 101) / 10;
    jit_test t = {.name = "k",
                  .kind = TFU_JIT_ROWS,
                  .program = program,
                  .shapes = "row",
                  .inputs = 1,
                  .outputs = 1,
                  .in = {{x, TFU_F64, SHAPE(5, cols)}},
                  .out = {{y, TFU_F64, SCALAR}}};
    tfu_error err = {""};
    CHECK_FOR(jit_run(&t, 0, &err) == TFU_OK, "%s", err.text);
    for (int r = 0; r < 5; r++) {
      double most = -1e30, near = 0;
      for (int c = 0; c < cols; c++) most = fmax(most, x[r * cols + c]);
      for (int c = 0; c < cols; c++) near += most - x[r * cols + c] < 1;
      CHECK_FOR(cols ? y[r] == near / cols : isnan(y[r]), "row %d of %d columns: %g", r, cols, y[r]);
    }
  }
}

/* ---- what is kept ---- */

/* Programs that were forgotten are read again, and one that is running is not forgotten. */
static void test_many_programs(void) {
  enum { MANY = 3 * JIT_KEPT_PROGRAMS };
  const jit_program *running = NULL;
  tfu_error err = {""};
  const char *own = text_of("body: x0 123 add =y0");
  CHECK(jit_program_of(own, 1, 1, &running, &err) == TFU_OK);
  for (int turn = 0; turn < 2; turn++)
    for (int i = 0; i < MANY; i++) {
      char program[64];
      float x = 0.5f, y = 0;
      snprintf(program, sizeof program, "body: x0 %d add =y0", i);
      jit_test t = {.name = "k",
                    .program = program,
                    .inputs = 1,
                    .outputs = 1,
                    .in = {{&x, TFU_F32, SCALAR}},
                    .out = {{&y, TFU_F32, SCALAR}}};
      CHECK_FOR(jit_run(&t, 0, &err) == TFU_OK && y == (float)i + 0.5f, "%s: %g %s", program, y, err.text);
    }
  CHECK(running->body.n == 4 && running->body.step[1].value == 123);
  const jit_program *again = NULL;
  CHECK(jit_program_of(own, 1, 1, &again, &err) == TFU_OK && again == running);
  jit_program_back(again);
  jit_program_back(running);
}

static const char *name_of(int i) {
  char program[64];
  snprintf(program, sizeof program, "body: x0 %d mul =y0", i);
  return tfu_jit_register("scaled", TFU_JIT_ELEMENTWISE, "", program, "x", "y", "broadcast", "");
}

static int stands_for(const char *name, int i) {
  tfu_value attr[TFU_MAX_ATTRS] = {[TFU_JIT_KERNEL].s = name};
  tfu_error err = {""};
  char program[64];
  snprintf(program, sizeof program, "body: x0 %d mul =y0", i);
  return tfu_jit_complete(attr, &err) == TFU_OK && !strcmp(attr[TFU_JIT_KERNEL].s, "scaled") &&
         !strcmp(attr[TFU_JIT_PROGRAM].s, program);
}

/* A name stands for its kernel while that is in use, and some time longer; there are few more names than kernels. */
static void test_names(void) {
  enum { MANY = 10 * TFU_JIT_KEPT_NAMES };
  const char *first = name_of(-1), *second = name_of(-2);
  const char *seen[MANY];
  int names = 0;
  CHECK(first && second && strcmp(first, second) && name_of(-1) == first); /* two users of the first now */
  tfu_jit_forget(first);
  for (int i = 0; i < MANY; i++) {
    const char *name = name_of(i);
    CHECK_FOR(stands_for(name, i), "%s", name);
    int known = 0;
    for (int k = 0; k < names; k++) known |= seen[k] == name;
    if (!known) seen[names++] = name;
    tfu_jit_forget(name);
    CHECK_FOR(stands_for(name, i) && name_of(i) == name, "%s is given again at once", name);
    tfu_jit_forget(name);
  }
  CHECK_FOR(names <= TFU_JIT_KEPT_NAMES + 1, "%d names", names);
  int known = 0;
  for (int k = 0; k < names; k++) {
    tfu_value attr[TFU_MAX_ATTRS] = {[TFU_JIT_KERNEL].s = seen[k]};
    tfu_error err;
    known += tfu_jit_complete(attr, &err) == TFU_OK;
  }
  CHECK_FOR(known == TFU_JIT_KEPT_NAMES, "%d of %d names stand for something", known, names);
  CHECK(stands_for(first, -1) && stands_for(second, -2));
  tfu_jit_forget(second);
  tfu_jit_forget(second); /* once too often */
  CHECK(name_of(-2) == second);
  static const char *const unknown[] = {"#12", "#0000000000000000.0", "#.", "#", "#12.x"};
  for (int i = 0; i < TFU_COUNT(unknown); i++) {
    tfu_value attr[TFU_MAX_ATTRS] = {[TFU_JIT_KERNEL].s = unknown[i]};
    tfu_error err = {""};
    CHECK_FOR(tfu_jit_complete(attr, &err) == TFU_INVALID && strstr(err.text, "not known in this process"), "%s: %s",
              unknown[i], err.text);
    tfu_jit_forget(unknown[i]);
  }
}

/* Equal texts are one while somebody holds them. */
static void test_texts(void) {
  const char *a = tfu_intern("a text of this test", 6), *b = tfu_intern("a text and more", 6), *c = tfu_intern("", 0);
  CHECK(a && a == b && !strcmp(a, "a text") && c && !*c && c != a);
  tfu_drop_text(a);
  CHECK(!strcmp(b, "a text") && tfu_intern("a text", 6) == b);
  tfu_drop_text(b);
  tfu_drop_text(b);
  tfu_drop_text(c);
  tfu_drop_text(NULL);
  const char *d = tfu_intern("a text", 6);
  CHECK(d && !strcmp(d, "a text"));
  tfu_drop_text(d);
}

int main(void) {
  test_sizes();
  test_deep_sizes();
  test_shapes();
  test_plan();
  test_wrong_programs();
  test_functions();
  test_elements();
  test_integers();
  test_rows();
  test_many_programs();
  test_names();
  test_texts();
  return verdict();
}
