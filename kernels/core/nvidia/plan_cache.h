/* plan_cache.h - graphs that are planned already, by what was asked: a plan takes 50 to 900 ms, a run microseconds. */
#ifndef TFUSE_PLAN_CACHE_H_
#define TFUSE_PLAN_CACHE_H_

#include "kernels/core/gpu/last_use.h"
#include "kernels/core/nvidia/graph.h"

#ifndef TFU_PLANS /* as in a test */
#define TFU_PLANS 256
#endif
enum { TFU_PLAN_KEY = 192 };

typedef struct tfu_planned {
  tfu_graph *graph; /* NULL: it cannot be planned     */
  char why[160];    /* then; as long as this is held  */
} tfu_planned;

/* Makes a planned graph. What it returns NULL for, with a text, is not asked again while it is remembered. */
typedef tfu_graph *tfu_plan_fn(const void *key, void *with, char *why, size_t size);

/* The plan for a key of at most TFU_PLAN_KEY bytes, all of which count: made by `make`, or remembered. `family` tells
 * keys of different structs apart. Threads that want the same one at once wait for the first. Keeps TFU_PLANS, drops
 * the least recently used, and never one that is held. What is dropped is freed once the GPU is done with it.
 * NULL: out of memory. */
tfu_planned *tfu_plan_get(const char *family, const void *key, size_t bytes, tfu_plan_fn *make, void *with);
/* `ran` is the call whose stream it has been queued on, NULL where it has not. */
void tfu_plan_release(tfu_planned *planned, const tfu_call *ran);

/* How many are kept, and how many are dropped and still to be freed, for tests. */
int tfu_plans_kept(void);
int tfu_plans_leaving(void);

#endif
