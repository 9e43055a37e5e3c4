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
#include "kernels/core/table.h"
#include "ops/jit/jit.h"

enum { TEXTS = TFU_JIT_LAUNCH + 1 }; /* the attributes that stand before the types */

/* Its memory lasts, and has the same name whatever that stands for. */
typedef struct slot {
  tfu_value attr[TEXTS]; /* zeros: it stands for nothing */
  char name[48];
} slot;

static slot **slots; /* by the numbers in their names */
static int count;
static uint64_t process;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all these, and of attributes */

static void drop_texts(const tfu_value *attr) {
  for (int i = 0; i < TEXTS; i++)
    if (i != TFU_JIT_KIND) tfu_drop_text(attr[i].s);
}

static uint64_t number_of_process(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  const int64_t own[] = {now.tv_sec, now.tv_nsec, getpid()};
  return tfu_hash(TFU_HASH_START, own, sizeof own);
}

/* Whether it has a name now; called while the lock is held, as is `named`. */
static int give_name(slot *s) {
  if (s->name[0]) return 1;
  slot **more = realloc(slots, (size_t)(count + 1) * sizeof *slots);
  if (!more) return 0;
  slots = more;
  if (!process) process = number_of_process();
  snprintf(s->name, sizeof s->name, "#%016" PRIx64 ".%d", process, count);
  slots[count++] = s;
  return 1;
}

static slot *named(const char *name) {
  char *end;
  if (*name != '#' || strtoull(name + 1, &end, 16) != process || *end != '.') return NULL;
  const long number = strtol(end + 1, &end, 10);
  return !*end && number >= 0 && number < count ? slots[number] : NULL;
}

/* Takes over what attr holds, and says so. */
static tfu_code fill(const void *attr, void *slot_, void *taken, tfu_error *err) {
  slot *s = slot_;
  pthread_mutex_lock(&lock);
  if ((*(int *)taken = give_name(s))) memcpy(s->attr, attr, sizeof s->attr);
  pthread_mutex_unlock(&lock);
  return *(int *)taken ? TFU_OK : tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
}

static void empty(void *slot_) {
  slot *s = slot_;
  pthread_mutex_lock(&lock);
  drop_texts(s->attr);
  memset(s->attr, 0, sizeof s->attr);
  pthread_mutex_unlock(&lock);
}

static tfu_table kernels =
    TFU_TABLE(.value = sizeof(slot), .most = TFU_JIT_KEPT_NAMES, .lasting = 1, .make = fill, .release = empty);

const char *tfu_jit_register(const char *kernel, int kind, const char *source, const char *program, const char *inputs,
                             const char *outputs, const char *shapes, const char *launch) {
  const char *const texts[TEXTS] = {
      [TFU_JIT_KERNEL] = kernel, [TFU_JIT_KIND] = "",         [TFU_JIT_SOURCE] = source, [TFU_JIT_PROGRAM] = program,
      [TFU_JIT_INPUTS] = inputs, [TFU_JIT_OUTPUTS] = outputs, [TFU_JIT_SHAPES] = shapes, [TFU_JIT_LAUNCH] = launch};
  tfu_value attr[TEXTS];
  tfu_error ignored;
  void *s = NULL;
  int whole = 1, taken = 0;
  memset(attr, 0, sizeof attr);
  for (int i = 0; i < TEXTS; i++) {
    if (i == TFU_JIT_KIND) attr[i].i = kind;
    else whole &= (attr[i].s = tfu_intern(texts[i], strlen(texts[i]))) != NULL;
  }
  whole = whole && tfu_table_get(&kernels, attr, sizeof attr, &taken, &s, &ignored) == TFU_OK;
  if (!taken) drop_texts(attr);
  return whole ? ((slot *)s)->name : NULL;
}

void tfu_jit_forget(const char *name) {
  pthread_mutex_lock(&lock);
  slot *s = named(name);
  pthread_mutex_unlock(&lock);
  if (s) tfu_table_put(&kernels, s, NULL);
}

tfu_code tfu_jit_complete(tfu_value *attr, tfu_error *err) {
  const char *name = attr[TFU_JIT_KERNEL].s;
  if (*name != '#') return TFU_OK;
  pthread_mutex_lock(&lock);
  const slot *s = named(name);
  const int known = s && s->attr[TFU_JIT_KERNEL].s;
  if (known) memcpy(attr, s->attr, sizeof s->attr);
  pthread_mutex_unlock(&lock);
  TFU_REQUIRE(err, known,
              "kernel %s is not known in this process: only eager calls of the process that made it name it so", name);
  return TFU_OK;
}
