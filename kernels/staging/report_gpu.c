#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/transfer.h"
#include "ops/staging/reports.h"

tfu_code tfu_report_gpu(tfu_call *call) {
  const tfu_list *x = &call->lists->in[0];
  tfu_reported *report;
  TFU_TRY(tfu_report_next(call, &report));
  if (!report->transfer) TFU_TRY(tfu_transfer_open(&report->transfer, sizeof report->numbers, call->stream, call->err));
  size_t at = 0;
  for (int i = 0; i < x->n; at += tfu_report_bytes(&x->at[i++]))
    TFU_TRY(tfu_transfer_fetch(report->transfer, call->stream, at, x->at[i].data,
                               (size_t)tfu_count(&x->at[i].shape) * tfu_dtype_size(x->at[i].dtype), call->err));
  TFU_TRY(tfu_transfer_fetched(report->transfer, call->stream, call->err));
  TFU_TRY(tfu_clear(call, call->lists->out[0].at->data, sizeof(float)));
  call->kernel = "copy";
  tfu_report_publish(call);
  return TFU_OK;
}
