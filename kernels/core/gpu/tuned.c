#include "kernels/core/gpu/tuned.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/gpu/determinism.h"
#include "kernels/core/gpu/tuned_file.h"

enum { BUCKETS = 2 * TFU_TUNED_MOST };

typedef struct entry {
  const tfu_tuner *tuner;
  unsigned char key[TFU_TUNED_KEY];
  tfu_tuned_line line;
  int made, adopted;
  int timing;         /* whether choices were made by timing when it was */
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
  return tuning && !tfu_deterministic();
}

static entry **bucket_of(const tfu_tuner *t, const void *key) {
  return &buckets[(tfu_tuned_hash(key, t->bytes) ^ (uintptr_t)t >> 4) % BUCKETS];
}

/* The lock is held. */
static entry *find(const tfu_tuner *t, const void *key, int timing) {
  for (entry *e = *bucket_of(t, key); e; e = e->next)
    if (e->tuner == t && e->timing == timing && !memcmp(e->key, key, t->bytes)) return e;
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
static entry *add(const tfu_tuner *t, const void *key, int timing) {
  entry *e = spare, **bucket = bucket_of(t, key);
  if (e) spare = e->next;
  else if (n_entries == TFU_TUNED_MOST) e = make_room();
  else if ((e = calloc(1, sizeof *e))) n_entries++;
  if (!e) return NULL;
  e->tuner = t;
  memcpy(e->key, key, t->bytes);
  e->made = e->adopted = 0;
  e->timing = timing;
  e->next = *bucket;
  *bucket = e;
  return e;
}

/* A copy of the nearest entry of the key's kind that was timed; 0 where too few were, or none is near. The search takes
 * far less than the timing that it saves. */
static int find_near(const tfu_tuner *t, const void *key, entry *near) {
  enum { NEAR = 1 }; /* a factor of 2 */
  double least = NEAR;
  const entry *nearest = NULL;
  int timed = 0;
  pthread_mutex_lock(&lock);
  for (int b = 0; b < BUCKETS; b++)
    for (entry *e = buckets[b]; e; e = e->next) {
      if (e->tuner != t || !e->made || e->adopted || e->line.choice.microseconds <= 0) continue;
      const double apart = t->apart(key, e->key);
      timed += apart >= 0;
      if (apart >= 0 && apart <= least) least = apart, nearest = e;
    }
  if (nearest) *near = *nearest;
  pthread_mutex_unlock(&lock);
  return nearest && timed >= TFU_TUNED_KIND;
}

/* Writes what the file has now, and what is chosen here, ours first. */
static void save(void) {
  tfu_tuned_lines all = {0}, theirs = {0};
  pthread_mutex_lock(&lock);
  for (int b = 0; b < BUCKETS; b++)
    for (entry *e = buckets[b]; e; e = e->next)
      if (e->made && !e->adopted && e->line.choice.microseconds > 0) tfu_tuned_append(&all, &e->line);
  pthread_mutex_unlock(&lock);
  tfu_tuned_read(tfu_tuned_path(), &theirs);
  for (int i = 0; i < theirs.n; i++)
    if (!tfu_tuned_find(&all, theirs.line[i].text)) tfu_tuned_append(&all, &theirs.line[i]);
  tfu_tuned_write(tfu_tuned_path(), &all);
  tfu_tuned_release(&all);
  tfu_tuned_release(&theirs);
}

typedef enum source { FROM_FILE, FROM_LIKE, BY_TIMING } source;

/* From the file, from a like size, or by timing; returns whether it may be remembered. */
static tfu_chosen make(const tfu_tuner *t, const void *key, void *with, int timing, tfu_tuned_line *line, source *by) {
  entry near;
  t->describe(key, with, line->text, sizeof line->text);
  const tfu_tuned_line *known = timing ? tfu_tuned_find(&stored, line->text) : NULL;
  *by = FROM_FILE;
  if (known && t->usable(key, with, &known->choice)) {
    line->choice = known->choice;
    return TFU_CHOSEN;
  }
  *by = FROM_LIKE;
  if (timing && t->apart && find_near(t, key, &near)) {
    line->choice = near.line.choice;
    if (t->adopt(key, near.key, with, &line->choice)) return TFU_CHOSEN;
  }
  *by = BY_TIMING;
  return t->choose(key, with, &line->choice);
}

/* Who finds no entry for the key adds one that is not made yet, makes the choice without the lock, since that may take
 * long, and then fills the entry in or takes it out again. All others wait for that. */
const char *tfu_tuned_get(const tfu_tuner *t, const void *key, void *with, tfu_choice *choice) {
  tfu_tuned_line line = {0};
  source by;
  const int timing = tfu_tuning();
  pthread_mutex_lock(&lock);
  entry *e;
  /* Whoever waits looks again: what it waited for may not have been kept. */
  while ((e = find(t, key, timing)) && !e->made) pthread_cond_wait(&made, &lock);
  const int mine = !e;
  if (mine) e = add(t, key, timing);
  else *choice = e->line.choice; /* a copy: e may make room for another as soon as the lock is gone */
  if (e) e->used = ++n_asked;
  pthread_mutex_unlock(&lock);
  if (!mine) return e->line.choice.label;

  const tfu_chosen chosen = make(t, key, with, timing, &line, &by);
  *choice = line.choice;
  if (!e) return NULL;
  const int kept = chosen == TFU_CHOSEN;
  pthread_mutex_lock(&lock);
  if (kept) e->line = line;
  e->made = 1;
  e->adopted = by == FROM_LIKE;
  if (!kept) take_out(e), e->next = spare, spare = e;
  pthread_cond_broadcast(&made);
  pthread_mutex_unlock(&lock);
  if (kept && timing && by == BY_TIMING && line.choice.microseconds > 0) save();
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
