/* tunable_test.c - numbers of a launch: listed, set within their range, by stem and name. */
#include "kernels/core/gpu/tunable.h"
#include "tests/check.h"

/* These stand in for the launches of two stems. */
#line 1 "kernels/family/first_gpu.c"
TFU_TUNABLE(blocks, 12, 3, 40);
TFU_TUNABLE(waves, 1, 1, 1);
#line 1 "first_of_two_gpu.c"
TFU_TUNABLE(other_blocks, 5, 0, 9);
#line 12 "tests/tunable_test.c"

/* The text of a tunable in the list of all, "" if it is not there; how often it is there goes to *times. */
static const char *listed(const char *stem, const char *name, int *times) {
  static char found[512];
  char want[128];
  found[0] = 0, *times = 0;
  snprintf(want, sizeof want, "{\"stem\": \"%s\", \"name\": \"%s\", ", stem, name);
  for (int i = 0; *tfu_tunable_text(i); i++)
    if (!strncmp(tfu_tunable_text(i), want, strlen(want)))
      snprintf(found, sizeof found, "%s", tfu_tunable_text(i)), ++*times;
  return found;
}

static void test_list(void) {
  int times, n = 0;
  CHECK_TEXT(listed("first", "blocks", &times),
             "{\"stem\": \"first\", \"name\": \"blocks\", \"value\": 12, \"least\": 3, \"most\": 40, "
             "\"file\": \"kernels/family/first_gpu.c\", \"line\": 1, \"asked\": false}");
  CHECK(times == 1);
  CHECK_TEXT(listed("first_of_two", "other_blocks", &times),
             "{\"stem\": \"first_of_two\", \"name\": \"other_blocks\", \"value\": 5, \"least\": 0, \"most\": 9, "
             "\"file\": \"first_of_two_gpu.c\", \"line\": 1, \"asked\": false}");
  CHECK(*listed("rope", "blocks", &times) && times == 1); /* the library's own are there too */
  while (*tfu_tunable_text(n)) n++;
  CHECK(n > 3);
  CHECK_TEXT(tfu_tunable_text(n + 1), "");
  CHECK_TEXT(tfu_tunable_text(-1), "");
}

static void test_set(void) {
  int times;
  CHECK(blocks() == 12);
  CHECK(strstr(listed("first", "blocks", &times), "\"asked\": true"));
  CHECK_TEXT(tfu_tunable_set("first", "blocks", 40), "");
  CHECK(strstr(listed("first", "blocks", &times), "\"value\": 40"));
  CHECK(strstr(listed("first", "blocks", &times), "\"asked\": false")); /* since it was set */
  CHECK(blocks() == 40);
  CHECK_TEXT(tfu_tunable_set("first", "blocks", 3), "");
  CHECK(blocks() == 3);
  CHECK(other_blocks() == 5); /* another stem's stays */
  CHECK_TEXT(tfu_tunable_set("first", "blocks", 12), "");
  CHECK(blocks() == 12);
}

static void test_refused(void) {
  CHECK_TEXT(tfu_tunable_set("first", "blocks", 2), "blocks of first must be 3 to 40, got 2");
  CHECK_TEXT(tfu_tunable_set("first", "blocks", 41), "blocks of first must be 3 to 40, got 41");
  CHECK_TEXT(tfu_tunable_set("first", "waves", 2), "waves of first must be 1 to 1, got 2");
  CHECK_TEXT(tfu_tunable_set("first", "block", 5), "first has no tunable block");
  CHECK_TEXT(tfu_tunable_set("firs", "blocks", 5), "firs has no tunable blocks");
  CHECK_TEXT(tfu_tunable_set("first_of", "other_blocks", 5), "first_of has no tunable other_blocks");
  CHECK_TEXT(tfu_tunable_set("", "", 5), " has no tunable ");
  CHECK(blocks() == 12 && waves() == 1 && other_blocks() == 5);
}

int main(void) {
  test_list();
  test_set();
  test_refused();
  return verdict();
}
