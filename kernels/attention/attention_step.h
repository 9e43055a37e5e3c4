/* attention_step.h - attention of one query per sequence over a paged KV cache, flash decoding in one launch, with
 * rope of the query and of a new key, which goes into the cache with its value. Host and device.
 *
 * A result must not depend on the batch: a sequence has the same bits alone and among others. So its keys are cut into
 * runs by its own length, the window and the constants below alone. A run is what one warp does, step by step by online
 * softmax, which gives a part: maximum, sum, and weighted values of each query of the group. How many blocks share the
 * runs of a sequence depends on the batch; but a part does not depend on the warp that makes it, and parts are joined
 * in the order of runs by one formula, wherever they lie. */
#ifndef TFUSE_KERNELS_ATTENTION_STEP_H_
#define TFUSE_KERNELS_ATTENTION_STEP_H_

#include "kernels/core/divisor.h"
#include "kernels/core/rotation.h"

enum {
  DECODE_WARPS = 4,  /* of a block                                                                        */
  DECODE_GROUP = 16, /* query heads at most that share a key head: the rows of a product of tensor cores  */
  DECODE_RUNS = 32,  /* of a sequence at most; a lane has a run's maximum and sum when they are joined    */
  DECODE_SLOTS = 3,  /* tiles that a warp has in its ring, keys and values in turn                        */
  DECODE_SPLITS = 8, /* blocks at most that share a sequence's runs: a cluster                            */
};

/* Of heads of d elements: the elements of a tile's row (mma.cuh), the keys of a step, which are a tile, and from one
 * query of a part to the next: its values, its maximum and its sum, in an order that avoids bank conflicts. */
#define DECODE_ROW(d) ((d) <= 64 ? 64 : (d) <= 128 ? 128 : 256)
#define DECODE_STEP(d) ((d) <= 64 ? 32 : 16)
#define DECODE_PITCH(d) ((d) + 8)
/* Shared memory: the warps' rings, of which a cache of 8 bits uses less, a tile of 16 queries, the new key and value.
 * Then the parts of the block's runs, DECODE_PITCH floats for each query of the group. */
#define DECODE_BYTES(d) (2 * ((DECODE_WARPS * DECODE_SLOTS * DECODE_STEP(d) + 16) * DECODE_ROW(d) + 2 * (d)))

typedef struct attention_step_args {
  const void *query, *key, *value;
  void *keys, *values, *output;
  const int64_t *places, *positions, *table, *lengths; /* positions may be NULL: no rope */
  rope_frequencies rope;
  tfu_divisor page;
  int batch, key_heads, group, head_dim; /* group: query heads that share a key head */
  int pages, width;                      /* pages of the cache; of a row of the table */
  int keys_most;                         /* that a row of the table has pages for */
  int left;                              /* negative: no window */
  int splits;                            /* blocks that share a sequence's runs, a power of two */
  float scale, soft_cap;
} attention_step_args;

#ifndef TFU_DEVICE
#include "tfuse.h"

/* Runs it where it is served: 16 bits, heads of 64, 96, 128 or 256 elements, on a GPU with clusters. `a` has all but
 * splits. `is_float8`: the cache has numbers of float8_e4m3fn. `ahead`: nothing that was queued before in the same
 * graph writes what `a` points to but query, key and value; so it is read while that still runs. */
TFU_MUST_USE tfu_code tfu_attention_step_run(tfu_call *call, attention_step_args a, tfu_dtype dtype, int is_float8,
                                             int ahead, int *served);
#endif

#endif
