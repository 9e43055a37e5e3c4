/* registered.c - kernels by short names, for eager calls: TensorFlow encodes, hashes and compares all attributes in
 * every call, and the texts of a kernel are long; and it keeps what it makes of a call, 40 KB, for every value that an
 * attribute ever had. So names are few: that of a kernel that is no more is given to a new one, and what a name stands
 * for is looked up in every run. Graphs and XLA's calls have the texts themselves.
 *
 * A name has a number that other processes do not have, where it stands for nothing. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/core/hash.h"
#include "ops/jit/jit.h"

enum { TEXTS = TFU_JIT_LAUNCH + 1 }; /* the attributes that stand before the types */

typedef struct slot {
  struct slot *next;          /* of its chain */
  struct slot *older, *newer; /* among those that are not in use */
  uint64_t hash;
  int users;
  tfu_value attr[TEXTS];
  char name[48];
} slot;

static slot **slots, *chains[256];
static slot unused = {.older = &unused, .newer = &unused}; /* a ring: its newer is the oldest of them */
static int count, idle;                                    /* all slots, and those that are not in use */
static uint64_t process;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all these */

static slot **chain_of(uint64_t hash) { return &chains[hash % TFU_COUNT(chains)]; }

static void drop_texts(const tfu_value *attr) {
  for (int i = 0; i < TEXTS; i++)
    if (i != TFU_JIT_KIND) tfu_drop_text(attr[i].s);
}

static void take_from_unused(slot *s) {
  s->older->newer = s->newer;
  s->newer->older = s->older;
  idle--;
}

static slot *find(uint64_t hash, const tfu_value *attr) {
  slot *s = *chain_of(hash);
  while (s && !(s->hash == hash && !memcmp(s->attr, attr, sizeof s->attr))) s = s->next;
  return s;
}

static uint64_t number_of_process(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  const int64_t own[] = {now.tv_sec, now.tv_nsec, getpid()};
  return tfu_hash(TFU_HASH_START, own, sizeof own);
}

static slot *new_slot(void) {
  slot **more = realloc(slots, (size_t)(count + 1) * sizeof *slots);
  if (more) slots = more;
  slot *s = more ? calloc(1, sizeof *s) : NULL;
  if (!s) return NULL;
  if (!process) process = number_of_process();
  snprintf(s->name, sizeof s->name, "#%016" PRIx64 ".%d", process, count);
  return slots[count++] = s;
}

/* The one that has not been in use the longest, where enough of them wait for their kernel to be made again. */
static slot *free_slot(void) {
  if (idle < TFU_JIT_KEPT_NAMES) return new_slot();
  slot *s = unused.newer, **at = chain_of(s->hash);
  take_from_unused(s);
  while (*at != s) at = &(*at)->next;
  *at = s->next;
  drop_texts(s->attr);
  return s;
}

/* Takes over what attr holds. */
static slot *use(const tfu_value *attr) {
  const uint64_t hash = tfu_hash(TFU_HASH_START, attr, sizeof((slot *)0)->attr);
  slot *s = find(hash, attr);
  if (s) {
    drop_texts(attr);
    if (!s->users) take_from_unused(s);
  } else if ((s = free_slot())) {
    memcpy(s->attr, attr, sizeof s->attr);
    s->hash = hash;
    s->next = *chain_of(hash), *chain_of(hash) = s;
  } else {
    drop_texts(attr);
    return NULL;
  }
  s->users++;
  return s;
}

const char *tfu_jit_register(const char *kernel, int kind, const char *source, const char *program, const char *inputs,
                             const char *outputs, const char *shapes, const char *launch) {
  const char *const texts[TEXTS] = {
      [TFU_JIT_KERNEL] = kernel, [TFU_JIT_KIND] = "",         [TFU_JIT_SOURCE] = source, [TFU_JIT_PROGRAM] = program,
      [TFU_JIT_INPUTS] = inputs, [TFU_JIT_OUTPUTS] = outputs, [TFU_JIT_SHAPES] = shapes, [TFU_JIT_LAUNCH] = launch};
  tfu_value attr[TEXTS];
  int whole = 1;
  memset(attr, 0, sizeof attr);
  for (int i = 0; i < TEXTS; i++) {
    if (i == TFU_JIT_KIND) attr[i].i = kind;
    else whole &= (attr[i].s = tfu_intern(texts[i], strlen(texts[i]))) != NULL;
  }
  if (!whole) {
    drop_texts(attr);
    return NULL;
  }
  pthread_mutex_lock(&lock);
  const slot *s = use(attr);
  pthread_mutex_unlock(&lock);
  return s ? s->name : NULL;
}

/* Called while the lock is held. */
static slot *named(const char *name) {
  char *end;
  if (*name != '#' || strtoull(name + 1, &end, 16) != process || *end != '.') return NULL;
  const long number = strtol(end + 1, &end, 10);
  return !*end && number >= 0 && number < count ? slots[number] : NULL;
}

void tfu_jit_forget(const char *name) {
  pthread_mutex_lock(&lock);
  slot *s = named(name);
  if (s && s->users && !--s->users) {
    s->older = unused.older, s->newer = &unused;
    s->older->newer = unused.older = s;
    idle++;
  }
  pthread_mutex_unlock(&lock);
}

tfu_code tfu_jit_complete(tfu_value *attr, tfu_error *err) {
  const char *name = attr[TFU_JIT_KERNEL].s;
  if (*name != '#') return TFU_OK;
  pthread_mutex_lock(&lock);
  const slot *s = named(name);
  if (s) memcpy(attr, s->attr, sizeof s->attr);
  pthread_mutex_unlock(&lock);
  TFU_REQUIRE(err, s, "kernel %s is not known in this process: only eager calls of the process that made it name it so",
              name);
  return TFU_OK;
}
