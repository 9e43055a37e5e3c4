#include "kernels/scans/scan.h"

tfu_code tfu_scanned_of(tfu_call *call, tfu_scanned *s) {
  const int recurs = call->op == &tfu_scan_recurrence;
  const tfu_value *attr = recurs ? call->attr : call->attr + 1;
  const tfu_shape *x = &call->in[0].shape;
  const int axis = (int)(attr[0].i < 0 ? attr[0].i + x->rank : attr[0].i);
  *s = (tfu_scanned){.kind = recurs ? TFU_SCAN_RECURRENCE : (int)call->attr[0].i,
                     .exclusive = attr[1].b,
                     .reverse = attr[2].b,
                     .outer = 1,
                     .length = x->dim[axis],
                     .inner = 1};
  for (int i = 0; i < axis; i++) s->outer *= x->dim[i];
  for (int i = axis + 1; i < x->rank; i++) s->inner *= x->dim[i];
  TFU_REQUIRE(call->err, s->kind < TFU_SCAN_LSE || call->in[0].dtype < TFU_FLOATS,
              "x must be a float for kind 'logsumexp', got %s", tfu_dtype_name(call->in[0].dtype));
  return TFU_OK;
}
