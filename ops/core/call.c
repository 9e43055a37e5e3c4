/* call.c - one run of an op, the same whichever binding it came through. */
#include <stdio.h>
#include <string.h>

#include "bind.h"
#include "kernels/core/cpu/pages.h"
#include "kernels/core/cpu/parallel.h"

int tfu_args(const char *const *list) {
  int n = 0;
  while (list[n]) n++;
  return n;
}

tfu_code tfu_check_rank(const char *argument, int64_t rank, tfu_error *err) {
  TFU_REQUIRE(err, rank <= TFU_MAX_RANK, "%s has %d dimensions, at most %d are supported: reshape it", argument,
              (int)rank, TFU_MAX_RANK);
  return TFU_OK;
}

tfu_code tfu_view(const char *argument, void *data, int64_t rank, const int64_t *dims, int number, const int *numbers,
                  int count, tfu_tensor *t, tfu_error *err) {
  TFU_TRY(tfu_check_rank(argument, rank, err));
  *t = (tfu_tensor){.data = data, .shape.rank = (int)rank};
  for (int i = 0; i < rank; i++) t->shape.dim[i] = dims[i];
  while ((int)t->dtype < count && numbers[t->dtype] != number) t->dtype++;
  if ((int)t->dtype < count) return TFU_OK;
  return tfu_fail(err, TFU_UNIMPLEMENTED, "%s has dtype number %d, which is not supported", argument, number);
}

tfu_code tfu_infer_shapes(tfu_call *call, tfu_shape *own, const tfu_shape **shapes) {
  tfu_shape in[TFU_MAX_ARGS];
  *shapes = call->lists ? call->lists->shapes : own;
  if (call->lists) return call->op->lists(call->lists, call->attr, call->err);
  for (int i = 0; call->op->in[i]; i++) in[i] = call->in[i].shape;
  return call->op->shape(in, own, call->attr, call->err);
}

tfu_code tfu_infer(tfu_call *call, tfu_shape *own, int64_t *elements) {
  const tfu_shape *shapes;
  int outputs;
  TFU_TRY(tfu_infer_shapes(call, own, &shapes));
  (void)tfu_outputs(call, &outputs);
  *elements = 0;
  for (int i = 0; i < outputs; i++) {
    int64_t n = 1, bytes;
    for (int d = 0; d < shapes[i].rank; d++)
      if (__builtin_mul_overflow(n, shapes[i].dim[d], &n)) n = INT64_MAX;
    if (__builtin_mul_overflow(n, (int64_t)(2 * sizeof(double)), &bytes) ||
        __builtin_add_overflow(*elements, n, elements))
      return tfu_fail(call->err, TFU_EXHAUSTED, "output %s of shape %s is larger than any memory",
                      tfu_output_name(call, i), tfu_show(&shapes[i]).text);
  }
  return TFU_OK;
}

static tfu_code check_list(const tfu_call *call, const char *const *names, const tfu_tensor *tensors) {
  const tfu_dtype type = call->in[0].dtype, wanted = tfu_real(type);
  for (int i = 0; names[i]; i++) {
    const char *colon = strchr(names[i], ':');
    const int kept = colon && !strcmp(colon, ": K"), real = colon && !strcmp(colon, ": S");
    if ((kept || real) && tensors[i].dtype != wanted && !(kept && tensors[i].dtype == type))
      return tfu_fail(call->err, TFU_INVALID, "%.*s must be %s%s where %.*s is %s, got %s", (int)(colon - names[i]),
                      names[i], tfu_dtype_name(wanted), kept ? " or the same" : "", (int)strcspn(call->op->in[0], ":"),
                      call->op->in[0], tfu_dtype_name(type), tfu_dtype_name(tensors[i].dtype));
  }
  return TFU_OK;
}

tfu_code tfu_check_reals(const tfu_call *call) {
  if (call->lists) return TFU_OK;
  TFU_TRY(check_list(call, call->op->in, call->in));
  return check_list(call, call->op->out, call->out);
}

tfu_code tfu_execute(tfu_call *call, const char *route, int gpu) {
  const char *missing = gpu ? NULL : tfu_cpu_missing();
  if (missing) return tfu_fail(call->err, TFU_UNIMPLEMENTED, "%s", missing);
  TFU_TRY(tfu_check_reals(call));
  int outputs;
  const tfu_tensor *out = tfu_outputs(call, &outputs);
  for (int i = 0; !gpu && i < outputs; i++)
    tfu_large_pages(out[i].data, (size_t)tfu_count(&out[i].shape) * tfu_dtype_size(out[i].dtype));
  TFU_TRY((gpu ? call->op->gpu : call->op->cpu)(call));
  if (!call->op->stateful) tfu_trace(call, route, gpu); /* those move what other ops compute with */
  return TFU_OK;
}

tfu_code tfu_scratch(tfu_call *call, size_t bytes, void **memory) {
  if (tfu_try_scratch(call, bytes, memory)) return TFU_OK;
  return tfu_fail(call->err, TFU_EXHAUSTED, "out of memory allocating %zu bytes of scratch", bytes);
}

int tfu_has_scratch(const tfu_call *call, size_t bytes) { return !call->captured || bytes <= call->room; }

int tfu_try_scratch(tfu_call *call, size_t bytes, void **memory) {
  if (!tfu_has_scratch(call, bytes)) return 0;
  *memory = bytes ? call->allocate(call, bytes) : NULL;
  return *memory || !bytes;
}

tfu_error_text tfu_show_error(const tfu_op *op, const tfu_error *err) {
  tfu_error_text t;
  snprintf(t.text, sizeof t.text, "%s: %s", op->name, err->text);
  return t;
}
