/* A queue of loops; workers take the next index of the first loop that has one left. The caller works on its own loop,
 * so a loop ends even if no worker could be started. */
#define _GNU_SOURCE
#include "kernels/core/cpu/parallel.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "kernels/core/arithmetic.h"

typedef struct loop {
  void (*task)(void *, int64_t);
  void *arg;
  int64_t tasks, next, done; /* under the lock */
  struct loop *after;
} loop;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t arrived = PTHREAD_COND_INITIALIZER, finished = PTHREAD_COND_INITIALIZER;
static loop *queue; /* loops that still have an index to give */
static int threads; /* 0 until started */

static void enqueue(loop *l) {
  loop **end = &queue;
  while (*end) end = &(*end)->after;
  *end = l;
}

static void unqueue(loop *l) {
  loop **at = &queue;
  while (*at && *at != l) at = &(*at)->after;
  if (*at) *at = l->after;
}

/* Runs tasks of l until none is left to take; the lock is held on entry and on return. */
static void work_on(loop *l) {
  while (l->next < l->tasks) {
    const int64_t i = l->next++;
    if (l->next == l->tasks) unqueue(l);
    pthread_mutex_unlock(&lock);
    l->task(l->arg, i);
    pthread_mutex_lock(&lock);
    if (++l->done == l->tasks) pthread_cond_broadcast(&finished);
  }
}

static void *worker(void *unused) {
  (void)unused;
  pthread_mutex_lock(&lock);
  for (;;) {
    while (!queue) pthread_cond_wait(&arrived, &lock);
    work_on(queue);
  }
  return NULL;
}

/* Threads do not survive fork: the child starts its own. */
static void forget(void) {
  pthread_mutex_init(&lock, NULL);
  pthread_cond_init(&arrived, NULL);
  pthread_cond_init(&finished, NULL);
  queue = NULL;
  threads = 0;
}

static int wanted_threads(void) {
  const char *set = getenv("TFUSE_NUM_THREADS");
  const int n = set ? atoi(set) : 0;
  cpu_set_t cores;
  if (n > 0) return n < 1024 ? n : 1024;
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

/* The lock is held. */
static void start(void) {
  static int registered;
  if (threads) return;
  if (!registered) registered = !pthread_atfork(NULL, NULL, forget);
  threads = 1;
  for (const int wanted = wanted_threads(); threads < wanted; threads++) {
    pthread_t id;
    if (pthread_create(&id, NULL, worker, NULL)) break;
    pthread_detach(id);
  }
}

int tfu_threads(void) {
  pthread_mutex_lock(&lock);
  start();
  const int n = threads;
  pthread_mutex_unlock(&lock);
  return n;
}

int64_t tfu_task_size(int64_t n, int64_t unit) {
  enum { LEAST = 64, TASKS_PER_THREAD = 4 };
  const int64_t share = n / (unit * TASKS_PER_THREAD * tfu_threads()) + 1;
  return unit * (share < LEAST ? LEAST : share);
}

void tfu_parallel(int64_t tasks, void (*task)(void *arg, int64_t i), void *arg) {
  if (tasks == 1) task(arg, 0);
  if (tasks <= 1) return;
  loop l = {.task = task, .arg = arg, .tasks = tasks};
  pthread_mutex_lock(&lock);
  start();
  enqueue(&l);
  if (tasks >= threads) pthread_cond_broadcast(&arrived);
  else
    for (int64_t i = 1; i < tasks; i++) pthread_cond_signal(&arrived); /* who finds nothing to do waits for the lock */
  work_on(&l);
  while (l.done < l.tasks) pthread_cond_wait(&finished, &lock);
  pthread_mutex_unlock(&lock);
}

typedef struct ranges {
  int64_t n, each;
  void (*range)(void *arg, int64_t begin, int64_t end);
  void *arg;
} ranges;

static void range_task(void *ranges_, int64_t i) {
  const ranges *r = ranges_;
  r->range(r->arg, i * r->each, least((i + 1) * r->each, r->n));
}

void tfu_parallel_ranges(int64_t n, int64_t each, void (*range)(void *arg, int64_t begin, int64_t end), void *arg) {
  tfu_parallel(divide_up(n, each), range_task, &(ranges){n, each, range, arg});
}

const char *tfu_cpu_missing(void) {
#ifdef __x86_64__
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c"))
    return "the CPU kernels need a processor with AVX2, FMA and F16C";
#endif
  return NULL;
}

/* Weak, for a test may say no where there are such registers. */
__attribute__((weak)) int tfu_has_wide_registers(void) {
#ifdef __x86_64__
  return __builtin_cpu_supports("avx512f");
#else
  return 0;
#endif
}
