#include "ops/staging/reports.h"

#include <pthread.h>
#include <string.h>

#include "kernels/core/gpu/transfer.h"

static struct key {
  int taken;
  int64_t steps; /* that were published */
  tfu_reported kept[TFU_REPORT_KEPT];
} keys[TFU_REPORT_KEYS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of taken and steps */

tfu_code tfu_report_next(const tfu_call *call, tfu_reported **report) {
  const int64_t key = call->attr[TFU_REPORT_KEY].i;
  size_t bytes = 0;
  for (int i = 0; i < call->lists->in[0].n; i++) bytes += tfu_report_bytes(&call->lists->in[0].at[i]);
  TFU_REQUIRE(call->err, bytes <= TFU_REPORT_BYTES, "x has %zu bytes, and at most %d can be reported", bytes,
              TFU_REPORT_BYTES);
  pthread_mutex_lock(&lock);
  const int there = key >= 0 && key < TFU_REPORT_KEYS && keys[key].taken;
  if (there) *report = &keys[key].kept[keys[key].steps % TFU_REPORT_KEPT];
  pthread_mutex_unlock(&lock);
  return there ? TFU_OK : tfu_fail(call->err, TFU_INVALID, "nobody reports under the key %lld", (long long)key);
}

void tfu_report_publish(const tfu_call *call) {
  pthread_mutex_lock(&lock);
  keys[call->attr[TFU_REPORT_KEY].i].steps++;
  pthread_mutex_unlock(&lock);
}

/* ---- what Python calls ---- */

/* A key that nobody has, or -1. */
TFU_EXPORT int tfu_reports_open(void) {
  int mine = -1;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < TFU_REPORT_KEYS && mine < 0; i++)
    if (!keys[i].taken) keys[mine = i].taken = 1;
  pthread_mutex_unlock(&lock);
  return mine;
}

/* Nobody may report under the key or read from it any more. */
TFU_EXPORT void tfu_reports_close(int key) {
  if (key < 0 || key >= TFU_REPORT_KEYS) return;
  for (int i = 0; i < TFU_REPORT_KEPT; i++) tfu_transfer_close(keys[key].kept[i].transfer);
  pthread_mutex_lock(&lock);
  keys[key] = (struct key){.taken = 0};
  pthread_mutex_unlock(&lock);
}

/* How many steps have reported; the last is one less. */
TFU_EXPORT int64_t tfu_reports_steps(int key) {
  pthread_mutex_lock(&lock);
  const int64_t steps = key >= 0 && key < TFU_REPORT_KEYS ? keys[key].steps : 0;
  pthread_mutex_unlock(&lock);
  return steps;
}

/* An entry is written before its step is published: the one that comes next takes the place of the oldest. */
static int is_kept(int key, int64_t step) {
  const int64_t steps = tfu_reports_steps(key);
  return step >= 0 && step < steps && step > steps - TFU_REPORT_KEPT;
}

/* The first bytes of what a step reported, when it has come; 0 where it is no longer kept. */
TFU_EXPORT int tfu_reports_read(int key, int64_t step, void *numbers, size_t bytes) {
  tfu_error ignored;
  if (!is_kept(key, step)) return 0;
  tfu_reported *r = &keys[key].kept[step % TFU_REPORT_KEPT];
  void *memory = r->numbers;
  if (r->transfer && tfu_transfer_memory(r->transfer, &memory, &ignored) != TFU_OK) return 0;
  memcpy(numbers, memory, bytes < sizeof r->numbers ? bytes : sizeof r->numbers);
  return is_kept(key, step);
}
