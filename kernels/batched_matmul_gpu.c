/* The batched product on the GPU: as few batches of cuBLASLt's as the shapes allow. A batch has one stride, so it takes
 * the longest axis; the others are walked, one batch after the other.
 *
 * What is summed over and is not part of the product itself is written out, in the type that is computed in, and
 * summed by a second kernel. */
#include <string.h>

#include "kernels/core/gemm_gpu.h"
#include "kernels/core/products.h"
#include "kernels/core/recycle.h"
#include "kernels/core/walk.h"
#include "ops/batched_matmul.h"

static tfu_code run(tfu_call *call, const tfu_gemm_gpu *g) {
  int served;
  TFU_TRY(tfu_gemm_gpu_run(call, g, &served));
  if (served) return TFU_OK;
  return tfu_fail(call->err, TFU_UNIMPLEMENTED, "cuBLASLt has no product of [%lld, %lld] and [%lld, %lld] in %s",
                  (long long)g->m, (long long)g->k, (long long)g->k, (long long)g->n, tfu_dtype_name(g->dtype));
}

/* Takes the longest axis out of the batch. */
static tfu_batch_axis take_longest(tfu_products *p) {
  tfu_batch_axis longest = {.size = 1};
  int at = -1;
  for (int i = 0; i < p->axes; i++)
    if (p->axis[i].size > longest.size) longest = p->axis[at = i];
  if (at >= 0) memmove(p->axis + at, p->axis + at + 1, (size_t)(--p->axes - at) * sizeof *p->axis);
  return longest;
}

static const void *at(const void *data, tfu_dtype dtype, int64_t elements) {
  return (const char *)data + (size_t)elements * tfu_dtype_size(dtype);
}

/* All products, each with a place of its own in g.d. Their workspace is one and the same: they may be hundreds. */
static tfu_code run_all(tfu_call *call, tfu_products p, tfu_gemm_gpu g) {
  tfu_recycled space;
  const tfu_gemm_gpu first = g;
  const tfu_dtype out = g.wide ? tfu_real(g.dtype) : g.dtype;
  const tfu_batch_axis along = take_longest(&p);
  const int64_t others = tfu_batch_count(&p, 0, p.axes);
  g.a_stride = along.a, g.b_stride = along.b, g.d_stride = along.y;
  tfu_recycled_open(&space, call);
  for (int64_t i = 0; i < others; i++)
    for (int64_t from = 0; from < along.size; from += g.batch) {
      const tfu_batch_axis place = tfu_batch_at(&p, 0, p.axes, i);
      g.batch = along.size - from < TFU_GEMM_BATCH ? along.size - from : TFU_GEMM_BATCH;
      g.a = at(first.a, g.dtype, place.a + from * along.a);
      g.b = at(first.b, g.dtype, place.b + from * along.b);
      g.d = (void *)at(first.d, out, place.y + from * along.y);
      TFU_TRY(run(tfu_recycle(&space), &g));
    }
  call->kernel = space.call.kernel;
  call->why = space.call.why;
  return TFU_OK;
}

/* Gives axes that are summed over a place in y: before all of its own. */
static void spread(tfu_products *p, int64_t elements) {
  for (int i = p->axes - 1; i >= p->kept; i--) {
    p->axis[i].y = elements;
    elements *= p->axis[i].size;
  }
}

tfu_code tfu_batched_matmul_gpu(tfu_call *call) {
  const tfu_tensor *a = &call->in[TFU_BATCHED_A], *b = &call->in[TFU_BATCHED_B], *y = &call->out[0];
  const int turn_a = tfu_given(&call->in[TFU_BATCHED_TURN_A].shape);
  const int turn_b = tfu_given(&call->in[TFU_BATCHED_TURN_B].shape);
  const double scale = call->attr[TFU_BATCHED_SCALE].f;
  const int64_t elements = tfu_count(&y->shape);
  tfu_products p = tfu_products_of(&a->shape, turn_a, &b->shape, turn_b, &y->shape);
  const int64_t sums = tfu_batch_count(&p, p.kept, p.axes);
  tfu_gemm_gpu g = {.a = a->data,
                    .b = b->data,
                    .d = y->data,
                    .m = p.m,
                    .n = p.n,
                    .k = p.k,
                    .a_turned = turn_a,
                    .b_turned = turn_b,
                    .dtype = y->dtype,
                    .tf32 = call->attr[TFU_BATCHED_TF32].b,
                    .scale = scale,
                    .wide = sums > 1};
  if (p.k == 0 || sums == 0 || scale == 0) return tfu_clear(call, y->data, (size_t)elements * tfu_dtype_size(y->dtype));
  if (sums == 1) return run_all(call, p, g);
  size_t parts;
  if (__builtin_mul_overflow((size_t)sums * tfu_dtype_size(tfu_real(y->dtype)), (size_t)elements, &parts))
    return tfu_fail(call->err, TFU_EXHAUSTED, "%lld sums of %lld elements are larger than any memory", (long long)sums,
                    (long long)elements);
  TFU_TRY(tfu_scratch(call, parts, &g.d));
  spread(&p, elements);
  TFU_TRY(run_all(call, p, g));
  return tfu_fold_gpu(call, g.d, sums, elements, 1, y);
}
