/* concat and concat_split on the CPU. Tasks are stretches of the whole, so that a few long rows are shared among
 * threads as many short ones are. */
#include "kernels/layout/concat.h"

#include <string.h>

#include "kernels/core/arithmetic.h"
#include "kernels/core/cpu/parallel.h"

typedef struct job {
  tfu_sides sides;
  int64_t *width; /* of each part */
} job;

/* Rows of parts may be as short as an element: those of a size that the compiler knows are one load and one store. */
static void copy(char *to, const char *from, int64_t n) {
  if (n == 4) memcpy(to, from, 4);
  else if (n == 2) memcpy(to, from, 2);
  else if (n == 8) memcpy(to, from, 8);
  else memcpy(to, from, (size_t)n);
}

/* Some bytes of the whole. */
static void move(void *arg, int64_t at, int64_t end) {
  const job *j = arg;
  const tfu_sides *s = &j->sides;
  int64_t row = at / s->pitch, in_part = at % s->pitch;
  int i = 0;
  while (in_part >= j->width[i]) in_part -= j->width[i++];
  while (at < end) {
    const int64_t width = j->width[i], n = least(width - in_part, end - at);
    if (n > 0) {
      char *part = (char *)s->parts[i].data + row * width + in_part, *whole = s->whole + at;
      if (s->split) copy(part, whole, n);
      else copy(whole, part, n);
    }
    at += n, in_part = 0;
    if (++i == s->n) i = 0, row++;
  }
}

static tfu_code run(tfu_call *call, int split) {
  job j = {.sides = tfu_sides_of(call, split)};
  TFU_SCRATCH(call, j.sides.n, j.width);
  for (int i = 0; i < j.sides.n; i++) j.width[i] = tfu_side_width(&j.sides, i);
  const int64_t size = j.sides.size, n = j.sides.rows * j.sides.pitch / size;
  tfu_parallel_ranges(n * size, tfu_task_size(n, 512) * size, move, &j);
  return TFU_OK;
}

tfu_code tfu_concat_cpu(tfu_call *call) { return run(call, 0); }
tfu_code tfu_concat_split_cpu(tfu_call *call) { return run(call, 1); }
