/* Pages with a name are in a hash table of chains, and those of them that nobody uses in a list, the one that was left
 * first at its head. So each function takes the same time however many pages there are. */
#include "serving/pages.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef struct page {
  int64_t users, before; /* before: the page with the words before these, or TFU_NO_PAGE */
  int64_t next;          /* of its chain */
  int64_t older, newer;  /* of the list */
  int named;
} page;

struct tfu_pages {
  int64_t n, size, unused, n_free; /* unused: with a name and no user */
  int64_t oldest, newest;          /* of these */
  page *at;
  int64_t *free;
  int32_t *words; /* [n, size], of those with a name */
  int bits;       /* of a chain's number */
  int64_t *chain; /* the first page of each, or TFU_NO_PAGE */
  uint64_t *random;
};

void tfu_pages_free(tfu_pages *p) {
  if (!p) return;
  free(p->at);
  free(p->free);
  free(p->words);
  free(p->chain);
  free(p->random);
  free(p);
}

/* splitmix64, from a seed that nobody outside knows. */
static void draw(uint64_t *random, int64_t n) {
  uint64_t state;
  if (syscall(SYS_getrandom, &state, sizeof state, 0) != sizeof state) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    state = (uint64_t)now.tv_nsec * 1000003 + (uint64_t)now.tv_sec;
  }
  for (int64_t i = 0; i < n; i++) {
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    random[i] = z ^ z >> 31;
  }
}

tfu_code tfu_pages_new(int64_t n, int64_t size, tfu_pages **pages, tfu_error *err) {
  TFU_REQUIRE(err, n > 0 && n < INT64_C(1) << 31 && size > 0 && size < 1 << 16,
              "%lld pages of %lld words cannot be kept", (long long)n, (long long)size);
  tfu_pages *p = *pages = calloc(1, sizeof *p);
  int bits = 0;
  while (INT64_C(1) << bits < n) bits++;
  if (p) {
    *p = (tfu_pages){.n = n,
                     .size = size,
                     .oldest = TFU_NO_PAGE,
                     .newest = TFU_NO_PAGE,
                     .at = calloc((size_t)n, sizeof *p->at),
                     .free = malloc((size_t)n * sizeof *p->free),
                     .words = malloc((size_t)(n * size) * sizeof *p->words),
                     .bits = bits,
                     .chain = malloc(sizeof *p->chain << bits),
                     .random = malloc((size_t)(size + 2) * sizeof *p->random)};
    if (p->at && p->free && p->words && p->chain && p->random) {
      while (p->n_free < n) p->free[p->n_free] = n - 1 - p->n_free, p->n_free++;
      for (int64_t i = 0; i < INT64_C(1) << bits; i++) p->chain[i] = TFU_NO_PAGE;
      draw(p->random, size + 2);
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

/* ---- names ---- */

/* Multilinear hashing (Lemire and Kaser, 2014): the upper 32 bits of r0 + r1 w1 + r2 w2 + … by random numbers of 64
 * bits. Two names fall into one chain as seldom as if by chance, whatever prompts a client thinks of. */
static int64_t *chain_of(const tfu_pages *p, int64_t before, const int32_t *words) {
  uint64_t hash = p->random[0] + p->random[1] * (uint32_t)(before + 1);
  for (int64_t i = 0; i < p->size; i++) hash += p->random[i + 2] * (uint32_t)words[i];
  return &p->chain[p->bits ? (hash >> 32) >> (32 - p->bits) : 0];
}

int64_t tfu_pages_find(const tfu_pages *p, int64_t before, const int32_t *words) {
  const size_t bytes = (size_t)p->size * sizeof *words;
  int64_t i = *chain_of(p, before, words);
  while (i != TFU_NO_PAGE && (p->at[i].before != before || memcmp(p->words + i * p->size, words, bytes)))
    i = p->at[i].next;
  return i;
}

void tfu_pages_name(tfu_pages *p, int64_t page, int64_t before, const int32_t *words) {
  int64_t *chain = chain_of(p, before, words);
  p->at[page].named = 1;
  p->at[page].before = before;
  p->at[page].next = *chain;
  *chain = page;
  memcpy(p->words + page * p->size, words, (size_t)p->size * sizeof *words);
}

static void forget(tfu_pages *p, int64_t page) {
  int64_t *at = chain_of(p, p->at[page].before, p->words + page * p->size);
  while (*at != page) at = &p->at[*at].next;
  *at = p->at[page].next;
  p->at[page].named = 0;
}

/* ---- those that nobody uses ---- */

static void put_newest(tfu_pages *p, int64_t page) {
  p->at[page].older = p->newest;
  p->at[page].newer = TFU_NO_PAGE;
  *(p->newest == TFU_NO_PAGE ? &p->oldest : &p->at[p->newest].newer) = page;
  p->newest = page;
  p->unused++;
}

static void take_out(tfu_pages *p, int64_t page) {
  const int64_t older = p->at[page].older, newer = p->at[page].newer;
  *(older == TFU_NO_PAGE ? &p->oldest : &p->at[older].newer) = newer;
  *(newer == TFU_NO_PAGE ? &p->newest : &p->at[newer].older) = older;
  p->unused--;
}

void tfu_pages_use(tfu_pages *p, int64_t page) {
  if (tfu_pages_is_unused(p, page)) take_out(p, page);
  p->at[page].users++;
}

int64_t tfu_pages_take(tfu_pages *p) {
  if (!p->n_free) {
    const int64_t oldest = p->oldest;
    take_out(p, oldest);
    forget(p, oldest);
    p->free[p->n_free++] = oldest;
  }
  const int64_t page = p->free[--p->n_free];
  p->at[page].users = 1;
  return page;
}

void tfu_pages_leave(tfu_pages *p, int64_t page) {
  if (--p->at[page].users) return;
  if (p->at[page].named) put_newest(p, page);
  else p->free[p->n_free++] = page;
}
