#include "kernels/core/gpu/tunable.h"

#include <stdio.h>
#include <string.h>

#include "tfuse.h"

/* Constructors of one library run one after the other, so the list needs no lock. */
static tfu_tunable *first;

void tfu_tunable_add(tfu_tunable *tunable) {
  tunable->next = first;
  first = tunable;
}

/* kernels/rows/norm_gpu.c has the stem norm: where that begins, and its length. */
static const char *stem_of(const tfu_tunable *tunable, int *length) {
  const char *slash = strrchr(tunable->file, '/'), *stem = slash ? slash + 1 : tunable->file;
  const char *end = strstr(stem, "_gpu.c");
  *length = (int)(end ? (size_t)(end - stem) : strlen(stem));
  return stem;
}

static int is_of(const tfu_tunable *tunable, const char *stem) {
  int length;
  const char *own = stem_of(tunable, &length);
  return strlen(stem) == (size_t)length && !memcmp(own, stem, (size_t)length);
}

const char *tfu_tunable_text(int index) {
  static _Thread_local char text[512];
  tfu_tunable *c = first;
  int length;
  for (; c && index > 0; index--) c = c->next;
  if (!c || index < 0) return "";
  const char *stem = stem_of(c, &length);
  snprintf(text, sizeof text,
           "{\"stem\": \"%.*s\", \"name\": \"%s\", \"value\": %d, \"least\": %d, \"most\": %d, \"file\": \"%s\", "
           "\"line\": %d, \"asked\": %s}",
           length, stem, c->name, atomic_load(&c->value), c->least, c->most, c->file, c->line,
           atomic_load(&c->asked) ? "true" : "false");
  return text;
}

static tfu_code set(const char *stem, const char *name, int value, tfu_error *err) {
  tfu_tunable *c = first;
  while (c && (strcmp(c->name, name) || !is_of(c, stem))) c = c->next;
  TFU_REQUIRE(err, c, "%s has no tunable %s", stem, name);
  TFU_REQUIRE(err, value >= c->least && value <= c->most, "%s of %s must be %d to %d, got %d", name, stem, c->least,
              c->most, value);
  atomic_store(&c->value, value);
  atomic_store(&c->asked, 0);
  return TFU_OK;
}

const char *tfu_tunable_set(const char *stem, const char *name, int value) {
  static _Thread_local tfu_error err;
  return set(stem, name, value, &err) == TFU_OK ? "" : err.text;
}
