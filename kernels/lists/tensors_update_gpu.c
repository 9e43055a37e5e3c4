#include "kernels/lists/tensors_update.h"

#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/walk.h"
#include "ops/lists/rules.h"

_Static_assert((int)HYPERS == TFU_HYPERS, "the op and the kernels count the same numbers");
_Static_assert(NEW_WEIGHT == SLOT + TFU_MOST_SLOTS && NEW_SLOT + TFU_MOST_SLOTS == TENSORS_ROLES, "roles of a table");
_Static_assert(sizeof(update_args) <= 4096, "what a kernel may take, before CUDA 12.1");

TFU_MODULE(tensors_update);

#define X(rule, slots) _Static_assert((int)UPDATE_##rule == TFU_RULE_##rule, #rule);
TFU_RULES(X)
#undef X

static const char *const gradients[] = {
    [GRADIENTS_OWN] = "own", [GRADIENTS_F16] = "f16", [GRADIENTS_BF16] = "bf16", [GRADIENTS_SQUARES] = "squares"};
static tfu_kernel adam = {.module = &module, .name = "adam", .variants = gradients}; /* of float32 */
static tfu_kernel update_any = {.module = &module, .name = "update_any"};
static tfu_kernel lamb_slots = {.module = &module, .name = "lamb_slots"};
static tfu_kernel lamb_ratio = {.module = &module, .name = "lamb_ratio"}; /* of float32 and float64 */

static tfu_code gradients_of(const tfu_call *call, tfu_dtype gradient, tfu_dtype weight, int *kind) {
  *kind = gradient == weight ? GRADIENTS_OWN : gradient == TFU_F16 ? GRADIENTS_F16 : GRADIENTS_BF16;
  if (*kind == GRADIENTS_OWN || (weight == TFU_F32 && gradient != TFU_F64)) return TFU_OK;
  return tfu_fail(call->err, TFU_UNIMPLEMENTED,
                  "gradients must be of the weights' type, or float16 or bfloat16 beside float32; got %s beside %s",
                  tfu_dtype_name(gradient), tfu_dtype_name(weight));
}

/* First the slots and the sums, then the ratio; the weights then read the new slots. */
static tfu_code prepare_lamb(tfu_call *call, update_args *a, tfu_dtype dtype, tfu_grid grid) {
  double *const ratios = a->ratios;
  a->ratios = NULL; /* not known yet */
  TFU_TRY(tfu_launch(call, &lamb_slots, 0, dtype, grid, a));
  a->ratios = ratios;
  const tfu_grid by_tensor = {.x = (unsigned)a->table.tensors, .threads = TFU_THREADS};
  TFU_TRY(tfu_launch(call, &lamb_ratio, 0, tfu_real(dtype), by_tensor, a));
  for (int i = 0; i < a->table.tensors; i++)
    for (int k = 0; k < 2; k++) a->table.at[i][SLOT + k] = a->table.at[i][NEW_SLOT + k];
  return TFU_OK;
}

tfu_code tfu_tensors_update_gpu(tfu_call *call) {
  const tfu_list *in = call->lists->in, *out = call->lists->out;
  const int rule = (int)call->attr[TFU_UPDATE_RULE].i, n = in[TFU_UPDATE_WEIGHTS].n, slots = in[TFU_UPDATE_SLOTS].n / n,
            lamb = rule == TFU_RULE_lamb;
  const tfu_dtype dtype = in[TFU_UPDATE_WEIGHTS].at->dtype;
  const tfu_tensor *lists[TENSORS_ROLES] = {
      [GRADIENT] = in[TFU_UPDATE_GRADIENTS].at, [WEIGHT] = in[TFU_UPDATE_WEIGHTS].at, [NEW_WEIGHT] = out[0].at};
  update_args a = {.rate = in[TFU_UPDATE_RATE].at->data,
                   .step = in[TFU_UPDATE_STEP].at->data,
                   .hyper = in[TFU_UPDATE_HYPER].at->data,
                   .norm = tfu_given_data(in[TFU_UPDATE_NORM].at),
                   .scale = tfu_given_data(in[TFU_UPDATE_SCALE].at),
                   .each = in[TFU_UPDATE_NORM].at->shape.rank == 1,
                   .rule = rule,
                   .slots = slots};
  TFU_TRY(gradients_of(call, in[TFU_UPDATE_GRADIENTS].at->dtype, dtype, &a.gradients));
  if (call->attr[TFU_UPDATE_SQUARES].b) a.gradients = GRADIENTS_SQUARES;
  for (int k = 0; k < TFU_MOST_SLOTS; k++) { /* one that the rule has not: the weight's own address harms nobody */
    lists[SLOT + k] = k < slots ? in[TFU_UPDATE_SLOTS].at + (size_t)k * n : in[TFU_UPDATE_WEIGHTS].at;
    lists[NEW_SLOT + k] = k < slots ? out[1].at + (size_t)k * n : in[TFU_UPDATE_WEIGHTS].at;
  }
  if (lamb) {
    TFU_SCRATCH(call, 2 * tensors_chunks(in[TFU_UPDATE_WEIGHTS].at, n) + n, a.ratios);
    a.chunks = a.ratios + n;
  }
  for (int from = 0; from < n;) {
    from = tensors_fill(&a.table, lists, TENSORS_ROLES, n, from);
    const tfu_grid grid = {.x = (unsigned)a.table.first[a.table.tensors], .threads = TFU_THREADS};
    if (!grid.x) continue;
    if (lamb) TFU_TRY(prepare_lamb(call, &a, dtype, grid));
    if (rule == TFU_RULE_adam && dtype == TFU_F32) TFU_TRY(tfu_launch(call, &adam, a.gradients, dtype, grid, &a));
    else TFU_TRY(tfu_launch(call, &update_any, 0, dtype, grid, &a));
  }
  return TFU_OK;
}
