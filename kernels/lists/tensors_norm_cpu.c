/* Tasks are chunks of the list, so what a task sums depends on the sizes alone: the same bits for any number of
 * threads. */
#ifndef REAL
#include <math.h>

#include "kernels/core/cpu/cpu.h"
#include "kernels/lists/tensors_cpu.h"

typedef struct norms {
  const tfu_list *x;
  tensors_chunks_cpu chunks;
  double *sums; /* by chunk */
  unsigned char *bad;
} norms;

typedef struct clipping {
  const tfu_list *x, *y;
  const tfu_tensor *norm, *clip;
  tensors_chunks_cpu chunks;
} clipping;

#define TFU_SELF "kernels/lists/tensors_norm_cpu.c"
#include "kernels/core/cpu/stamp.h"

static void set(const tfu_tensor *t, int64_t at, double value) {
  if (t->dtype == TFU_F64) ((double *)t->data)[at] = value;
  else ((float *)t->data)[at] = (float)value;
}

tfu_code tfu_tensors_norm_cpu(tfu_call *call) {
  const tfu_list *x = &call->lists->in[0], *out = call->lists->out;
  norms m = {.x = x};
  TFU_TRY(tensors_chunks_open(call, x, &m.chunks));
  TFU_SCRATCH(call, m.chunks.n, m.sums);
  TFU_SCRATCH(call, m.chunks.n, m.bad);
  tfu_parallel(m.chunks.n, x->at->dtype == TFU_F64 ? square_f64 : square_f32, &m);
  double all = 0;
  int bad = 0;
  for (int i = 0; i < x->n; i++) {
    double sum = 0;
    for (int64_t c = m.chunks.first[i]; c < m.chunks.first[i + 1]; c++) sum += m.sums[c], bad |= m.bad[c];
    set(out[1].at, i, sqrt(sum));
    all += sum;
  }
  set(out[0].at, 0, sqrt(all));
  *(unsigned char *)out[2].at->data = !bad;
  return TFU_OK;
}

tfu_code tfu_clip_by_tensors_norm_cpu(tfu_call *call) {
  const tfu_list *in = call->lists->in;
  clipping m = {.x = &in[0], .y = &call->lists->out[0], .norm = in[1].at, .clip = in[2].at};
  TFU_TRY(tensors_chunks_open(call, m.x, &m.chunks));
  tfu_parallel(m.chunks.n, m.norm->dtype == TFU_F64 ? clip_f64 : clip_f32, &m);
  return TFU_OK;
}

#else
/* Lanes are summed apart, so that the loop is vectorised without changing the order from build to build. */
static void FN(square)(void *arg, int64_t task) {
  enum { LANES = 16 };
  norms *m = arg;
  const tensors_piece p = tensors_piece_of(&m->chunks, m->x, task);
  const tfu_tensor *x = &m->x->at[p.tensor];
  REAL buffer[TFU_TILE];
  double sum = 0;
  int bad = 0;
  for (TFU_EACH_TILE(at, left, p.begin, p.end)) {
    const int n = (int)left;
    const REAL *v = FN(tfu_load)(x->data, x->dtype, at, n, buffer);
    REAL lanes[LANES] = {0}, odd[LANES] = {0}; /* v - v is 0, or NaN where v is not finite */
    int i = 0;
    for (; i + LANES <= n; i += LANES)
      for (int k = 0; k < LANES; k++) lanes[k] += v[i + k] * v[i + k], odd[k] += v[i + k] - v[i + k];
    for (; i < n; i++) lanes[0] += v[i] * v[i], odd[0] += v[i] - v[i];
    for (int k = 0; k < LANES; k++) sum += (double)lanes[k], bad |= odd[k] != 0;
  }
  m->sums[task] = sum;
  m->bad[task] = (unsigned char)bad;
}

static void FN(clip)(void *arg, int64_t task) {
  const clipping *m = arg;
  const tensors_piece p = tensors_piece_of(&m->chunks, m->x, task);
  const tfu_tensor *x = &m->x->at[p.tensor], *out = &m->y->at[p.tensor];
  const REAL norm = *(const REAL *)m->norm->data, clip = *(const REAL *)m->clip->data;
  const REAL scale = clip * (1 / norm < 1 / clip ? 1 / norm : 1 / clip) + (norm - norm);
  REAL buffer[2][TFU_TILE];
  for (TFU_EACH_TILE(at, left, p.begin, p.end)) {
    const int n = (int)left;
    const REAL *v = FN(tfu_load)(x->data, x->dtype, at, n, buffer[0]);
    REAL *y = FN(tfu_room)(out->data, out->dtype, at, buffer[1]);
    TFU_VECTORISED(i, n) y[i] = v[i] * scale;
    FN(tfu_store)(out->data, out->dtype, at, n, y);
  }
}
#endif
