/* scan.h - a scan as host and device see it: what is scanned, and what the launches hand the device. */
#ifndef TFUSE_SCAN_H_
#define TFUSE_SCAN_H_

#include <stdint.h>

/* The first four are the attribute `kind` of Scan. */
enum { TFU_SCAN_SUM, TFU_SCAN_PROD, TFU_SCAN_MAX, TFU_SCAN_LSE, TFU_SCAN_RECURRENCE };

#define TFU_SCAN_PACKS 8    /* of a row that a thread has, at most          */
#define TFU_SCAN_STRIDE 144 /* bytes of shared memory for them: nine packs  */
#define TFU_SCAN_THREADS 256
#define TFU_SCAN_MOST 512 /* threads of a block of rows, at most             */
#define TFU_SCAN_GROUP 32 /* tiles of a row whose totals are added up as one */
/* Places of a column that a thread has at a time, and as many on their way. */
#define TFU_SCAN_COLUMN(recurs) ((recurs) ? 4 : 8)

typedef struct scan_what {
  void *y;
  const void *x, *factor;
  int exclusive, reverse;
} scan_what;

typedef struct scan_rows_args {
  scan_what what;
  int kind;            /* of sum, product and maximum                                             */
  int64_t rows, bytes; /* rows, and bytes of one                                                  */
  int shift;           /* 1 << shift threads have a row together, or, where it is 6, whole blocks */
  int depth;           /* 1 << depth packs of a row that a thread has                             */
  int tiles;           /* blocks of a long row                                                    */
  int apart;           /* y begins elsewhere in a pack than x does                                */
  uint64_t nothing[2]; /* eight bytes of numbers that change nothing: of x, and of the factor     */
  void *slots;         /* where tiles tell each other their totals; zeros at first                */
  uint32_t *tickets;   /* how many blocks of long rows have begun; zero at first                  */
  int groups;          /* of a row: slots are tiles, then groups, then groups of groups and one   */
  int64_t row_slots;
} scan_rows_args;

/* [outer, length, inner] along its middle axis. */
typedef struct scan_columns_args {
  scan_what what;
  int kind;
  int64_t length, inner;
  int shift;      /* 1 << shift threads stand side by side along inner, the others along length */
  int64_t strips; /* of so many columns                                                         */
  int chunks;     /* into which the length is cut                                               */
  int64_t chunk;  /* positions of a chunk                                                          */
  void *totals;   /* [outer, chunks, inner], where there are several chunks                     */
  int find;       /* only totals are wanted                                                     */
} scan_columns_args;

#ifndef TFU_DEVICE
#include "tfuse.h"

/* What a call scans: [outer, length, inner] along the middle axis. */
typedef struct tfu_scanned {
  int kind, exclusive, reverse;
  int64_t outer, length, inner;
} tfu_scanned;

/* Of a call of Scan or ScanRecurrence; fails where integers have no such scan. */
TFU_MUST_USE tfu_code tfu_scanned_of(tfu_call *call, tfu_scanned *s);
#endif

#endif
