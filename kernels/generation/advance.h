/* advance.h - one sequence between two steps (ops/generation/advance.c), for CPU and GPU alike. */
#ifndef TFUSE_KERNELS_ADVANCE_H_
#define TFUSE_KERNELS_ADVANCE_H_

#include <stdint.h>

#ifdef TFU_DEVICE
#define TFU_ADVANCE __device__ inline
#else
#define TFU_ADVANCE static inline
#endif

enum { ADVANCE_THREADS = 128 };

typedef struct advance_args {
  const int64_t *ids, *limits, *stops, *table;
  int64_t *tokens, *lengths, *done, *current, *places, *positions;
  int64_t batch, room, n_stops, pages, page_size; /* room: tokens of a row; pages: of a row of the table */
} advance_args;

TFU_ADVANCE void advance_one(const advance_args *a, int64_t b) {
  int64_t length = a->lengths[b], done = a->done[b] != 0;
  const int64_t limit = a->limits[b] < a->room ? a->limits[b] : a->room;
  if (!done && length >= 0 && length < limit) {
    const int64_t id = a->ids[b];
    a->tokens[b * a->room + length] = id;
    a->lengths[b] = ++length;
    for (int64_t i = 0; i < a->n_stops; i++) done |= a->stops[i] == id;
  }
  done |= length >= limit;
  const int64_t at = length > 0 ? length - 1 : 0, page = at / a->page_size;
  a->done[b] = done;
  a->current[b] = length > 0 && length <= a->room ? a->tokens[b * a->room + at] : 0;
  a->positions[b] = at;
  a->places[b] = done || page >= a->pages ? -1 : a->table[b * a->pages + page] * a->page_size + at % a->page_size;
}

#ifndef TFU_DEVICE
#include "tfuse.h"

/* The arguments of a call whose results are where they are to be written. */
advance_args tfu_advance_args(const tfu_call *call);
#endif

#endif
