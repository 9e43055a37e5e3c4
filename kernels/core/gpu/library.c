#define _GNU_SOURCE
#include "kernels/core/gpu/library.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int tfu_switched_off(const char *variable) {
  const char *value = getenv(variable);
  return value && !strcmp(value, "0");
}

void *tfu_of_tensorflow(const char *name) {
  void *tensorflow = dlopen("libtensorflow_framework.so.2", RTLD_NOW | RTLD_NOLOAD);
  void *found = tensorflow ? dlsym(tensorflow, name) : NULL;
  if (tensorflow) dlclose(tensorflow);
  return found;
}

static void *open_beside_tensorflow(const char *name, const char *const *folders) {
  char path[PATH_MAX];
  Dl_info file;
  void *inside = tfu_of_tensorflow("TF_Version"), *found = NULL;
  const char *end = inside && dladdr(inside, &file) && file.dli_fname ? strrchr(file.dli_fname, '/') : NULL;
  for (int i = 0; end && folders[i] && !found; i++) {
    snprintf(path, sizeof path, "%.*s/../%s/%s", (int)(end - file.dli_fname), file.dli_fname, folders[i], name);
    found = dlopen(path, RTLD_NOW);
  }
  return found;
}

void *tfu_opened_library(const char *const *names) {
  void *library = NULL;
  for (int i = 0; names[i] && !library; i++) library = dlopen(names[i], RTLD_NOW | RTLD_NOLOAD);
  return library;
}

/* Weak, so that a test can stand in for what a system has. */
__attribute__((weak)) void *tfu_open_library(const char *const *names, const char *const *folders) {
  void *library = tfu_opened_library(names);
  for (int i = 0; names[i] && !library; i++) library = dlopen(names[i], RTLD_NOW);
  for (int i = 0; names[i] && !library; i++) library = open_beside_tensorflow(names[i], folders);
  return library;
}

void tfu_keep_loaded(const char *const *names) {
  for (int i = 0; names[i]; i++) {
    void *library = dlopen(names[i], RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
    if (library) dlclose(library); /* the flag stays */
  }
}

/* What is missing; NULL: nothing. */
static const char *fill(const tfu_shared *s) {
  void **pointer = s->table, *library = tfu_open_library(s->names, s->folders);
  if (!library && s->path) library = dlopen(s->path, RTLD_NOW);
  if (!library) return s->called;
  for (const char *const *name = s->functions; *name; name++)
    if (!(*pointer++ = dlsym(library, *name))) return *name;
  for (const char *const *name = s->newer; name && *name; name++) *pointer++ = dlsym(library, *name);
  if (s->ready) s->ready(s->table);
  return NULL;
}

const char *tfu_shared_open(tfu_shared *s) {
  static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
  if (!atomic_load_explicit(&s->tried, memory_order_acquire)) {
    pthread_mutex_lock(&opening);
    if (!atomic_load(&s->tried)) {
      const int off = s->off && tfu_switched_off(s->off);
      const char *missing = off ? s->off : fill(s);
      if (missing) snprintf(s->missing, sizeof s->missing, off ? "%s=0" : s->why, missing);
      atomic_store_explicit(&s->tried, 1, memory_order_release);
    }
    pthread_mutex_unlock(&opening);
  }
  return *s->missing ? s->missing : NULL;
}
