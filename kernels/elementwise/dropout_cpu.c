/* dropout on the CPU: element by element, in tiles; the mask comes from seed and place alone (kernels/core/philox.h).
 */
#ifndef REAL
#include "kernels/core/cpu/channels_cpu.h"
#include "kernels/core/cpu/rows_cpu.h"

#define TFU_SELF "kernels/elementwise/dropout_cpu.c"
#include "kernels/core/cpu/stamp.h"

tfu_code tfu_dropout_cpu(tfu_call *call) {
  static const tfu_channels op = TFU_CHANNELS_OP(1, 0, 1, 0);
  const tfu_drop drop = tfu_drop_of(&call->in[1], call->attr[0].f);
  return tfu_channels_cpu_call(call, &op, drop_f32, drop_f64, &drop);
}

#else

static void FN(drop)(const FN(tfu_channel_tile) * t) { FN(tfu_drop_tile)(t->with, t->y[0], t->x[0], t->at, t->n); }
#endif
