/* intern.c - texts of attributes, kept once each while somebody holds them: whoever does may keep the pointer, and
 * compare pointers for texts. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/hash.h"
#include "tfuse.h"

typedef struct text {
  struct text *next;
  uint64_t hash;
  size_t length;
  int64_t holders;
  char bytes[];
} text;

static text *chains[1024];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

const char *tfu_intern(const char *bytes, size_t length) {
  const uint64_t hash = tfu_hash(TFU_HASH_START, bytes, length);
  text **chain = &chains[hash % TFU_COUNT(chains)], *t;
  pthread_mutex_lock(&lock);
  for (t = *chain; t; t = t->next)
    if (t->hash == hash && t->length == length && !memcmp(t->bytes, bytes, length)) break;
  if (!t && (t = malloc(sizeof *t + length + 1))) {
    *t = (text){.next = *chain, .hash = hash, .length = length};
    memcpy(t->bytes, bytes, length);
    t->bytes[length] = 0;
    *chain = t;
  }
  if (t) t->holders++;
  pthread_mutex_unlock(&lock);
  return t ? t->bytes : NULL;
}

void tfu_drop_text(const char *bytes) {
  if (!bytes) return;
  text *t = (text *)(bytes - offsetof(text, bytes));
  pthread_mutex_lock(&lock);
  const int last = --t->holders == 0;
  if (last) {
    text **at = &chains[t->hash % TFU_COUNT(chains)];
    while (*at != t) at = &(*at)->next;
    *at = t->next;
  }
  pthread_mutex_unlock(&lock);
  if (last) free(t);
}
