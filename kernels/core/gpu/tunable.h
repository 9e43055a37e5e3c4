/* tunable.h - autotuning by hand, numbers of a launch that only a measurement can find: blocks per multiprocessor,
 * waves.
 *
 *   TFU_TUNABLE(blocks, 64, 1, 256);
 *
 * at file scope of STEM_gpu.c makes the function blocks(), which returns 64. `python -m tfuse tune STEM` measures what
 * other numbers from 1 to 256 would give, by setting them while it runs. Beside the line stands what was measured, and
 * on which GPU. Any number of the range must be right for every shape: only the speed may depend on it. */
#ifndef TFUSE_TUNABLE_H_
#define TFUSE_TUNABLE_H_

#include <stdatomic.h>

#pragma GCC visibility push(default)

typedef struct tfu_tunable {
  const char *file; /* which names the stem */
  const char *name;
  int line, least, most;
  atomic_int value, asked; /* asked: a launch has asked for the value since it was set */
  struct tfu_tunable *next;
} tfu_tunable;

/* Puts it into the list of all, while the library is loaded. */
void tfu_tunable_add(tfu_tunable *tunable);

static inline int tfu_tunable_value(tfu_tunable *tunable) {
  if (!atomic_load_explicit(&tunable->asked, memory_order_relaxed))
    atomic_store_explicit(&tunable->asked, 1, memory_order_relaxed);
  return atomic_load_explicit(&tunable->value, memory_order_relaxed);
}

#define TFU_TUNABLE(name_, value_, least_, most_)                                                                 \
  static tfu_tunable name_##_tunable = {                                                                          \
      .file = __FILE__, .name = #name_, .line = __LINE__, .least = (least_), .most = (most_), .value = (value_)}; \
  __attribute__((constructor)) static void name_##_tunable_add(void) { tfu_tunable_add(&name_##_tunable); }       \
  static inline int name_(void) { return tfu_tunable_value(&name_##_tunable); }                                   \
  _Static_assert((least_) <= (value_) && (value_) <= (most_), #name_ " must be in its range")

/* ---- for Python ---- */

/* Tunable number `index` as a JSON object, in the thread's own memory until the next call; "" beyond the last. */
const char *tfu_tunable_text(int index);

/* Sets a tunable, by its stem and name, for all launches from now on. Returns "", or why it cannot be. */
const char *tfu_tunable_set(const char *stem, const char *name, int value);
#pragma GCC visibility pop

#endif
