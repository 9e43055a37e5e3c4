/* reduce.h - what the launches of reductions hand the device.
 *
 * What is known of some values is a state (reduce.cuh): for a sum the sum so far. Values become states, states are
 * joined with states, and the last one becomes the result. x is [outer][count][inner], and the middle axis is reduced.
 * It may be cut into parts, whose states, [outer][parts][inner], a second launch joins, always in the same order. */
#ifndef TFUSE_REDUCE_H_
#define TFUSE_REDUCE_H_

#include <stdint.h>

/* In the order of the row's choices (ops/reductions/reduce.c), and one more for the index of the greatest or least. */
enum {
  TFU_REDUCE_SUM,
  TFU_REDUCE_MEAN,
  TFU_REDUCE_MAX,
  TFU_REDUCE_MIN,
  TFU_REDUCE_PROD,
  TFU_REDUCE_LSE,
  TFU_REDUCE_VARIANCE,
  TFU_REDUCE_STD,
  TFU_REDUCE_L2,
  TFU_REDUCE_ARG
};

/* The kinds that differ in what a state is. */
enum { TFU_SUMS, TFU_TOPS, TFU_PRODUCTS, TFU_EXPONENTIALS, TFU_SPREADS, TFU_INDICES };

#define TFU_REDUCE_THREADS 256
#define TFU_BATCH 32         /* elements that a thread loads before it looks at them */
#define TFU_HELD_THREADS 512 /* of a block at most, where rows stay in registers */
#define TFU_STATE_WORDS 4    /* numbers that a state has at most */

/* Those of a variance (spread_state of reduce.cuh), for whoever joins the states of parts. */
enum { TFU_SPREAD_MEAN, TFU_SPREAD_SQUARES, TFU_SPREAD_COUNT, TFU_SPREAD_REST };

/* Where one kernel serves all types that are computed in one, the storage type is a number of the call, like
 * tfu_dtype's.
 */
enum { TFU_AS_F32, TFU_AS_F16, TFU_AS_BF16, TFU_AS_F64, TFU_AS_I32, TFU_AS_I64 };

/* x is a tensor, or in a launch that joins states those, number after number: [words][outer][count][inner]. The result
 * is y, or states [words][outer][parts][inner] where y is NULL. Parts go along the grid's y. */
typedef struct reduce_args {
  const void *x;
  const void *dy; /* in reduce_held, where y is dx */
  void *y, *states;
  int64_t outer, count, inner;
  int64_t share; /* a part has so many of count, the last one perhaps fewer              */
  int64_t all;   /* values that a result is made of                                      */
  /* In reduce_columns, where narrow columns are joined: rows of x that lie side by side are taken for one row of
   * `inner` columns, of which every period'th is the same column of x. `tail` elements after each outer's last such
   * row are left. Results are [outer][parts][period]. 0 and 0 elsewhere. */
  int period, tail;
  int parts, kind, group, words;
  int lane_bits;    /* 1 << lane_bits threads share a row or column …                      */
  int beside;       /* … in reduce_any, whether these are neighbours                       */
  int float_states; /* in reduce_any: values are computed in float elsewhere, and states are floats */
  int joins;        /* x are states                                                        */
  int negated;      /* the least is looked for, as the greatest of the opposite values     */
  int ties;         /* the greatest values are counted                                     */
  int from, to;     /* how x and y are stored                                              */
} reduce_args;

/* What the gradient needs of each element of y: two numbers, made of its state and of dy. */
typedef struct reduce_pairs_args {
  void *pairs;
  const void *states, *dy;
  const void *y; /* NULL, or the results of l2, in the place of states */
  int64_t n, all;
  int kind, from;
} reduce_pairs_args;

/* Groups of axes, the last one first, kept and reduced in flip. For columns, [outer][count][inner] as above. */
#define TFU_REDUCE_GROUPS 9
typedef struct reduce_grad_args {
  void *dx;
  const void *x, *pairs;
  int64_t n;
  int64_t size[TFU_REDUCE_GROUPS];
  int64_t outer, count, inner, share;
  int groups, kept_last, kind, from;
  int lane_bits;
} reduce_grad_args;

#ifndef TFU_DEVICE
#include "ops/reductions/axes.h"

/* Of a kind, for floats. */
static inline int tfu_float_group(int kind) {
  switch (kind) {
    case TFU_REDUCE_MAX:
    case TFU_REDUCE_MIN: return TFU_TOPS;
    case TFU_REDUCE_PROD: return TFU_PRODUCTS;
    case TFU_REDUCE_LSE: return TFU_EXPONENTIALS;
    case TFU_REDUCE_VARIANCE:
    case TFU_REDUCE_STD: return TFU_SPREADS;
    case TFU_REDUCE_ARG: return TFU_INDICES;
    default: return TFU_SUMS;
  }
}

/* What is computed for the kind that is asked for. The sum, mean or product of single values is those values, as their
 * maximum is: that keeps the sign of a zero, as TensorFlow does, where 0 + x would not. */
static inline int tfu_reduce_kind(const tfu_call *call, const tfu_groups *groups) {
  const int kind = (int)call->attr[0].i;
  return groups->n == 0 && kind <= TFU_REDUCE_PROD ? TFU_REDUCE_MAX : kind;
}

/* Fails for a kind that integers do not have. */
TFU_MUST_USE static inline tfu_code tfu_reduce_check(tfu_call *call) {
  TFU_REQUIRE(call->err, call->in[0].dtype < TFU_FLOATS || call->attr[0].i <= TFU_REDUCE_PROD,
              "x must be float32, float16, bfloat16 or float64 for this kind, got %s",
              tfu_dtype_name(call->in[0].dtype));
  return TFU_OK;
}

/* The kernel for a kind whose values are computed in float, as a number of tfu_reduce_variants. */
extern const char *const tfu_reduce_variants[];
int tfu_reduce_variant(int kind, int ties);

/* States of parts that are still to be joined, number after number: [TFU_STATE_WORDS][outer][parts][inner]. */
typedef struct tfu_reduce_parts {
  const void *states;
  int64_t outer, parts, inner;
} tfu_reduce_parts;

/* Reduces x to states of at most `few` parts for each result, in as few launches as that takes: what joins them makes
 * more of them in the same launch. Not for an x without elements. */
TFU_MUST_USE tfu_code tfu_reduce_to_parts(tfu_call *call, const tfu_tensor *x, const tfu_groups *groups, int kind,
                                          int64_t few, tfu_reduce_parts *parts);

/* Reduces x, of a shape that the groups give, to results in y, or to states in *states, which it makes room for. */
TFU_MUST_USE tfu_code tfu_reduce_launch(tfu_call *call, const tfu_tensor *x, const tfu_groups *groups, int kind,
                                        int negated, const tfu_tensor *y, const void **states);
#endif

#endif
