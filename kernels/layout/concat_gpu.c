#include "kernels/layout/concat.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/cuda.h"

TFU_MODULE(concat);

enum { MOST = 1 << 30 }; /* units of a launch: what kernels divide is less than 2^31 */

/* The largest unit that all rows of all parts begin and end with. */
static int64_t unit_of(const tfu_sides *s) {
  uintptr_t all = 16 | (uintptr_t)s->whole;
  for (int i = 0; i < s->n; i++)
    if (tfu_side_width(s, i)) all |= (uintptr_t)s->parts[i].data | (uintptr_t)tfu_side_width(s, i);
  return (int64_t)(all & -all);
}

/* All rows of what the arguments have of each, in as many launches as that takes. */
static tfu_code move_rows(tfu_call *call, concat_args a, int64_t rows) {
  static tfu_kernel by_size = {.module = &module, .name = "concat_units", .keys = tfu_any};
  static tfu_kernel by_packs = {.module = &module, .name = "concat_packs", .keys = tfu_any};
  const int64_t per = MOST / a.span.by, each = CONCAT_THREADS * (a.bytes == 16 ? CONCAT_ROUNDS / 2 : CONCAT_ROUNDS);
  for (int64_t row = 0; row < rows; row += per) {
    const int64_t now = least(per, rows - row);
    a.units = (uint32_t)(now * a.span.by);
    const tfu_grid grid = {.x = (unsigned)divide_up(a.units, each), .threads = CONCAT_THREADS};
    TFU_TRY(tfu_launch(call, a.bytes == 16 ? &by_packs : &by_size, 0, 0, grid, &a));
    a.whole = (char *)a.whole + now * a.pitch * a.bytes;
    for (int k = 0; k < a.parts; k++) a.part[k] = (char *)a.part[k] + now * a.width[k] * a.bytes;
  }
  return TFU_OK;
}

/* A row is cut where it has more parts, or units, than a launch takes; `done` is what was taken of part i. */
static tfu_code run(tfu_call *call, int split) {
  const tfu_sides s = tfu_sides_of(call, split);
  const int64_t unit = unit_of(&s);
  concat_args a = {.whole = s.whole, .pitch = s.pitch / unit, .bytes = (int)unit, .split = split};
  int64_t done = 0;
  for (int i = 0; i < s.n;) {
    int64_t span = 0;
    a.parts = 0;
    while (i < s.n && a.parts < CONCAT_PARTS && span < MOST) {
      const int64_t width = tfu_side_width(&s, i) / unit, now = least(width - done, MOST - span);
      if (now > 0) {
        a.first[a.parts] = (uint32_t)span;
        a.width[a.parts] = width;
        a.part[a.parts++] = (char *)s.parts[i].data + done * unit;
      }
      span += now, done += now;
      if (done == width) i++, done = 0;
    }
    if (span == 0) break; /* what was left is empty */
    a.span = divisor_of(span);
    TFU_TRY(move_rows(call, a, s.rows));
    a.whole = (char *)a.whole + span * unit;
  }
  return TFU_OK;
}

tfu_code tfu_concat_gpu(tfu_call *call) { return run(call, 0); }
tfu_code tfu_concat_split_gpu(tfu_call *call) { return run(call, 1); }
