/* plan_cache_test.c - the cache of plans, with graphs that are empty: no cuDNN is needed. */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "tests/check.h"

/* plan_cache.c against a GPU of our own: work on its stream is done when the test says so. */
#define TFU_PLANS 16
#define tfu_plan_get tested_plan_get
#define tfu_plan_release tested_plan_release
#define tfu_plans_kept tested_plans_kept
#define tfu_plans_leaving tested_plans_leaving
#define tfu_use tested_use
#define tfu_use_done tested_use_done
#define tfu_use_close tested_use_close
#include "kernels/core/nvidia/plan_cache.c"

static int busy; /* whether queued work is still to be done */
static atomic_int used, closed;

void tfu_use(tfu_last_use *use, const tfu_call *call) {
  (void)call;
  use->by[0].event = use; /* anything */
  atomic_fetch_add(&used, 1);
}
int tfu_use_done(const tfu_last_use *use) { return !use->by[0].event || !busy; }
void tfu_use_close(tfu_last_use *use) { atomic_fetch_add(&closed, use->by[0].event != NULL); }

static atomic_int times;

/* Key numbers that are multiples of 7 cannot be planned. */
static tfu_graph *make(const void *key, void *with, char *why, size_t size) {
  const int number = *(const int *)key;
  atomic_fetch_add(&times, 1);
  if (with) usleep(20000);
  if (number % 7) return tfu_graph_new(NULL);
  snprintf(why, size, "%d is a multiple of 7", number);
  return NULL;
}

static tfu_planned *get(const char *family, int number) {
  return tfu_plan_get(family, &number, sizeof number, make, NULL);
}

static int times_made(const char *family, int number) {
  const int before = atomic_load(&times);
  tfu_planned *p = get(family, number);
  CHECK(p && !p->graph == (number % 7 == 0));
  tfu_plan_release(p, NULL);
  return atomic_load(&times) - before;
}

static void test_remembers(void) {
  static const char one[] = "one", other[] = "other";
  CHECK(times_made(one, 1) == 1 && times_made(one, 1) == 0);
  CHECK(times_made(other, 1) == 1); /* the same bytes of another family are another key */
  CHECK(times_made(one, 14) == 1 && times_made(one, 14) == 0);
  tfu_planned *p = get(one, 14);
  CHECK_TEXT(p->why, "14 is a multiple of 7");
  tfu_plan_release(p, NULL);
  char large[TFU_PLAN_KEY + 1] = {0};
  CHECK(!tfu_plan_get(one, large, sizeof large, make, NULL));
}

/* The least recently used go first, and never one that is held. */
static void test_bounded(void) {
  static const char family[] = "bounded";
  tfu_planned *held = get(family, 1);
  for (int i = 2; i <= TFU_PLANS; i++) times_made(family, i);
  CHECK(tfu_plans_kept() == TFU_PLANS);
  CHECK(times_made(family, 2) == 0); /* now 3 is the oldest that is not held */
  CHECK(times_made(family, 1001) == 1 && tfu_plans_kept() == TFU_PLANS);
  CHECK(times_made(family, 2) == 0 && times_made(family, 1001) == 0);
  CHECK(times_made(family, 3) == 1);
  tfu_planned *again = get(family, 1);
  CHECK(again == held);
  tfu_plan_release(again, NULL);
  tfu_plan_release(held, NULL);
}

/* With all places held, a plan more is made, used and dropped. */
static void test_full(void) {
  static const char family[] = "full";
  static tfu_planned *held[TFU_PLANS];
  for (int i = 0; i < TFU_PLANS; i++) held[i] = get(family, i);
  CHECK(times_made(family, 2000) == 1 && times_made(family, 2000) == 1);
  for (int i = 0; i < TFU_PLANS; i++) tfu_plan_release(held[i], NULL);
  CHECK(times_made(family, 2000) == 1 && times_made(family, 2000) == 0);
}

/* A plan that was dropped is not freed while the GPU has work by it; then it is, and only once. */
static void test_leaving(void) {
  static const char family[] = "leaving";
  const tfu_call call = {.stream = NULL};
  const int before = atomic_load(&closed);
  tfu_planned *p = get(family, 1);
  tfu_plan_release(p, &call);
  CHECK(atomic_load(&used) == 1);
  busy = 1;
  for (int i = 2; i <= TFU_PLANS + 1; i++) times_made(family, i); /* 1 is dropped */
  CHECK(tfu_plans_leaving() == 1 && atomic_load(&closed) == before);
  times_made(family, 1000);
  CHECK(tfu_plans_leaving() == 1 && atomic_load(&closed) == before); /* those that never ran went at once */
  busy = 0;
  times_made(family, 1001);
  CHECK(tfu_plans_leaving() == 0 && atomic_load(&closed) == before + 1);
}

static const char shared[] = "shared";

static void *want(void *nothing) {
  const int key = 5;
  tfu_planned *p = tfu_plan_get(shared, &key, sizeof key, make, &times);
  CHECK(p && p->graph);
  tfu_plan_release(p, NULL);
  return nothing;
}

static void *churn(void *seed) {
  unsigned s = *(unsigned *)seed;
  for (int i = 0; i < 3000; i++) {
    s = s * 1664525 + 1013904223;
    const int number = (int)(s >> 8) % (2 * TFU_PLANS);
    tfu_planned *p = get(shared, number);
    CHECK(p && !p->graph == (number % 7 == 0));
    tfu_plan_release(p, NULL);
  }
  return NULL;
}

static void test_threads(void) {
  enum { THREADS = 8 };
  pthread_t threads[THREADS];
  unsigned seeds[THREADS];
  const int before = atomic_load(&times);
  for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, want, NULL);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  CHECK(atomic_load(&times) == before + 1);
  for (int i = 0; i < THREADS; i++) {
    seeds[i] = (unsigned)i;
    pthread_create(&threads[i], NULL, churn, &seeds[i]);
  }
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  CHECK(tfu_plans_kept() == TFU_PLANS);
}

int main(void) {
  test_remembers();
  test_bounded();
  test_full();
  test_leaving();
  test_threads();
  return verdict();
}
