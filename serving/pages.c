#include "serving/pages.h"

#include <stdlib.h>
#include <string.h>

typedef struct page {
  int64_t users, before; /* before: the page with the words before these, or TFU_NO_PAGE */
  uint64_t left;         /* when its last user left */
  int named;
} page;

struct tfu_pages {
  int64_t n, size, unused, n_free; /* unused: with a name and no user */
  uint64_t now;
  page *at;
  int64_t *free;
  int32_t *words; /* [n, size], of those with a name */
};

void tfu_pages_free(tfu_pages *p) {
  if (!p) return;
  free(p->at);
  free(p->free);
  free(p->words);
  free(p);
}

tfu_code tfu_pages_new(int64_t n, int64_t size, tfu_pages **pages, tfu_error *err) {
  TFU_REQUIRE(err, n > 0 && n < INT64_C(1) << 31 && size > 0 && size < 1 << 16,
              "%lld pages of %lld words cannot be kept", (long long)n, (long long)size);
  tfu_pages *p = *pages = calloc(1, sizeof *p);
  if (p) {
    *p = (tfu_pages){.n = n,
                     .size = size,
                     .at = calloc((size_t)n, sizeof *p->at),
                     .free = malloc((size_t)n * sizeof *p->free),
                     .words = malloc((size_t)(n * size) * sizeof *p->words)};
    if (p->at && p->free && p->words) {
      while (p->n_free < n) p->free[p->n_free] = n - 1 - p->n_free, p->n_free++;
      return TFU_OK;
    }
  }
  tfu_pages_free(p);
  *pages = NULL;
  return tfu_fail(err, TFU_EXHAUSTED, "out of host memory: %lld pages", (long long)n);
}

int64_t tfu_pages_count(const tfu_pages *p) { return p->n; }
int64_t tfu_pages_available(const tfu_pages *p) { return p->n_free + p->unused; }
int tfu_pages_is_unused(const tfu_pages *p, int64_t page) { return p->at[page].named && !p->at[page].users; }

int64_t tfu_pages_find(const tfu_pages *p, int64_t before, const int32_t *words) {
  const size_t bytes = (size_t)p->size * sizeof *words;
  for (int64_t i = 0; i < p->n; i++)
    if (p->at[i].named && p->at[i].before == before && !memcmp(p->words + i * p->size, words, bytes)) return i;
  return TFU_NO_PAGE;
}

void tfu_pages_use(tfu_pages *p, int64_t page) {
  p->unused -= tfu_pages_is_unused(p, page);
  p->at[page].users++;
}

int64_t tfu_pages_take(tfu_pages *p) {
  if (!p->n_free) {
    int64_t oldest = TFU_NO_PAGE;
    for (int64_t i = 0; i < p->n; i++)
      if (tfu_pages_is_unused(p, i) && (oldest < 0 || p->at[i].left < p->at[oldest].left)) oldest = i;
    p->at[oldest].named = 0;
    p->unused--;
    p->free[p->n_free++] = oldest;
  }
  const int64_t page = p->free[--p->n_free];
  p->at[page].users = 1;
  return page;
}

void tfu_pages_name(tfu_pages *p, int64_t page, int64_t before, const int32_t *words) {
  p->at[page].named = 1;
  p->at[page].before = before;
  memcpy(p->words + page * p->size, words, (size_t)p->size * sizeof *words);
}

void tfu_pages_leave(tfu_pages *p, int64_t page) {
  if (--p->at[page].users) return;
  p->at[page].left = ++p->now;
  if (p->at[page].named) p->unused++;
  else p->free[p->n_free++] = page;
}
