#include "kernels/core/table.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/core/hash.h"

typedef struct tfu_kept {
  struct tfu_kept *next;          /* in its chain, among those that leave, or among spare ones */
  struct tfu_kept *older, *newer; /* among those that nobody holds                             */
  uint64_t hash;
  size_t bytes; /* of the key */
  int64_t holders;
  int made;
  tfu_last_use use;
  _Alignas(max_align_t) unsigned char body[]; /* the value, and the key */
} tfu_kept;

static size_t key_at(const tfu_table *t) {
  enum { ALIGN = _Alignof(max_align_t) };
  return (t->value + ALIGN - 1) / ALIGN * ALIGN;
}

static unsigned char *key_of(const tfu_table *t, tfu_kept *e) { return e->body + key_at(t); }

static tfu_kept **chain_of(const tfu_table *t, uint64_t hash) { return &t->chain[hash % (unsigned)t->chains]; }

/* ---- while the lock is held ---- */

static tfu_kept *find(const tfu_table *t, uint64_t hash, const void *key, size_t bytes) {
  for (tfu_kept *e = t->chains ? *chain_of(t, hash) : NULL; e; e = e->next)
    if (e->hash == hash && e->bytes == bytes && !(t->exclusive && e->holders) && !memcmp(key_of(t, e), key, bytes))
      return e;
  return NULL;
}

/* Twice as many chains once there are as many values; 0: there are none at all. */
static int has_chains(tfu_table *t) {
  if (t->n < t->chains) return 1;
  const int more = t->chains ? 2 * t->chains : 64;
  tfu_kept **chain = calloc((size_t)more, sizeof *chain), **old = t->chain;
  if (!chain) return t->chains > 0;
  const int before = t->chains;
  t->chain = chain, t->chains = more;
  for (int i = 0; i < before; i++)
    for (tfu_kept *e = old[i], *next; e; e = next) {
      next = e->next;
      e->next = *chain_of(t, e->hash), *chain_of(t, e->hash) = e;
    }
  free(old);
  return 1;
}

static tfu_kept *add(tfu_table *t, uint64_t hash, const void *key, size_t bytes) {
  if (!has_chains(t)) return NULL;
  tfu_kept *e = t->spare;
  if (e) t->spare = e->next;
  else if (!(e = calloc(1, sizeof *e + key_at(t) + bytes + 1))) return NULL;
  *e = (tfu_kept){.next = *chain_of(t, hash), .hash = hash, .bytes = bytes, .holders = 1, .made = !t->make};
  memcpy(key_of(t, e), key, bytes);
  *chain_of(t, hash) = e;
  t->n++;
  return e;
}

static void take_from_idle(tfu_table *t, tfu_kept *e) {
  *(e->older ? &e->older->newer : &t->oldest) = e->newer;
  *(e->newer ? &e->newer->older : &t->newest) = e->older;
  t->idle--;
}

static void put_to_idle(tfu_table *t, tfu_kept *e) {
  e->older = t->newest, e->newer = NULL;
  *(e->older ? &e->older->newer : &t->oldest) = e;
  t->newest = e;
  t->idle++;
}

static void take_out(tfu_table *t, tfu_kept *e) {
  tfu_kept **at = chain_of(t, e->hash);
  while (*at != e) at = &(*at)->next;
  *at = e->next;
  t->n--;
}

static void leave(tfu_table *t, tfu_kept *e) {
  take_out(t, e);
  e->next = t->leaving, t->leaving = e;
}

/* Evicts until no more than `most` stay. */
static void evict(tfu_table *t, int most) {
  while (t->idle > most) {
    tfu_kept *e = t->oldest;
    take_from_idle(t, e);
    leave(t, e);
  }
}

/* Those of `leaving` that the GPU is done with; what it never used is among them. */
static tfu_kept *take_done(tfu_table *t) {
  tfu_kept *done = NULL;
  for (tfu_kept **at = &t->leaving, *e; (e = *at);) {
    if (!tfu_use_done(&e->use)) {
      at = &e->next;
      continue;
    }
    *at = e->next;
    e->next = done, done = e;
  }
  return done;
}

/* ---- while it is not ---- */

static void discard(tfu_table *t, tfu_kept *e) {
  if (!t->lasting) {
    free(e);
    return;
  }
  pthread_mutex_lock(&t->lock);
  e->next = t->spare, t->spare = e;
  pthread_mutex_unlock(&t->lock);
}

static void destroy(tfu_table *t, tfu_kept *e) {
  for (tfu_kept *next; e; e = next) {
    next = e->next;
    if (t->release) t->release(e->body);
    tfu_use_close(&e->use);
    discard(t, e);
  }
}

static tfu_code make(tfu_table *t, tfu_kept *e, void *with, tfu_error *err) {
  const tfu_code code = t->make(key_of(t, e), e->body, with, err);
  pthread_mutex_lock(&t->lock);
  e->made = 1;
  if (code != TFU_OK) take_out(t, e);
  pthread_cond_broadcast(&t->changed);
  pthread_mutex_unlock(&t->lock);
  if (code != TFU_OK) discard(t, e);
  return code;
}

tfu_code tfu_table_get(tfu_table *t, const void *key, size_t bytes, void *with, void **value, tfu_error *err) {
  const uint64_t hash = tfu_hash(TFU_HASH_START, key, bytes);
  tfu_kept *e, *gone = NULL;
  pthread_mutex_lock(&t->lock);
  /* Whoever has waited looks again: what it waited for may not have been made. */
  while ((e = find(t, hash, key, bytes)) && !e->made) pthread_cond_wait(&t->changed, &t->lock);
  const int mine = !e;
  if (mine) {
    if (t->most > 0) evict(t, t->most - 1);
    gone = take_done(t);
    e = add(t, hash, key, bytes);
  } else if (!e->holders++) {
    take_from_idle(t, e);
  }
  pthread_mutex_unlock(&t->lock);
  destroy(t, gone);
  if (!e) return tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
  *value = e->body;
  return mine && t->make ? make(t, e, with, err) : TFU_OK;
}

void tfu_table_put(tfu_table *t, void *value, const tfu_call *ran) {
  tfu_kept *e = (tfu_kept *)((unsigned char *)value - offsetof(tfu_kept, body)), *gone = NULL;
  pthread_mutex_lock(&t->lock);
  if (ran) tfu_use(&e->use, ran);
  if (e->holders && --e->holders == 0) {
    if (t->most) put_to_idle(t, e);
    else leave(t, e), gone = take_done(t);
  }
  pthread_mutex_unlock(&t->lock);
  destroy(t, gone);
}

int tfu_table_each(tfu_table *t, int (*visit)(const void *key, void *value, void *with), void *with) {
  int answer = 0;
  pthread_mutex_lock(&t->lock);
  for (int i = 0; i < t->chains && !answer; i++)
    for (tfu_kept *e = t->chain[i]; e && !answer; e = e->next)
      if (e->made) answer = visit(key_of(t, e), e->body, with);
  pthread_mutex_unlock(&t->lock);
  return answer;
}

void tfu_table_clear(tfu_table *t) {
  pthread_mutex_lock(&t->lock);
  evict(t, 0);
  tfu_kept *gone = take_done(t);
  pthread_mutex_unlock(&t->lock);
  destroy(t, gone);
  pthread_mutex_lock(&t->lock);
  for (tfu_kept *e; (e = t->spare); free(e)) t->spare = e->next;
  pthread_mutex_unlock(&t->lock);
}
