/* route_experts on the CPU: a row is a task. */
#ifndef REAL
#include <math.h>

#include "kernels/core/cpu/cpu.h"
#include "kernels/generation/route.h"
#include "ops/generation/experts.h"

typedef struct job {
  const tfu_tensor *logits, *weights;
  int64_t *numbers;
  int64_t experts, top_k;
  int normalized;
  void *probabilities; /* of each row, in the type of the arithmetic */
} job;

#define TFU_SELF "kernels/generation/route_experts_cpu.c"
#include "kernels/core/cpu/stamp.h"

tfu_code tfu_route_experts_cpu(tfu_call *call) {
  const tfu_tensor *logits = &call->in[0];
  job j = {.logits = logits,
           .weights = &call->out[TFU_ROUTE_WEIGHTS],
           .numbers = call->out[TFU_ROUTE_NUMBERS].data,
           .experts = logits->shape.dim[1],
           .top_k = call->attr[TFU_ROUTE_TOP_K].i,
           .normalized = call->attr[TFU_ROUTE_NORMALIZED].b};
  TFU_TRY(
      tfu_scratch(call, (size_t)tfu_count(&logits->shape) * tfu_dtype_size(tfu_real(logits->dtype)), &j.probabilities));
  tfu_parallel(logits->shape.dim[0], TFU_OF_REAL(call, route), &j);
  return TFU_OK;
}

#else

static REAL FN(read)(const tfu_tensor *t, int64_t at) {
  REAL room;
  return *FN(tfu_load)(t->data, t->dtype, at, 1, &room);
}

/* As the tensors' dtype has it. */
static REAL FN(rounded)(tfu_dtype dtype, REAL v) {
  double there;
  const tfu_tensor one = {.data = &there, .dtype = dtype};
  FN(tfu_store)(&there, dtype, 0, 1, &v);
  return FN(read)(&one, 0);
}

static void FN(route)(void *arg, int64_t row) {
  const job *j = arg;
  REAL *p = (REAL *)j->probabilities + row * j->experts, most = -INFINITY, sum = 0;
  for (int64_t i = 0; i < j->experts; i++) {
    p[i] = FN(read)(j->logits, row * j->experts + i);
    if (p[i] > most) most = p[i];
  }
  for (int64_t i = 0; i < j->experts; i++) sum += p[i] = (REAL)exp((double)(p[i] - most));
  for (int64_t i = 0; i < j->experts; i++) p[i] = FN(rounded)(j->logits->dtype, p[i] / sum);
  REAL all = 0;
  int64_t *numbers = j->numbers + row * j->top_k;
  for (int64_t s = 0; s < j->top_k; s++) { /* the first of those that come after the one before */
    const int64_t last = s ? numbers[s - 1] : -1;
    int64_t best = -1;
    for (int64_t i = 0; i < j->experts; i++)
      if ((last < 0 || ROUTE_IS_BEFORE(p[last], last, p[i], i)) &&
          (best < 0 || ROUTE_IS_BEFORE(p[i], i, p[best], best)))
        best = i;
    numbers[s] = best;
    all += p[best];
  }
  for (int64_t s = 0; s < j->top_k; s++) {
    const REAL w = j->normalized ? p[numbers[s]] / all : p[numbers[s]];
    FN(tfu_store)(j->weights->data, j->weights->dtype, row * j->top_k + s, 1, &w);
  }
}

#endif
