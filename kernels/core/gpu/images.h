/* images.h - compiled device code, linked into the library as .lzma files. The build makes one table per
 * kernels/<stem>.cu.
 */
#ifndef TFUSE_IMAGES_H_
#define TFUSE_IMAGES_H_

#include <stddef.h>

/* Ends with an all-zero row. Compute capability 9.0 is 90. */
typedef struct tfu_image {
  int capability;
  int is_ptx; /* compiled by the driver for devices newer than any cubin */
  const unsigned char *bytes;
  size_t size;
} tfu_image;

#endif
