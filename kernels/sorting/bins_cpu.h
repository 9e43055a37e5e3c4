/* bins_cpu.h - values that are put into bins, and the bins added up, on the CPU. */
#ifndef TFUSE_BINS_CPU_H_
#define TFUSE_BINS_CPU_H_

#include "kernels/core/cpu/rows_cpu.h"

typedef struct bin_run bin_run;
/* The bins of n <= TFU_TILE values from `at` on; r->size for those that have none. */
typedef void find_bins(bin_run *r, int64_t at, int n, int32_t *bins);
struct bin_run {
  const tfu_tensor *of, *weights; /* what is put into bins */
  tfu_tensor *out;
  find_bins *find;
  int64_t rows, cols, size, parts, stride; /* stride: bins of a part, all copies                                */
  int copies, binary, bad;                 /* bad: an id less than 0; all tasks that meet one write the same    */
  double low, width;                       /* of a histogram                                                    */
  void *room;                              /* [rows][parts][stride] of int64_t, or of double for weights        */
};

/* Counts, or sums up weights, for all rows; the run says what, and the call's first result takes it. */
TFU_MUST_USE tfu_code tfu_bins_cpu(tfu_call *call, bin_run *r);

#endif
