/* threads_test.c - the threads that CPU kernels run on, however they are called, and large pages for their results. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/mman.h>

#include "kernels/core/cpu/pages.h"
#include "tests/check.h"

/* ---- threads ---- */

enum { INDICES = 1000, THREADS = 8 };

typedef struct tally {
  _Atomic(int) seen[INDICES];
} tally;

static void count_one(void *arg, int64_t i) { ((tally *)arg)->seen[i]++; }

static int counted(int64_t tasks) {
  tally t = {{0}};
  int right = 1;
  tfu_parallel(tasks, count_one, &t);
  for (int64_t i = 0; i < INDICES; i++) right &= t.seen[i] == (i < tasks);
  return right;
}

static void count_nested(void *arg, int64_t i) {
  if (counted(i % 7 * 10)) ((tally *)arg)->seen[i]++;
}

static int counted_nested(void) {
  tally t = {{0}};
  int right = 1;
  tfu_parallel(100, count_nested, &t);
  for (int i = 0; i < 100; i++) right &= t.seen[i] == 1;
  return right;
}

static int child_counts(void *unused) {
  (void)unused;
  return tfu_threads() == 3 && counted(INDICES) && counted_nested();
}

static _Atomic(int) busy, enough;

/* No malloc: a sanitizer's does not survive a fork in the middle of it. */
static void *caller(void *unused) {
  (void)unused;
  intptr_t right = 1;
  busy++;
  for (int i = 0; i < 50 || !enough; i++) right &= counted(INDICES) & counted(i % 50) & counted_nested();
  return (void *)right;
}

static void test_parallel(void) {
  CHECK(counted(0) && counted(1) && counted(-1) && counted(2) && counted(INDICES));
  CHECK(counted_nested());
  CHECK(tfu_threads() == 3);

  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, caller, NULL) == 0);
  while (busy < THREADS) usleep(1000);
  for (int i = 0; i < 4; i++) CHECK(in_child(child_counts, NULL)); /* whatever the others hold just then */
  enough = 1;
  for (int i = 0; i < THREADS; i++) {
    void *right = NULL;
    pthread_join(threads[i], &right);
    CHECK(right);
  }
  CHECK(counted(INDICES));
}

/* ---- pages ---- */

/* Whether the mapping that holds this byte is to have large pages, by the kernel's own account of it. */
static int advised(const void *byte) {
  char line[512];
  unsigned long first, last;
  int inside = 0, large = 0;
  FILE *maps = fopen("/proc/self/smaps", "r");
  if (!maps) return 0;
  while (fgets(line, sizeof line, maps)) {
    if (sscanf(line, "%lx-%lx ", &first, &last) == 2) inside = (uintptr_t)byte >= first && (uintptr_t)byte < last;
    if (inside && !strncmp(line, "VmFlags:", 8)) large = strstr(line, " hg") != NULL;
  }
  fclose(maps);
  return large;
}

static void test_pages(void) {
  enum { PAGE = 64 << 10, SIZE = 8 << 20 }; /* a multiple of any system's page */
  char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  memset(memory, 7, SIZE / 2);
  tfu_large_pages(memory + PAGE, 4096); /* too little */
  tfu_large_pages(NULL, 0);
  CHECK(!advised(memory + PAGE));
  tfu_large_pages(memory + 1, SIZE - PAGE - 1);
  if (!access("/sys/kernel/mm/transparent_hugepage", F_OK)) CHECK(advised(memory + PAGE));
  CHECK(!advised(memory)); /* a page that is only in part ours */
  CHECK(!advised(memory + SIZE - PAGE));
  for (int i = 0; i < SIZE; i++)
    if (memory[i] != (i < SIZE / 2 ? 7 : 0)) {
      CHECK_FOR(0, "byte %d changed", i);
      break;
    }
  munmap(memory, SIZE);
}

int main(void) {
  setenv("TFUSE_NUM_THREADS", "3", 1); /* more than one, however many cores there are */
  test_pages();
  test_parallel();
  return verdict();
}
