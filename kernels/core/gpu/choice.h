/* choice.h - autotuning by hand, numbers of a launch that only a measurement can find: blocks per multiprocessor,
 * waves.
 *
 *   TFU_CHOICE(blocks, 64, 1, 256);
 *
 * at file scope of STEM_gpu.c makes the function blocks(), which returns 64. `python -m tfuse tune STEM` measures what
 * other numbers from 1 to 256 would give, by setting them while it runs. Beside the line stands what was measured, and
 * on which GPU. Any number of the range must be right for every shape: only the speed may depend on it. */
#ifndef TFUSE_CHOICE_H_
#define TFUSE_CHOICE_H_

#include <stdatomic.h>

#pragma GCC visibility push(default)

typedef struct tfu_launch_choice {
  const char *file; /* which names the stem */
  const char *name;
  int line, least, most;
  atomic_int value, asked; /* asked: a launch has asked for the value since it was set */
  struct tfu_launch_choice *next;
} tfu_launch_choice;

/* Puts it into the list of all, while the library is loaded. */
void tfu_choice_add(tfu_launch_choice *choice);

static inline int tfu_choice_value(tfu_launch_choice *choice) {
  if (!atomic_load_explicit(&choice->asked, memory_order_relaxed))
    atomic_store_explicit(&choice->asked, 1, memory_order_relaxed);
  return atomic_load_explicit(&choice->value, memory_order_relaxed);
}

#define TFU_CHOICE(name_, value_, least_, most_)                                                                  \
  static tfu_launch_choice name_##_choice = {                                                                     \
      .file = __FILE__, .name = #name_, .line = __LINE__, .least = (least_), .most = (most_), .value = (value_)}; \
  __attribute__((constructor)) static void name_##_choice_add(void) { tfu_choice_add(&name_##_choice); }          \
  static inline int name_(void) { return tfu_choice_value(&name_##_choice); }                                     \
  _Static_assert((least_) <= (value_) && (value_) <= (most_), #name_ " must be in its range")

/* ---- for Python ---- */

/* Choice number `index` as a JSON object, in the thread's own memory until the next call; "" beyond the last. */
const char *tfu_choice_text(int index);

/* Sets a choice, by its stem and name, for all launches from now on. Returns "", or why it cannot be. */
const char *tfu_choice_set(const char *stem, const char *name, int value);
#pragma GCC visibility pop

#endif
