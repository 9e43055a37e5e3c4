#define _GNU_SOURCE
#include "kernels/core/nvidia/library.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

static void *open_beside_tensorflow(const char *name, const char *const *folders) {
  char path[PATH_MAX];
  Dl_info file;
  void *tensorflow = dlopen("libtensorflow_framework.so.2", RTLD_NOW | RTLD_NOLOAD), *found = NULL;
  if (!tensorflow) return NULL;
  void *inside = dlsym(tensorflow, "TF_Version");
  const char *end = inside && dladdr(inside, &file) && file.dli_fname ? strrchr(file.dli_fname, '/') : NULL;
  for (int i = 0; end && folders[i] && !found; i++) {
    snprintf(path, sizeof path, "%.*s/../%s/%s", (int)(end - file.dli_fname), file.dli_fname, folders[i], name);
    found = dlopen(path, RTLD_NOW);
  }
  dlclose(tensorflow);
  return found;
}

/* Weak, so that a test can stand in for what a system has. */
__attribute__((weak)) void *tfu_open_library(const char *const *names, const char *const *folders) {
  void *library = NULL;
  for (int i = 0; names[i] && !library; i++) library = dlopen(names[i], RTLD_NOW | RTLD_NOLOAD);
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
