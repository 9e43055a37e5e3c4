#ifndef REAL
#include "kernels/core/cpu/map_cpu.h"

typedef struct map {
  tfu_call *call;
  tfu_map_f32 *loop_f32;
  tfu_map_f64 *loop_f64;
  int64_t n, task;
} map;

#define TFU_SELF "kernels/core/cpu/map_cpu.c"
#include "kernels/core/cpu/stamp.h"

tfu_code tfu_map_cpu(tfu_call *call, tfu_map_f32 *f32, tfu_map_f64 *f64) {
  map m = {.call = call, .loop_f32 = f32, .loop_f64 = f64, .n = tfu_count(&call->out[0].shape)};
  m.task = tfu_task_size(m.n, TFU_TILE);
  tfu_parallel((m.n + m.task - 1) / m.task, call->in[0].dtype == TFU_F64 ? task_f64 : task_f32, &m);
  return TFU_OK;
}

#else
static void FN(task)(void *arg, int64_t task) {
  const map *m = arg;
  const tfu_tensor *in = m->call->in, *out = m->call->out;
  const int64_t end = (task + 1) * m->task < m->n ? (task + 1) * m->task : m->n;
  REAL buffer[3][TFU_TILE], *y;
  const REAL *x[2] = {NULL, NULL};
  int steady[2] = {1, 1}; /* the same values for every tile */
  for (int i = 0; i < 2 && m->call->op->in[i]; i++) {
    steady[i] = in[i].shape.rank == 0;
    if (!steady[i]) continue;
    const REAL one = *FN(tfu_load)(in[i].data, in[i].dtype, 0, 1, buffer[i]);
    for (int k = 0; k < TFU_TILE; k++) buffer[i][k] = one;
    x[i] = buffer[i];
  }
  for (int64_t at = task * m->task; at < end; at += TFU_TILE) {
    const int n = end - at < TFU_TILE ? (int)(end - at) : TFU_TILE;
    for (int i = 0; i < 2; i++)
      if (!steady[i]) x[i] = FN(tfu_load)(in[i].data, in[i].dtype, at, n, buffer[i]);
    y = FN(tfu_room)(out[0].data, out[0].dtype, at, buffer[2]);
    m->FN(loop)(y, x[0], x[1], n);
    FN(tfu_store)(out[0].data, out[0].dtype, at, n, y);
  }
}
#endif
