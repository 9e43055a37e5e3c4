/* Batches on their way to the device. `stage` gives memory to a slot (ops/staging/slots.h); what is put there on
 * the host's side is copied beside the work that runs, and `unstage` hands it to the work that comes next. */
#include "ops/staging/slots.h"

TFU_SHAPE_RULE(stage_rule) {
  (void)in;
  out[0] = (tfu_shape){.rank = 1, .dim = {TFU_UNKNOWN}};
  if (!attr) return TFU_OK;
  TFU_REQUIRE(err, attr[TFU_STAGE_BYTES].i > 0, "bytes must be positive, got %lld", (long long)attr[TFU_STAGE_BYTES].i);
  out[0].dim[0] = (attr[TFU_STAGE_BYTES].i + (int64_t)sizeof(float) - 1) / (int64_t)sizeof(float);
  return TFU_OK;
}

const tfu_op tfu_stage = {
    .name = "Stage",
    .doc = "Memory on the device for a slot, into which batches are put from the host.",
    .in = {NULL},
    .out = {"memory: float"},
    .attr = {[TFU_STAGE_SLOT] = "slot: int", [TFU_STAGE_BYTES] = "bytes: int"},
    .shape = stage_rule,
    TFU_KERNELS(stage),
    .stateful = 1,
};

/* What was put into the memory says the shapes. */
static tfu_code unstage_rule(tfu_lists *l, const tfu_value *attr, tfu_error *err) {
  (void)attr;
  const tfu_slot *slot = tfu_slot_of(l->in[0].at->data);
  TFU_REQUIRE(err, slot, "memory is not that of a slot, or nothing was put there");
  TFU_REQUIRE(err, slot->n == l->out[0].n, "the slot has %d tensors, and %d are asked for", slot->n, l->out[0].n);
  for (int i = 0; i < slot->n; i++) l->shapes[i] = slot->tensor[i].shape;
  return TFU_OK;
}

const tfu_op tfu_unstage = {
    .name = "Unstage",
    .doc = "The tensors of the batch that was last put into a slot's memory.",
    .in = {"memory: float"},
    .out = {"y: Out"},
    .attr = {"Out: list(type)"},
    .lists = unstage_rule,
    TFU_KERNELS(unstage),
    .stateful = 1,
};
