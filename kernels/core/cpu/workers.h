/* workers.h - loops whose tasks want memory of their own. */
#ifndef TFUSE_WORKERS_H_
#define TFUSE_WORKERS_H_

#include "tfuse.h"

/* Runs task(arg, i, space) for i from 0 up to `tasks`, in any order, on the caller and the shared threads. space has so
 * many bytes of scratch, begins at a line of the cache, and is nobody else's meanwhile: it is needed once for each
 * thread, and not for each task. A task finds in it anything, such as what another left. */
typedef void tfu_worker_task(void *arg, int64_t i, void *space);
TFU_MUST_USE tfu_code tfu_parallel_with(tfu_call *call, int64_t tasks, size_t bytes, tfu_worker_task *task, void *arg);

#endif
