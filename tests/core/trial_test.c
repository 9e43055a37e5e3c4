/* trial_test.c - choosing among plans by trial, without a GPU: plans are rows of a table here, and take as long as that
 * says on a clock of our own. */
#include <math.h>

#include "kernels/core/gpu/trial.h"
#include "tests/stand_in_clock.h"

tfu_code tfu_driver_get(const tfu_driver **driver, tfu_error *err) {
  static const tfu_driver own = {CLOCK_STAND_INS};
  (void)err;
  *driver = &own;
  return TFU_OK;
}

/* ---- plans ---- */

typedef struct plan {
  int none, breaks, hides_nan; /* it cannot be made, does not run from this run on, has a relu that makes 0 of NaN */
  int64_t workspace;
  double microseconds, error;
} plan;

typedef struct plans {
  tfu_call *call;
  const plan *all;
  int at, runs, own_runs, no_reference; /* own: of this plan */
  int64_t space;
  _Alignas(double) char result[8];
} plans;

static const char *take(void *with, tfu_tried *tried) {
  plans *p = with;
  p->at = tried->plan;
  p->own_runs = 0;
  tried->workspace = p->all[p->at].workspace;
  return p->all[p->at].none ? "none" : NULL;
}
static int has_workspace(void *with, int64_t bytes) { return bytes <= ((plans *)with)->space; }
static tfu_code run_plan(void *with) {
  plans *p = with;
  p->runs++;
  now += p->all[p->at].microseconds;
  return p->all[p->at].breaks && ++p->own_runs >= p->all[p->at].breaks ? tfu_fail(p->call->err, TFU_INTERNAL, "broken")
                                                                       : TFU_OK;
}
static tfu_code run_biased(void *with, void *bias) {
  plans *p = with;
  memset(p->result, 0, sizeof p->result);
  if (!p->all[p->at].hides_nan) memcpy(p->result, bias, sizeof p->result);
  return run_plan(p);
}
static tfu_code prepare(void *with) {
  plans *p = with;
  return p->no_reference ? tfu_fail(p->call->err, TFU_EXHAUSTED, "no reference") : TFU_OK;
}
static tfu_code error_of(void *with, double *error, double *limit) {
  const plans *p = with;
  *error = p->all[p->at].error;
  *limit = 1;
  return TFU_OK;
}

/* The plan that is taken, or -1; what became of each is in `tried`, of which *n were come to. */
static int choose(tfu_trial *t, plans *p, tfu_tried *tried, int *n) {
  run *r = start(NULL);
  snprintf(r->err.text, sizeof r->err.text, "untouched");
  p->call = t->call = &r->call;
  p->runs = 0;
  t->with = p, t->take = take, t->run = run_plan, t->has_workspace = has_workspace;
  t->nan = NULL;
  *n = tfu_trial_run(t, tried);
  CHECK(r->call.err == &r->err);
  CHECK_TEXT(r->err.text, "untouched");
  while (r->n > 0) free(r->held[--r->n]);
  free(r);
  const int best = tfu_trial_pick(tried, *n, INT64_MAX, 1.5);
  return best < 0 ? -1 : tried[best].plan;
}

static const char *said(const tfu_tried *tried) { return tried->why_not ? tried->why_not : "nothing"; }
#define CHECK_WHY(i, text) CHECK_FOR(strstr(said(&tried[i]), text), "%d: %s", i, said(&tried[i]))

/* The fastest that runs; why others were not taken is said. */
static void test_timed(void) {
  static const plan all[] = {{.none = 1},         {.breaks = 3, .microseconds = 1},
                             {.microseconds = 9}, {.workspace = 200, .microseconds = 2},
                             {.microseconds = 7}, {.microseconds = 3}};
  plans p = {.all = all, .space = 100};
  tfu_trial t = {.plans = 6, .most = 2, .timed = 1};
  tfu_tried tried[6];
  int n;
  CHECK(choose(&t, &p, tried, &n) == 4 && n == 5); /* two that run are enough */
  CHECK_WHY(0, "none");
  CHECK_WHY(1, "does not run");
  CHECK_WHY(3, "workspace");
  CHECK(!tried[2].why_not && fabsf(tried[2].microseconds - 9) < 0.01f && !tried[4].why_not);
  CHECK(tried[1].microseconds == 0);
  t.most = 10;
  CHECK(choose(&t, &p, tried, &n) == 5 && n == 6);
  t.most = 1;
  CHECK(choose(&t, &p, tried, &n) == 2 && n == 3);
}

/* Without times the first that is good; it is run where that alone tells, and one of little workspace ends the search.
 */
static void test_untimed(void) {
  static const plan all[] = {{.breaks = 1, .workspace = 50}, {.workspace = 40}, {.workspace = 10}, {.workspace = 0}};
  plans p = {.all = all, .space = 100};
  tfu_trial t = {.plans = 4, .most = 4, .enough = 10};
  tfu_tried tried[4];
  int n;
  CHECK(choose(&t, &p, tried, &n) == 0 && n == 3 && p.runs == 0);
  t.runs = 1;
  CHECK(choose(&t, &p, tried, &n) == 1 && n == 3 && p.runs == 3);
  t.dry = 1;
  CHECK(choose(&t, &p, tried, &n) == 0 && n == 3 && p.runs == 0);
  t.dry = 0, t.timed = 1, captures = 1; /* nor is anything run, or timed, while the stream is captured */
  CHECK(choose(&t, &p, tried, &n) == 0 && n == 3 && p.runs == 0);
  captures = 0;
}

/* What makes 0 of NaN is not taken, nor what cannot be asked. */
static void test_relu(void) {
  static const plan all[] = {
      {.hides_nan = 1, .microseconds = 1}, {.microseconds = 5}, {.breaks = 1, .microseconds = 1}, {.microseconds = 4}};
  static const tfu_dtype dtypes[] = {TFU_F32, TFU_F16, TFU_BF16, TFU_F64};
  for (int i = 0; i < TFU_COUNT(dtypes); i++) {
    plans p = {.all = all};
    tfu_trial t = {.plans = 4, .most = 4, .timed = 1, .run_biased = run_biased};
    tfu_tried tried[4];
    int n;
    t.dtype = dtypes[i], t.channels = 5, t.result = p.result;
    CHECK(choose(&t, &p, tried, &n) == 3 && n == 4);
    CHECK_WHY(0, "makes 0 of NaN");
    CHECK_WHY(2, "does not run");
    t.timed = 0;
    CHECK(choose(&t, &p, tried, &n) == 1 && p.runs == 2);
    captures = 1;
    CHECK(choose(&t, &p, tried, &n) == -1 && n == 4 && p.runs == 0);
    CHECK_WHY(1, "cannot be asked");
    captures = 0;
  }
}

/* Those that are far from right are not taken; of the others, one that is not much worse than the best may be, for its
 * time. Without what is right, only times count. */
static void test_compared(void) {
  static const plan all[] = {{.microseconds = 1, .error = 2},
                             {.microseconds = 9, .error = 0.2},
                             {.microseconds = 2, .error = 0.5},
                             {.microseconds = 4, .error = 0.3},
                             {.microseconds = 3, .error = NAN}};
  plans p = {.all = all};
  tfu_trial t = {.plans = 5, .most = 5, .timed = 1, .prepare = prepare, .error = error_of};
  tfu_tried tried[5];
  int n;
  CHECK(choose(&t, &p, tried, &n) == 3 && n == 5 && t.compared);
  CHECK_WHY(0, "error");
  CHECK_WHY(4, "error");
  t.timed = 0;
  CHECK(choose(&t, &p, tried, &n) == 1 && n == 5 && p.runs == 5);
  t.timed = 1, p.no_reference = 1;
  CHECK(choose(&t, &p, tried, &n) == 0 && n == 5 && !t.compared && tried[1].error == 0);
}

/* Without memory for a bias of NaN nothing is known, and that is said. */
static void *no_memory(tfu_call *call, size_t bytes) { return (void)call, (void)bytes, NULL; }
static void test_short_of_memory(void) {
  static const plan all[] = {{.microseconds = 1}};
  tfu_error err;
  tfu_call call = {.err = &err, .allocate = no_memory};
  plans p = {.all = all, .call = &call};
  tfu_trial t = {.call = &call, .with = &p, .plans = 1, .most = 1, .take = take, .run = run_plan};
  tfu_tried tried;
  t.run_biased = run_biased, t.channels = 1, t.result = p.result;
  CHECK(tfu_trial_run(&t, &tried) == 1 && tried.why_not && t.short_of_memory && p.runs == 0);
}

static void test_pick(void) {
  const tfu_tried tried[] = {{.microseconds = 5, .error = 9e-8, .workspace = 0},
                             {.microseconds = 9, .error = 1e-8, .workspace = 100},
                             {.microseconds = 7, .error = 1.4e-8, .workspace = 200},
                             {.microseconds = 8, .error = 1.6e-8, .workspace = 50}};
  const tfu_tried alike[] = {
      {.microseconds = 1, .why_not = "it is not"}, {.microseconds = 4, .error = 1}, {.microseconds = 4, .error = 1}};
  CHECK(tfu_trial_pick(tried, 4, 1000, 1.5) == 2);
  CHECK(tfu_trial_pick(tried, 4, 150, 1.5) == 1);
  CHECK(tfu_trial_pick(tried, 4, 50, 1.5) == 3);
  CHECK(tfu_trial_pick(tried, 4, 10, 1.5) == 0);
  CHECK(tfu_trial_pick(tried, 4, -1, 1.5) == -1 && tfu_trial_pick(tried, 0, 1000, 1.5) == -1);
  CHECK(tfu_trial_pick(alike, 3, 0, 1.5) == 1);
}

int main(void) {
  test_timed();
  test_untimed();
  test_relu();
  test_compared();
  test_short_of_memory();
  test_pick();
  return verdict();
}
