/* batch.h - requests that the server hands over together are joined into one run, and its results split again. */
#ifndef TFUSE_TRITON_BATCH_H_
#define TFUSE_TRITON_BATCH_H_

#include "serving/triton/request.h"

/* Runs and answers those that were read well, and answers the others with their errors. Returns how many rows were run,
 * and when the model began and ended, in nanoseconds. Where a run of several fails, or padding would take much more
 * memory than they have, each is run by itself: an error is that of one request. */
int64_t tfu_batch_run(tfu_model *model, const tfu_config *c, const tfu_signature *s, tfu_request *r, uint32_t n,
                      uint64_t *begin, uint64_t *end);

uint64_t tfu_nanoseconds(void);

#endif
