/* MatmulOwn on the CPU: the blocked product of gemm_cpu.h, one matrix after the other. */
#ifndef REAL
#include "kernels/core/cpu.h"
#include "kernels/core/gemm_cpu.h"
#include "ops/matmul_own.h"

/* Matrix z of a tensor's last two axes, as it lies or turned. */
static tfu_operand matrix(const tfu_tensor *t, int64_t z, int turned) {
  const int64_t cols = tfu_cols(&t->shape), rows = t->shape.dim[t->shape.rank - 2];
  const char *data = t->data;
  return (tfu_operand){.data = data + (size_t)(z * rows * cols) * tfu_dtype_size(t->dtype),
                       .dtype = t->dtype,
                       .row = cols,
                       .turned = turned};
}

typedef struct result {
  const tfu_tensor *d;
  int64_t first; /* element */
} result;

#define TFU_SELF "kernels/matmul_own_cpu.c"
#include "kernels/core/stamp.h"
TFU_BY_REAL(tfu_matmul_own_cpu)
TFU_BY_REAL(tfu_matmul_own_grad_cpu)

#else

static void FN(store)(void *arg, int64_t row, int64_t col, int n, REAL *line) {
  const result *r = arg;
  FN(tfu_store)(r->d->data, r->d->dtype, r->first + row * tfu_cols(&r->d->shape) + col, n, line);
}

static tfu_code FN(multiply)(tfu_call *call, const tfu_tensor *a, int a_turned, const tfu_tensor *b, int b_turned,
                             const tfu_tensor *d) {
  const int rank = d->shape.rank;
  const int64_t m = d->shape.dim[rank - 2], n = d->shape.dim[rank - 1], count = tfu_count(&d->shape);
  const int64_t k = a->shape.dim[a_turned ? rank - 2 : rank - 1];
  for (int64_t z = 0; count && z < count / (m * n); z++) {
    result r = {.d = d, .first = z * m * n};
    TFU_TRY(FN(tfu_gemm)(call, matrix(a, z, a_turned), matrix(b, z, b_turned), m, n, k, FN(store), &r));
  }
  return TFU_OK;
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
