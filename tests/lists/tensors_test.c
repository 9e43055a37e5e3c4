/* tensors_test.c - the tables by which a list of tensors goes to a GPU. */
#include "kernels/lists/tensors.h"
#include "tests/check.h"

/* A GPU's tables: every chunk of every tensor is in one of them, in order. */
static void test_tables(void) {
  enum { TENSORS = 2 * TENSORS_MOST + 5 };
  static tfu_tensor list[TENSORS];
  for (int i = 0; i < TENSORS; i++)
    list[i] = (tfu_tensor){&list[i], TFU_F32, SHAPE(i % 7 == 3 ? 0 : i % 5 == 0 ? 3 * TENSORS_CHUNK + i : i + 1)};
  tensors_table t;
  int64_t chunks = 0;
  for (int from = 0, next; from < TENSORS; from = next) {
    next = tensors_fill(&t, (const tfu_tensor *const[]){list}, 1, TENSORS, from);
    CHECK(t.base == from && t.tensors == next - from && t.tensors <= TENSORS_MOST && t.chunks_before == chunks);
    for (int i = 0; i < t.tensors; i++) {
      CHECK(t.count[i] == tfu_count(&list[from + i].shape) && t.at[i][0] == &list[from + i]);
      CHECK(t.first[i + 1] - t.first[i] == (t.count[i] + TENSORS_CHUNK - 1) / TENSORS_CHUNK);
    }
    chunks += t.first[t.tensors];
  }
  CHECK(chunks == tensors_chunks(list, TENSORS));
}

int main(void) {
  test_tables();
  return verdict();
}
