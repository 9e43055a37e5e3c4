/* tuned_test.c - choices by timing: remembered, kept in a file, and none the worse for what happens to that file. No
 * GPU is needed: what is chosen here is a number. */
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "kernels/core/gpu/determinism.h"
#include "kernels/core/gpu/tuned_file.h"
#include "tests/comma_locale.h"

static atomic_int asked;
static char folder[64], path[128];

static void describe(const void *key, void *with, char *text, size_t size) {
  (void)with;
  snprintf(text, size, "question %d", *(const int *)key);
}

/* 255 is what a foreign file may hold. */
static int usable(const void *key, void *with, const tfu_choice *choice) {
  (void)key, (void)with;
  return choice->data[0] != 255;
}

/* Chooses the key modulo 200; keys from 1000 on cannot be timed now, those from 2000 on have nothing to choose from. */
static tfu_chosen choose(const void *key, void *with, tfu_choice *choice) {
  const int number = *(const int *)key;
  (void)with;
  atomic_fetch_add(&asked, 1);
  *choice = (tfu_choice){.none = number >= 2000, .microseconds = number >= 2000 || !tfu_tuning() ? 0 : 1.5f};
  choice->data[0] = (unsigned char)(number % 200);
  snprintf(choice->label, sizeof choice->label, "the %dth", number);
  if (with) usleep(20000);
  return number >= 1000 && number < 2000 ? TFU_CHOSEN_ONCE : TFU_CHOSEN;
}

static const tfu_tuner tuner = {.bytes = sizeof(int), .describe = describe, .usable = usable, .choose = choose};

/* How often it had to be chosen. */
static int times_asked(int number) {
  const int before = atomic_load(&asked);
  tfu_choice c;
  const char *label = tfu_tuned_get(&tuner, &number, NULL, &c);
  CHECK_FOR(c.none == (number >= 2000) && c.data[0] == number % 200, "%d", number);
  CHECK_FOR(!label == (number >= 1000 && number < 2000) && (!label || !strcmp(label, c.label)), "%d", number);
  return atomic_load(&asked) - before;
}

static void test_remembers(void) {
  CHECK(times_asked(1) == 1 && times_asked(1) == 0 && times_asked(2) == 1);
  CHECK(times_asked(1000) == 1 && times_asked(1000) == 1);
  CHECK(times_asked(2000) == 1 && times_asked(2000) == 0);
  tfu_choice choice;
  const int key = 1;
  CHECK_TEXT(tfu_tuned_get(&tuner, &key, NULL, &choice), "the 1th");
}

static void test_file(void) {
  struct stat s;
  CHECK(!stat(path, &s) && (s.st_mode & 0777) == 0600);
  CHECK(!stat(folder, &s) && (s.st_mode & 0777) == 0700);
  tfu_tuned_forget();
  CHECK(times_asked(1) == 0 && times_asked(2) == 0 && times_asked(3) == 1);
  CHECK(times_asked(2000) == 1); /* is not in the file: another version may have something to choose from */
}

static void overwrite(const char *text, int at) {
  FILE *file = fopen(path, "r+");
  CHECK(file && !fseek(file, at, at < 0 ? SEEK_END : SEEK_SET) && fputs(text, file) >= 0 && !fclose(file));
}

static void test_damage(void) {
  const char *const damage[] = {"question 1", "\n\n\n", "\t\t\t\t\t\t", "\xff\xfe"};
  for (int i = 0; i < TFU_COUNT(damage); i++) {
    for (int at = 14; at < 600; at += 37) {
      overwrite(damage[i], at);
      tfu_tuned_forget();
      CHECK(times_asked(1) <= 1 && times_asked(2) <= 1 && times_asked(3) <= 1);
      tfu_tuned_forget();
      CHECK_FOR(times_asked(1) + times_asked(2) + times_asked(3) == 0, "%s at %d", damage[i], at); /* as good as new */
    }
  }
  CHECK(!truncate(path, 100));
  tfu_tuned_forget();
  CHECK(times_asked(1) + times_asked(2) + times_asked(3) == 3);
  struct stat before, after;
  overwrite("another program's", 0);
  CHECK(!stat(path, &before));
  for (int i = 0; i < 2; i++) { /* its file, which stays as it is */
    tfu_tuned_forget();
    CHECK(times_asked(1) == 1 && !stat(path, &after) && after.st_ino == before.st_ino);
  }
  CHECK(!truncate(path, 0));
  tfu_tuned_forget();
  CHECK(times_asked(1) == 1);
}

static void test_foreign(void) {
  tfu_tuned_lines lines = {0};
  tfu_tuned_line line = {.text = "question 7", .choice = {.data = {255}, .microseconds = 1, .label = "what is this"}};
  tfu_tuned_append(&lines, &line);
  tfu_tuned_write(path, &lines);
  tfu_tuned_release(&lines);
  tfu_tuned_forget();
  CHECK(times_asked(7) == 1);
  tfu_tuned_forget();
  CHECK(times_asked(7) == 0);
}

/* What others could have written is not believed; the file that takes its place is of this user alone. That others read
 * it does no harm. Only root can give a file away, and not in every container. */
static void test_whose(void) {
  static const struct {
    mode_t mode;
    int owner, trusted;
  } cases[] = {{0600, -1, 1}, {0644, -1, 1}, {0620, -1, 0}, {0602, -1, 0}, {0666, -1, 0}, {0644, 65534, 0}};
  struct stat s;
  for (int i = 0; i < TFU_COUNT(cases); i++) {
    CHECK(!chmod(path, cases[i].mode));
    if (cases[i].owner >= 0 && chown(path, (uid_t)cases[i].owner, (gid_t)-1)) continue;
    tfu_tuned_forget();
    CHECK_FOR(times_asked(7) == !cases[i].trusted, "mode %o, owner %d", cases[i].mode, cases[i].owner);
    CHECK(cases[i].trusted || (!stat(path, &s) && (s.st_mode & 0777) == 0600 && s.st_uid == geteuid()));
  }
}

static void test_no_place(void) {
  CHECK(!unlink(path) && !mkdir(path, 0700)); /* what is in the way cannot be read nor replaced */
  tfu_tuned_forget();
  CHECK(times_asked(1) == 1 && times_asked(1) == 0);
  CHECK(!rmdir(path));
  setenv("TFUSE_CACHE", "/dev/null/no/such", 1);
  tfu_tuned_forget();
  CHECK(times_asked(1) == 1 && times_asked(1) == 0);
  setenv("TFUSE_CACHE", folder, 1);
}

static void test_switched_off(void) {
  struct stat s;
  setenv("TFUSE_AUTOTUNE", "0", 1);
  tfu_tuned_forget();
  CHECK(!tfu_tuning() && times_asked(5) == 1 && times_asked(5) == 0);
  CHECK(stat(path, &s));
  unsetenv("TFUSE_AUTOTUNE");
  tfu_tuned_forget();
  CHECK(tfu_tuning() && times_asked(5) == 1);
}

/* ---- like sizes ---- */

/* Of a key, the thousands are its kind and the rest its size. */
static double apart(const void *key, const void *other) {
  const int a = *(const int *)key, b = *(const int *)other;
  return a / 1000 == b / 1000 ? fabs(log2((double)(a % 1000) / (b % 1000))) : -1;
}

/* What is adopted has its origin in data[1] and data[2]; size 13 cannot be. */
static int adopt(const void *key, const void *other, void *with, tfu_choice *choice) {
  const int size = *(const int *)key % 1000, from = *(const int *)other % 1000;
  (void)with;
  choice->data[1] = (unsigned char)(from / 256);
  choice->data[2] = (unsigned char)(from % 256);
  return size != 13;
}

static tfu_chosen choose_size(const void *key, void *with, tfu_choice *choice) {
  choose(key, with, choice);
  choice->microseconds = tfu_tuning() ? 1.5f : 0;
  return TFU_CHOSEN;
}

static const tfu_tuner of_sizes = {.bytes = sizeof(int),
                                   .describe = describe,
                                   .usable = usable,
                                   .choose = choose_size,
                                   .apart = apart,
                                   .adopt = adopt};

/* Which size's choice a key has; 0: its own, by another timing; -1: its own, remembered. */
static int choice_of(int key) {
  tfu_choice c;
  const int before = atomic_load(&asked);
  CHECK(tfu_tuned_get(&of_sizes, &key, NULL, &c));
  const int from = c.data[1] * 256 + c.data[2];
  return from ? from : atomic_load(&asked) > before ? 0 : -1;
}

/* After some of a kind have been timed, the nearest one's choice serves, if it is near; the file has what was timed. */
static void test_like_sizes(void) {
  enum { KIND = 500000 };
  tfu_tuned_lines lines = {0};
  unlink(path);
  tfu_tuned_forget();
  CHECK(choice_of(KIND + 1000 + 77) == 0); /* another kind, which does not count */
  for (int i = 0; i < TFU_TUNED_KIND; i++) CHECK(choice_of(KIND + 100 + 2 * i) == 0);
  CHECK(choice_of(KIND + 101) == 100 || choice_of(KIND + 101) == 102);
  CHECK(choice_of(KIND + 105) == 106 && choice_of(KIND + 61) == 100 && choice_of(KIND + 200) == 130);
  CHECK(choice_of(KIND + 105) == 106); /* that is remembered too, and is nobody's nearest itself: */
  CHECK(choice_of(KIND + 60) == 100);
  CHECK(choice_of(KIND + 104) == -1);
  CHECK(choice_of(KIND + 13) == 0 && choice_of(KIND + 13) == -1); /* more than a factor of 2 away */
  CHECK(choice_of(KIND + 14) == 13 && choice_of(KIND + 500) == 0 && choice_of(KIND + 1000 + 78) == 0);
  tfu_tuned_read(path, &lines);
  CHECK_FOR(lines.n == TFU_TUNED_KIND + 4, "%d", lines.n);
  tfu_tuned_release(&lines);
  tfu_tuned_forget();
  CHECK(choice_of(KIND + 105) == 0 && choice_of(KIND + 104) == -1); /* as nothing of the kind was asked for before */
}

/* ---- determinism ---- */

static _Bool required;
static _Bool is_required(void) { return required; }

/* While it is required, nothing is timed, read or written, and what was timed before is not used; nor is what was not
 * timed, afterwards. */
static void test_determinism(void) {
  tfu_tuned_lines lines = {0};
  unlink(path);
  tfu_tuned_forget();
  tfu_determinism_required = is_required;
  CHECK(tfu_tuning() && times_asked(1) == 1 && times_asked(1) == 0);
  required = 1;
  CHECK(!tfu_tuning() && times_asked(1) == 1 && times_asked(1) == 0 && times_asked(2) == 1);
  tfu_choice choice;
  CHECK(tfu_tuned_get(&tuner, &(int){1}, NULL, &choice) && choice.microseconds == 0);
  required = 0;
  CHECK(times_asked(1) == 0 && times_asked(2) == 1);
  CHECK(tfu_tuned_get(&tuner, &(int){1}, NULL, &choice) && choice.microseconds > 0);
  tfu_tuned_read(path, &lines);
  CHECK_FOR(lines.n == 2, "%d", lines.n);
  tfu_tuned_release(&lines);
  tfu_determinism_required = NULL;
}

static int writer(void *first) {
  tfu_tuned_forget();
  for (int i = 0; i < 20; i++) times_asked(*(int *)first + i);
  return 1;
}

/* Whatever both leave is a whole file: choices may be missing, none is wrong. */
static void test_two_processes(void) {
  pid_t child[2];
  for (int i = 0; i < 2; i++) {
    if ((child[i] = fork()) == 0) {
      int first = 100 * i;
      _exit(!writer(&first) || failures);
    }
  }
  for (int i = 0; i < 2; i++) {
    int status = 1;
    CHECK(waitpid(child[i], &status, 0) == child[i] && status == 0);
  }
  tfu_tuned_lines lines = {0};
  tfu_tuned_read(path, &lines);
  CHECK_FOR(lines.n >= 20, "%d", lines.n);
  tfu_tuned_release(&lines);
  tfu_tuned_forget();
  CHECK(times_asked(0) + times_asked(100) <= 2);
}

static void *want(void *nothing) {
  const int key = 9;
  tfu_choice choice;
  CHECK_TEXT(tfu_tuned_get(&tuner, &key, (void *)1, &choice), "the 9th");
  CHECK(choice.data[0] == 9);
  return nothing;
}

static void test_threads(void) {
  pthread_t threads[8];
  tfu_tuned_forget();
  unlink(path);
  tfu_tuned_forget();
  const int before = atomic_load(&asked);
  for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, want, NULL);
  for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
  CHECK(atomic_load(&asked) == before + 1);
}

/* What was not asked for longest makes room, and nothing else; what is still being chosen is not touched. */
static void test_bounded(void) {
  enum { FIRST = 10000, LATE = FIRST + TFU_TUNED_MOST - 1 };
  pthread_t thread;
  setenv("TFUSE_AUTOTUNE", "0", 1); /* or each would be written */
  tfu_tuned_forget();
  const int before = atomic_load(&asked);
  pthread_create(&thread, NULL, want, NULL); /* 9: the oldest, but slow */
  while (atomic_load(&asked) == before) usleep(100);
  for (int key = FIRST; key < LATE; key++) CHECK(times_asked(key) == 1);
  CHECK(times_asked(FIRST) == 0);    /* full now, and FIRST + 1 the oldest that is made, or 9 if it is made already */
  CHECK(times_asked(1000) == 1);     /* takes a place for a moment */
  CHECK(times_asked(LATE) == 1);     /* takes the one that is free since */
  CHECK(times_asked(LATE + 1) == 1); /* takes another's */
  pthread_join(thread, NULL);
  int again = 0;
  for (int key = LATE + 1; key >= FIRST + 3; key--) again += times_asked(key);
  CHECK_FOR(again == 0, "%d", again);
  CHECK(times_asked(FIRST) == 0);
  CHECK(times_asked(LATE + 2) == 1 && times_asked(LATE) == 0 && times_asked(LATE + 2) == 0);
  tfu_choice choice;
  const char *label = tfu_tuned_get(&tuner, &(int){LATE}, NULL, &choice);
  for (int key = 2 * LATE; key < 2 * LATE + 2 * TFU_TUNED_MOST; key++) CHECK(times_asked(key) == 1);
  CHECK_FOR(strstr(label, "th"), "%s", label); /* of another choice now, but it can be read */
  unsetenv("TFUSE_AUTOTUNE");
  tfu_tuned_forget();
}

/* A full file stays as long as it is: the new line is its first, and its last is gone. */
static void test_full_file(void) {
  tfu_tuned_lines lines = {0};
  tfu_tuned_line line = {.choice = {.microseconds = 1, .label = "of old"}};
  for (int key = 0; key < TFU_TUNED_MOST; key++) {
    describe(&(int){10000 + key}, NULL, line.text, sizeof line.text);
    line.choice.data[0] = (unsigned char)((10000 + key) % 200);
    tfu_tuned_append(&lines, &line);
  }
  tfu_tuned_append(&lines, &line);
  CHECK(lines.n == TFU_TUNED_MOST);
  tfu_tuned_write(path, &lines);
  tfu_tuned_release(&lines);
  tfu_tuned_forget();
  CHECK(times_asked(1) == 1);
  tfu_tuned_read(path, &lines);
  CHECK_FOR(lines.n == TFU_TUNED_MOST, "%d", lines.n);
  CHECK(tfu_tuned_find(&lines, "question 1") == &lines.line[0] && tfu_tuned_find(&lines, "question 10000"));
  CHECK_TEXT(lines.line[lines.n - 1].text, "question 14094");
  tfu_tuned_release(&lines);
}

/* What is left of a list that memory did not suffice for takes nobody's place. */
static void test_lost_lines(void) {
  tfu_tuned_lines lines = {.lost = 1};
  struct stat before, after;
  CHECK(!stat(path, &before));
  tfu_tuned_write(path, &lines);
  CHECK(!stat(path, &after) && after.st_ino == before.st_ino && after.st_size == before.st_size);
  tfu_tuned_read(path, &lines);
  CHECK(lines.n == TFU_TUNED_MOST && lines.lost);
  tfu_tuned_release(&lines);
}

int main(void) {
  char base[40];
  set_comma_locale(); /* the file is the same in all */
  snprintf(base, sizeof base, "/tmp/tuned_test.XXXXXX");
  if (!mkdtemp(base)) return 1;
  snprintf(folder, sizeof folder, "%s/deep/er", base);
  snprintf(path, sizeof path, "%s/tuned", folder);
  setenv("TFUSE_CACHE", folder, 1);
  unsetenv("TFUSE_AUTOTUNE");
  CHECK_TEXT(tfu_tuned_path(), path);
  test_remembers();
  test_file();
  test_damage();
  test_foreign();
  test_whose();
  test_no_place();
  test_switched_off();
  test_like_sizes();
  test_determinism();
  test_two_processes();
  test_threads();
  test_bounded();
  test_full_file();
  test_lost_lines();
  unlink(path);
  rmdir(folder);
  *strrchr(folder, '/') = 0;
  rmdir(folder);
  rmdir(base);
  return verdict();
}
