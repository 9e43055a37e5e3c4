#include "kernels/core/nvidia/plan_cache.h"

#include <stdlib.h>
#include <string.h>

typedef struct entry {
  tfu_planned planned; /* first: callers hold a pointer to it */
  const char *family;
  size_t bytes;
  unsigned char key[TFU_PLAN_KEY];
  int kept, made, held; /* in the list; planned; by how many callers */
  int64_t touched;      /* when, in calls                            */
  tfu_last_use use;
  struct entry *next; /* of those that leave */
} entry;

/* Searched in order: 256 comparisons of two words cost less than a microsecond, and a run of cuDNN many. */
static entry *entries[TFU_PLANS];
static int n_entries;
static entry *leaving; /* dropped, and held by nobody */
static int64_t calls;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t made = PTHREAD_COND_INITIALIZER;

static entry *find(const char *family, const void *key, size_t bytes) {
  for (int i = 0; i < n_entries; i++)
    if (entries[i]->bytes == bytes && !memcmp(entries[i]->key, key, bytes) && !strcmp(entries[i]->family, family))
      return entries[i];
  return NULL;
}

/* Takes out of `leaving` what the GPU is done with; what was never used is among it. */
static entry *take_done(void) {
  entry *done = NULL;
  for (entry **at = &leaving; *at;) {
    entry *e = *at;
    if (!tfu_use_done(&e->use)) {
      at = &e->next;
      continue;
    }
    *at = e->next;
    e->next = done;
    done = e;
  }
  return done;
}

/* Without the lock: cuDNN may take its time to unload what it has compiled. */
static void destroy(entry *e) {
  while (e) {
    entry *next = e->next;
    tfu_graph_free(e->planned.graph);
    tfu_use_close(&e->use);
    free(e);
    e = next;
  }
}

static void leave(entry *e) {
  e->next = leaving;
  leaving = e;
}

/* Puts e into the list, in the place of the longest unused of those that nobody holds. Where all are held, e stays
 * outside and lives as long as it is held itself. */
static void keep(entry *e) {
  int oldest = n_entries < TFU_PLANS ? n_entries++ : -1;
  if (oldest < 0) {
    for (int i = 0; i < n_entries; i++)
      if (!entries[i]->held && (oldest < 0 || entries[i]->touched < entries[oldest]->touched)) oldest = i;
    if (oldest < 0) return;
  }
  if (entries[oldest]) leave(entries[oldest]); /* not in a place that was free */
  entries[oldest] = e;
  e->kept = 1;
}

static entry *new_entry(const char *family, const void *key, size_t bytes) {
  entry *e = calloc(1, sizeof *e);
  if (!e) return NULL;
  e->family = family;
  e->bytes = bytes;
  memcpy(e->key, key, bytes);
  return e;
}

tfu_planned *tfu_plan_get(const char *family, const void *key, size_t bytes, tfu_plan_fn *make, void *with) {
  if (bytes > TFU_PLAN_KEY) return NULL;
  pthread_mutex_lock(&lock);
  entry *e = find(family, key, bytes);
  const int mine = !e;
  if (mine && (e = new_entry(family, key, bytes))) keep(e);
  if (e) {
    e->held++;
    e->touched = ++calls;
    while (!mine && !e->made) pthread_cond_wait(&made, &lock);
  }
  pthread_mutex_unlock(&lock);
  if (!e || !mine) return (tfu_planned *)e;

  tfu_graph *graph = make(e->key, with, e->planned.why, sizeof e->planned.why);
  pthread_mutex_lock(&lock);
  e->planned.graph = graph;
  e->made = 1;
  entry *done = take_done(); /* after the planning, which gave the GPU time */
  pthread_cond_broadcast(&made);
  pthread_mutex_unlock(&lock);
  destroy(done);
  return &e->planned;
}

void tfu_plan_release(tfu_planned *planned, const tfu_call *ran) {
  entry *e = (entry *)planned;
  pthread_mutex_lock(&lock);
  if (ran) tfu_use(&e->use, ran);
  if (--e->held == 0 && !e->kept) leave(e);
  pthread_mutex_unlock(&lock);
}

int tfu_plans_kept(void) {
  pthread_mutex_lock(&lock);
  const int n = n_entries;
  pthread_mutex_unlock(&lock);
  return n;
}

int tfu_plans_leaving(void) {
  int n = 0;
  pthread_mutex_lock(&lock);
  for (const entry *e = leaving; e; e = e->next) n++;
  pthread_mutex_unlock(&lock);
  return n;
}
