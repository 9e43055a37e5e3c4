#include "serving/triton/batch.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

uint64_t tfu_nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- join ---- */

/* Whether two requests can be rows of one batch. */
static int fit(const tfu_request *a, const tfu_request *b, const tfu_config *c, const tfu_signature *s) {
  for (int i = 0; i < s->inputs; i++) {
    const tfu_shape *x = &a->in[i].shape, *y = &b->in[i].shape;
    const int axis = tfu_config_axis(c, s->input[i].name);
    if (x->rank != y->rank) return 0;
    for (int k = 1; k < x->rank; k++)
      if (k != axis && x->dim[k] != y->dim[k]) return 0;
  }
  return 1;
}

/* Padding may make what was given so many times as large, and some bytes more: beyond that, one long request would have
 * the memory, and the time, of as many long ones as there are requests. */
enum { MOST_TIMES = 4, MOST_BYTES_MORE = 4 << 20 };

/* Dtypes and shapes of the joined arrays, before any of them is made; an error where they are too large. */
static tfu_code plan(const tfu_config *c, const tfu_signature *s, tfu_request *const *r, int n, tfu_array *all,
                     tfu_error *err) {
  size_t elements, bytes, given = 0, joined = 0;
  for (int i = 0; i < s->inputs; i++) {
    const int dtype = s->input[i].dtype, axis = tfu_config_axis(c, s->input[i].name);
    tfu_shape *shape = &all[i].shape;
    all[i].dtype = dtype;
    *shape = r[0]->in[i].shape;
    shape->dim[0] = 0;
    for (int k = 0; k < n; k++) {
      const tfu_shape *x = &r[k]->in[i].shape;
      if (__builtin_add_overflow(shape->dim[0], r[k]->rows, &shape->dim[0]))
        return tfu_fail(err, TFU_EXHAUSTED, "the batch is too long");
      if (axis && x->dim[axis] > shape->dim[axis]) shape->dim[axis] = x->dim[axis];
      TFU_TRY(tfu_array_size(dtype, x, &elements, &bytes, err));
      given += bytes;
    }
    TFU_TRY(tfu_array_size(dtype, shape, &elements, &bytes, err));
    joined = bytes < SIZE_MAX - joined ? joined + bytes : SIZE_MAX;
  }
  if (joined > MOST_TIMES * given + MOST_BYTES_MORE || (c->max_bytes && joined > (size_t)c->max_bytes))
    return tfu_fail(err, TFU_EXHAUSTED, "the inputs are %zu bytes, and in one batch %zu", given, joined);
  return TFU_OK;
}

/* Puts a request's rows into the joined array, from `row` on. What is longer there along the ragged axis stays as it
 * is. */
static void put_rows(tfu_array *all, int64_t row, const tfu_array *x, int axis) {
  const size_t size = tfu_tf_dtype_size(x->dtype);
  size_t blocks = 1, block = size, stride = size, of_row = size;
  for (int i = 0; i < axis; i++) blocks *= (size_t)x->shape.dim[i];
  for (int i = axis; i < x->shape.rank; i++) {
    block *= (size_t)x->shape.dim[i];
    stride *= (size_t)all->shape.dim[i];
  }
  for (int i = 1; i < x->shape.rank; i++) of_row *= (size_t)all->shape.dim[i];
  char *to = (char *)all->data + (size_t)row * of_row;
  if (!block) return;
  for (size_t i = 0; i < blocks; i++) memcpy(to + i * stride, (const char *)x->data + i * block, block);
}

/* Joins the i-th inputs in an array as it was planned. */
static tfu_code join_input(const tfu_config *c, const tfu_signature *s, int i, tfu_request *const *r, int n,
                           tfu_array *all, tfu_error *err) {
  const int axis = tfu_config_axis(c, s->input[i].name);
  const tfu_shape shape = all->shape;
  size_t elements, bytes;
  int padded = 0;
  for (int k = 0; axis && k < n; k++) padded |= r[k]->in[i].shape.dim[axis] != shape.dim[axis];
  TFU_TRY(tfu_array_size(all->dtype, &shape, &elements, &bytes, err));
  if (all->dtype == TFU_TF_STRING) {
    all->data = calloc(elements + 1, sizeof(tfu_text));
    if (!all->data) return tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
  } else {
    TFU_TRY(tfu_array_new(all->dtype, &shape, all, err));
    if (padded) memset(all->data, 0, bytes);
  }
  int64_t row = 0;
  for (int k = 0; k < n; k++) {
    put_rows(all, row, &r[k]->in[i], axis);
    row += r[k]->rows;
  }
  return TFU_OK;
}

static void free_joined(tfu_array *all, int n) {
  for (int i = 0; i < n; i++) {
    if (!all[i].held) free(all[i].data);
    tfu_array_free(&all[i]);
  }
}

static tfu_code run_joined(tfu_model *model, const tfu_config *c, const tfu_signature *s, tfu_request *const *r, int n,
                           tfu_array *out, uint64_t *begin, tfu_error *err) {
  if (n == 1) { /* as they are */
    if (!r[0]->is_copied && !r[0]->lease) tfu_request_lend(r[0], s);
    *begin = tfu_nanoseconds();
    return tfu_model_run(model, s, r[0]->in, out, err);
  }
  tfu_array *all = calloc((size_t)s->inputs + 1, sizeof *all);
  if (!all) return tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
  tfu_code code = plan(c, s, r, n, all, err);
  for (int i = 0; code == TFU_OK && i < s->inputs; i++) code = join_input(c, s, i, r, n, &all[i], err);
  *begin = tfu_nanoseconds();
  if (code == TFU_OK) code = tfu_model_run(model, s, all, out, err);
  free_joined(all, s->inputs);
  free(all);
  return code;
}

/* ---- run and answer ---- */

/* Runs some together and answers them, or says why not and answers none. */
static tfu_code run_some(tfu_model *model, const tfu_config *c, const tfu_signature *s, tfu_request *const *r, int n,
                         uint64_t *begin, uint64_t *end, tfu_error *err) {
  int64_t row = 0, rows = 0;
  tfu_array *out = calloc((size_t)s->outputs, sizeof *out);
  if (!out) return tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
  const tfu_code code = run_joined(model, c, s, r, n, out, begin, err);
  *end = tfu_nanoseconds();
  if (code == TFU_OK) {
    for (int i = 0; i < n; i++) rows += r[i]->rows;
    for (int i = 0; i < n; i++) {
      tfu_request_answer(r[i], c, s, out, row, rows, TRITONSERVER_RESPONSE_COMPLETE_FINAL);
      row += r[i]->rows;
    }
    for (int i = 0; i < s->outputs; i++) tfu_array_free(&out[i]);
  }
  free(out);
  return code;
}

int64_t tfu_batch_run(tfu_model *model, const tfu_config *c, const tfu_signature *s, tfu_request *r, uint32_t n,
                      uint64_t *begin, uint64_t *end) {
  tfu_error why;
  int64_t rows = 0;
  int good = 0, together = c->max_batch > 0;
  tfu_request **some = calloc(n + 1, sizeof *some);
  *begin = *end = tfu_nanoseconds();
  for (uint32_t i = 0; i < n; i++) {
    if (r[i].code == TFU_OK && !some) r[i].code = tfu_fail(&r[i].err, TFU_EXHAUSTED, "out of host memory");
    if (r[i].code != TFU_OK) {
      tfu_request_answer(&r[i], c, s, NULL, 0, 0, TRITONSERVER_RESPONSE_COMPLETE_FINAL);
      continue;
    }
    together &= !good || fit(some[0], &r[i], c, s);
    rows += r[i].rows;
    some[good++] = &r[i];
  }
  if (good > 1 && together && run_some(model, c, s, some, good, begin, end, &why) == TFU_OK) {
    free(some);
    return rows;
  }
  for (int i = 0; i < good; i++) {
    uint64_t again;
    const tfu_code code = run_some(model, c, s, &some[i], 1, i ? &again : begin, end, &why);
    if (code == TFU_OK) continue;
    some[i]->code = code;
    some[i]->err = why;
    tfu_request_answer(some[i], c, s, NULL, 0, 0, TRITONSERVER_RESPONSE_COMPLETE_FINAL);
  }
  free(some);
  return rows;
}
