/* resize.h - arguments and attributes of resizing, as kernels see them. */
#ifndef TFUSE_RESIZE_OP_H_
#define TFUSE_RESIZE_OP_H_

#include "tfuse.h"

/* Axes that are resized: depth, height and width. */
enum { TFU_RESIZE_AXES = 3, TFU_RESIZE_MOST = 1 << 24 /* positions of one, which float32 tells apart */ };

enum { TFU_RESIZE_X, TFU_RESIZE_SIZE };
enum { TFU_RESIZE_INTERPOLATION, TFU_RESIZE_CONVENTION, TFU_RESIZE_ANTIALIAS };
enum { TFU_NEAREST, TFU_BILINEAR, TFU_BICUBIC, TFU_LANCZOS3, TFU_LANCZOS5 };
enum { TFU_HALF_PIXEL, TFU_ALIGN_CORNERS, TFU_ASYMMETRIC };
#define TFU_RESIZE_ATTRS                                                                    \
  "interpolation: {'nearest', 'bilinear', 'bicubic', 'lanczos3', 'lanczos5'} = 'bilinear'", \
      "convention: {'half_pixel', 'align_corners', 'asymmetric'} = 'half_pixel'", "antialias: bool = false"

/* Scratch for the tables of long axes. */
tfu_room_fn tfu_resize_more_room, tfu_resize_grad_more_room;

#endif
