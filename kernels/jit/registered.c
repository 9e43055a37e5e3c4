/* registered.c - kernels by short names, for eager calls: TensorFlow encodes, hashes and compares all attributes in
 * every call, and the texts of a kernel are long. A name is the hash of the texts, so that in
 * another process it stands for the same kernel or for none. Graphs and XLA's calls have the texts themselves. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/hash.h"
#include "ops/jit/jit.h"

enum { TEXTS = TFU_JIT_LAUNCH + 1 }; /* the attributes that stand before the types */

typedef struct registered {
  struct registered *next;
  const char *name; /* of tfu_intern */
  tfu_value attr[TEXTS];
} registered;

static registered *chains[256];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static registered **chain_of(const char *name) { return &chains[(uintptr_t)name / 16 % TFU_COUNT(chains)]; }

/* Called while the lock is held; what is found stays there for good. */
static const registered *find(const char *name) {
  const registered *r = *chain_of(name);
  while (r && r->name != name) r = r->next;
  return r;
}

/* "#" and 32 digits; no function of C begins with that. */
static const char *name_of(const char *const *texts, int kind) {
  char name[40];
  uint64_t hash[2];
  for (int i = 0; i < 2; i++) {
    hash[i] = tfu_hash(TFU_HASH_START + (uint64_t)i, &kind, sizeof kind);
    for (int k = 0; k < TEXTS; k++) hash[i] = tfu_hash(hash[i], texts[k], strlen(texts[k]) + 1);
  }
  const int n = snprintf(name, sizeof name, "#%016" PRIx64 "%016" PRIx64, hash[0], hash[1]);
  return tfu_intern(name, (size_t)n);
}

const char *tfu_jit_register(const char *kernel, int kind, const char *source, const char *program, const char *inputs,
                             const char *outputs, const char *shapes, const char *launch) {
  const char *const texts[TEXTS] = {
      [TFU_JIT_KERNEL] = kernel, [TFU_JIT_KIND] = "",         [TFU_JIT_SOURCE] = source, [TFU_JIT_PROGRAM] = program,
      [TFU_JIT_INPUTS] = inputs, [TFU_JIT_OUTPUTS] = outputs, [TFU_JIT_SHAPES] = shapes, [TFU_JIT_LAUNCH] = launch};
  const char *name = name_of(texts, kind);
  registered *made = name ? calloc(1, sizeof *made) : NULL;
  int whole = made != NULL;
  for (int i = 0; whole && i < TEXTS; i++) {
    if (i == TFU_JIT_KIND) made->attr[i].i = kind;
    else whole = (made->attr[i].s = tfu_intern(texts[i], strlen(texts[i]))) != NULL;
  }
  if (!whole) {
    free(made);
    return NULL;
  }
  made->name = name;
  pthread_mutex_lock(&lock);
  const registered *known = find(name);
  if (!known) made->next = *chain_of(name), *chain_of(name) = made;
  pthread_mutex_unlock(&lock);
  if (!known) return name;
  const int same = !memcmp(known->attr, made->attr, sizeof made->attr);
  free(made);
  return same ? name : NULL;
}

tfu_code tfu_jit_complete(tfu_value *attr, tfu_error *err) {
  const char *name = attr[TFU_JIT_KERNEL].s;
  if (*name != '#') return TFU_OK;
  pthread_mutex_lock(&lock);
  const registered *r = find(name);
  pthread_mutex_unlock(&lock);
  TFU_REQUIRE(err, r, "kernel %s is not known in this process: only eager calls of the process that made it name it so",
              name);
  memcpy(attr, r->attr, sizeof r->attr);
  return TFU_OK;
}
