#include "kernels/core/plan_cache.h"

#include <stdlib.h>
#include <string.h>

typedef struct entry {
  tfu_planned planned; /* first: callers hold a pointer to it */
  const char *family;
  size_t bytes;
  unsigned char key[TFU_PLAN_KEY];
  int kept, made, held; /* in the list; planned; by how many callers */
  int64_t touched;      /* when, in calls                            */
} entry;

/* Searched in order: 256 comparisons of two words cost less than a microsecond, and a run of cuDNN many. */
static entry *entries[TFU_PLANS];
static int n_entries;
static int64_t calls;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t made = PTHREAD_COND_INITIALIZER;

static entry *find(const char *family, const void *key, size_t bytes) {
  for (int i = 0; i < n_entries; i++)
    if (entries[i]->bytes == bytes && !memcmp(entries[i]->key, key, bytes) && !strcmp(entries[i]->family, family))
      return entries[i];
  return NULL;
}

static void destroy(entry *e) {
  tfu_graph_free(e->planned.graph);
  free(e);
}

/* Puts e into the list. Returns what went for it, the longest unused of those that nobody holds. Where all are held, e
 * stays outside and lives as long as it is held itself. */
static entry *keep(entry *e) {
  int oldest = n_entries < TFU_PLANS ? n_entries++ : -1;
  if (oldest < 0) {
    for (int i = 0; i < n_entries; i++)
      if (!entries[i]->held && (oldest < 0 || entries[i]->touched < entries[oldest]->touched)) oldest = i;
    if (oldest < 0) return NULL;
  }
  entry *gone = entries[oldest]; /* NULL in a place that was free */
  entries[oldest] = e;
  e->kept = 1;
  return gone;
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
  entry *gone = NULL;
  if (bytes > TFU_PLAN_KEY) return NULL;
  pthread_mutex_lock(&lock);
  entry *e = find(family, key, bytes);
  const int mine = !e;
  if (mine && (e = new_entry(family, key, bytes))) gone = keep(e);
  if (e) {
    e->held++;
    e->touched = ++calls;
    while (!mine && !e->made) pthread_cond_wait(&made, &lock);
  }
  pthread_mutex_unlock(&lock);
  if (!e || !mine) return (tfu_planned *)e;

  tfu_graph *graph = make(e->key, with, e->planned.why, sizeof e->planned.why);
  if (gone) destroy(gone); /* after the planning: time for the GPU to be done with it, though no promise */
  pthread_mutex_lock(&lock);
  e->planned.graph = graph;
  e->made = 1;
  pthread_cond_broadcast(&made);
  pthread_mutex_unlock(&lock);
  return &e->planned;
}

void tfu_plan_release(tfu_planned *planned) {
  entry *e = (entry *)planned;
  pthread_mutex_lock(&lock);
  const int last = --e->held == 0 && !e->kept;
  pthread_mutex_unlock(&lock);
  if (last) destroy(e);
}

int tfu_plans_kept(void) {
  pthread_mutex_lock(&lock);
  const int n = n_entries;
  pthread_mutex_unlock(&lock);
  return n;
}
