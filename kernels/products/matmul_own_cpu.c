/* MatmulOwn on the CPU: the blocked product of gemm_cpu.h, of all matrices in one batch. */
#ifndef REAL
#include "ops/products/matmul_own.h"

#include "kernels/core/cpu/cpu.h"
#include "kernels/products/gemm_cpu.h"

#define TFU_SELF "kernels/products/matmul_own_cpu.c"
#include "kernels/core/cpu/stamp.h"
TFU_BY_REAL(tfu_matmul_own_cpu)
TFU_BY_REAL(tfu_matmul_own_grad_cpu)

#else

static tfu_code FN(multiply)(tfu_call *call, const tfu_tensor *a, int a_transposed, const tfu_tensor *b,
                             int b_transposed, const tfu_tensor *d) {
  const tfu_products p = tfu_products_of(&a->shape, a_transposed, &b->shape, b_transposed, &d->shape);
  return FN(tfu_gemm_batch)(call, tfu_operand_of(a, a_transposed), tfu_operand_of(b, b_transposed), &p,
                            FN(tfu_gemm_store), (void *)d);
}

static tfu_code FN(tfu_matmul_own_cpu)(tfu_call *call) {
  return FN(multiply)(call, &call->in[TFU_MATMUL_A], 0, &call->in[TFU_MATMUL_B], 0, &call->out[0]);
}

static tfu_code FN(tfu_matmul_own_grad_cpu)(tfu_call *call) {
  const tfu_tensor *dy = &call->in[TFU_MATMULGRAD_DY];
  TFU_TRY(FN(multiply)(call, dy, 0, &call->in[TFU_MATMULGRAD_B], 1, &call->out[TFU_MATMULGRAD_DA]));
  return FN(multiply)(call, &call->in[TFU_MATMULGRAD_A], 1, dy, 0, &call->out[TFU_MATMULGRAD_DB]);
}
#endif
