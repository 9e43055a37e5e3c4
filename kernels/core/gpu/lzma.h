/* lzma.h - a decoder of .lzma files, in which device code lies in the library.
 *
 * The driver unpacks fatbins by itself, but those of every driver of CUDA 12 by LZ4 alone, which leaves them twice as
 * large.
 */
#ifndef TFUSE_LZMA_H_
#define TFUSE_LZMA_H_

#include "tfuse.h"

/* What a file of `size` bytes holds, in memory that the caller frees, and how many bytes that is. The file has to state
 * its size, and to have lc + lp <= 4, as every file of xz has. */
TFU_MUST_USE TFU_EXPORT tfu_code tfu_lzma_decode(const unsigned char *file, size_t size, void **out, size_t *out_size,
                                                 tfu_error *err);

#endif
