/* The batched product on the CPU: blocks of all results are dealt out to the threads, and a block adds up its sums
 * where it is. */
#ifndef REAL
#include "ops/products/batched_matmul.h"

#include "kernels/core/cpu/cpu.h"
#include "kernels/products/gemm_cpu.h"

typedef struct result {
  const tfu_tensor *y;
  float scale;
} result;

#define TFU_SELF "kernels/products/batched_matmul_cpu.c"
#include "kernels/core/cpu/stamp.h"
TFU_BY_REAL(tfu_batched_matmul_cpu)

#else

static void FN(finish)(void *arg, int64_t row, int64_t col, int n, REAL *line) {
  const result *r = arg;
  for (int i = 0; i < n; i++) line[i] *= r->scale;
  FN(tfu_gemm_store)((void *)r->y, row, col, n, line);
}

static tfu_code FN(tfu_batched_matmul_cpu)(tfu_call *call) {
  const tfu_tensor *a = &call->in[TFU_BATCHED_A], *b = &call->in[TFU_BATCHED_B], *y = &call->out[0];
  const int transpose_a = tfu_given(&call->in[TFU_BATCHED_TRANSPOSE_A].shape);
  const int transpose_b = tfu_given(&call->in[TFU_BATCHED_TRANSPOSE_B].shape);
  const tfu_products p = tfu_products_of(&a->shape, transpose_a, &b->shape, transpose_b, &y->shape);
  return FN(tfu_gemm_batch)(call, tfu_operand_of(a, transpose_a), tfu_operand_of(b, transpose_b), &p, FN(finish),
                            &(result){.y = y, .scale = call->attr[TFU_BATCHED_SCALE].f});
}
#endif
