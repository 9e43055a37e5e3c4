/* Experts on the GPU.
 *
 * Where rows are few, by kernels that read the experts that some row names, once for EXPERTS_ROWS rows, and no others:
 * with one sequence those of one row, which is what its time consists of. Where there are more, each expert is used by
 * many rows: all of them are read, and the tensor cores multiply each with all rows, of which the weights choose. */
#include "kernels/generation/experts.h"

#include <limits.h>

#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/cuda.h"
#include "ops/generation/experts.h"

TFU_MODULE(experts);

typedef struct sizes {
  int64_t rows, top_k, experts, width, inner, outputs;
} sizes;

static sizes sizes_of(const tfu_call *call) {
  const int64_t *x = call->in[TFU_EXPERTS_X].shape.dim, *weights = call->in[TFU_EXPERTS_WEIGHTS].shape.dim,
                *down = call->in[TFU_EXPERTS_DOWN].shape.dim;
  return (sizes){
      .rows = x[0], .top_k = weights[1], .experts = down[0], .width = x[1], .inner = down[1], .outputs = down[2]};
}

static int is_routed(const tfu_call *call, const sizes *s) {
  const int64_t pack = 16 / (int64_t)tfu_dtype_size(call->in[0].dtype);
  const uintptr_t all = (uintptr_t)call->in[TFU_EXPERTS_GATE].data | (uintptr_t)call->in[TFU_EXPERTS_DOWN].data |
                        (uintptr_t)tfu_given_data(&call->in[TFU_EXPERTS_UP]);
  const int served = all % 16 == 0 && s->inner % pack == 0 && s->outputs % pack == 0 && s->top_k > 0 &&
                     s->top_k <= EXPERTS_MOST && s->experts <= 65535;
  return served && (call->invariant || s->rows * s->top_k <= EXPERTS_ROWS * s->experts);
}

static tfu_code product(tfu_call *call, expert_product_args a, int64_t experts) {
  static const char *const variants[] = {"alone", "gated"};
  static tfu_kernel kernel = {.module = &module, .name = "expert_product", .variants = variants};
  const int64_t columns = EXPERTS_LANES * 16 / (int64_t)tfu_dtype_size(call->in[0].dtype);
  const tfu_grid grid = {
      .x = (unsigned)divide_up(a.outputs, columns), .y = (unsigned)experts, .threads = EXPERTS_THREADS};
  return tfu_launch(call, &kernel, a.up != NULL, call->in[0].dtype, grid, &a);
}

static tfu_grid grid_of(int64_t elements) {
  return (tfu_grid){.x = (unsigned)least(divide_up(elements, EXPERTS_THREADS), 1 << 16), .threads = EXPERTS_THREADS};
}

/* Rows from `first` on, as many as a launch takes. */
static tfu_code routed(tfu_call *call, const sizes *s, int64_t first, int64_t rows, void *inner, void *part) {
  static tfu_kernel kernel = {.module = &module, .name = "expert_sum"};
  const tfu_tensor *in = call->in;
  const int64_t size = (int64_t)tfu_dtype_size(in[0].dtype);
  const int64_t *numbers = (const int64_t *)in[TFU_EXPERTS_NUMBERS].data + first * s->top_k;
  expert_product_args a = {.x = (const char *)in[TFU_EXPERTS_X].data + first * s->width * size,
                           .kernel = in[TFU_EXPERTS_GATE].data,
                           .up = tfu_given_data(&in[TFU_EXPERTS_UP]),
                           .y = inner,
                           .numbers = numbers,
                           .inputs = s->width,
                           .outputs = s->inner,
                           .pitch = in[TFU_EXPERTS_GATE].shape.dim[2],
                           .pairs = (int)(rows * s->top_k),
                           .share = (int)s->top_k,
                           .activation = (int)call->attr[TFU_EXPERTS_ACTIVATION].i};
  if (!a.up) a.up = (const char *)a.kernel + s->inner * size;
  TFU_TRY(product(call, a, s->experts));
  a = (expert_product_args){.x = inner,
                            .kernel = in[TFU_EXPERTS_DOWN].data,
                            .y = part,
                            .numbers = numbers,
                            .inputs = s->inner,
                            .outputs = s->outputs,
                            .pitch = s->outputs,
                            .pairs = a.pairs,
                            .share = 1};
  TFU_TRY(product(call, a, s->experts));
  const char *residual = tfu_given_data(&in[TFU_EXPERTS_RESIDUAL]);
  expert_sum_args sum = {.weights = (const char *)in[TFU_EXPERTS_WEIGHTS].data + first * s->top_k * size,
                         .part = part,
                         .residual = residual ? residual + first * s->outputs * size : NULL,
                         .numbers = numbers,
                         .y = (char *)call->out[0].data + first * s->outputs * size,
                         .elements = rows * s->outputs,
                         .outputs = s->outputs,
                         .top_k = (int)s->top_k,
                         .experts = (int)s->experts};
  return tfu_launch(call, &kernel, 0, in[0].dtype, grid_of(sum.elements), &sum);
}

static tfu_code by_routes(tfu_call *call, const sizes *s) {
  const int64_t most = least(EXPERTS_MOST / s->top_k, s->rows), pairs = most * s->top_k;
  const size_t size = tfu_dtype_size(call->in[0].dtype);
  void *inner, *part;
  TFU_TRY(tfu_scratch(call, (size_t)(pairs * s->inner) * size, &inner));
  TFU_TRY(tfu_scratch(call, (size_t)(pairs * s->outputs) * size, &part));
  call->kernel = "routed rows";
  for (int64_t first = 0; first < s->rows; first += most)
    TFU_TRY(routed(call, s, first, least(most, s->rows - first), inner, part));
  return TFU_OK;
}

static tfu_code one_by_one(tfu_call *call, const sizes *s) {
  static tfu_kernel kernel = {.module = &module, .name = "expert_add"};
  expert_parts parts = {.linear = tfu_linear_gpu, .gated = tfu_gated_gpu};
  const tfu_tensor *in = call->in;
  tfu_tensor part = call->out[0];
  expert_add_args a = {.weights = in[TFU_EXPERTS_WEIGHTS].data,
                       .residual = tfu_given_data(&in[TFU_EXPERTS_RESIDUAL]),
                       .numbers = in[TFU_EXPERTS_NUMBERS].data,
                       .y = call->out[0].data,
                       .elements = s->rows * s->outputs,
                       .outputs = s->outputs,
                       .top_k = (int)s->top_k,
                       .experts = (int)s->experts};
  TFU_REQUIRE(call->err, s->top_k <= INT_MAX && s->experts <= INT_MAX, "there are too many experts");
  TFU_TRY(tfu_scratch(call, (size_t)a.elements * tfu_dtype_size(tfu_real(part.dtype)), &a.sum));
  TFU_TRY(tfu_scratch_like(call, part, &part));
  TFU_TRY(tfu_expert_open(call, s->rows, &parts));
  a.part = part.data;
  for (int64_t e = 0; e < s->experts; e++) {
    a.expert = (int)e;
    TFU_TRY(tfu_expert(call, &parts, e, in[TFU_EXPERTS_X], part));
    TFU_TRY(tfu_launch(call, &kernel, 0, part.dtype, grid_of(a.elements), &a));
  }
  call->kernel = "one expert after the other";
  return TFU_OK;
}

tfu_code tfu_experts_gpu(tfu_call *call) {
  const sizes s = sizes_of(call);
  return is_routed(call, &s) ? by_routes(call, &s) : one_by_one(call, &s);
}
