/* segment_sum.h - segmented reduction (reduce by key): what the launch hands the device.
 *
 * Rows are seen in the order of their ids, so a segment is a run of them, which begins at offsets[segment]. Rows are
 * also cut into chunks. A chunk that lies in one segment is summed up by itself, into `chunks`, and a segment adds the
 * sums of such chunks to those of the rows before and after: so even one segment of all rows keeps the whole GPU busy.
 */
#ifndef TFUSE_SEGMENT_SUM_H_
#define TFUSE_SEGMENT_SUM_H_

#include <stdint.h>

#define TFU_SEGMENT_THREADS 256
#define TFU_SEGMENT_CHUNK 512 /* rows */

typedef struct segment_args {
  const void *data, *ids;
  const int32_t *order; /* NULL: as they are */
  int64_t *offsets;     /* segments + 1 */
  void *chunks, *y;     /* chunks: in double or int64 */
  int64_t rows, inner, segments;
  int wide_ids, from; /* ids are int64; how data and y are stored, as in reduce.h */
  int lane_bits;      /* 1 << lane_bits threads share a column of a segment       */
  int for_chunks;     /* sums of chunks are wanted, not of segments               */
} segment_args;

#endif
