/* quantized_grid.h - grids of the passes around products of 8 and 4 bits. */
#ifndef TFUSE_QUANTIZED_GRID_H_
#define TFUSE_QUANTIZED_GRID_H_

#include "kernels/core/arithmetic.h"

/* Blocks along y for n of something, of which a block takes further ones where there are more than a grid can have. */
static inline unsigned quantized_grid_y(int64_t n) { return (unsigned)least(n, 65535); }

#endif
