#include "kernels/core/tuned.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/tuned_file.h"

enum { BUCKETS = 2 * TFU_TUNED_MOST };

typedef struct entry {
  const tfu_tuner *tuner;
  unsigned char key[TFU_TUNED_KEY];
  tfu_tuned_line line;
  int made;
  int64_t used;       /* when it was last asked for, by the count of all that was asked */
  struct entry *next; /* in the bucket */
} entry;

/* An entry is in a bucket or spare, and is never freed: somebody may still show its label. */
static entry *buckets[BUCKETS], *spare;
static int n_entries;
static int64_t n_asked;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t made = PTHREAD_COND_INITIALIZER;
static pthread_once_t started = PTHREAD_ONCE_INIT;
static int tuning;
static tfu_tuned_lines stored; /* what the file had when it was first looked at */

static void start(void) {
  const char *value = getenv("TFUSE_AUTOTUNE");
  tuning = !value || strcmp(value, "0") != 0;
  if (tuning) tfu_tuned_read(tfu_tuned_path(), &stored);
}

int tfu_tuning(void) {
  pthread_once(&started, start);
  return tuning;
}

static entry **bucket_of(const tfu_tuner *t, const void *key) {
  return &buckets[(tfu_tuned_hash(key, t->bytes) ^ (uintptr_t)t >> 4) % BUCKETS];
}

/* The lock is held. */
static entry *find(const tfu_tuner *t, const void *key) {
  for (entry *e = *bucket_of(t, key); e; e = e->next)
    if (e->tuner == t && !memcmp(e->key, key, t->bytes)) return e;
  return NULL;
}

static void take_out(entry *e) {
  entry **at = bucket_of(e->tuner, e->key);
  while (*at != e) at = &(*at)->next;
  *at = e->next;
}

/* The entry that was not asked for longest, taken out; NULL where all are still to be made. A search through all of
 * them takes far less than the timing that follows. */
static entry *make_room(void) {
  entry *oldest = NULL;
  for (int b = 0; b < BUCKETS; b++)
    for (entry *e = buckets[b]; e; e = e->next)
      if (e->made && (!oldest || e->used < oldest->used)) oldest = e;
  if (oldest) take_out(oldest);
  return oldest;
}

/* A new entry that is still to be made; NULL where there is no room. The lock is held. */
static entry *add(const tfu_tuner *t, const void *key) {
  entry *e = spare, **bucket = bucket_of(t, key);
  if (e) spare = e->next;
  else if (n_entries == TFU_TUNED_MOST) e = make_room();
  else if ((e = calloc(1, sizeof *e))) n_entries++;
  if (!e) return NULL;
  e->tuner = t;
  memcpy(e->key, key, t->bytes);
  e->made = 0;
  e->next = *bucket;
  *bucket = e;
  return e;
}

/* Writes what the file has now, and what is chosen here, ours first. */
static void save(void) {
  tfu_tuned_lines all = {0}, theirs = {0};
  pthread_mutex_lock(&lock);
  for (int b = 0; b < BUCKETS; b++)
    for (entry *e = buckets[b]; e; e = e->next)
      if (e->made && e->line.choice.microseconds > 0) tfu_tuned_append(&all, &e->line);
  pthread_mutex_unlock(&lock);
  tfu_tuned_read(tfu_tuned_path(), &theirs);
  for (int i = 0; i < theirs.n; i++)
    if (!tfu_tuned_find(&all, theirs.line[i].text)) tfu_tuned_append(&all, &theirs.line[i]);
  tfu_tuned_write(tfu_tuned_path(), &all);
  tfu_tuned_release(&all);
  tfu_tuned_release(&theirs);
}

/* From the file, or by timing; returns whether it may be remembered, and whether the file does not have it. */
static tfu_chosen make(const tfu_tuner *t, const void *key, void *with, tfu_tuned_line *line, int *is_new) {
  *is_new = 0;
  t->describe(key, with, line->text, sizeof line->text);
  const tfu_tuned_line *known = tuning ? tfu_tuned_find(&stored, line->text) : NULL;
  if (known && t->usable(key, with, &known->choice)) {
    line->choice = known->choice;
    return TFU_CHOSEN;
  }
  const tfu_chosen chosen = t->choose(key, with, &line->choice);
  *is_new = chosen == TFU_CHOSEN && tuning && line->choice.microseconds > 0;
  return chosen;
}

const char *tfu_tuned_get(const tfu_tuner *t, const void *key, void *with, tfu_choice *choice) {
  tfu_tuned_line line = {0};
  int is_new;
  pthread_once(&started, start);
  pthread_mutex_lock(&lock);
  entry *e;
  /* Whoever waits looks again: what it waited for may not have been kept. */
  while ((e = find(t, key)) && !e->made) pthread_cond_wait(&made, &lock);
  const int mine = !e;
  if (mine) e = add(t, key);
  else *choice = e->line.choice; /* a copy: e may make room for another as soon as the lock is gone */
  if (e) e->used = ++n_asked;
  pthread_mutex_unlock(&lock);
  if (!mine) return e->line.choice.label;

  const tfu_chosen chosen = make(t, key, with, &line, &is_new);
  *choice = line.choice;
  if (!e) return NULL;
  const int kept = chosen == TFU_CHOSEN;
  pthread_mutex_lock(&lock);
  if (kept) e->line = line;
  e->made = 1;
  if (!kept) take_out(e), e->next = spare, spare = e;
  pthread_cond_broadcast(&made);
  pthread_mutex_unlock(&lock);
  if (is_new) save();
  return kept ? e->line.choice.label : NULL;
}

static void release(entry *e) {
  while (e) {
    entry *next = e->next;
    free(e);
    e = next;
  }
}

void tfu_tuned_forget(void) {
  pthread_mutex_lock(&lock);
  for (int b = 0; b < BUCKETS; b++) release(buckets[b]);
  release(spare);
  memset(buckets, 0, sizeof buckets);
  spare = NULL;
  n_entries = 0;
  tfu_tuned_release(&stored);
  pthread_mutex_unlock(&lock);
  pthread_once(&started, start);
  start();
}
