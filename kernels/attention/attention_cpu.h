/* attention_cpu.h - what attention and its gradient share on the CPU: tiles of scores, and who computes which.
 *
 * A tile is TFU_ATT_ROWS rows by TFU_ATT_KEYS keys. Its rows are the queries of some heads that share one head of key,
 * the heads of a query side by side: keys are read once for all of them. */
#ifndef REAL
#ifndef TFUSE_ATTENTION_CPU_H_
#define TFUSE_ATTENTION_CPU_H_

#include "kernels/attention/attention.h"
#include "kernels/core/cpu/product_cpu.h"
#include "kernels/core/cpu/rows_cpu.h"

/* 64 x 64 floats are 16 KB: scores, and what they are made of, stay in a second-level cache at any usual head_dim. */
enum { TFU_ATT_ROWS = 64, TFU_ATT_KEYS = 64 };

/* Up to this many rows (a step of decoding) scores are made of keys as they are: transposing a tile of them would cost
 * more than the scores. The gradient does as attention did, and gets the same scores. */
enum { TFU_ATT_FEW = 4 };

typedef struct attention_job attention_job;
typedef void attention_task(const attention_job *job, int64_t task, void *space);

struct attention_job {
  attention_args a;
  tfu_dtype dtype;
  int group; /* heads of query that share a head of key */
  tfu_drop drop;
  void *more; /* what one kernel's tasks need besides */
};

/* Reads lengths, splits or pages of the call, and fails where one is out of range. */
TFU_MUST_USE tfu_code tfu_attention_job(tfu_call *call, const attention_args *a, attention_job *job);

/* Runs tasks 0 … tasks - 1; each has `bytes` of memory to itself while it runs. */
TFU_MUST_USE tfu_code tfu_attention_run(tfu_call *call, const attention_job *job, attention_task *task, int64_t tasks,
                                        size_t bytes);

/* Columns of a matrix of `width` columns in whole register blocks; one more where rows would be a multiple of 1 KB
 * apart, and share few places in the first-level cache. */
static inline int64_t tfu_attention_width(int width, size_t real) {
  const int64_t block = TFU_PRODUCT_BYTES / (int64_t)real, columns = TFU_PRODUCT_ROUND((int64_t)width, block);
  return columns * (int64_t)real % 1024 ? columns : columns + block;
}

#define TFU_SELF "kernels/attention/attention_cpu.h"
#include "kernels/core/cpu/stamp.h"
#undef TFU_SELF

#endif
#else

typedef struct FN(attention_tile) {
  const attention_job *job;
  tfu_sequence s;
  int b, key_head;
  int head, heads;   /* the first of its heads, how many there are */
  int64_t first_row; /* row r is query (first_row + r) / heads     */
  int rows;
  int key, keys;            /* the first of its keys, how many      */
  int from[TFU_ATT_ROWS];   /* the keys of each row, from `key` on: */
  int end[TFU_ATT_ROWS];    /* none where end <= from               */
  int64_t q_width, v_width; /* columns of query and value in memory */
  REAL *query;              /* [rows, q_width], scaled              */
  REAL *scores;             /* [rows, keys]                         */
  REAL *slopes;             /* of the soft cap at the scores, [rows, keys]; NULL: not wanted */
} FN(attention_tile);

static inline int FN(tfu_tile_query)(const FN(attention_tile) * t, int r) {
  return (int)(t->heads == 1 ? t->first_row + r : (t->first_row + r) / t->heads); /* a division is slow */
}
static inline int FN(tfu_tile_head)(const FN(attention_tile) * t, int r) {
  return t->head + (int)(t->heads == 1 ? 0 : (t->first_row + r) % t->heads);
}

/* The first key that any row may attend to by its position, and the one after the last. */
void FN(tfu_tile_band)(const FN(attention_tile) * t, int *first, int *end);

/* Rows of query, or of what is shaped like it, times factor, into [rows, padded width]; 0 beyond the query's length. */
void FN(tfu_tile_rows)(const FN(attention_tile) * t, const void *data, int width, REAL factor, REAL *to);

/* Rows of key, or of what is shaped like it: where they are, if they can be read there and `copy` is not set; else in
 * buffer, [keys, padded width]. Rows of a tensor lie a power of two apart as a rule, and share few places in the
 * cache: a product that reads them many times takes half as long again as one that reads a copy. */
FN(tfu_matrix) FN(tfu_tile_keys)(const FN(attention_tile) * t, const void *data, int width, int copy, REAL *buffer);

/* t->scores and t->slopes, and which of them count. t->scores are the products of rows and keys already, but of few
 * rows, for which they are made here. */
void FN(tfu_tile_scores)(FN(attention_tile) * t, FN(tfu_matrix) keys);
#endif
