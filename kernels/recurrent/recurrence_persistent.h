/* recurrence_persistent.h - all steps of a recurrence in one launch, as host and device see it.
 *
 * A block has a slice of the units with all their gates, and keeps their part of the recurrent kernel in registers.
 * Blocks along x have the units of the same sequences; those along y have other sequences, `tiles` times
 * PERSISTENT_ROWS. */
#ifndef TFUSE_KERNELS_RECURRENCE_PERSISTENT_H_
#define TFUSE_KERNELS_RECURRENCE_PERSISTENT_H_

#include "kernels/core/gpu/walk.h"
#include "kernels/recurrent/recurrence.h"

enum {
  PERSISTENT_UNITS = 1024, /* at most: the part of more would not fit */
  PERSISTENT_MULTIPLE = 8, /* of units: rows are whole packs of 16 bytes in every type */
  PERSISTENT_WARPS = TFU_THREADS / 32,
  PERSISTENT_ROWS = 16, /* sequences of a tile */
  PERSISTENT_PAD = 8,   /* floats between rows of partial sums, so that their banks differ */
  PERSISTENT_BITS = 32  /* bytes with a bit for each scale that a thread needs for a tile, of all gates */
};
/* Units of a block, for elements of so many bytes: their part of an LSTM's kernel is 128 KiB. */
#define PERSISTENT_SLICE(bytes) ((bytes) == 2 ? 16 : 8)

/* Where things lie in shared memory; what is of a tile has room for two. */
typedef struct persistent_memory {
  int partial; /* floats, [warps][rows][columns + pad]: what each warp has of a product */
  int input;   /* [sources][rows][slice]: what a step reads */
  int mask;    /* words, [rows], each with the byte in question */
  int bias;    /* floats, [gates][slice]: forward */
  int state;   /* floats, [2][tiles][rows][slice] */
  int scale;   /* where there are scales: of each tile the bits of all threads, back [gates][rows][slice] */
  int sums;    /* floats, [2][gates][rows][slice]: back */
} persistent_memory;

typedef struct persistent_args {
  recurrence_sizes size;
  persistent_memory at;
  int tiles, tf32;
  const uint8_t *mask;                       /* may be NULL, as all below it */
  const void *kernel, *bias, *h, *c, *scale; /* the kernel is always there */
  const void *gates;
  void *y, *kept, *last; /* y is all ones before */
} persistent_args;

typedef struct persistent_back_args {
  recurrence_sizes size;
  persistent_memory at;
  int tiles, tf32;
  const uint8_t *mask;
  const void *kernel, *h, *c, *scale;
  const void *dy, *dlast, *y, *kept;
  void *dgates, *dproduct, *dh, *dc; /* dproduct, or where there is none dgates, is all ones before */
} persistent_back_args;

#ifndef TFU_DEVICE
/* Either op by its persistent kernel. *served is 0 where there is none for the call. */
TFU_MUST_USE tfu_code tfu_recurrence_persistent(tfu_call *call, int *served);
TFU_MUST_USE tfu_code tfu_recurrence_grad_persistent(tfu_call *call, int *served);
/* Whether both have one for these sizes, without scales, where tensors are aligned. */
TFU_MUST_USE tfu_code tfu_recurrence_persists(tfu_call *call, const recurrence_sizes *s, tfu_dtype dtype, int *both);
#endif

#endif
