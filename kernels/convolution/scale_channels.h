/* scale_channels.h - what the launch of scale_channels hands the device. */
#ifndef TFUSE_SCALE_CHANNELS_H_
#define TFUSE_SCALE_CHANNELS_H_

#include <stdint.h>

#define TFU_SCALE_AHEAD 4 /* words of a tensor that a thread has on their way at a time */

/* A word is what a thread has of a position: a pack of channels, or a single one where these do not fill packs. Blocks
 * [tiles * parts, images] have `rows` positions of `lanes` words each at a time, and go through their part of the
 * positions of an image. */
typedef struct scale_channels_args {
  const void *x, *dy; /* dy: of the gradient alone */
  const void *scale;
  void *y;       /* or dx */
  void *dscale;  /* where there is one part; else NULL, and */
  void *partial; /* these are the sums of a part, [parts][images][channels], for a fold */
  int64_t images, positions, channels, words;
  int64_t tiles, part; /* tiles of words; positions of a part */
  int lanes, rows;
  int drop; /* what is multiplied by 0 is 0 */
} scale_channels_args;

#endif
