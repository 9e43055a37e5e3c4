/* last_use.h - whether the GPU is done with what queued work needs, such as the code of a plan, before it is freed.
 * Nobody waits: it is asked, and asked again later. The caller's lock keeps two threads apart. */
#ifndef TFUSE_LAST_USE_H_
#define TFUSE_LAST_USE_H_

#include "tfuse.h"

enum { TFU_USE_STREAMS = 4 };

/* All zero: not used yet. */
typedef struct tfu_last_use {
  struct {
    void *stream, *event; /* CUevent after the last use on the stream */
  } by[TFU_USE_STREAMS];
  int for_ever; /* the end of a use cannot be told: it is part of a captured graph, or an event failed */
} tfu_last_use;

/* Work that needs it has just been queued on the call's stream. */
void tfu_use(tfu_last_use *use, const tfu_call *call);
/* Whether all such work is done. */
int tfu_use_done(const tfu_last_use *use);
void tfu_use_close(tfu_last_use *use);

#endif
