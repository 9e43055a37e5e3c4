#define _GNU_SOURCE
#include "kernels/jit/nvrtc_note.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/core/gpu/own_file.h"
#include "kernels/core/hash.h"
#include "kernels/jit/cubins.h"

/* A new format gets a new first word. */
typedef struct note {
  char word[8];
  int64_t file[7]; /* what tells one file from another */
  jit_nvrtc_facts facts;
  uint64_t checksum; /* of all before */
} note;
static const char first_word[8] = JIT_NOTE_WORD;

/* A library that is installed anew differs in one of these at least. */
static int identify(const char *path, int64_t file[7]) {
  struct stat s;
  if (syscall(SYS_newfstatat, AT_FDCWD, path, &s, 0)) return 0; /* stat in glibc is newer than some systems served */
  const int64_t found[] = {(int64_t)s.st_dev, (int64_t)s.st_ino, s.st_size,        s.st_mtim.tv_sec,
                           s.st_mtim.tv_nsec, s.st_ctim.tv_sec,  s.st_ctim.tv_nsec};
  memcpy(file, found, sizeof found);
  return 1;
}

/* What is loaded depends on LD_LIBRARY_PATH and on where TensorFlow is, beside which is our own library. */
static int path_of(char *path) {
  const char *folder = tfu_jit_folder(), *places = getenv("LD_LIBRARY_PATH");
  Dl_info own;
  if (!*folder || !dladdr((void *)(uintptr_t)jit_note_read, &own) || !own.dli_fname) return 0;
  uint64_t hash = tfu_hash(TFU_HASH_START, own.dli_fname, strlen(own.dli_fname) + 1);
  if (places) hash = tfu_hash(hash, places, strlen(places) + 1);
  return snprintf(path, PATH_MAX, "%s" JIT_NOTE "%016" PRIx64, folder, hash) < PATH_MAX;
}

static uint64_t checksum_of(const note *n) { return tfu_hash(TFU_HASH_START, n, offsetof(note, checksum)); }

int jit_note_read(jit_nvrtc_facts *facts) {
  char path[PATH_MAX];
  int64_t file[7];
  note n;
  FILE *from = path_of(path) ? tfu_open_own(path) : NULL;
  if (!from) return 0;
  const int whole = fread(&n, sizeof n, 1, from) == 1 && fgetc(from) == EOF;
  fclose(from);
  if (!whole || memcmp(n.word, first_word, sizeof first_word) || n.checksum != checksum_of(&n) ||
      !memchr(n.facts.path, 0, sizeof n.facts.path) || n.facts.archs < 0 || n.facts.archs > JIT_MOST_ARCHS ||
      n.facts.version <= 0 || !identify(n.facts.path, file) || memcmp(file, n.file, sizeof file))
    return 0;
  *facts = n.facts;
  return 1;
}

void jit_note_write(const jit_nvrtc_facts *facts) {
  char path[PATH_MAX], temporary[PATH_MAX];
  note n;
  memset(&n, 0, sizeof n); /* what lies between members counts too */
  memcpy(n.word, first_word, sizeof first_word);
  n.facts = *facts;
  if (*facts->path != '/' || !identify(facts->path, n.file)) return;
  n.checksum = checksum_of(&n);
  FILE *file = path_of(path) ? tfu_create_beside(path, temporary) : NULL;
  if (file) tfu_put_in_place(file, fwrite(&n, sizeof n, 1, file) == 1, temporary, path);
}

void jit_note_forget(void) {
  char path[PATH_MAX];
  if (path_of(path) && tfu_jit_is_own(strrchr(path, '/') + 1)) unlink(path);
}
