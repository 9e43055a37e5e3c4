#include "kernels/products/gemm_key.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *const tfu_epilogue_names[TFU_EPIS] = {[TFU_EPI_NONE] = "none",
                                                  [TFU_EPI_RELU] = "relu of NaN too",
                                                  [TFU_EPI_GELU] = "gelu_tanh",
                                                  [TFU_EPI_GELU_AUX] = "gelu_tanh+pre",
                                                  [TFU_EPI_SUM_B] = "sums"};

/* 256, which allocators give, or what vector loads care for: more steps would be more keys, each timed anew. */
static int32_t alignment(const void *data) {
  const uintptr_t low = (uintptr_t)data & -(uintptr_t)data;
  return low == 0 || low >= 256 ? 256 : low > 16 ? 16 : (int32_t)low;
}

static int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

tfu_gemm_key tfu_gemm_key_of(const tfu_gemm_gpu *g, int ordinal) {
  const int many = g->batch > 1;
  return (tfu_gemm_key){.m = g->m,
                        .n = g->n,
                        .k = g->k,
                        .a_row = g->a_row,
                        .batch = many ? g->batch : 1,
                        .stride = {many ? g->a_stride : 0, many ? g->b_stride : 0, many && g->c ? g->c_stride : 0,
                                   many ? g->d_stride : 0},
                        .ordinal = ordinal,
                        .dtype = (int32_t)g->dtype,
                        .tf32 = g->dtype == TFU_F32 && g->tf32,
                        .wide = g->wide && tfu_real(g->dtype) != g->dtype,
                        .a_transposed = !!g->a_transposed,
                        .b_transposed = !!g->b_transposed,
                        .epilogue = (int32_t)g->epilogue,
                        .bias = g->bias != NULL,
                        .c = g->c != NULL,
                        .float8 = g->float8 ? 1 + (g->float8->a == TFU_E5M2) + 2 * (g->float8->b == TFU_E5M2) : 0,
                        .outer = g->float8 && g->float8->outer,
                        .align = {alignment(g->a), alignment(g->b), alignment(g->c ? g->c : g->d), alignment(g->d),
                                  least(alignment(g->bias), least(alignment(g->aux), alignment(g->sums)))}};
}

void tfu_gemm_key_text(const tfu_gemm_key *k, int library, char *text, size_t size) {
  static const char *const float8[] = {"", " of e4m3 by e4m3", " of e5m2 by e4m3", " of e4m3 by e5m2"};
  char apart[32] = "", batch[128] = "";
  if (k->a_row) snprintf(apart, sizeof apart, " rows of %lld", (long long)k->a_row);
  if (k->batch > 1)
    snprintf(batch, sizeof batch, ", batch %lld by %lld %lld %lld %lld", (long long)k->batch, (long long)k->stride[0],
             (long long)k->stride[1], (long long)k->stride[2], (long long)k->stride[3]);
  snprintf(
      text, size, "cuBLASLt %d, product %lldx%lldx%lld %s%s%s%s%s %c%c%s, epilogue %s%s%s, aligned %d %d %d %d %d%s",
      library, (long long)k->m, (long long)k->n, (long long)k->k, tfu_dtype_name((tfu_dtype)k->dtype),
      k->tf32                                        ? " as tf32"
      : tfu_gemm_exact((tfu_dtype)k->dtype, k->tf32) ? " exact"
                                                     : "",
      float8[k->float8], k->outer ? ", outer scales" : "", k->wide ? " to float32" : "", k->a_transposed ? 'T' : 'N',
      k->b_transposed ? 'T' : 'N', apart, tfu_epilogue_names[k->epilogue], k->bias ? "+bias" : "", k->c ? "+c" : "",
      (int)k->align[0], (int)k->align[1], (int)k->align[2], (int)k->align[3], (int)k->align[4], batch);
}

/* Sizes that change with the data: the rows of a layer, which are m, or k where they are summed over; n is always the
 * layer's own. Of a batch of products any may. */
double tfu_gemm_apart(const tfu_gemm_key *a, const tfu_gemm_key *other) {
  tfu_gemm_key b = *other;
  const int batched = a->batch > 1 && b.batch > 1;
  const int64_t sizes[][2] = {{a->m, b.m}, {a->k, b.k}, {a->n, b.n}, {a->batch, b.batch}};
  double sum = 0;
  int differ = 0;
  for (int i = 0; i < TFU_COUNT(sizes); i++) {
    sum += fabs(log2((double)sizes[i][0] / (double)sizes[i][1]));
    differ += sizes[i][0] != sizes[i][1];
  }
  if (!batched && (differ > 1 || a->n != b.n || a->batch != b.batch)) return -1;
  b.m = a->m, b.k = a->k, b.n = a->n, b.batch = a->batch;
  if (batched) b.a_row = a->a_row, memcpy(b.stride, a->stride, sizeof b.stride);
  return memcmp(a, &b, sizeof b) ? -1 : sum;
}

double tfu_gemm_work(const tfu_gemm_key *k) { return (double)k->m * (double)k->n * (double)k->k * (double)k->batch; }
