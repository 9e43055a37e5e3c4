/* slots.h - where batches wait between the host and the device.
 *
 * A slot has memory on the device, which the op Stage takes from TensorFlow, and page-locked memory of the same size on
 * the host. tfu_slot_put copies a batch into the second and has it copied into the first on a stream of its own, beside
 * the steps that run; the op Unstage copies it out on the stream of the step. So a batch is on the GPU before its step
 * begins, and nobody waits: TensorFlow's own copies wait for all that is queued, since their memory may still be read.
 * On the CPU both memories are one.
 *
 * A slot is used by one thread at a time, put and taken in turns; different slots by any. */
#ifndef TFUSE_SLOTS_H_
#define TFUSE_SLOTS_H_

#include "tfuse.h"

enum { TFU_STAGE_SLOT, TFU_STAGE_BYTES }; /* attributes of Stage */
enum { TFU_SLOTS = 64, TFU_SLOT_TENSORS = 64, TFU_SLOT_ALIGN = 256 };

typedef struct tfu_slot {
  void *memory;                  /* on the device; NULL while there is none */
  size_t bytes;                  /* of it */
  struct tfu_transfer *transfer; /* kernels/core/gpu/transfer.h; NULL on the CPU */
  int taken;                     /* the slot itself is in use */
  int n;                         /* tensors of the batch that lies in it */
  struct {
    size_t at, bytes;
    tfu_shape shape;
  } tensor[TFU_SLOT_TENSORS];
} tfu_slot;

/* The slot whose memory this is, NULL if it is none's. */
const tfu_slot *tfu_slot_of(const void *memory);
/* Gives memory to a slot, in the place of what it had. */
TFU_MUST_USE tfu_code tfu_slot_give(int64_t slot, void *memory, size_t bytes, struct tfu_transfer *transfer,
                                    tfu_error *err);
/* The slot of an Unstage, whose outputs have the sizes that were put. */
TFU_MUST_USE tfu_code tfu_slot_check(tfu_call *call, const tfu_slot **slot);

#endif
