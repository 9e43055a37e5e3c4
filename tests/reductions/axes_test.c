/* Axes as bits of a mask, what is left of a shape, and groups of axes. */
#include <string.h>

#include "ops/reductions/axes.h"
#include "tests/check.h"

static void test_axes(void) {
  const tfu_shape x = SHAPE(2, 3, 1, 5);
  static const struct {
    int64_t axes;
    unsigned reduced;
    const char *refused;
  } cases[] = {{0, 0, NULL},
               {1 << 16, 15, NULL},
               {1 | 1 << 8, 9, NULL},
               {1 << 11, 1, NULL},
               {1 << 4, 0, "axis must be one of the 4 axes of x [2, 3, 1, 5], got 4"},
               {1 << 12, 0, "axis must be one of the 4 axes of x [2, 3, 1, 5], got -5"},
               {8 | 1 << 8, 0, "axis must name no axis of x [2, 3, 1, 5] twice, got -1"}};
  for (int i = 0; i < TFU_COUNT(cases); i++) {
    tfu_error err = {""};
    unsigned reduced;
    const tfu_code code = tfu_reduced_axes(&x, cases[i].axes, &reduced, &err);
    CHECK((code == TFU_OK) == !cases[i].refused);
    if (code == TFU_OK) CHECK(reduced == cases[i].reduced);
    else CHECK_TEXT(err.text, cases[i].refused);
  }
}

static void test_shapes(void) {
  const tfu_shape x = SHAPE(2, 3, 1, 5);
  const tfu_shape without = tfu_reduced_shape(&x, 5, 0), with = tfu_reduced_shape(&x, 5, 1);
  CHECK_TEXT(tfu_show(&without).text, "[3, 5]");
  CHECK_TEXT(tfu_show(&with).text, "[1, 3, 1, 5]");
}

/* Neighbours of one kind are one group, and what has one element belongs to none. */
static void test_groups(void) {
  const tfu_shape x = SHAPE(2, 3, 1, 5, 7);
  const tfu_groups all = tfu_groups_of(&x, 31), none = tfu_groups_of(&x, 4), two = tfu_groups_of(&x, 9);
  CHECK(all.n == 1 && all.kept[0] == 1 && all.reduced[0] == 210 && all.kept[1] == 1);
  CHECK(none.n == 0 && none.kept[0] == 210);
  CHECK(two.n == 2 && two.kept[0] == 1 && two.reduced[0] == 2 && two.kept[1] == 3 && two.reduced[1] == 5 &&
        two.kept[2] == 7);
}

int main(void) {
  test_axes();
  test_shapes();
  test_groups();
  return verdict();
}
