/* dropout on the CPU: element by element, in tiles; the mask comes from seed and place alone (kernels/core/philox.h).
 */
#ifndef REAL
#include "kernels/core/cpu/rows_cpu.h"

typedef struct job {
  tfu_call *call;
  tfu_drop drop;
} job;

#define TFU_SELF "kernels/elementwise/dropout_cpu.c"
#include "kernels/core/cpu/stamp.h"
TFU_BY_REAL(tfu_dropout_cpu)

#else

static void FN(range)(void *arg, int64_t begin, int64_t end) {
  const job *j = arg;
  const tfu_tensor *x = &j->call->in[0], *y = &j->call->out[0];
  REAL xs[TFU_TILE], ys[TFU_TILE];
  for (TFU_EACH_TILE(at, n, begin, end)) {
    REAL *v = FN(tfu_room)(y->data, y->dtype, at, ys);
    FN(tfu_drop_tile)(&j->drop, v, FN(tfu_load)(x->data, x->dtype, at, (int)n, xs), at, (int)n);
    FN(tfu_store)(y->data, y->dtype, at, (int)n, v);
  }
}

static tfu_code FN(tfu_dropout_cpu)(tfu_call *call) {
  job j = {.call = call, .drop = tfu_drop_of(&call->in[1], call->attr[0].f)};
  const int64_t n = tfu_count(&call->in[0].shape);
  tfu_parallel_ranges(n, tfu_task_size(n, TFU_TILE), FN(range), &j);
  return TFU_OK;
}
#endif
