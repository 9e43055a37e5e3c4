#include "kernels/core/cpu/fold_cpu.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/cpu/cpu.h"

/* A task reads about 256 KiB of float32; a joined row is at least a tile; 64 blocks bound what the sums take. */
enum { STRIP = 4 * TFU_TILE, TASK = 64 * 1024, MOST_BLOCKS = 64 };

tfu_fold tfu_fold_plan(const tfu_shape *shape) {
  const int64_t cols = tfu_cols(shape), rows = tfu_rows(shape);
  int64_t join = cols > 0 && cols < TFU_TILE ? TFU_TILE / cols : 1;
  if (join > rows) join = rows > 0 ? rows : 1;
  tfu_fold f = {.n = rows * cols, .width = cols * join};
  f.rows = divide_up(rows, join);
  f.strips = divide_up(f.width, STRIP);
  const int64_t strip = f.width < STRIP ? f.width : STRIP;
  f.block_rows = strip ? divide_up(TASK, strip) : 1;
  if (f.block_rows * MOST_BLOCKS < f.rows) f.block_rows = divide_up(f.rows, MOST_BLOCKS);
  f.blocks = f.rows ? divide_up(f.rows, f.block_rows) : 1; /* no rows still have sums: zero */
  f.tasks = f.blocks * f.strips;
  return f;
}

tfu_code tfu_fold_start(tfu_call *call, tfu_fold *f, int quantities) {
  const size_t bytes = (size_t)(f->blocks * quantities * f->width) * sizeof *f->sums;
  void *memory;
  f->quantities = quantities;
  TFU_TRY(tfu_scratch(call, bytes, &memory));
  if (bytes) memset(memory, 0, bytes);
  f->sums = memory;
  return TFU_OK;
}

tfu_fold_tile tfu_fold_first(const tfu_fold *f, int64_t task) {
  const int64_t block = task / f->strips, strip = task % f->strips * STRIP;
  return (tfu_fold_tile){.block = block,
                         .row = block * f->block_rows,
                         .row_end = least((block + 1) * f->block_rows, f->rows),
                         .next_col = strip,
                         .strip = strip,
                         .strip_end = least(strip + STRIP, f->width)};
}

int tfu_fold_next(const tfu_fold *f, tfu_fold_tile *t) {
  if (t->next_col >= t->strip_end) {
    t->next_col = t->strip;
    t->row++;
  }
  if (t->row >= t->row_end) return 0;
  t->col = t->next_col;
  t->at = t->row * f->width + t->col;
  t->n = (int)least(least(t->strip_end - t->col, TFU_TILE), f->n - t->at); /* the last joined row may be short */
  t->next_col += TFU_TILE;
  return t->n > 0;
}

/* By halves: the error of a sum of n grows with log n, not with n. */
static double sum(const double *v, int64_t n, int64_t stride) {
  double total = 0;
  if (n > 64) return sum(v, n / 2, stride) + sum(v + n / 2 * stride, n - n / 2, stride);
  for (int64_t i = 0; i < n; i++) total += v[i * stride];
  return total;
}

void tfu_fold_finish(const tfu_fold *f, int quantity, const tfu_tensor *out) {
  const int64_t count = tfu_count(&out->shape);
  if (count == 0) return;
  double *columns = tfu_fold_sums(f, 0, quantity);
  for (int64_t block = 1; block < f->blocks; block++) {
    const double *sums = tfu_fold_sums(f, block, quantity);
    TFU_VECTORISE
    for (int64_t c = 0; c < f->width; c++) columns[c] += sums[c];
  }
  for (int64_t c = 0; c < count; c++) {
    const double total = sum(columns + c, divide_up(f->width - c, count), count);
    const float rounded = (float)total;
    if (out->dtype == TFU_F64) tfu_store_f64(out->data, out->dtype, c, 1, &total);
    else tfu_store_f32(out->data, out->dtype, c, 1, &rounded);
  }
}
