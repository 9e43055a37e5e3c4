/* dropout on the CPU: element by element, in tiles; the mask comes from seed and place alone (kernels/core/philox.h).
 */
#ifndef REAL
#include "kernels/core/arithmetic.h"
#include "kernels/core/cpu/rows_cpu.h"

typedef struct job {
  tfu_call *call;
  tfu_drop drop;
  int64_t n, task; /* elements, of the tensor and of a task */
} job;

#define TFU_SELF "kernels/elementwise/dropout_cpu.c"
#include "kernels/core/cpu/stamp.h"
TFU_BY_REAL(tfu_dropout_cpu)

#else

static void FN(task)(void *arg, int64_t task) {
  const job *j = arg;
  const tfu_tensor *x = &j->call->in[0], *y = &j->call->out[0];
  const int64_t end = (task + 1) * j->task < j->n ? (task + 1) * j->task : j->n;
  REAL xs[TFU_TILE], ys[TFU_TILE];
  for (int64_t at = task * j->task; at < end; at += TFU_TILE) {
    const int n = end - at < TFU_TILE ? (int)(end - at) : TFU_TILE;
    REAL *v = FN(tfu_room)(y->data, y->dtype, at, ys);
    FN(tfu_drop_tile)(&j->drop, v, FN(tfu_load)(x->data, x->dtype, at, n, xs), at, n);
    FN(tfu_store)(y->data, y->dtype, at, n, v);
  }
}

static tfu_code FN(tfu_dropout_cpu)(tfu_call *call) {
  job j = {.call = call, .drop = tfu_drop_of(&call->in[1], call->attr[0].f), .n = tfu_count(&call->in[0].shape)};
  j.task = tfu_task_size(j.n, TFU_TILE);
  tfu_parallel(divide_up(j.n, j.task), FN(task), &j);
  return TFU_OK;
}
#endif
