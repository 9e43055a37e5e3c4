#include "kernels/core/gpu/cuda.h"
#include "kernels/reductions/reduce.h"

TFU_MODULE(reduce_grad);
static tfu_kernel pairs = {.module = &module, .name = "reduce_pairs"};
static tfu_kernel gradient = {.module = &module, .name = "reduce_grad"};

static unsigned blocks(int64_t n, int64_t each) { return (unsigned)((n + each - 1) / each); }

tfu_code tfu_reduce_grad_gpu(tfu_call *call) {
  const tfu_tensor *dy = &call->in[0], *x = &call->in[1];
  const tfu_dtype real = tfu_real(x->dtype);
  unsigned reduced;
  TFU_TRY(tfu_reduced_axes(&x->shape, call->attr[1].i, &reduced, call->err));
  const tfu_groups g = tfu_groups_of(&x->shape, reduced);
  const int kind = (int)call->attr[0].i;
  reduce_pairs_args p = {.dy = dy->data, .n = tfu_count(&dy->shape), .all = 1, .kind = kind, .from = x->dtype};
  for (int i = 0; i < g.n; i++) p.all *= g.reduced[i];
  void *states;
  TFU_TRY(tfu_reduce_launch(call, x, &g, kind, kind == TFU_REDUCE_MIN, NULL, &states));
  p.states = states;
  TFU_TRY(tfu_scratch(call, 2 * (size_t)p.n * tfu_dtype_size(real), &p.pairs));
  tfu_grid grid = {.x = blocks(p.n, TFU_REDUCE_THREADS), .threads = TFU_REDUCE_THREADS};
  TFU_TRY(tfu_launch(call, &pairs, 0, TFU_F32, grid, &p));

  reduce_grad_args a = {.dx = call->out[0].data,
                        .x = x->data,
                        .pairs = p.pairs,
                        .n = tfu_count(&x->shape),
                        .kept_last = g.kept[g.n] != 1 || g.n == 0,
                        .kind = kind,
                        .from = x->dtype,
                        .aligned = (uintptr_t)x->data % 8 == 0};
  for (int i = g.n; i >= 0; i--) {
    if (i < g.n || a.kept_last) a.size[a.groups++] = g.kept[i];
    if (i > 0) a.size[a.groups++] = g.reduced[i - 1];
  }
  enum { AHEAD = 4 };
  grid.x = blocks(a.n, (int64_t)AHEAD * TFU_REDUCE_THREADS * (real == TFU_F32 ? 2 : 1));
  return tfu_launch(call, &gradient, 0, real, grid, &a);
}
