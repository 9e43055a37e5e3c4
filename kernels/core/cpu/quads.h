/* quads.h - products of int8 matrices, summed in int32, by instructions that multiply four bytes at once for each sum.
 *
 * The right factor comes in panels: 64 columns, and of each the terms in fours, [terms / 4][64][4]. What is missing of
 * the last four is 0. */
#ifndef TFUSE_QUADS_H_
#define TFUSE_QUADS_H_

#include <stdint.h>

enum { TFU_QUAD_COLUMNS = 64, TFU_QUAD_BYTES = 4 * TFU_QUAD_COLUMNS /* of a panel, for four terms */ };

/* sums[r * apart + c] = the products of row r with column c of a panel, or what was there and those, where `add` is
 * set. Rows begin `pitch` bytes after each other. They are read in fours: bytes up to three after the last term may be
 * anything. */
typedef void tfu_quads(int32_t *sums, int64_t apart, const int8_t *rows, int64_t pitch, int n, const int8_t *panel,
                       int terms, int add);

/* By the best instructions that this processor has, and by those that all have. */
tfu_quads *tfu_best_quads(void);
tfu_quads tfu_plain_quads;

/* Panels of n columns, the others 0. In memory, lines of them begin `pitch` bytes after each other, a line for each
 * term; or each column's terms lie together, and columns begin `pitch` bytes after each other. */
void tfu_quads_of_lines(int8_t *panel, const int8_t *lines, int64_t pitch, int terms, int n);
void tfu_quads_of_columns(int8_t *panel, const int8_t *columns, int64_t pitch, int terms, int n);

#endif
