/* recycle.h - scratch memory for a loop, whose iterations use the same again and again.
 *
 * What a call takes as scratch it has to its end. A loop that runs parts of other ops by the dozen, each with scratch
 * of its own, runs them on a call of its own instead, whose memory is free again at every tfu_recycle. On a GPU that is
 * sound since all work of a call is on one stream. */
#ifndef TFUSE_RECYCLE_H_
#define TFUSE_RECYCLE_H_

#include "tfuse.h"

enum { TFU_RECYCLED = 8 };

typedef struct tfu_recycled {
  tfu_call call; /* for the parts */
  tfu_call *outer;
  struct {
    void *memory;
    size_t bytes;
    int taken;
  } piece[TFU_RECYCLED];
} tfu_recycled;

/* A call that has the outer's tensors, stream and error. */
void tfu_recycled_open(tfu_recycled *r, tfu_call *outer);
/* All that its call has taken is free again. Returns the call. */
tfu_call *tfu_recycle(tfu_recycled *r);
/* The same as the call of another op, which is part of the outer one: of its inputs and outputs none is given yet, and
 * its attributes are zero. */
tfu_call *tfu_part(tfu_recycled *r, const tfu_op *op);

/* Scratch of the call for a tensor of this dtype and shape: what one part gives, and another takes. */
TFU_MUST_USE tfu_code tfu_scratch_like(tfu_call *call, tfu_tensor like, tfu_tensor *t);

#endif
