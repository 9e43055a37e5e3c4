/* radix.h - rows in order, on the GPU, stable. Read by host and device.
 *
 * Keys are of 32 or 64 bits; those of numbers of 16 bits are in the upper half of 32. Very short rows are sorted by
 * counting, rows of up to some thousand keys in the registers of a warp or block (network.cuh), and longer ones by
 * digits of 8 bits: rows that fit there in the shared memory of one block, others a digit at a time (sweep.cuh). */
#ifndef TFUSE_RADIX_H_
#define TFUSE_RADIX_H_

#include "kernels/sorting/keys.h"

#define TFU_BUCKETS 256
#define TFU_RADIX_THREADS 1024 /* of a block at most */

typedef struct radix_args {
  const void *from;        /* numbers as they are stored                                 */
  void *keys;              /* numbers where `decode` is set, else keys; NULL: not wanted */
  uint32_t *indices;       /* NULL: not wanted                                           */
  const uint32_t *carried; /* what is wanted instead of indices; NULL: nothing */
  tfu_order order;
  int64_t rows, cols;
  int of_16_bits; /* numbers are of 16 bits */
  int decode;
  int shift;     /* of the first digit                         */
  int end;       /* bits from here on are not looked at        */
  int items;     /* keys of a thread                           */
  int at_a_time; /* rows of a block, where a row is very short */
} radix_args;

/* Rows in registers (network.cuh). */
#define TFU_NETWORK_THREADS 128 /* where a warp has a row          */
#define TFU_NETWORK_BLOCK 256   /* at most, where a block has one  */
#define TFU_NETWORK_ITEMS 32    /* keys of a thread there          */

/* Long rows. */
#define TFU_SWEEP_THREADS 512
#define TFU_SWEEP_BYTES 64 /* of a thread's keys: a tile is that of a block */

typedef struct sweep_args {
  const void *from;         /* numbers as they are stored                                      */
  const void *from_indices; /* what is moved along with them; NULL: their indices               */
  void *keys[2];            /* keys under way, and what is moved along: where results go, and  */
  uint32_t *indices[2];     /* the other                                                       */
  void *results;            /* numbers where `decode` is set, else keys; NULL: not wanted      */
  uint32_t *starts;         /* [row][digit][bucket]: counts, then where buckets begin      */
  uint32_t *next_starts;    /* the same for the next portion of the rows; NULL: there is none  */
  uint32_t *said;           /* [row][tile][bucket]: what tiles know (sweep.cuh), 0 at first      */
  uint32_t *tickets;        /* how many blocks have begun, 0 at first                          */
  uint32_t *moving;         /* [row]: a bit for each digit that has more than one bucket */
  tfu_order order;
  int64_t rows, cols;
  unsigned chunks; /* blocks of a row, where digits are counted */
  unsigned tiles;  /* of a row's portion                        */
  unsigned first_tile;
  int of_16_bits, decode, with_indices;
  int halves;        /* from_indices are of 16 bits            */
  int digits, digit; /* how many there are, and which this is */
  int shift;         /* of this digit                         */
} sweep_args;

/* Sums of counts. */
typedef struct before_args {
  uint32_t *counts; /* then how many come before */
  uint32_t *sum;
  int64_t n;
} before_args;

#ifndef TFU_DEVICE
#include "kernels/core/gpu/cuda.h"

/* What to sort, and where to. */
typedef struct radix_job {
  const void *from; /* numbers of dtype */
  tfu_dtype dtype;
  tfu_order order; /* of wide keys     */
  int64_t rows, cols;
  void *sorted;     /* numbers of dtype in order, or `keys` of 32 or 64 bits; NULL: not wanted */
  int keys;         /* sorted are keys */
  int32_t *indices; /* NULL: not wanted */
  const void
      *carried;       /* what comes in the order of the keys instead of their indices: words of 32 bits, or halves of */
  int carried_halves; /* such, which long rows may carry, and which become the lower halves of words */
  int bits;           /* of the keys that differ, the lowest; 0 is all */
  int skipped;        /* of these, the lowest, that long rows need not be in order of; keys of 32 or 64 bits */
} radix_job;

TFU_MUST_USE tfu_code tfu_radix_gpu(tfu_call *call, const radix_job *job);
/* Makes of n counts how many come before each, and gives their sum. */
TFU_MUST_USE tfu_code tfu_count_before(tfu_call *call, uint32_t *counts, int64_t n, void *sum);
#endif
#endif
