#include "kernels/reductions/reduce.h"

/* reduce.cu has the kernels. */
tfu_code tfu_arg_reduce_gpu(tfu_call *call) {
  const tfu_tensor *x = &call->in[0];
  const int64_t axis = call->attr[1].i < 0 ? call->attr[1].i + x->shape.rank : call->attr[1].i;
  const tfu_groups groups = tfu_groups_of(&x->shape, 1u << axis);
  return tfu_reduce_launch(call, x, &groups, TFU_REDUCE_ARG, call->attr[0].i == 1, &call->out[0], NULL);
}
