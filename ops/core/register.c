/* register.c - registers the ops of a library, this one's first, with TensorFlow and XLA, and finds them again. */
#include <string.h>

#include "bind.h"
#include "library.h"

static tfu_library *libraries; /* those that are registered, the last one first */
static tfu_error load_error;

TFU_EXPORT const char *tfu_load_error(void) {
  static tfu_error last;
  last = load_error;
  load_error.text[0] = 0;
  return last.text;
}

const tfu_entry *tfu_find(const char *called) {
  for (const tfu_library *l = libraries; l; l = l->next)
    for (int i = 0; i < l->count; i++) {
      const tfu_entry *e = &l->entries[i];
      const char *const names[] = {e->stem, e->op->name, e->target, e->captured_target};
      for (int k = 0; k < TFU_COUNT(names); k++)
        if (!strcmp(names[k], called)) return e;
    }
  return NULL;
}

static tfu_code check(const tfu_library *library, tfu_error *err) {
  TFU_REQUIRE(err, library->abi == TFU_ABI,
              "it was built for version %d of tfuse's interface, and this tfuse has version %d: build it again with "
              "python -m tfuse build-op",
              library->abi, TFU_ABI);
  for (int i = 0; i < library->count; i++) {
    const tfu_op *op = library->entries[i].op;
    TFU_REQUIRE(err, !op->in[TFU_MAX_ARGS] && !op->out[TFU_MAX_ARGS] && !op->attr[TFU_MAX_ATTRS],
                "the row of %s has more than %d inputs or outputs, or more than %d attributes", op->name, TFU_MAX_ARGS,
                TFU_MAX_ATTRS);
    TFU_REQUIRE(err, !tfu_find(op->name) && !tfu_find(library->entries[i].stem),
                "there is an op called %s already: take another name", op->name);
  }
  return TFU_OK;
}

void tfu_register(tfu_library *library) {
  tfu_code code = check(library, &load_error);
  for (int i = 0; code == TFU_OK && i < library->count; i++) {
    code = tfu_tf_register(&library->entries[i], &load_error);
    if (code == TFU_OK) tfu_xla_register(&library->entries[i]);
  }
  if (code != TFU_OK) return;
  library->next = libraries;
  libraries = library;
}

/* What an op computes, in a sentence; "" for an unknown name. */
TFU_EXPORT const char *tfu_doc(const char *name) {
  const tfu_entry *e = tfu_find(name);
  return e ? e->op->doc : "";
}

/* Of the op of this stem, the bytes of room that a call of its captured target has; -1 where it has no such target. */
TFU_EXPORT int64_t tfu_xla_room(const char *stem) {
  const tfu_entry *e = tfu_find(stem);
  return e && e->op->capturable ? (int64_t)e->op->room : -1;
}

/* What the CUDA handler of a target tells XLA when it is registered, for tests: its traits. -1: there is none. */
TFU_EXPORT int tfu_xla_traits(const char *target) {
  const tfu_entry *e = tfu_find(target);
  if (!e) return -1;
  const int captured = e->op->capturable && !strcmp(e->captured_target, target);
  return captured || !strcmp(e->target, target) ? tfu_xla_ask(e->handle[captured ? TFU_CUDA_CAPTURED : TFU_CUDA]) : -1;
}
