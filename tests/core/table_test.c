/* table_test.c - what is kept by key: made once, held, evicted, and released when the GPU is done with it. Without a
 * GPU: work on the stream of ours is done when the test says so. */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "kernels/core/gpu/driver.h"
#include "kernels/core/table.h"
#include "tests/check.h"

/* ---- a driver ---- */

static int busy; /* whether queued work is still to be done */
static atomic_int events;

static CUresult create_event(CUevent *event, unsigned flags) {
  (void)flags;
  atomic_fetch_add(&events, 1);
  *event = (CUevent)&busy; /* anything */
  return CUDA_SUCCESS;
}
static CUresult record_event(CUevent event, CUstream stream) { return (void)event, (void)stream, CUDA_SUCCESS; }
static CUresult query_event(CUevent event) { return (void)event, busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS; }
static CUresult destroy_event(CUevent event) { return (void)event, atomic_fetch_sub(&events, 1), CUDA_SUCCESS; }
static CUresult is_capturing(CUstream stream, CUstreamCaptureStatus *status) {
  (void)stream;
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

tfu_code tfu_driver_get(const tfu_driver **driver, tfu_error *err) {
  static const tfu_driver own = {.cuEventCreate = create_event,
                                 .cuEventRecord = record_event,
                                 .cuEventQuery = query_event,
                                 .cuEventDestroy_v2 = destroy_event,
                                 .cuStreamIsCapturing = is_capturing};
  (void)err;
  *driver = &own;
  return TFU_OK;
}

/* ---- a table ---- */

enum { MOST = 16 };
typedef struct thing {
  int number, *memory;
} thing;

static atomic_int times, alive;

/* Negative numbers cannot be made. */
static tfu_code make(const void *key, void *value, void *with, tfu_error *err) {
  thing *t = value;
  atomic_fetch_add(&times, 1);
  if (with) usleep(20000);
  CHECK(t->number == 0 && !t->memory);
  TFU_REQUIRE(err, *(const int *)key >= 0, "%d is negative", *(const int *)key);
  *t = (thing){.number = *(const int *)key, .memory = malloc(sizeof(int))};
  atomic_fetch_add(&alive, 1);
  return TFU_OK;
}

static void release(void *value) {
  free(((thing *)value)->memory);
  atomic_fetch_sub(&alive, 1);
}

static tfu_table things = TFU_TABLE(.value = sizeof(thing), .most = MOST, .make = make, .release = release);

static thing *get_of(tfu_table *table, int number, void *with) {
  void *value = NULL;
  tfu_error err = {""};
  CHECK_FOR(tfu_table_get(table, &number, sizeof number, with, &value, &err) == TFU_OK, "%s", err.text);
  CHECK(value && ((thing *)value)->number == number);
  return value;
}

static thing *get(int number) { return get_of(&things, number, NULL); }

static int times_made(int number) {
  const int before = atomic_load(&times);
  tfu_table_put(&things, get(number), NULL);
  return atomic_load(&times) - before;
}

/* By all bytes of a key and its length. */
static void test_remembers(void) {
  tfu_error err = {""};
  void *value;
  CHECK(times_made(1) == 1 && times_made(1) == 0 && times_made(256) == 1);
  const int before = atomic_load(&times), longer[] = {1, 0};
  CHECK(tfu_table_get(&things, longer, sizeof longer, NULL, &value, &err) == TFU_OK);
  CHECK(atomic_load(&times) == before + 1);
  tfu_table_put(&things, value, NULL);
}

/* What cannot be made is tried again, and leaves nothing. */
static void test_failure(void) {
  const int number = -1, before = atomic_load(&times), kept = things.n;
  for (int i = 1; i < 3; i++) {
    tfu_error err = {""};
    void *value;
    CHECK(tfu_table_get(&things, &number, sizeof number, NULL, &value, &err) == TFU_INVALID);
    CHECK_TEXT(err.text, "-1 is negative");
    CHECK(atomic_load(&times) == before + i && things.n == kept);
  }
}

/* The least recently used go first, and never one that is held. */
static void test_bounded(void) {
  tfu_table_clear(&things);
  thing *held = get(1);
  for (int i = 2; i <= MOST + 1; i++) times_made(i);
  CHECK(things.n == MOST + 1 && things.idle == MOST);
  CHECK(times_made(2) == 0); /* now 3 is the oldest that is not held */
  CHECK(times_made(1001) == 1 && things.idle == MOST);
  CHECK(times_made(2) == 0 && times_made(1001) == 0 && times_made(4) == 0);
  CHECK(times_made(3) == 1);
  thing *again = get(1);
  CHECK(again == held);
  tfu_table_put(&things, again, NULL);
  for (int i = 0; i < MOST; i++) times_made(2000 + i);
  CHECK(times_made(1) == 0);
  tfu_table_put(&things, held, NULL);
  CHECK(alive == things.n);
}

/* As many as are held are kept; when they are put back, the next that is made brings the table to its bound again. */
static void test_full(void) {
  enum { HELD = 20 * MOST };
  static thing *held[HELD];
  tfu_table_clear(&things);
  CHECK(things.n == 0 && alive == 0);
  for (int i = 0; i < HELD; i++) held[i] = get(i);
  for (int i = 0; i < HELD; i++) CHECK(times_made(i) == 0);
  for (int i = 0; i < HELD; i++) tfu_table_put(&things, held[i], NULL);
  CHECK(times_made(HELD) == 1 && things.n == MOST && alive == MOST);
  CHECK(times_made(HELD - 1) == 0 && times_made(0) == 1);
}

/* What was evicted is not released while the GPU has work by it; then it is, and only once. */
static void test_leaving(void) {
  const tfu_call call = {.stream = NULL};
  tfu_table_clear(&things);
  tfu_table_put(&things, get(1), &call);
  CHECK(events == 1 && alive == 1);
  busy = 1;
  for (int i = 2; i <= MOST + 1; i++) times_made(i); /* 1 is evicted */
  CHECK(things.leaving && events == 1 && alive == MOST + 1);
  times_made(1000);
  CHECK(things.leaving && events == 1 && alive == MOST + 1); /* what never ran went at once */
  CHECK(times_made(1) == 1 && alive == MOST + 1);            /* one that leaves is not found again */
  busy = 0;
  times_made(1001);
  CHECK(!things.leaving && events == 0 && alive == MOST);
}

/* Without a bound for idle ones, a value goes with its last holder; without a size, it is the key itself. */
static void test_texts(void) {
  static tfu_table texts = TFU_TABLE(.most = 0);
  tfu_error err;
  void *a, *b, *other;
  CHECK(tfu_table_get(&texts, "one more", 3, NULL, &a, &err) == TFU_OK);
  CHECK(tfu_table_get(&texts, "one", 3, NULL, &b, &err) == TFU_OK && a == b);
  CHECK(tfu_table_get(&texts, "", 0, NULL, &other, &err) == TFU_OK && other != a);
  CHECK_TEXT((char *)a, "one");
  CHECK_TEXT((char *)other, "");
  tfu_table_put(&texts, a, NULL);
  CHECK_TEXT((char *)b, "one");
  tfu_table_put(&texts, b, NULL);
  CHECK(texts.n == 1 && texts.idle == 0);
  tfu_table_put(&texts, other, NULL);
  CHECK(texts.n == 0);
  tfu_table_clear(&texts);
}

/* A value for each holder, which is free for the next one; the key says whose they are. */
static void test_exclusive(void) {
  static tfu_table handles =
      TFU_TABLE(.value = sizeof(thing), .most = TFU_KEEP_ALL, .exclusive = 1, .make = make, .release = release);
  thing *a = get_of(&handles, 7, NULL), *b = get_of(&handles, 7, NULL), *other = get_of(&handles, 8, NULL);
  CHECK(a != b && b != other && a != other);
  tfu_table_put(&handles, b, NULL);
  CHECK(get_of(&handles, 7, NULL) == b && handles.n == 3);
  tfu_table_put(&handles, a, NULL), tfu_table_put(&handles, b, NULL), tfu_table_put(&handles, other, NULL);
  tfu_table_clear(&handles);
  CHECK(handles.n == 0);
}

static tfu_code keep_text(const void *key, void *value, void *with, tfu_error *err) {
  (void)with;
  TFU_REQUIRE(err, *(const int *)key >= 0, "not now");
  snprintf(value, 16, "%d", *(const int *)key);
  return TFU_OK;
}

static int is_text(const void *key, void *value, void *wanted) {
  return *(const int *)key == 1 && !strcmp(value, wanted) ? 5 : 0;
}

/* Memory of what was evicted is that of one that follows, and what was not made changes nothing in it. */
static void test_lasting(void) {
  static tfu_table labels = TFU_TABLE(.value = 16, .most = 1, .lasting = 1, .make = keep_text);
  tfu_error err;
  void *label[6], *none;
  for (int i = 0; i < TFU_COUNT(label); i++) {
    CHECK(tfu_table_get(&labels, &i, sizeof i, NULL, &label[i], &err) == TFU_OK);
    for (int turn = 0; turn < 2; turn++) tfu_table_put(&labels, label[i], NULL); /* once too often */
    CHECK(labels.idle == 1);
    if (i == 1) CHECK(tfu_table_each(&labels, is_text, "1") == 5 && tfu_table_each(&labels, is_text, "2") == 0);
    if (i == 1) CHECK(tfu_table_get(&labels, &(int){-1}, sizeof i, NULL, &none, &err) == TFU_INVALID);
    CHECK(atoi(label[i]) == i && (i < 4 || label[i] == label[i - 2])); /* two are in use, and one more was tried */
  }
  /* One that was put back too often, and is held again, is not evicted. */
  void *held, *other;
  const int last = TFU_COUNT(label) - 1;
  CHECK(tfu_table_get(&labels, &last, sizeof last, NULL, &held, &err) == TFU_OK && held == label[last]);
  for (int i = 10; i < 13; i++) {
    CHECK(tfu_table_get(&labels, &i, sizeof i, NULL, &other, &err) == TFU_OK && other != held);
    tfu_table_put(&labels, other, NULL);
  }
  CHECK(atoi(held) == last);
  tfu_table_put(&labels, held, NULL);
  tfu_table_clear(&labels);
}

static void *want(void *nothing) {
  tfu_table_put(&things, get_of(&things, 5, &times), NULL);
  return nothing;
}

static void *churn(void *seed) {
  unsigned s = *(unsigned *)seed;
  for (int i = 0; i < 3000; i++) {
    s = s * 1664525 + 1013904223;
    times_made((int)(s >> 8) % (2 * MOST));
  }
  return NULL;
}

static void test_threads(void) {
  enum { THREADS = 8 };
  pthread_t threads[THREADS];
  unsigned seeds[THREADS];
  tfu_table_clear(&things);
  const int before = atomic_load(&times);
  for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, want, NULL);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  CHECK(atomic_load(&times) == before + 1);
  for (int i = 0; i < THREADS; i++) {
    seeds[i] = (unsigned)i;
    pthread_create(&threads[i], NULL, churn, &seeds[i]);
  }
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  CHECK(things.n == things.idle && things.n >= MOST && things.n < MOST + THREADS);
  tfu_table_clear(&things);
  CHECK(things.n == 0 && alive == 0);
}

int main(void) {
  test_remembers();
  test_failure();
  test_bounded();
  test_full();
  test_leaving();
  test_texts();
  test_exclusive();
  test_lasting();
  test_threads();
  return verdict();
}
