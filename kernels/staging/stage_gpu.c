#include "kernels/core/gpu/transfer.h"
#include "ops/staging/slots.h"

tfu_code tfu_stage_gpu(tfu_call *call) {
  const size_t bytes = (size_t)call->attr[TFU_STAGE_BYTES].i;
  struct tfu_transfer *transfer;
  TFU_TRY(tfu_transfer_open(&transfer, bytes, call->stream, call->err));
  const tfu_code code = tfu_slot_give(call->attr[TFU_STAGE_SLOT].i, call->out[0].data, bytes, transfer, call->err);
  if (code != TFU_OK) tfu_transfer_close(transfer);
  call->kernel = "page-locked memory";
  return code;
}

tfu_code tfu_unstage_gpu(tfu_call *call) {
  const tfu_slot *slot;
  TFU_TRY(tfu_slot_check(call, &slot));
  TFU_TRY(tfu_transfer_await(slot->transfer, call->stream, call->err));
  for (int i = 0; i < slot->n; i++)
    TFU_TRY(tfu_transfer_take(call->stream, call->lists->out[0].at[i].data,
                              (const char *)slot->memory + slot->tensor[i].at, slot->tensor[i].bytes, call->err));
  call->kernel = "copy";
  return tfu_transfer_taken(slot->transfer, call->stream, call->err);
}
