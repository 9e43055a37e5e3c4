/* library_test.c - libraries that may be missing: a table of functions is filled, or a text says what there is not. */
#include <math.h>

#include "kernels/core/gpu/library.h"
#include "tests/check.h"

typedef struct table {
  double (*cos)(double), (*sin)(double), (*later)(double);
  int version;
} table;

static void ask(void *t) { ((table *)t)->version = (int)((table *)t)->cos(0); }

#define WHY "there is no %s: install it"
static const char *const both[] = {"cos", "sin", NULL}, *const later[] = {"of_a_later_libm", NULL};
static const char *const more[] = {"cos", "of_a_later_libm", NULL};

static void test_found(void) {
  table t = {.later = cos};
  tfu_shared s = {.called = "libm",
                  .names = {"libm.so.none", "libm.so.6"},
                  .functions = both,
                  .newer = later,
                  .table = &t,
                  .ready = ask,
                  .why = WHY};
  for (int again = 0; again < 2; again++) {
    CHECK(!tfu_shared_open(&s) && t.cos && t.sin && t.cos != t.sin && !t.later && t.version == 1);
    t.version = again ? 0 : 1; /* it is asked once */
  }
  CHECK(!tfu_shared_open(&s) && t.version == 0);
}

static void test_missing(void) {
  table t = {.version = 0};
  tfu_shared none = {
      .called = "libnone or another", .names = {"libnone.so.1"}, .functions = both, .table = &t, .why = WHY};
  tfu_shared old = {.called = "libm", .names = {"libm.so.6"}, .functions = more, .table = &t, .ready = ask, .why = WHY};
  tfu_shared off = {.called = "libm", .names = {"libm.so.6"}, .off = "TFUSE_SOME", .functions = both, .table = &t};
  tfu_shared last = {.called = "libm", .names = {"libnone.so.1"}, .path = "libm.so.6", .functions = both, .table = &t};
  CHECK_TEXT(tfu_shared_open(&none), "there is no libnone or another: install it");
  CHECK_TEXT(tfu_shared_open(&old), "there is no of_a_later_libm: install it");
  CHECK(t.version == 0);
  CHECK(!tfu_shared_open(&last));
  setenv("TFUSE_SOME", "0", 1);
  CHECK_TEXT(tfu_shared_open(&off), "TFUSE_SOME=0");
  setenv("TFUSE_SOME", "1", 1);
  CHECK_TEXT(tfu_shared_open(&off), "TFUSE_SOME=0"); /* it was asked once */
}

int main(void) {
  test_found();
  test_missing();
  return verdict();
}
