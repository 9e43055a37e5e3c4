/* recurrence on the GPU: by a persistent kernel where there is one, otherwise of each step a product by cuBLASLt, h .
 * recurrent_kernel or dp . recurrent_kernel^T, and a launch for the gates. Products read h and dp where they lie, in y
 * and in dgates or dproduct, a row for each sequence, and are wide, as sums are. */
#include "kernels/recurrent/recurrence.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/walk.h"
#include "kernels/core/recycle.h"
#include "kernels/layout/transpose.h"
#include "kernels/products/gemm_gpu.h"
#include "kernels/recurrent/recurrence_persistent.h"

TFU_MODULE(recurrence);

static tfu_kernel scale_kernel = {.module = &module, .name = "recurrence_scale"};
static tfu_kernel reset_kernel = {.module = &module, .name = "recurrence_reset"};
static tfu_kernel step_kernel = {.module = &module, .name = "recurrence_step"};
static tfu_kernel back_kernel = {.module = &module, .name = "recurrence_back"};
static tfu_kernel reset_back_kernel = {.module = &module, .name = "recurrence_reset_back"};
static tfu_kernel end_kernel = {.module = &module, .name = "recurrence_end"};

/* A thread for each of so many units. */
static tfu_code threads_for(tfu_call *call, int64_t count, tfu_grid *grid) {
  const int64_t blocks = divide_up(count, TFU_THREADS);
  TFU_REQUIRE(call->err, blocks <= INT32_MAX, "%lld units of all sequences are too many for one launch",
              (long long)count);
  *grid = (tfu_grid){.x = (unsigned)blocks, .threads = TFU_THREADS};
  return TFU_OK;
}

/* A product of rows that are row elements apart, its result wide. */
static tfu_code multiply(tfu_call *call, const tfu_gemm_gpu *g) {
  int served;
  TFU_TRY(tfu_gemm_gpu_run(call, g, &served));
  if (served) return TFU_OK;
  return tfu_fail(call->err, TFU_UNIMPLEMENTED, "cuBLASLt has no product of [%lld, %lld] and [%lld, %lld] in %s",
                  (long long)g->m, (long long)g->k, (long long)g->k, (long long)g->n, tfu_dtype_name(g->dtype));
}

static tfu_code wide_scratch(tfu_call *call, int64_t count, tfu_dtype dtype, void **memory) {
  return tfu_scratch(call, (size_t)count * tfu_dtype_size(tfu_real(dtype)), memory);
}

static const void *element(const void *tensor, int64_t at, tfu_dtype dtype) {
  return (const char *)tensor + (size_t)at * tfu_dtype_size(dtype);
}

/* What is left of the states after all steps, as a tensor. */
static tfu_code end(tfu_call *call, const tfu_tensor *to, recurrence_end_args a) {
  tfu_grid grid;
  a.count = tfu_count(&to->shape);
  a.to = to->data;
  if (a.count == 0) return TFU_OK;
  TFU_TRY(threads_for(call, a.count, &grid));
  return tfu_launch(call, &end_kernel, 0, to->dtype, grid, &a);
}

/* The recurrent kernel as a matrix for each gate, [gates, units, units], where each has an h of its own. */
static tfu_code split(tfu_call *call, const recurrence_sizes *s, const tfu_tensor *kernel, void **to) {
  const int64_t units = s->units, size = (int64_t)tfu_dtype_size(kernel->dtype);
  const tfu_permutation p = {.axes = 3,
                             .size = {s->gates, units, units},
                             .from = {units, s->gates * units, 1},
                             .to = {units * units, units, 1}};
  TFU_TRY(tfu_scratch(call, (size_t)(s->gates * units * units * size), to));
  return tfu_permute_gpu(call, p, kernel->data, *to, size);
}

/* Products of each gate's own matrices: of a, which are a_stride elements apart, with those of `kernels`. That of a
 * candidate whose h is reset is none of them. */
static tfu_gemm_gpu by_gates(tfu_gemm_gpu g, const recurrence_sizes *s, const void *kernels, int64_t a_stride) {
  g.b = kernels;
  g.n = g.k = s->units;
  g.batch = s->reset_before ? 2 : s->gates;
  g.a_stride = a_stride;
  g.b_stride = s->units * s->units;
  g.d_stride = s->batch * s->units;
  return g;
}

/* That one: of a with the third matrix. */
static tfu_gemm_gpu of_candidate(tfu_gemm_gpu g, const recurrence_sizes *s, const void *a) {
  g.a = a;
  g.b = element(g.b, 2 * s->units * s->units, g.dtype);
  g.d = (char *)g.d + (size_t)(2 * s->batch * s->units) * tfu_dtype_size(tfu_real(g.dtype));
  g.batch = 0;
  return g;
}

tfu_code tfu_recurrence_gpu(tfu_call *call) {
  const tfu_tensor *in = call->in, *y = &call->out[TFU_RECUR_Y];
  const recurrence_sizes s = recurrence_sizes_of(call, y, &in[TFU_RECUR_KERNEL]);
  const tfu_dtype dtype = y->dtype;
  const int64_t count = s.batch * s.units, width = s.gates * s.units;
  const void *h = tfu_given_data(&in[TFU_RECUR_H]);
  void *product, *kernels;
  recurrence_step_args a = {.size = s,
                            .gates = in[TFU_RECUR_GATES].data,
                            .bias = tfu_given_data(&in[TFU_RECUR_BIAS]),
                            .h = h,
                            .c = tfu_given_data(&in[TFU_RECUR_C]),
                            .mask = tfu_given_data(&in[TFU_RECUR_MASK]),
                            .scale = tfu_given_data(&in[TFU_RECUR_SCALE]),
                            .y = y->data,
                            .kept = tfu_given_data(&call->out[TFU_RECUR_KEPT])};
  tfu_recycled space;
  tfu_grid grid;
  int served;
  TFU_TRY(tfu_recurrence_persistent(call, &served));
  if (served) return TFU_OK;
  TFU_TRY(threads_for(call, count, &grid));
  TFU_TRY(wide_scratch(call, s.batch * width, dtype, &product));
  TFU_TRY(wide_scratch(call, count, dtype, &a.state));
  tfu_gemm_gpu g = {.b = in[TFU_RECUR_KERNEL].data,
                    .d = product,
                    .m = s.batch,
                    .n = width,
                    .k = s.units,
                    .dtype = dtype,
                    .wide = 1,
                    .tf32 = call->attr[TFU_RECUR_TF32].b};
  if (a.scale || s.reset_before) {
    TFU_TRY(split(call, &s, &in[TFU_RECUR_KERNEL], &kernels));
    TFU_TRY(tfu_scratch(call, (size_t)(s.batch * width) * tfu_dtype_size(dtype), &a.scaled));
    if (h && a.scale) TFU_TRY(tfu_launch(call, &scale_kernel, 0, dtype, grid, &a));
    g = by_gates(g, &s, kernels, a.scale ? count : 0);
  }
  tfu_recycled_open(&space, call);
  for (a.step = 0; a.step < s.steps; a.step++) {
    tfu_call *part = tfu_recycle(&space);
    const void *before = a.step ? element(y->data, (a.step - 1) * s.units, dtype) : h;
    g.a = before && a.scale ? a.scaled : before;
    g.a_row = a.step && !a.scale ? s.steps * s.units : 0;
    a.product = g.a ? product : NULL;
    if (g.a) TFU_TRY(multiply(part, &g));
    if (g.a && s.reset_before) {
      tfu_gemm_gpu last = of_candidate(g, &s, element(a.scaled, 2 * count, dtype));
      last.a_row = 0;
      TFU_TRY(tfu_launch(part, &reset_kernel, 0, dtype, grid, &a));
      TFU_TRY(multiply(part, &last));
    }
    TFU_TRY(tfu_launch(part, &step_kernel, 0, dtype, grid, &a));
    call->kernel = part->kernel;
  }
  return end(call, &call->out[TFU_RECUR_LAST],
             (recurrence_end_args){.size = s, .rest = s.steps ? a.state : NULL, .same = s.steps ? NULL : a.c});
}

tfu_code tfu_recurrence_grad_gpu(tfu_call *call) {
  const tfu_tensor *in = call->in, *out = call->out, *dy = &in[TFU_RECGRAD_DY];
  const recurrence_sizes s = recurrence_sizes_of(call, dy, &in[TFU_RECGRAD_KERNEL]);
  const tfu_dtype dtype = dy->dtype;
  const int64_t count = s.batch * s.units, width = s.gates * s.units;
  void *product, *kernels;
  recurrence_back_args a = {.size = s,
                            .dy = dy->data,
                            .dlast = tfu_given_data(&in[TFU_RECGRAD_DLAST]),
                            .h = tfu_given_data(&in[TFU_RECGRAD_H]),
                            .c = tfu_given_data(&in[TFU_RECGRAD_C]),
                            .y = in[TFU_RECGRAD_Y].data,
                            .kept = in[TFU_RECGRAD_KEPT].data,
                            .mask = tfu_given_data(&in[TFU_RECGRAD_MASK]),
                            .scale = tfu_given_data(&in[TFU_RECGRAD_SCALE]),
                            .dgates = out[TFU_RECGRAD_DGATES].data,
                            .dproduct = tfu_given_data(&out[TFU_RECGRAD_DPRODUCT])};
  tfu_recycled space;
  tfu_grid grid;
  int served;
  TFU_TRY(tfu_recurrence_grad_persistent(call, &served));
  if (served) return TFU_OK;
  TFU_TRY(threads_for(call, count, &grid));
  const int own = a.scale || s.reset_before; /* gates have an h of their own */
  TFU_TRY(wide_scratch(call, own ? s.gates * count : count, dtype, &product));
  TFU_TRY(wide_scratch(call, count, dtype, &a.direct));
  TFU_TRY(wide_scratch(call, count, dtype, &a.dstate));
  const void *const dp = a.dproduct ? a.dproduct : a.dgates;
  tfu_gemm_gpu g = {.b = in[TFU_RECGRAD_KERNEL].data,
                    .d = product,
                    .m = s.batch,
                    .n = s.units,
                    .k = width,
                    .a_row = s.steps * width,
                    .b_transposed = 1,
                    .dtype = dtype,
                    .wide = 1,
                    .tf32 = call->attr[TFU_RECUR_TF32].b};
  if (own) {
    TFU_TRY(split(call, &s, &in[TFU_RECGRAD_KERNEL], &kernels));
    g = by_gates(g, &s, kernels, s.units);
  }
  tfu_recycled_open(&space, call);
  a.product = product;
  for (a.step = s.steps - 1; a.step >= 0; a.step--) {
    tfu_call *part = tfu_recycle(&space);
    TFU_TRY(tfu_launch(part, &back_kernel, 0, dtype, grid, &a));
    call->kernel = part->kernel;
    g.a = element(dp, a.step * width, dtype);
    if (s.reset_before) {
      const tfu_gemm_gpu first = of_candidate(g, &s, element(g.a, 2 * s.units, dtype));
      TFU_TRY(multiply(part, &first));
      TFU_TRY(tfu_launch(part, &reset_back_kernel, 0, dtype, grid, &a));
    }
    TFU_TRY(multiply(part, &g));
  }
  const int some = s.steps > 0;
  TFU_TRY(end(call, &out[TFU_RECGRAD_DH],
              (recurrence_end_args){
                  .size = s, .product = some ? product : NULL, .scale = a.scale, .rest = some ? a.direct : NULL}));
  return end(call, &out[TFU_RECGRAD_DC],
             (recurrence_end_args){.size = s, .rest = some ? a.dstate : NULL, .same = some ? NULL : a.dlast});
}
