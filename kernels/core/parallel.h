/* parallel.h - loops over one set of threads that all calls share: ten calls at once still use one thread per core. */
#ifndef TFUSE_PARALLEL_H_
#define TFUSE_PARALLEL_H_

#include <stdint.h>

/* Runs task(arg, 0) … task(arg, tasks - 1), in any order, on the caller and the shared threads; returns when all are
 * done. What a task computes must not depend on which thread runs it: results then repeat for any number of threads. */
void tfu_parallel(int64_t tasks, void (*task)(void *arg, int64_t i), void *arg);

/* Threads that work on a loop, the caller's included: TFUSE_NUM_THREADS, or the cores this process may use. */
__attribute__((visibility("default"))) int tfu_threads(void);

/* NULL, or why this processor cannot run the CPU kernels. */
const char *tfu_cpu_missing(void);

#endif
