/* From the lowest digit up, keys are dealt out to 256 buckets, in the order they have, and the buckets put after each
 * other. A digit that all keys share is passed over. Short lines are sorted by insertion: the buckets would cost more.
 */
#ifndef KEY
#include "kernels/sorting/radix_cpu.h"

#include "kernels/core/arithmetic.h"

enum { PILES = 256, SHORT_LINE = 40, CHUNKS_PER_THREAD = 2 };

int64_t tfu_radix_counts(void) { return (int64_t)tfu_threads() * CHUNKS_PER_THREAD * PILES; }

#define TFU_SELF "kernels/sorting/radix_cpu.c"
#include "kernels/sorting/by_key.h"
#else

static void KEYED(insert)(KEYED(tfu_line) * l) {
  KEY *keys = l->keys;
  uint32_t *indices = l->indices;
  for (int64_t i = 1; i < l->n; i++) {
    const KEY key = keys[i];
    const uint32_t index = indices ? indices[i] : 0;
    int64_t to = i;
    for (; to > 0 && keys[to - 1] > key; to--) {
      keys[to] = keys[to - 1];
      if (indices) indices[to] = indices[to - 1];
    }
    keys[to] = key;
    if (indices) indices[to] = index;
  }
}

/* Moves keys `from` up to `to` to the next slots of their buckets. */
static void KEYED(deal)(const KEYED(tfu_line) * l, int shift, int64_t from, int64_t to, int64_t *next) {
  const KEY *keys = l->keys;
  KEY *restrict to_keys = l->other_keys;
  uint32_t *restrict to_indices = l->other_indices;
  for (int64_t i = from; i < to; i++) {
    const int64_t at = next[(uint8_t)(keys[i] >> shift)]++;
    to_keys[at] = keys[i];
    if (to_indices) to_indices[at] = l->indices[i];
  }
}

static void KEYED(swap)(KEYED(tfu_line) * l) {
  KEY *keys = l->keys;
  uint32_t *indices = l->indices;
  l->keys = l->other_keys, l->other_keys = keys;
  l->indices = l->other_indices, l->other_indices = indices;
}

void KEYED(tfu_radix)(KEYED(tfu_line) * l) {
  if (l->n <= SHORT_LINE) {
    KEYED(insert)(l);
    return;
  }
  int64_t counts[sizeof(KEY)][PILES] = {{0}};
  for (int64_t i = 0; i < l->n; i++)
    for (unsigned d = 0; d < sizeof(KEY); d++) counts[d][(uint8_t)(l->keys[i] >> 8 * d)]++;
  for (unsigned d = 0; d < sizeof(KEY); d++) {
    int64_t *next = counts[d], before = 0;
    if (next[(uint8_t)(l->keys[0] >> 8 * d)] == l->n) continue;
    for (int p = 0; p < PILES; p++) {
      const int64_t n = next[p];
      next[p] = before;
      before += n;
    }
    KEYED(deal)(l, 8 * (int)d, 0, l->n, next);
    KEYED(swap)(l);
  }
}

/* ---- by all threads: each takes a chunk of the line, and counts and deals it ---- */

typedef struct KEYED(together) {
  KEYED(tfu_line) * line;
  int64_t *counts, chunk;
  int shift;
} KEYED(together);

static void KEYED(count_chunk)(void *arg, int64_t i) {
  const KEYED(together) *t = arg;
  const int64_t from = i * t->chunk, to = from + t->chunk < t->line->n ? from + t->chunk : t->line->n;
  int64_t *counts = t->counts + i * PILES;
  memset(counts, 0, PILES * sizeof *counts);
  for (int64_t k = from; k < to; k++) counts[(uint8_t)(t->line->keys[k] >> t->shift)]++;
}

static void KEYED(deal_chunk)(void *arg, int64_t i) {
  const KEYED(together) *t = arg;
  const int64_t from = i * t->chunk, to = from + t->chunk < t->line->n ? from + t->chunk : t->line->n;
  KEYED(deal)(t->line, t->shift, from, to, t->counts + i * PILES);
}

void KEYED(tfu_radix_together)(KEYED(tfu_line) * l, int64_t *counts) {
  const int64_t most = (int64_t)tfu_threads() * CHUNKS_PER_THREAD;
  KEYED(together) t = {.line = l, .counts = counts, .chunk = divide_up(l->n, most)};
  const int64_t chunks = divide_up(l->n, t.chunk);
  for (unsigned d = 0; d < sizeof(KEY); d++) {
    int64_t before = 0;
    t.shift = 8 * (int)d;
    tfu_parallel(chunks, KEYED(count_chunk), &t);
    for (int p = 0; p < PILES; p++)
      for (int64_t c = 0; c < chunks; c++) {
        const int64_t n = counts[c * PILES + p];
        counts[c * PILES + p] = before;
        before += n;
      }
    tfu_parallel(chunks, KEYED(deal_chunk), &t);
    KEYED(swap)(l);
  }
}
#endif
