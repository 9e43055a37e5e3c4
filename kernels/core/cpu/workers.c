#include "kernels/core/cpu/workers.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/cpu/parallel.h"

enum { LINE = 64 };

typedef struct crew {
  tfu_worker_task *task;
  void *arg;
  int64_t tasks, next;
  char *space;
  size_t bytes; /* of a worker */
} crew;

/* A worker takes tasks, as long as there are some. */
static void work(void *arg, int64_t worker) {
  crew *c = arg;
  for (int64_t i; (i = __atomic_fetch_add(&c->next, 1, __ATOMIC_RELAXED)) < c->tasks;)
    c->task(c->arg, i, c->space + (size_t)worker * c->bytes);
}

tfu_code tfu_parallel_with(tfu_call *call, int64_t tasks, size_t bytes, tfu_worker_task *task, void *arg) {
  const int64_t workers = least(tasks, tfu_threads());
  crew c = {.task = task, .arg = arg, .tasks = tasks, .bytes = (bytes + LINE - 1) / LINE * LINE};
  void *space;
  if (tasks == 0) return TFU_OK;
  TFU_TRY(tfu_scratch(call, c.bytes * (size_t)workers + LINE, &space));
  c.space = (char *)space + (-(uintptr_t)space & (LINE - 1));
  tfu_parallel(workers, work, &c);
  return TFU_OK;
}
