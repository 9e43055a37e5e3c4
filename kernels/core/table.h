/* table.h - what is kept by key, for all threads: plans, choices, programs, texts, handles of NVIDIA's libraries.
 *
 *   static tfu_table plans = TFU_TABLE(.value = sizeof(plan), .most = 256, .make = make_plan, .release = free_plan);
 *
 *   TFU_TRY(tfu_table_get(&plans, &key, sizeof key, with, &value, err));
 *   … the value is held here, and stays as it is …
 *   tfu_table_put(&plans, value, call);
 *
 * A value is made when its key is first asked for, without the table's lock, as that may take long. Threads that want
 * the same one meanwhile wait for it. What cannot be made is not kept: whoever waited for it tries in turn.
 *
 * A value that nobody holds is kept all the same, until `most` of them are; then the least recently used is evicted by
 * the next that is made. It is released, without the lock, once the GPU is done with it: nobody waits for that, it is
 * asked again whenever one is made. */
#ifndef TFUSE_TABLE_H_
#define TFUSE_TABLE_H_

#include <pthread.h>

#include "kernels/core/gpu/last_use.h"

enum { TFU_KEEP_ALL = -1 };

typedef struct tfu_table {
  size_t value;  /* bytes of one, zeros at first. None: the value is the copy of the key, which a 0 follows    */
  int most;      /* that are kept with no holder; 0: none. TFU_KEEP_ALL: none is evicted, nor need be put back */
  int exclusive; /* a value has one holder at a time: another of the same key is made for the next             */
  int lasting;   /* what was a value once is never freed: it becomes the next one, as it is, for other keys of
                    the same length. It may still be read, or put back once too often, which does nothing      */
  /* Fills in the value; NULL: it stays as it is. Where it fails, it leaves nothing behind. */
  tfu_code (*make)(const void *key, void *value, void *with, tfu_error *err);
  void (*release)(void *value); /* what the value holds; NULL: nothing */
  /* The table's own, which begin as TFU_TABLE has them. */
  pthread_mutex_t lock;
  pthread_cond_t changed;
  struct tfu_kept **chain, *oldest, *newest, *leaving, *spare;
  int chains, n, idle; /* n: values that can be found; idle: those of them that nobody holds */
} tfu_table;

#define TFU_TABLE(...) \
  { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, __VA_ARGS__ }

/* The value of a key, all of whose bytes count; the caller holds it. The error is that of `make`, or TFU_EXHAUSTED. */
TFU_MUST_USE tfu_code tfu_table_get(tfu_table *table, const void *key, size_t bytes, void *with, void **value,
                                    tfu_error *err);
/* `ran` is the call on whose stream work has been queued that needs the value; NULL: there is none. */
void tfu_table_put(tfu_table *table, void *value, const tfu_call *ran);
/* Shows all that are made to `visit`, until it returns other than 0, and returns that. The lock is held. */
int tfu_table_each(tfu_table *table, int (*visit)(const void *key, void *value, void *with), void *with);

/* Forgets what nobody holds, for tests. */
void tfu_table_clear(tfu_table *table);

#endif
