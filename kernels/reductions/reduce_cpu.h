/* reduce_cpu.h - reductions on the CPU: states, which are what is known of some values, and how they come about.
 *
 * A tensor is [outer][count][inner], and the middle axis is reduced, the last such axis first. It is cut into parts, by
 * its shape alone. Parts become states, and those are joined in order: the same bits for any number of threads. */
#ifndef TFUSE_REDUCE_CPU_H_
#define TFUSE_REDUCE_CPU_H_

#include "kernels/core/cpu/rows_cpu.h"
#include "kernels/reductions/reduce.h"

/* By group of kinds: the sum; the greatest value and how often it was there; a product a * 2^c and how many zeros were
 * left out; the greatest value and the sum of exponentials relative to it (online softmax); mean, squared differences
 * from it, number (Welford). */
typedef struct tfu_state {
  union {
    double a;
    uint64_t i; /* of integers, for which it is all */
  };
  double b, c;
} tfu_state;

/* Groups of integers, beside those of reduce.h. */
enum { TFU_WHOLE_SUMS = TFU_INDICES + 1, TFU_WHOLE_TOPS, TFU_WHOLE_PRODUCTS };

int tfu_reduce_group(int kind, tfu_dtype dtype);
/* Of no values, for a tensor of a dtype. */
tfu_state tfu_state_none(int group, tfu_dtype dtype);
void tfu_state_join(int group, tfu_state *s, tfu_state other);
/* The result, where the state is of n values. */
double tfu_state_result(int kind, tfu_state s, int64_t n);

/* The state of n <= TFU_CHUNK values in a line, and those of n <= TFU_COLUMNS columns of `rows` <= TFU_ROWS rows, whose
 * row r begins at x[at + r * stride], joined to what is in s. `negated` looks for the least instead of the greatest,
 * and `ties` counts how often it is there. */
enum { TFU_ROWS = 16, TFU_COLUMNS = 2048 };
tfu_state tfu_line_state_f32(int kind, int negated, int ties, const float *v, int n);
tfu_state tfu_line_state_f64(int kind, int negated, int ties, const double *v, int n);
void tfu_column_states_f32(int kind, int negated, int ties, const tfu_tensor *x, int64_t at, int64_t stride, int rows,
                           int n, tfu_state *s);
void tfu_column_states_f64(int kind, int negated, int ties, const tfu_tensor *x, int64_t at, int64_t stride, int rows,
                           int n, tfu_state *s);

/* The greatest of n values that are not NaN, or of the negative values if negated; minus infinity if there are none. */
float tfu_top_f32(const float *v, int n, int negated, int *nan);
double tfu_top_f64(const double *v, int n, int negated, int *nan);

/* The same for integers, and what becomes of a state at last. */
tfu_state tfu_line_state_int(int kind, const tfu_tensor *x, int64_t at, int n);
void tfu_column_states_int(int kind, const tfu_tensor *x, int64_t at, int64_t stride, int rows, int n, tfu_state *s);
void tfu_store_result_int(int kind, tfu_state s, int64_t all, const tfu_tensor *y, int64_t at);

/* States of all results of a float tensor, in memory of the call. */
TFU_MUST_USE tfu_code tfu_reduce_states(tfu_call *call, const tfu_tensor *x, const tfu_groups *groups, int kind,
                                        tfu_state **states);

#endif
