/* What a step found, copied to the host after it. See ops/staging/reports.h. */
#include "ops/staging/reports.h"

/* TensorFlow runs an op for its outputs: this one has a zero. */
static tfu_code rule(tfu_lists *l, const tfu_value *attr, tfu_error *err) {
  (void)attr;
  TFU_REQUIRE(err, l->in[0].n <= TFU_REPORT_TENSORS, "x has %d tensors, and at most %d can be reported", l->in[0].n,
              TFU_REPORT_TENSORS);
  l->shapes[0] = (tfu_shape){.rank = 0};
  return TFU_OK;
}

const tfu_op tfu_report = {
    .name = "Report",
    .doc = "Has small tensors copied to the host, for whoever asks for them later.",
    .in = {"x: In"},
    .out = {"done: float"},
    .attr = {[TFU_REPORT_KEY] = "key: int", [TFU_REPORT_TYPES] = "In: list(type)"},
    .lists = rule,
    TFU_KERNELS(report),
    .stateful = 1,
};
