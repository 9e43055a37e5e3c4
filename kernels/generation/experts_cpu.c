/* experts on the CPU: one expert after the other, each of the rows that name it alone. */
#ifndef REAL
#include "kernels/generation/experts.h"

#include <string.h>

#include "kernels/core/cpu/cpu.h"
#include "ops/generation/experts.h"

typedef struct job {
  const tfu_call *call;
  void *sum; /* [rows, outputs], in the type of the arithmetic */
} job;

#define TFU_SELF "kernels/generation/experts_cpu.c"
#include "kernels/core/cpu/stamp.h"

/* Copies the rows of x that name an expert, one for each time that they do, and tells which pairs they are. */
static int64_t gather(const tfu_call *call, int64_t e, char *rows, int64_t *pairs) {
  const tfu_tensor *x = &call->in[TFU_EXPERTS_X], *numbers = &call->in[TFU_EXPERTS_NUMBERS];
  const int64_t bytes = x->shape.dim[1] * (int64_t)tfu_dtype_size(x->dtype), k = numbers->shape.dim[1];
  int64_t n = 0;
  for (int64_t i = 0; i < tfu_count(&numbers->shape); i++) {
    if (((const int64_t *)numbers->data)[i] != e) continue;
    memcpy(rows + n * bytes, (const char *)x->data + i / k * bytes, (size_t)bytes);
    pairs[n++] = i;
  }
  return n;
}

tfu_code tfu_experts_cpu(tfu_call *call) {
  expert_parts parts = {.linear = tfu_linear_cpu, .gated = tfu_gated_cpu};
  const tfu_tensor *numbers = &call->in[TFU_EXPERTS_NUMBERS], *y = &call->out[0];
  const int64_t experts = call->in[TFU_EXPERTS_DOWN].shape.dim[0], most = tfu_count(&numbers->shape);
  const size_t size = tfu_dtype_size(y->dtype),
               sums = (size_t)tfu_count(&y->shape) * tfu_dtype_size(tfu_real(y->dtype));
  job j = {.call = call};
  tfu_tensor x = call->in[TFU_EXPERTS_X], part = *y;
  int64_t *pairs;
  TFU_TRY(tfu_scratch(call, sums, &j.sum));
  memset(j.sum, 0, sums);
  TFU_SCRATCH(call, most, pairs);
  TFU_TRY(tfu_scratch(call, (size_t)(most * x.shape.dim[1]) * size, &x.data));
  TFU_TRY(tfu_scratch(call, (size_t)(most * y->shape.dim[1]) * size, &part.data));
  TFU_TRY(tfu_expert_open(call, most, &parts));
  for (int64_t e = 0; e < experts; e++) {
    x.shape.dim[0] = part.shape.dim[0] = gather(call, e, x.data, pairs);
    if (!x.shape.dim[0]) continue;
    TFU_TRY(tfu_expert(call, &parts, e, x, part));
    TFU_OF_REAL(call, add)(&j, &part, pairs);
  }
  TFU_OF_REAL(call, finish)(&j);
  return TFU_OK;
}

#else

/* Adds each row of part to the sum of the row that it belongs to, by its weight. */
static void FN(add)(const job *j, const tfu_tensor *part, const int64_t *pairs) {
  const tfu_tensor *weights = &j->call->in[TFU_EXPERTS_WEIGHTS];
  const int64_t outputs = part->shape.dim[1], k = weights->shape.dim[1];
  REAL buffer[TFU_TILE], room;
  for (int64_t r = 0; r < part->shape.dim[0]; r++) {
    const REAL w = *FN(tfu_load)(weights->data, weights->dtype, pairs[r], 1, &room);
    REAL *sum = (REAL *)j->sum + pairs[r] / k * outputs;
    for (TFU_EACH_TILE(at, n, 0, outputs)) {
      const REAL *v = FN(tfu_load)(part->data, part->dtype, r * outputs + at, (int)n, buffer);
      TFU_VECTORISED(i, n) sum[at + i] += w * v[i];
    }
  }
}

static void FN(finish)(const job *j) {
  const tfu_tensor *residual = &j->call->in[TFU_EXPERTS_RESIDUAL], *y = &j->call->out[0];
  REAL buffer[TFU_TILE], *sum = j->sum;
  for (TFU_EACH_TILE(at, n, 0, tfu_count(&y->shape))) {
    if (tfu_given(&residual->shape)) {
      const REAL *v = FN(tfu_load)(residual->data, residual->dtype, at, (int)n, buffer);
      TFU_VECTORISED(i, n) sum[at + i] += v[i];
    }
    FN(tfu_store)(y->data, y->dtype, at, (int)n, sum + at);
  }
}

#endif
