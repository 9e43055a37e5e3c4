#define _GNU_SOURCE
#include "serving/tensorflow.h"

#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY "libtensorflow_cc.so.2"

static const char here; /* for its address: which file this code is in */

/* Writes folder/name, of the folder that this code is in; whether it exists. */
static int beside(const char *name, char path[PATH_MAX]) {
  Dl_info file;
  char real[PATH_MAX];
  if (!dladdr(&here, &file) || !file.dli_fname || !realpath(file.dli_fname, real)) return 0;
  *(strrchr(real, '/') + 1) = 0;
  const int wanted = snprintf(path, PATH_MAX, "%s%s", real, name);
  return wanted < PATH_MAX && !access(path, R_OK);
}

/* The one in an environment of Python: VIRTUAL_ENV or CONDA_PREFIX. */
static int in_environment(const char *variable, char path[PATH_MAX]) {
  char pattern[PATH_MAX];
  glob_t found;
  int there = 0;
  const char *home = getenv(variable);
  if (!home ||
      snprintf(pattern, sizeof pattern, "%s/lib/python3.*/site-packages/tensorflow/" LIBRARY, home) >= PATH_MAX)
    return 0;
  if (!glob(pattern, 0, NULL, &found)) {
    there = snprintf(path, PATH_MAX, "%s", found.gl_pathv[0]) < PATH_MAX;
    globfree(&found);
  }
  return there;
}

/* One that was named must do; else one that the process has, then that of the Python which has this library, that of an
 * environment, and the system's own. */
static void *open_tensorflow(const char *folder, char path[PATH_MAX]) {
  void *found;
  if (!folder || !*folder) folder = getenv("TFUSE_TENSORFLOW");
  if (folder && *folder) {
    snprintf(path, PATH_MAX, "%s/" LIBRARY, folder);
    return dlopen(path, RTLD_NOW);
  }
  if ((found = dlopen(LIBRARY, RTLD_NOW | RTLD_NOLOAD))) return found;
  if (!beside("../tensorflow/" LIBRARY, path) && !in_environment("VIRTUAL_ENV", path) &&
      !in_environment("CONDA_PREFIX", path))
    snprintf(path, PATH_MAX, LIBRARY);
  return dlopen(path, RTLD_NOW);
}

/* Weak, so that a test can stand in for TensorFlow. */
__attribute__((weak)) tfu_code tfu_tensorflow_find(const char *folder, tfu_tensorflow *tf, tfu_error *err) {
  char path[PATH_MAX] = "";
  void *library = open_tensorflow(folder, path);
  if (!library)
    return tfu_fail(err, TFU_PRECONDITION,
                    "TensorFlow cannot be loaded: %s. TFUSE_TENSORFLOW should name the folder of Python's package "
                    "tensorflow, 2.16 to 2.21, which has " LIBRARY,
                    dlerror());
#define X(result, name, arguments)         \
  if (!(tf->name = dlsym(library, #name))) \
    return tfu_fail(err, TFU_PRECONDITION, "%s has no %s: TensorFlow 2.16 to 2.21 is wanted", path, #name);
  TFU_TENSORFLOW_FUNCTIONS(X)
#undef X
  return TFU_OK;
}

static tfu_tensorflow table;
static int ready;
static pthread_mutex_t finding = PTHREAD_MUTEX_INITIALIZER;

tfu_code tfu_tensorflow_get(const char *folder, const tfu_tensorflow **tf, tfu_error *err) {
  tfu_code code = TFU_OK;
  pthread_mutex_lock(&finding);
  if (!ready && (code = tfu_tensorflow_find(folder, &table, err)) == TFU_OK) ready = 1;
  pthread_mutex_unlock(&finding);
  *tf = &table;
  return code;
}

const tfu_tensorflow *tfu_tensorflow_now(void) {
  pthread_mutex_lock(&finding);
  const tfu_tensorflow *tf = ready ? &table : NULL;
  pthread_mutex_unlock(&finding);
  return tf;
}

const char *tfu_tensorflow_version(void) {
  const tfu_tensorflow *tf = tfu_tensorflow_now();
  return tf ? tf->TF_Version() : NULL;
}

tfu_code tfu_tensorflow_code(const tfu_tensorflow *tf, TF_Status *status, const char *what, tfu_error *err) {
  const tfu_code code = (tfu_code)tf->TF_GetCode(status);
  if (code != TFU_OK) (void)!tfu_fail(err, code, "%s: %s", what, tf->TF_Message(status));
  tf->TF_DeleteStatus(status);
  return code;
}

static tfu_code load(const tfu_tensorflow *tf, const char *path, tfu_error *err) {
  TF_Status *status = tf->TF_NewStatus();
  TF_Library *library = tf->TF_LoadLibrary(path, status); /* a second time gives the same */
  if (library) tf->TF_DeleteLibraryHandle(library);       /* its ops stay */
  return tfu_tensorflow_code(tf, status, path, err);
}

tfu_code tfu_load_ops(const tfu_tensorflow *tf, const char *library, const char *libraries, tfu_error *err) {
  char path[PATH_MAX];
  if (!library || !*library) library = getenv("TFUSE_LIBRARY");
  if ((!library || !*library) && beside("libtfuse.so", path)) library = path;
  if (library && *library) TFU_TRY(load(tf, library, err));
  for (const char *begin = libraries ? libraries : ""; *begin;) {
    const char *end = strchrnul(begin, ':');
    char one[PATH_MAX];
    if (end > begin && snprintf(one, sizeof one, "%.*s", (int)(end - begin), begin) < PATH_MAX)
      TFU_TRY(load(tf, one, err));
    begin = *end ? end + 1 : end;
  }
  return TFU_OK;
}
