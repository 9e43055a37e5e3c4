#include "ops/jit/jit.h"

#include "ops/core/bind.h"

TFU_EXPORT const char *tfu_jit_status(void) { return ""; }
TFU_EXPORT const char *tfu_jit_folder(void) { return ""; }
TFU_EXPORT int tfu_jit_info(const char *a, const char *b, int c, char *d, size_t e) {
  (void)a, (void)b, (void)c, (void)d, (void)e;
  return 0;
}
tfu_code tfu_jit_gpu(tfu_call *call) { return tfu_fail(call->err, TFU_UNIMPLEMENTED, "not yet"); }
