/* The batched product on the GPU: as few batches of cuBLASLt's as the shapes allow. A batch has one stride, so it takes
 * the longest axis; the others are walked, one batch after the other.
 *
 * What is summed over and is not part of the product itself is written out, in the type that is computed in, and
 * summed by a second kernel; where it would be too much to write out, later products are added to earlier ones. */
#include "ops/products/batched_matmul.h"

#include <string.h>

#include "kernels/core/gpu/walk.h"
#include "kernels/core/recycle.h"
#include "kernels/products/gemm_gpu.h"
#include "kernels/products/products.h"

enum { CHAIN = 16 }; /* terms of a product in exact float32, where that is part of a sum; or those of one matrix */
int64_t tfu_batched_parts = 64 << 20;

typedef tfu_code (*for_one)(tfu_call *call, const tfu_gemm_gpu *g);

static tfu_code run(tfu_call *call, const tfu_gemm_gpu *g) {
  int served;
  TFU_TRY(tfu_gemm_gpu_run(call, g, &served));
  if (served) return TFU_OK;
  return tfu_fail(call->err, TFU_UNIMPLEMENTED, "cuBLASLt has no product of [%lld, %lld] and [%lld, %lld] in %s",
                  (long long)g->m, (long long)g->k, (long long)g->k, (long long)g->n, tfu_dtype_name(g->dtype));
}

/* Has one that adds to g->d timed while what is there does not matter yet (gemm_gpu.h); others are when they run. */
static tfu_code try_out(tfu_call *call, const tfu_gemm_gpu *g) {
  int served;
  float microseconds;
  return g->c ? tfu_gemm_gpu_time(call, g, &served, &microseconds) : TFU_OK;
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

/* Runs all products, or tries them out, each with a place of its own in g.d; where g.c is g.d, they are added to what
 * is there. Their workspace is one and the same: they may be hundreds. */
static tfu_code for_all(tfu_recycled *space, tfu_products p, tfu_gemm_gpu g, for_one each) {
  const tfu_gemm_gpu first = g;
  const tfu_dtype out = g.wide ? tfu_real(g.dtype) : g.dtype;
  const tfu_batch_axis along = take_longest(&p);
  const int64_t others = tfu_batch_count(&p, 0, p.axes);
  g.a_stride = along.a, g.b_stride = along.b, g.c_stride = g.d_stride = along.y;
  for (int64_t i = 0; i < others; i++)
    for (int64_t from = 0; from < along.size; from += g.batch) {
      const tfu_batch_axis place = tfu_batch_at(&p, 0, p.axes, i);
      g.batch = along.size - from < TFU_GEMM_BATCH ? along.size - from : TFU_GEMM_BATCH;
      g.a = at(first.a, g.dtype, place.a + from * along.a);
      g.b = at(first.b, g.dtype, place.b + from * along.b);
      g.d = (void *)at(first.d, out, place.y + from * along.y);
      g.c = first.c ? g.d : NULL;
      TFU_TRY(each(tfu_recycle(space), &g));
    }
  return TFU_OK;
}

/* One product of many matrices is one chain of sums, longer than any of TensorFlow's, which has a product for each:
 * that costs exact float32 its last digits: on an H200, three times TensorFlow's error for six matrices of 33 terms.
 * There it is cut into chains of one matrix's terms, or of CHAIN where that is more, which are summed over. Returns how
 * many terms are left. */
static int64_t cut_chain(tfu_products *p, int64_t of_one) {
  const int64_t chain = of_one > CHAIN ? of_one : CHAIN, terms = p->k;
  if (terms <= chain) return 0;
  p->axis[p->axes++] = (tfu_batch_axis){.size = terms / chain, .a = chain * p->m, .b = chain * p->n};
  p->k = chain;
  return terms % chain;
}

/* Gives axes that are summed over places before those of y, from the last on, while there is room: for all of an axis,
 * or for *step of it. Returns which axis that is; those before it have no places of their own. */
static int spread(tfu_products *p, int64_t elements, size_t bytes, int64_t *step) {
  int64_t room = tfu_batched_parts / (int64_t)bytes / elements;
  int cut = p->axes - 1;
  for (; cut > p->kept && room >= p->axis[cut].size; cut--) {
    p->axis[cut].y = elements;
    elements *= p->axis[cut].size;
    room /= p->axis[cut].size;
  }
  p->axis[cut].y = elements;
  *step = room < 1 ? 1 : room < p->axis[cut].size ? room : p->axis[cut].size;
  return cut;
}

/* All parts of the sums: axis `cut` goes `step` at a time, those that are summed over before it one at a time. Each
 * part but the first is added to what is there; so is that where g.c is g.d. */
static tfu_code for_parts(tfu_recycled *space, const tfu_products *p, tfu_gemm_gpu g, int cut, int64_t step,
                          for_one each) {
  const tfu_gemm_gpu first = g;
  const tfu_batch_axis whole = cut < p->axes ? p->axis[cut] : (tfu_batch_axis){.size = 1};
  const int64_t others = tfu_batch_count(p, p->kept, cut);
  tfu_products part = *p;
  part.axes -= cut - p->kept;
  memmove(part.axis + p->kept, p->axis + cut, (size_t)(p->axes - cut) * sizeof *p->axis);
  for (int64_t i = 0; i < others; i++)
    for (int64_t from = 0; from < whole.size; from += step) {
      const tfu_batch_axis place = tfu_batch_at(p, p->kept, cut, i);
      part.axis[p->kept].size = whole.size - from < step ? whole.size - from : step;
      g.a = at(first.a, g.dtype, place.a + from * whole.a);
      g.b = at(first.b, g.dtype, place.b + from * whole.b);
      TFU_TRY(for_all(space, part, g, each));
      g.c = g.d;
    }
  return TFU_OK;
}

/* y as sums of products, which are written out; `rest` more terms are after those of the last axis. */
static tfu_code run_sums(tfu_call *call, tfu_recycled *space, tfu_products p, tfu_gemm_gpu g, int64_t rest) {
  const tfu_tensor *y = &call->out[0];
  const int64_t elements = tfu_count(&y->shape);
  const size_t bytes = tfu_dtype_size(tfu_real(y->dtype));
  int64_t step;
  const int cut = spread(&p, elements, bytes, &step);
  const int64_t sums = step * tfu_batch_count(&p, cut + 1, p.axes);
  const int in_place = sums == 1 && tfu_real(y->dtype) == y->dtype;
  if (!in_place) TFU_TRY(tfu_scratch(call, (size_t)(sums * elements) * bytes, &g.d));
  g.wide = 1;
  tfu_products after = p;
  tfu_gemm_gpu tail = g;
  const tfu_batch_axis last = p.axis[--after.axes];
  tail.a = at(g.a, g.dtype, last.size * last.a);
  tail.b = at(g.b, g.dtype, last.size * last.b);
  tail.c = g.d;
  tail.k = rest;
  static const for_one steps[] = {try_out, run};
  for (int i = 0; i < TFU_COUNT(steps); i++) {
    TFU_TRY(for_parts(space, &p, g, cut, step, steps[i]));
    if (rest) TFU_TRY(for_parts(space, &after, tail, cut, step, steps[i]));
  }
  return in_place ? TFU_OK : tfu_fold_gpu(call, g.d, sums, elements, 1, y);
}

tfu_code tfu_batched_matmul_gpu(tfu_call *call) {
  const tfu_tensor *a = &call->in[TFU_BATCHED_A], *b = &call->in[TFU_BATCHED_B], *y = &call->out[0];
  const int transpose_a = tfu_given(&call->in[TFU_BATCHED_TRANSPOSE_A].shape);
  const int transpose_b = tfu_given(&call->in[TFU_BATCHED_TRANSPOSE_B].shape);
  const int tf32 = call->attr[TFU_BATCHED_TF32].b;
  const double scale = call->attr[TFU_BATCHED_SCALE].f;
  tfu_products p = tfu_products_of(&a->shape, transpose_a, &b->shape, transpose_b, &y->shape);
  if (p.k == 0 || tfu_batch_count(&p, p.kept, p.axes) == 0)
    return tfu_clear(call, y->data, (size_t)tfu_count(&y->shape) * tfu_dtype_size(y->dtype));
  const int64_t of_one = a->shape.dim[a->shape.rank - (transpose_a ? 2 : 1)];
  const int64_t rest = tfu_gemm_exact(y->dtype, tf32) ? cut_chain(&p, of_one) : 0;
  const tfu_gemm_gpu g = {.a = a->data,
                          .b = b->data,
                          .d = y->data,
                          .m = p.m,
                          .n = p.n,
                          .k = p.k,
                          .a_transposed = transpose_a,
                          .b_transposed = transpose_b,
                          .dtype = y->dtype,
                          .tf32 = tf32,
                          .scale = &scale};
  tfu_recycled space;
  tfu_recycled_open(&space, call);
  TFU_TRY(p.axes > p.kept ? run_sums(call, &space, p, g, rest) : for_all(&space, p, g, run));
  call->kernel = space.call.kernel;
  call->why = space.call.why;
  return TFU_OK;
}
