/* dots.h - products of int8, summed in int32, which the compiler makes of whatever such instructions there are. */
#ifndef TFUSE_DOTS_H_
#define TFUSE_DOTS_H_

#include <stdint.h>

/* Sums of one column with n rows, at most TFU_DOTS, that lie one after the other; both lie along the sum. */
enum { TFU_DOTS = 4 };
typedef void tfu_dots(const int8_t *column, const int8_t *rows, int64_t inputs, int n, int32_t *sums);

/* By the best instructions that this processor has, and by those that all have. */
tfu_dots *tfu_best_dots(void);
tfu_dots tfu_plain_dots;

#endif
