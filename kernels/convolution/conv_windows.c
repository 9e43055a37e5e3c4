#include "kernels/convolution/conv_windows.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/cpu/cpu.h"

enum { PART = 8 << 20 /* bytes of windows at a time */, ROWS = 32 /* windows of a task */ };

/* Where along an axis a tap of the window at position `at` lies in the other tensor; -1: nowhere. */
static int64_t seen(const conv_shape *s, int a, int spread, int64_t at, int64_t tap) {
  if (!spread) {
    const int64_t i = at * s->stride[a] - s->before[a] + tap * s->dilation[a];
    return i >= 0 && i < s->in[a] ? i : -1;
  }
  const int64_t i = at + s->before[a] - tap * s->dilation[a];
  return i >= 0 && i % s->stride[a] == 0 && i / s->stride[a] < s->out[a] ? i / s->stride[a] : -1;
}

static char *copy_pixel(const conv_windows *w, char *to, int64_t at) {
  if (at < 0) memset(to, 0, (size_t)w->width);
  else if (w->width) memcpy(to, w->from + at * w->pixel, (size_t)w->width);
  return to + w->width;
}

static void copy_window(const conv_windows *w, char *to, int64_t position) {
  const conv_shape *s = w->s;
  const int64_t c = position % w->grid[2], b = position / w->grid[2] % w->grid[1];
  const int64_t a = position / (w->grid[2] * w->grid[1]) % w->grid[0], n = position / conv_volume(w->grid);
  for (int64_t t = 0; t < s->window[0]; t++)
    for (int64_t u = 0; u < s->window[1]; u++)
      for (int64_t v = 0; v < s->window[2]; v++) {
        const int64_t i = seen(s, 0, w->spread, a, t), j = seen(s, 1, w->spread, b, u);
        const int64_t k = seen(s, 2, w->spread, c, v);
        const int64_t at = ((n * w->image[0] + i) * w->image[1] + j) * w->image[2] + k;
        to = copy_pixel(w, to, i < 0 || j < 0 || k < 0 ? -1 : at);
      }
}

static void copy_range(void *windows, int64_t begin, int64_t end) {
  const conv_windows *w = windows;
  const int64_t bytes = conv_volume(w->s->window) * w->width;
  for (int64_t r = begin; r < end; r++) copy_window(w, w->to + r * bytes, w->first + r);
}

int tfu_conv_windows_next(conv_windows *w) {
  w->first += w->rows;
  w->rows = least(w->most, w->all - w->first);
  if (w->rows > 0) tfu_parallel_ranges(w->rows, ROWS, copy_range, w);
  return w->rows > 0;
}

tfu_code tfu_conv_windows_open(tfu_call *call, const conv_shape *s, int spread, const tfu_tensor *from,
                               conv_windows *w) {
  const int64_t width = (spread ? s->k : s->c) * (int64_t)tfu_dtype_size(from->dtype);
  const int64_t bytes = conv_volume(s->window) * width;
  *w = (conv_windows){.s = s,
                      .spread = spread,
                      .from = from->data,
                      .pixel = s->groups * width,
                      .width = width,
                      .grid = spread ? s->in : s->out,
                      .image = spread ? s->out : s->in};
  w->all = s->batch * conv_volume(w->grid);
  w->most = bytes ? least(w->all, PART / bytes) : w->all;
  if (w->most < 1) w->most = 1;
  TFU_SCRATCH(call, w->most * bytes + 3, w->to); /* int8 is read in fours */
  return TFU_OK;
}
