/* jit_cubins_test.c - the cache of compiled kernels: whole files are read, all others are as good as none. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "kernels/core/gpu/library.h"
#include "kernels/jit/cubins.h"
#include "kernels/jit/nvrtc_note.h"
#include "tests/check.h"

static char folder[4096];

/* There is no NVRTC, whatever the system has. */
void *tfu_open_library(const char *const *names, const char *const *folders) {
  (void)names, (void)folders;
  return NULL;
}

static jit_image *image_of(size_t size, int first) {
  jit_image *image = calloc(1, sizeof *image + size);
  image->size = size;
  strcpy(image->entry, "kernel");
  for (size_t i = 0; i < size; i++) image->code[i] = (unsigned char)(i * 7 + (size_t)first);
  return image;
}

static void path_of(const jit_key *key, char *path, size_t size) {
  snprintf(path, size, "%s/jit/%016llx%016llx", folder, (unsigned long long)key->hash[0],
           (unsigned long long)key->hash[1]);
}

static int same(const jit_key *key, const jit_image *image) {
  jit_image *got = jit_cubin_read(key);
  const int right = got && got->size == image->size && !memcmp(got, image, sizeof *image + image->size);
  free(got);
  return right;
}

static void test_keys(void) {
  const jit_key a = jit_key_of("text", "kernel", 90), again = jit_key_of("text", "kernel", 90);
  const jit_key others[] = {jit_key_of("texT", "kernel", 90), jit_key_of("text", "kernel2", 90),
                            jit_key_of("tex", "tkernel", 90)};
  CHECK(!memcmp(&a, &again, sizeof a));
  for (int i = 0; i < TFU_COUNT(others); i++)
    CHECK(a.hash[0] != others[i].hash[0] && a.hash[1] != others[i].hash[1] && a.hash[0] != a.hash[1]);
}

static void test_damage(void) {
  const jit_key key = {{1, 2}}, other = {{1, 3}};
  jit_image *image = image_of(1000, 5);
  char path[4200], wrong[4200];
  struct stat s;
  CHECK(!jit_cubin_read(&key));
  jit_cubin_write(&key, image);
  CHECK(same(&key, image));
  path_of(&key, path, sizeof path);
  path_of(&other, wrong, sizeof wrong);
  CHECK(!stat(path, &s) && (s.st_mode & 0777) == 0600);
  const off_t places[] = {0, 9, 30, 45, 60, 700, s.st_size - 1};
  for (int i = 0; i < TFU_COUNT(places); i++) { /* a byte that is another */
    char byte;
    const int fd = open(path, O_RDWR);
    CHECK(pread(fd, &byte, 1, places[i]) == 1);
    byte = (char)(byte ^ 64);
    CHECK(pwrite(fd, &byte, 1, places[i]) == 1);
    CHECK_FOR(!jit_cubin_read(&key), "byte %d", (int)places[i]);
    byte = (char)(byte ^ 64);
    CHECK(pwrite(fd, &byte, 1, places[i]) == 1);
    close(fd);
    CHECK(same(&key, image));
  }
  for (off_t length = 0; length < s.st_size; length += 101) { /* cut short */
    CHECK(!truncate(path, length) && !jit_cubin_read(&key));
    jit_cubin_write(&key, image);
  }
  CHECK(!truncate(path, s.st_size + 1) && !jit_cubin_read(&key)); /* too long */
  jit_cubin_write(&key, image);
  CHECK(!chmod(path, 0666) && !jit_cubin_read(&key)); /* others may write it */
  CHECK(!chmod(path, 0600) && same(&key, image));
  CHECK(!rename(path, wrong) && !jit_cubin_read(&other)); /* another's name */
  jit_cubin_write(&key, image);
  jit_cubin_forget(&key);
  CHECK(!jit_cubin_read(&key));
  CHECK(!unlink(wrong));
  free(image);
}

/* The oldest go, but one that was just read is none of them. */
static void test_bound(void) {
  enum { FILES = 8, BYTES = 10000 };
  jit_image *image = image_of(BYTES, 1);
  char path[4200];
  for (uint64_t i = 0; i < FILES; i++) {
    const jit_key key = {{100 + i, 0}};
    jit_cubin_write(&key, image);
    path_of(&key, path, sizeof path);
    const struct timespec times[2] = {{.tv_sec = 1000 + (time_t)i}, {.tv_sec = 1000 + (time_t)i}};
    CHECK(!utimensat(AT_FDCWD, path, times, 0));
  }
  CHECK(same(&(jit_key){{100, 0}}, image));
  jit_cubins_prune((int64_t)FILES * 2 * BYTES); /* enough room for all */
  for (uint64_t i = 0; i < FILES; i++) {
    path_of(&(jit_key){{100 + i, 0}}, path, sizeof path);
    CHECK(!access(path, R_OK));
  }
  jit_cubins_prune(6 * BYTES); /* leaves three quarters of it: four files */
  int left = 0;
  for (uint64_t i = 0; i < FILES; i++) {
    path_of(&(jit_key){{100 + i, 0}}, path, sizeof path);
    const int there = !access(path, R_OK);
    left += there;
    CHECK_FOR(there == (i == 0 || i > 4), "file %d", (int)i);
  }
  CHECK(left == 4);
  jit_cubins_prune(0);
  free(image);
}

static void put_file(const char *name, const char *text, size_t n) {
  char path[4200];
  snprintf(path, sizeof path, "%s/jit/%s", folder, name);
  const int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
  CHECK_FOR(fd >= 0 && write(fd, text, n) == (ssize_t)n, "%s", name);
  close(fd);
}

/* TFUSE_CACHE may name a folder that others use, too: of their files none is deleted, nor counted. */
static void test_others(void) {
#define KEY "0123456789abcdef0123456789abcdef"
  static const struct {
    const char *name, *text;
    int own;
  } files[] = {
      {KEY, "tfujit1", 1},
      {KEY ".aB3xYz", "tfujit1", 1}, /* left by a process that was ended while it wrote */
      {"nvrtc-0123456789abcdef", "tfunrtc", 1},
      {"compiler.py", "import this", 0},
      {"tfujit1", "tfujit1", 0},
      {"1123456789abcdef0123456789abcdef", "md5 of another's", 0},
      {"2123456789abcdef0123456789abcdef", "", 0},
      {KEY "0", "tfujit1", 0},
      {KEY ".bak", "tfujit1", 0},
      {"nvrtc-0123456789abcdee", "tfujit1", 0},
      {"nvrtc-notes", "tfunrtc", 0},
  };
  char path[4200], link[4200];
  struct stat s;
  for (int i = 0; i < TFU_COUNT(files); i++) put_file(files[i].name, files[i].text, strlen(files[i].text));
  snprintf(link, sizeof link, "%s/jit/3123456789abcdef0123456789abcdef", folder);
  CHECK(!symlink(KEY, link));
  for (int i = 0; i < TFU_COUNT(files); i++)
    CHECK_FOR(tfu_jit_is_own(files[i].name) == files[i].own, "%s", files[i].name);
  CHECK(!tfu_jit_is_own("3123456789abcdef0123456789abcdef") && !tfu_jit_is_own("4123456789abcdef0123456789abcdef"));
  jit_cubins_prune(3 * 7); /* ours have 7 bytes each, so they have room */
  snprintf(path, sizeof path, "%s/jit/" KEY, folder);
  CHECK(!access(path, R_OK));
  jit_cubins_prune(0);
  for (int i = 0; i < TFU_COUNT(files); i++) {
    snprintf(path, sizeof path, "%s/jit/%s", folder, files[i].name);
    CHECK_FOR(!access(path, F_OK) == !files[i].own, "%s", files[i].name);
    if (!files[i].own) CHECK(!unlink(path));
  }
  CHECK(!lstat(link, &s) && !unlink(link));
}

/* Processes that write the same file, and read it meanwhile, see whole ones or none. */
static int write_and_read(void *unused) {
  (void)unused;
  const jit_key key = {{7, 7}};
  jit_image *image = image_of(200000, 3);
  for (int i = 0; i < 50; i++) {
    jit_cubin_write(&key, image);
    CHECK(same(&key, image));
  }
  free(image);
  return 1;
}

static void test_processes(void) {
  enum { PROCESSES = 3 };
  pid_t child[PROCESSES];
  fflush(stdout);
  for (int i = 0; i < PROCESSES; i++)
    if (!(child[i] = fork())) {
      alarm(60);
      failures = 0;
      write_and_read(NULL);
      fflush(stdout);
      _exit(failures != 0);
    }
  for (int i = 0; i < PROCESSES; i++) {
    int status = 1;
    CHECK(waitpid(child[i], &status, 0) == child[i] && status == 0);
  }
  char path[4200];
  snprintf(path, sizeof path, "%s/jit", folder);
  DIR *all = opendir(path);
  int files = 0;
  for (struct dirent *e; all && (e = readdir(all));) files += e->d_name[0] != '.';
  CHECK_FOR(files == 1, "%d files", files);
  closedir(all);
}

/* What is known of NVRTC: for the file that was loaded, while it is that file, and for this LD_LIBRARY_PATH. */
static void test_note(void) {
  char library[4200], path[8192] = "", jit[4200];
  jit_nvrtc_facts facts = {.version = 1209, .archs = 2, .arch = {80, 90}}, got;
  snprintf(library, sizeof library, "%s/libnvrtc.so.12", folder);
  strcpy(facts.path, library);
  jit_cubins_prune(0); /* a note of an NVRTC that is here */
  jit_note_write(&facts);
  CHECK(!jit_note_read(&got)); /* there is no such file */
  const int fd = open(library, O_CREAT | O_RDWR, 0700);
  CHECK(write(fd, "abc", 3) == 3);
  jit_note_write(&facts);
  CHECK(jit_note_read(&got) && !memcmp(&got, &facts, sizeof got));
  snprintf(jit, sizeof jit, "%s/jit", folder);
  DIR *all = opendir(jit);
  for (struct dirent *e; all && (e = readdir(all));)
    if (!strncmp(e->d_name, "nvrtc-", 6)) snprintf(path, sizeof path, "%s/%s", jit, e->d_name);
  closedir(all);
  const int note = open(path, O_RDWR);
  struct stat s;
  CHECK(!stat(path, &s) && (s.st_mode & 0777) == 0600);
  for (off_t at = 0; at < s.st_size; at += at < 400 ? 1 : 97) { /* a byte that is another */
    char byte;
    CHECK(pread(note, &byte, 1, at) == 1);
    byte = (char)(byte ^ 1);
    CHECK(pwrite(note, &byte, 1, at) == 1);
    CHECK_FOR(!jit_note_read(&got), "byte %d", (int)at);
    byte = (char)(byte ^ 1);
    CHECK(pwrite(note, &byte, 1, at) == 1);
  }
  CHECK(jit_note_read(&got));
  CHECK(!ftruncate(note, s.st_size + 1) && !jit_note_read(&got));
  CHECK(!ftruncate(note, s.st_size - 1) && !jit_note_read(&got));
  close(note);
  jit_note_write(&facts);
  const char *places = getenv("LD_LIBRARY_PATH");
  char before[4200] = "";
  if (places) snprintf(before, sizeof before, "%s", places);
  setenv("LD_LIBRARY_PATH", "/another", 1);
  CHECK(!jit_note_read(&got));
  if (places) setenv("LD_LIBRARY_PATH", before, 1);
  else unsetenv("LD_LIBRARY_PATH");
  CHECK(jit_note_read(&got));
  CHECK(pwrite(fd, "abcd", 4, 0) == 4 && !jit_note_read(&got)); /* another library in its place */
  jit_note_write(&facts);
  CHECK(jit_note_read(&got) && !unlink(library) && !jit_note_read(&got)); /* and none */
  close(fd);
  facts.version = 0;
  jit_cubins_prune(0);
  jit_note_write(&facts);
  CHECK(!jit_note_read(&got));
}

/* In a process that has asked for nothing yet. NVRTC is believed to be there, until a kernel has to be compiled. */
static void promised_in_vain(void) {
  char library[4200];
  jit_nvrtc_facts facts = {.version = 1209, .archs = 1, .arch = {90}}, got;
  jit_image *image = NULL;
  tfu_error err = {""};
  snprintf(library, sizeof library, "%s/libnvrtc.so.12", folder);
  strcpy(facts.path, library);
  jit_cubin_write(&(jit_key){{1, 1}}, image = image_of(10, 1)); /* makes the folder */
  free(image);
  const int fd = open(library, O_CREAT | O_RDWR, 0700);
  CHECK(write(fd, "abc", 3) == 3);
  close(fd);
  jit_note_write(&facts);
  CHECK(!*jit_nvrtc_missing() && jit_nvrtc_version() == 1209 && jit_nvrtc_capability(90) == 90);
  CHECK(jit_compile("k", "text", "k", 90, 0, &image, &err) == TFU_PRECONDITION);
  CHECK_FOR(strstr(err.text, "pip install nvidia-cuda-nvrtc"), "%s", err.text);
  CHECK_TEXT(jit_nvrtc_missing(), err.text); /* as where there was no note */
  CHECK(!jit_nvrtc_version() && !jit_nvrtc_capability(90) && !jit_note_read(&got));
  jit_cubins_prune(0);
  CHECK(!unlink(library));
}

static void test_a_note_of_what_cannot_be_opened(void) {
  fflush(stdout);
  const pid_t child = fork();
  if (!child) {
    promised_in_vain();
    fflush(stdout);
    _exit(failures != 0);
  }
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* Where nothing can be written, nothing is kept, and that is all. /dev/full is a disk without room. */
static void test_no_place(void) {
  const jit_key key = {{9, 9}};
  jit_image *image = image_of(1000, 1);
  static const char *const places[] = {"/dev/null/no/such", "/proc/no/such", ""};
  for (int i = 0; i < TFU_COUNT(places); i++) {
    setenv("TFUSE_CACHE", places[i], 1);
    if (!*places[i]) unsetenv("HOME"), unsetenv("XDG_CACHE_HOME");
    jit_cubin_write(&key, image);
    CHECK_FOR(!jit_cubin_read(&key), "%s", places[i]);
    jit_cubins_prune(0);
  }
  setenv("TFUSE_CACHE", folder, 1);
  char jit[4200];
  snprintf(jit, sizeof jit, "%s/jit", folder);
  CHECK(!chmod(jit, 0500));
  jit_cubin_write(&key, image); /* of root it is written all the same */
  CHECK(geteuid() == 0 || !jit_cubin_read(&key));
  CHECK(!chmod(jit, 0700));
  free(image);
}

int main(void) {
  const char *temporary = getenv("TEST_TMPDIR");
  snprintf(folder, sizeof folder, "%s/jit_cubins_test.%d", temporary ? temporary : "/tmp", (int)getpid());
  setenv("TFUSE_CACHE", folder, 1);
  test_a_note_of_what_cannot_be_opened();
  test_keys();
  test_damage();
  test_note();
  test_bound();
  test_others();
  test_processes();
  test_no_place();
  return verdict();
}
