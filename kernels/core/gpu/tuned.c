#include "kernels/core/gpu/tuned.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/determinism.h"
#include "kernels/core/gpu/library.h"
#include "kernels/core/gpu/tuned_file.h"
#include "kernels/core/table.h"

/* All of it counts: what lies after a shorter key is zero. */
typedef struct tuned_key {
  const tfu_tuner *tuner;
  int64_t timing; /* whether choices were made by timing when it was */
  unsigned char key[TFU_TUNED_KEY];
} tuned_key;

typedef struct tuned {
  tfu_tuned_line line;
  int adopted; /* from another size */
} tuned;

static pthread_once_t started = PTHREAD_ONCE_INIT;
static int tuning;
static tfu_tuned_lines stored; /* what the file had when it was first looked at */

static void start(void) {
  tuning = !tfu_switched_off("TFUSE_AUTOTUNE");
  if (tuning) tfu_tuned_read(tfu_tuned_path(), &stored);
}

int tfu_tuning(void) {
  pthread_once(&started, start);
  return tuning && !tfu_deterministic();
}

void tfu_choice_label(tfu_choice *choice, const char *format, ...) {
  va_list ap;
  va_start(ap, format);
  const int n = vsnprintf(choice->label, sizeof choice->label, format, ap);
  va_end(ap);
  if (choice->microseconds > 0 && n < (int)sizeof choice->label)
    snprintf(choice->label + n, sizeof choice->label - (size_t)n, ", %.1f us", choice->microseconds);
}

/* ---- making ---- */

/* What a thread asks, and what came of it. */
typedef struct question {
  const tuned_key *key;
  void *with;
  tfu_tuned_line line;
  tfu_chosen chosen;
  int made;                                    /* here: it was not remembered */
  enum { FROM_FILE, FROM_LIKE, BY_TIMING } by; /* then */
} question;

static tfu_code make(const void *key, void *value, void *question_, tfu_error *err);
/* Somebody may still show the label of one that was evicted. */
static tfu_table choices = TFU_TABLE(.value = sizeof(tuned), .most = TFU_TUNED_MOST, .lasting = 1, .make = make);

static int timed_here(const tuned *t) { return !t->adopted && t->line.choice.microseconds > 0; }

typedef struct search {
  const tuned_key *key;
  tuned_key near;
  tfu_choice choice;
  double least;
  int timed, found;
} search;

static int look_at(const void *key, void *value, void *search_) {
  const tuned_key *other = key;
  const tuned *t = value;
  search *s = search_;
  if (other->tuner != s->key->tuner || !timed_here(t)) return 0;
  const double apart = other->tuner->apart(s->key->key, other->key);
  s->timed += apart >= 0;
  if (apart >= 0 && apart <= s->least) s->least = apart, s->found = 1, s->near = *other, s->choice = t->line.choice;
  return 0;
}

/* Whether the choice of the nearest that was timed, of the key's kind, serves: not where too few were, or none is near.
 * The search takes far less than the timing that it saves. */
static int adopt(const tuned_key *key, void *with, tfu_choice *choice) {
  enum { NEAR = 1 }; /* a factor of 2 */
  search s = {.key = key, .least = NEAR};
  if (!key->timing || !key->tuner->apart) return 0;
  tfu_table_each(&choices, look_at, &s);
  if (!s.found || s.timed < TFU_TUNED_KIND) return 0;
  *choice = s.choice;
  return key->tuner->adopt(key->key, s.near.key, with, choice);
}

/* From the file, from a like size, or by timing. */
static void choose(question *q) {
  enum { GPU_NAME = 64 };
  const tfu_tuner *t = q->key->tuner;
  const void *key = q->key->key;
  tfu_device_name(q->line.text, GPU_NAME);
  size_t n = strlen(q->line.text);
  if (n) n += (size_t)snprintf(q->line.text + n, sizeof q->line.text - n, ", ");
  t->describe(key, q->with, q->line.text + n, sizeof q->line.text - n);
  const tfu_tuned_line *known = q->key->timing ? tfu_tuned_find(&stored, q->line.text) : NULL;
  q->made = 1;
  q->chosen = TFU_CHOSEN;
  q->by = FROM_FILE;
  if (known && t->usable(key, q->with, &known->choice)) {
    q->line.choice = known->choice;
    return;
  }
  q->by = FROM_LIKE;
  if (adopt(q->key, q->with, &q->line.choice)) return;
  q->by = BY_TIMING;
  q->chosen = t->choose(key, q->with, &q->line.choice);
}

static tfu_code make(const void *key, void *value, void *question_, tfu_error *err) {
  question *q = question_;
  (void)key, (void)err;
  choose(q);
  if (q->chosen != TFU_CHOSEN) return TFU_PRECONDITION; /* is not kept */
  *(tuned *)value = (tuned){.line = q->line, .adopted = q->by == FROM_LIKE};
  return TFU_OK;
}

/* ---- keeping ---- */

static int append(const void *key, void *value, void *lines) {
  (void)key;
  if (timed_here(value)) tfu_tuned_append(lines, &((const tuned *)value)->line);
  return 0;
}

/* Writes what the file has now, and what is chosen here, ours first. */
static void save(void) {
  static pthread_mutex_t saving = PTHREAD_MUTEX_INITIALIZER; /* or an older list might replace a newer one */
  tfu_tuned_lines all = {0}, theirs = {0};
  pthread_mutex_lock(&saving);
  tfu_table_each(&choices, append, &all);
  tfu_tuned_read(tfu_tuned_path(), &theirs);
  for (int i = 0; i < theirs.n; i++)
    if (!tfu_tuned_find(&all, theirs.line[i].text)) tfu_tuned_append(&all, &theirs.line[i]);
  all.lost |= theirs.lost;
  tfu_tuned_write(tfu_tuned_path(), &all);
  pthread_mutex_unlock(&saving);
  tfu_tuned_release(&all);
  tfu_tuned_release(&theirs);
}

const char *tfu_tuned_get(const tfu_tuner *t, const void *key, void *with, tfu_choice *choice) {
  tuned_key own = {.tuner = t, .timing = tfu_tuning()};
  question q = {.key = &own, .with = with};
  tfu_error ignored;
  void *value;
  memcpy(own.key, key, t->bytes);
  if (tfu_table_get(&choices, &own, sizeof own, &q, &value, &ignored) != TFU_OK) {
    if (!q.made) choose(&q); /* without memory to remember it */
    *choice = q.line.choice;
    return NULL;
  }
  const char *label = ((tuned *)value)->line.choice.label;
  *choice = ((tuned *)value)->line.choice;
  tfu_table_put(&choices, value, NULL);
  if (q.made && own.timing && q.by == BY_TIMING && choice->microseconds > 0) save();
  return label;
}

void tfu_tuned_forget(void) {
  tfu_table_clear(&choices);
  tfu_tuned_release(&stored);
  pthread_once(&started, start);
  start();
}
