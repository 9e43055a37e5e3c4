/* parallel.h - loops over one set of threads that all calls share: ten calls at once still use one thread per core. */
#ifndef TFUSE_PARALLEL_H_
#define TFUSE_PARALLEL_H_

#include <stdint.h>

#pragma GCC visibility push(default)
/* Runs task(arg, 0) … task(arg, tasks - 1), in any order, on the caller and the shared threads; returns when all are
 * done. What a task computes must not depend on which thread runs it: results then repeat for any number of threads. */
void tfu_parallel(int64_t tasks, void (*task)(void *arg, int64_t i), void *arg);

/* The same for 0 … n - 1 in ranges of `each`, of which the last may be shorter: range(arg, begin, end). */
void tfu_parallel_ranges(int64_t n, int64_t each, void (*range)(void *arg, int64_t begin, int64_t end), void *arg);

/* Elements per task of an elementwise loop over n: a multiple of `unit`, at least 64 of them (below that a second
 * thread costs more than it gives), and large where n is: threads that touch new memory side by side wait for each
 * other's pages. */
int64_t tfu_task_size(int64_t n, int64_t unit);

/* Threads that work on a loop, the caller's included: TFUSE_NUM_THREADS, or the cores this process may use. */
int tfu_threads(void);

/* NULL, or why this processor cannot run the CPU kernels. */
const char *tfu_cpu_missing(void);
/* Whether there are registers of 64 bytes, as x86 has them with AVX-512. Products have the same bits either
 * way. */
int tfu_has_wide_registers(void);
#pragma GCC visibility pop

#endif
