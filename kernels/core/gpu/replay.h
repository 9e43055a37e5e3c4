/* replay.h - work that is queued again and again with the same pointers becomes a CUDA graph: the first time it is
 * queued as it is, the second time it is captured, and from then on it takes one launch. */
#ifndef TFUSE_REPLAY_H_
#define TFUSE_REPLAY_H_

#include "tfuse.h"

/* Queues work(call, with) on the call's stream, `times` times over. The key says all that it depends on, pointers and
 * sizes included. While it is captured, call->captured is set and the stream is another one. Work that cannot be
 * captured is queued as it is every time. */
TFU_MUST_USE tfu_code tfu_replay(tfu_call *call, const void *key, size_t bytes, int64_t times,
                                 tfu_code (*work)(tfu_call *call, void *with), void *with);

#endif
