/* conv_cudnn.c - convolutions by cuDNN, with an engine that conv_choose.c chooses. */
#include "kernels/convolution/conv_cudnn.h"

#include "kernels/convolution/conv_choose.h"
#include "kernels/convolution/conv_weights.h"
#include "kernels/core/gpu/cuda.h"
#include "kernels/layout/transpose.h"

static const char no_room[] = "cuDNN wants more scratch memory than there is";

/* The matrix [rows][cols] from its transpose. */
static tfu_permutation permutation_of(int64_t rows, int64_t cols) {
  return (tfu_permutation){.axes = 2, .size = {rows, cols}, .from = {1, rows}, .to = {cols, 1}};
}

/* The bias where there is none, but something after it. */
static tfu_code zero_bias(conv_request *r) {
  const size_t bytes = (size_t)(r->key.groups * r->key.k) * tfu_dtype_size((tfu_dtype)r->key.dtype);
  if (!(r->key.epilogue & CONV_ADDS_BIAS) || r->a->bias) return TFU_OK;
  TFU_TRY(tfu_scratch(r->call, bytes, &r->memory[CONV_AT_BIAS]));
  return tfu_clear(r->call, r->memory[CONV_AT_BIAS], bytes);
}

/* Whether there is memory for the kernel as cuDNN takes it, where that differs from ours. */
static int has_transposed(conv_request *r) {
  const conv_shape *s = &r->a->s;
  const int64_t rows = conv_volume(s->window) * s->c, outputs = s->groups * s->k;
  return (!r->a->wide && (rows == 1 || outputs == 1)) ||
         tfu_conv_try_scratch(r, rows * outputs * (int64_t)tfu_dtype_size((tfu_dtype)r->key.dtype),
                              &r->memory[CONV_AT_KERNEL]);
}

/* Before the run, or after it where the kernel is what was asked for. */
static tfu_code transpose_kernel(conv_request *r, int after) {
  const conv_shape *s = &r->a->s;
  const int64_t rows = conv_volume(s->window) * s->c, outputs = s->groups * s->k;
  const int64_t size = (int64_t)tfu_dtype_size((tfu_dtype)r->key.dtype);
  void *ours = r->a->kernel, *transposed = r->memory[CONV_AT_KERNEL];
  if (ours == transposed || after != (r->key.pass == CONV_FILTER)) return TFU_OK;
  if (r->a->wide)
    return tfu_conv_weights_transpose(r->call, (tfu_dtype)r->key.dtype, after, rows, outputs, ours, transposed);
  return after ? tfu_permute_gpu(r->call, permutation_of(rows, outputs), transposed, ours, size)
               : tfu_permute_gpu(r->call, permutation_of(outputs, rows), ours, transposed, size);
}

/* A plan, and its workspace; NULL where either is not to be had. */
static tfu_planned *plan_with_space(conv_request *r, int config) {
  tfu_planned *p = tfu_conv_plan(r, config);
  if (!p || tfu_conv_has_workspace(r, p->graph->workspace)) return p;
  tfu_conv_plan_put(p, NULL);
  return NULL;
}

/* The chosen plan or, where its workspace is not to be had, one that needs less; NULL where that is not either. Plans
 * may be made here, also while the call is captured. That relu keeps NaN is known of those that were chosen only. */
static tfu_planned *prepare(conv_request *r, const char **label, const char **why) {
  tfu_choice choice;
  const int mode = r->call->captured ? tfu_capture_relax() : 0;
  tfu_planned *p = NULL;
  *label = tfu_tuned_get(&tfu_conv_tuner, &r->key, r, &choice);
  if (!choice.none) {
    const conv_choice c = tfu_conv_chosen_of(&choice);
    p = plan_with_space(r, c.best);
    if (!p) *label = NULL;
    if (!p && c.small >= 0) p = plan_with_space(r, c.small);
  }
  if (!p && r->short_of_memory && !(r->key.epilogue & CONV_RELU)) p = plan_with_space(r, CONV_LEAST_SPACE);
  *why = r->short_of_memory        ? no_room
         : tfu_conv_exact(&r->key) ? "cuDNN has no plan for it that is as exact as tfuse's own kernel"
                                   : "cuDNN has no plan for it";
  if (r->call->captured) tfu_capture_restore(mode);
  return p;
}

static tfu_code serve(conv_request *r, int *served, const char **why) {
  const char *label;
  TFU_TRY(zero_bias(r));
  *why = no_room;
  if (!has_transposed(r)) return TFU_OK;
  TFU_TRY(transpose_kernel(r, 0));
  tfu_planned *p = prepare(r, &label, why);
  if (!p) return TFU_OK;
  *served = 1;
  r->call->kernel = label ? label : "cuDNN convolution";
  const tfu_code code = tfu_graph_run(p->graph, r->handle->handle, r->memory, r->workspace, r->call->err);
  tfu_conv_plan_put(p, r->call);
  return code == TFU_OK ? transpose_kernel(r, 1) : code;
}

tfu_code tfu_conv_cudnn(tfu_call *call, conv_pass pass, tfu_dtype dtype, int tf32, const conv_args *a, int *served,
                        const char **why) {
  conv_request r = {.call = call,
                    .a = a,
                    .memory = {[CONV_AT_X] = a->x,
                               [CONV_AT_KERNEL] = a->kernel,
                               [CONV_AT_Y] = a->y,
                               [CONV_AT_BIAS] = (void *)a->bias,
                               [CONV_AT_RESIDUAL] = (void *)a->residual}};
  tfu_device device;
  tfu_error ignored;
  *served = 0;
  r.dnn = tfu_cudnn_get(why);
  if (!r.dnn) return TFU_OK;
  TFU_TRY(tfu_device_now(&device, call->err));
  if ((*why = tfu_conv_key_of(a, pass, dtype, tf32, device.ordinal, &r.key))) return TFU_OK;
  *why = "cuDNN cannot be started";
  const int mode = call->captured ? tfu_capture_relax() : 0;
  const tfu_code started = tfu_cudnn_borrow(r.dnn, call->stream, &r.handle, &ignored);
  if (call->captured) tfu_capture_restore(mode);
  if (started != TFU_OK) return TFU_OK;
  const tfu_code code = serve(&r, served, why);
  tfu_cudnn_return(r.handle);
  return code;
}
