#include <string.h>

#include "ops/staging/slots.h"

tfu_code tfu_stage_cpu(tfu_call *call) {
  const tfu_tensor *memory = &call->out[0];
  return tfu_slot_give(call->attr[TFU_STAGE_SLOT].i, memory->data, (size_t)call->attr[TFU_STAGE_BYTES].i, NULL,
                       call->err);
}

tfu_code tfu_unstage_cpu(tfu_call *call) {
  const tfu_slot *slot;
  TFU_TRY(tfu_slot_check(call, &slot));
  for (int i = 0; i < slot->n; i++)
    if (slot->tensor[i].bytes)
      memcpy(call->lists->out[0].at[i].data, (const char *)slot->memory + slot->tensor[i].at, slot->tensor[i].bytes);
  return TFU_OK;
}
