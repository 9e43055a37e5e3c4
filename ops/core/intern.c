/* intern.c - texts of attributes, kept once each: a kernel may keep the pointer, and compare pointers for texts. What a
 * program has of them is bounded by what it is made of: names and sources of kernels. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/hash.h"
#include "tfuse.h"

typedef struct text {
  struct text *next;
  uint64_t hash;
  size_t length;
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
  pthread_mutex_unlock(&lock);
  return t ? t->bytes : NULL;
}
