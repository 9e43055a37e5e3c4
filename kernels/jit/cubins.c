#define _GNU_SOURCE
#include "kernels/jit/cubins.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/core/gpu/own_file.h"
#include "kernels/core/gpu/tuned.h"
#include "kernels/core/hash.h"
#include "kernels/jit/nvrtc_note.h"

/* A new format gets a new first word; older files are then foreign. */
typedef struct file_head {
  char word[8];
  jit_key key;
  uint64_t size, checksum; /* of the image */
} file_head;
static const char first_word[8] = "tfujit1", any_version[] = "tfujit";

static uint64_t feed(uint64_t hash, const char *text) { return tfu_hash(hash, text, strlen(text) + 1); }

jit_key jit_key_of(const char *text, const char *entry, int capability) {
  const int numbers[] = {jit_nvrtc_capability(capability), jit_nvrtc_version()};
  jit_key key;
  for (int i = 0; i < 2; i++) {
    uint64_t hash = tfu_hash(TFU_HASH_START + (uint64_t)i, numbers, sizeof numbers);
    for (const jit_header *h = jit_headers; h->name; h++) hash = feed(feed(hash, h->name), h->text);
    key.hash[i] = feed(feed(feed(hash, jit_nvrtc_options()), entry), text);
  }
  return key;
}

/* ---- places ---- */

const char *tfu_jit_folder(void) {
  static __thread char folder[PATH_MAX];
  const char *beside = tfu_tuned_path(), *end = strrchr(beside, '/');
  const int n = end ? snprintf(folder, sizeof folder, "%.*s/jit/", (int)(end - beside), beside) : 0;
  return n > 0 && n < (int)sizeof folder ? folder : "";
}

static int path_of(const jit_key *key, char *path) {
  const char *folder = tfu_jit_folder();
  const int n = snprintf(path, PATH_MAX, "%s%016" PRIx64 "%016" PRIx64, folder, key->hash[0], key->hash[1]);
  return *folder && n < PATH_MAX;
}

/* ---- files ---- */

static uint64_t checksum_of(const jit_image *image) {
  return tfu_hash(TFU_HASH_START, image, sizeof *image + image->size);
}

static jit_image *read_image(FILE *file, const jit_key *key) {
  file_head head;
  if (fread(&head, sizeof head, 1, file) != 1 || memcmp(head.word, first_word, sizeof first_word) ||
      memcmp(&head.key, key, sizeof *key) || head.size < sizeof(jit_image) || head.size > JIT_MOST_BYTES)
    return NULL;
  jit_image *image = malloc(head.size);
  const int whole = image && fread(image, head.size, 1, file) == 1 && fgetc(file) == EOF &&
                    image->size == head.size - sizeof *image && checksum_of(image) == head.checksum &&
                    memchr(image->entry, 0, sizeof image->entry);
  if (whole) return image;
  free(image);
  return NULL;
}

jit_image *jit_cubin_read(const jit_key *key) {
  char path[PATH_MAX];
  FILE *file = path_of(key, path) ? tfu_open_own(path) : NULL;
  if (!file) return NULL;
  jit_image *image = read_image(file, key);
  fclose(file);
  if (image) utimensat(AT_FDCWD, path, NULL, 0); /* used just now: not among the oldest */
  return image;
}

void jit_cubin_write(const jit_key *key, const jit_image *image) {
  char path[PATH_MAX], temporary[PATH_MAX];
  FILE *file = path_of(key, path) ? tfu_create_beside(path, temporary) : NULL;
  if (!file) return;
  file_head head = {.key = *key, .size = sizeof *image + image->size, .checksum = checksum_of(image)};
  memcpy(head.word, first_word, sizeof first_word);
  const int whole = fwrite(&head, sizeof head, 1, file) == 1 && fwrite(image, head.size, 1, file) == 1;
  tfu_put_in_place(file, whole, temporary, path);
  jit_cubins_prune(JIT_MOST_BYTES);
}

void jit_cubin_forget(const jit_key *key) {
  char path[PATH_MAX];
  if (path_of(key, path)) unlink(path);
}

/* ---- which are ours ---- */

/* A key's digits, or those of a note behind "nvrtc-" (nvrtc_note.h); while it is written, then also the point and six
 * characters of tfu_create_beside. NULL: it is no name of ours, else what a file of this name begins with. */
static const char *beginning_of(const char *name) {
  const int note = !strncmp(name, JIT_NOTE, strlen(JIT_NOTE));
  const char *digits = name + (note ? strlen(JIT_NOTE) : 0);
  const size_t n = strspn(digits, "0123456789abcdef");
  if (n != (note ? 16 : 32) || (digits[n] && (digits[n] != '.' || strlen(digits + n) != strlen(".XXXXXX"))))
    return NULL;
  return note ? JIT_NOTE_WORD : any_version;
}

static int is_own(int folder, const char *name) {
  const char *beginning = beginning_of(name);
  return beginning && tfu_whose_file(folder, name, beginning) == TFU_OURS;
}

int tfu_jit_is_own(const char *name) {
  const char *folder = tfu_jit_folder();
  const int at = *folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
  const int own = at >= 0 && is_own(at, name);
  if (at >= 0) close(at);
  return own;
}

/* ---- the bound ---- */

typedef struct kept {
  char name[80];
  int64_t bytes;
  struct timespec used;
} kept;

static int by_age(const void *a, const void *b) {
  const struct timespec *x = &((const kept *)a)->used, *y = &((const kept *)b)->used;
  if (x->tv_sec != y->tv_sec) return x->tv_sec < y->tv_sec ? -1 : 1;
  return (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

/* By a system call, since fstatat in glibc is newer than the oldest systems served. */
static int stat_of(int folder, const char *name, struct stat *s) {
  return syscall(SYS_newfstatat, folder, name, s, AT_SYMLINK_NOFOLLOW) != 0;
}

void jit_cubins_prune(int64_t most) {
  enum { FILES = 1 << 16 };
  const char *folder = tfu_jit_folder();
  DIR *all = *folder ? opendir(folder) : NULL;
  kept *files = NULL;
  int n = 0;
  int64_t bytes = 0;
  if (!all) return;
  for (struct dirent *e; n < FILES && (e = readdir(all));) {
    struct stat s;
    if (!beginning_of(e->d_name) || stat_of(dirfd(all), e->d_name, &s) || !S_ISREG(s.st_mode)) continue;
    if (!(n & (n - 1))) {
      kept *more = realloc(files, (size_t)(n ? 2 * n : 1) * sizeof *more);
      if (!more) break;
      files = more;
    }
    files[n] = (kept){.bytes = s.st_size, .used = s.st_mtim};
    strcpy(files[n].name, e->d_name);
    bytes += files[n++].bytes;
  }
  if (bytes > most) { /* only now: to look into all of them takes longer than the rest */
    int own = 0;
    bytes = 0;
    for (int i = 0; i < n; i++)
      if (is_own(dirfd(all), files[i].name)) bytes += files[i].bytes, files[own++] = files[i];
    n = own;
  }
  if (bytes > most) {
    qsort(files, (size_t)n, sizeof *files, by_age);
    for (int i = 0; i < n && bytes > most - most / 4; i++) /* some room, or every file would cost another search */
      if (!unlinkat(dirfd(all), files[i].name, 0)) bytes -= files[i].bytes;
  }
  free(files);
  closedir(all);
}
