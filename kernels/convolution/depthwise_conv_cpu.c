/* depthwise_conv on the CPU: lines of the result are tasks. A line is made in parts, some places of a stretch of
 * channels, whose sums stay in the first-level cache while the places of x that they need pass by, each of which is
 * widened once.
 *
 * Loops run over the channels of the result; x is spread out to these where the multiplier is not 1. The gradient of
 * the filter has sums in double for blocks of lines, which are added up in their order: the same bits for any number of
 * threads. */
#ifndef REAL
#include "ops/convolution/depthwise_conv.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/cpu/cpu.h"
#include "kernels/elementwise/scale_bias_act.h"

enum { STRETCH = 256, PART = 4096, WORKERS = 64 }; /* channels; sums of a part; tasks, each with room of its own */

typedef struct depthwise_job {
  tfu_depthwise d;
  int64_t outputs;           /* channels of the result */
  int64_t stretch, part;     /* channels of the result, and places, of a part */
  int64_t lines, workers;    /* lines are dealt out to as many tasks */
  tfu_tensor from, to, pre;  /* x, y, pre; or dy, dx and nothing */
  const void *kernel, *bias; /* in the arithmetic type */
  const tfu_activation *act;
  void *room; /* of the workers, room_size values each */
  int64_t room_size;
  double *sums; /* [blocks][places of the window][outputs] */
  int64_t blocks, stretches;
} depthwise_job;

/* The place of a window's axis that meets place i of the input in tap k, or -1. */
static int64_t met(const tfu_window *w, int64_t i, int64_t k) {
  const int64_t from = i + w->before - k * w->dilation;
  return from < 0 || from % w->stride || from / w->stride >= w->out ? -1 : from / w->stride;
}
/* The place of the input that tap k of the window at o sees, or -1. */
static int64_t seen(const tfu_window *w, int64_t o, int64_t k) {
  const int64_t i = o * w->stride - w->before + k * w->dilation;
  return i < 0 || i >= w->in ? -1 : i;
}

#define TFU_SELF "kernels/convolution/depthwise_conv_cpu.c"
#include "kernels/core/cpu/stamp.h"
TFU_BY_REAL(tfu_depthwise_conv_cpu)
TFU_BY_REAL(tfu_depthwise_conv_grad_cpu)

#else

/* A tensor in the arithmetic type: itself, or a copy. */
static tfu_code FN(widened)(tfu_call *call, const tfu_tensor *t, const void **values) {
  const int64_t n = tfu_count(&t->shape);
  *values = t->data;
  if (n == 0 || t->dtype == tfu_real(t->dtype)) return TFU_OK;
  REAL *wide;
  TFU_SCRATCH(call, n, wide);
  for (TFU_EACH_TILE(at, some, 0, n)) FN(tfu_load)(t->data, t->dtype, at, (int)some, wide + at);
  *values = wide;
  return TFU_OK;
}

/* n values for channels of the result from `output` on, at a place of x: every channel `multiplier` times. */
static const REAL *FN(spread)(const depthwise_job *j, const tfu_tensor *x, int64_t place, int64_t output, int n,
                              REAL *buffer, REAL *narrow) {
  const int64_t m = j->d.multiplier, channel = output / m;
  if (m == 1) return FN(tfu_load)(x->data, x->dtype, place * j->d.channels + channel, n, buffer);
  const int64_t last = (output + n - 1) / m;
  const REAL *values =
      FN(tfu_load)(x->data, x->dtype, place * j->d.channels + channel, (int)(last - channel + 1), narrow);
  for (int k = 0; k < n; k++) buffer[k] = values[(output + k) / m - channel];
  return buffer;
}

static void FN(multiply_add)(REAL *restrict sum, const REAL *restrict a, const REAL *restrict b, int n) {
  for (int k = 0; k < n; k++) sum[k] += a[k] * b[k];
}

/* ---- y ---- */

static void FN(forward_part)(const depthwise_job *j, int64_t batch, int64_t row, int64_t column, int places,
                             int64_t output, int n, REAL *room) {
  const tfu_window *h = &j->d.h, *w = &j->d.w;
  REAL *sums = room, *wide = sums + j->part * j->stretch, *narrow = wide + j->stretch, *ones = narrow + j->stretch;
  const REAL *kernel = (const REAL *)j->kernel + output;
  const int64_t first = column * w->stride - w->before;
  const int64_t end = least(w->in, first + (places - 1) * w->stride + (w->size - 1) * w->dilation + 1);
  memset(sums, 0, (size_t)(places * n) * sizeof *sums);
  for (int k = 0; k < n; k++) ones[k] = 1;
  for (int64_t r = 0; r < h->size; r++) {
    const int64_t line = seen(h, row, r);
    if (line < 0) continue;
    for (int64_t i = first < 0 ? 0 : first; i < end; i++) {
      const REAL *x = NULL;
      for (int64_t c = 0; c < w->size; c++) {
        const int64_t o = met(w, i, c) - column;
        if (o < 0 || o >= places) continue;
        if (!x) x = FN(spread)(j, &j->from, (batch * h->in + line) * w->in + i, output, n, wide, narrow);
        FN(multiply_add)(sums + o * n, x, kernel + (r * w->size + c) * j->outputs, n);
      }
    }
  }
  for (int o = 0; o < places; o++) {
    const int64_t at = ((batch * h->out + row) * w->out + column + o) * j->outputs + output;
    REAL *values = sums + o * n;
    if (j->bias)
      for (int k = 0; k < n; k++) values[k] += ((const REAL *)j->bias)[output + k];
    if (tfu_count(&j->pre.shape)) FN(tfu_store)(j->pre.data, j->pre.dtype, at, n, values);
    for (int k = 0; k < n; k++) narrow[k] = (REAL)-0.0;
    j->act->FN(value)(values, values, ones, narrow, n);
    FN(tfu_store)(j->to.data, j->to.dtype, at, n, values);
  }
}

/* ---- dx ---- */

static void FN(backward_part)(const depthwise_job *j, int64_t batch, int64_t row, int64_t column, int places,
                              int64_t output, int n, REAL *room) {
  const tfu_window *h = &j->d.h, *w = &j->d.w;
  const int64_t m = j->d.multiplier, channel = output / m;
  REAL *sums = room, *wide = sums + j->part * j->stretch;
  const REAL *kernel = (const REAL *)j->kernel + output;
  const int channels = (int)(n / m);
  memset(sums, 0, (size_t)(places * n) * sizeof *sums);
  for (int64_t r = 0; r < h->size; r++) {
    const int64_t line = met(h, row, r);
    if (line < 0) continue;
    for (int64_t o = 0; o < w->out; o++) {
      const int64_t first = o * w->stride - w->before - column;
      const REAL *dy = NULL;
      if (first >= places || first + (w->size - 1) * w->dilation < 0) continue;
      for (int64_t c = 0; c < w->size; c++) {
        const int64_t i = first + c * w->dilation;
        if (i < 0 || i >= places) continue;
        if (!dy) {
          const int64_t at = ((batch * h->out + line) * w->out + o) * j->outputs + output;
          dy = FN(tfu_load)(j->from.data, j->from.dtype, at, n, wide);
        }
        FN(multiply_add)(sums + i * n, dy, kernel + (r * w->size + c) * j->outputs, n);
      }
    }
  }
  for (int i = 0; i < places; i++) {
    REAL *values = sums + i * n;
    if (m > 1) {
      for (int c = 0; c < channels; c++) {
        REAL total = 0;
        for (int64_t k = 0; k < m; k++) total += values[c * m + k];
        values[c] = total;
      }
    }
    FN(tfu_store)
    (j->to.data, j->to.dtype, ((batch * h->in + row) * w->in + column + i) * j->d.channels + channel, channels, values);
  }
}

/* ---- lines of either ---- */

typedef void FN(part)(const depthwise_job *j, int64_t batch, int64_t row, int64_t column, int places, int64_t output,
                      int n, REAL *room);

static void FN(lines)(const depthwise_job *j, int64_t worker, int64_t height, int64_t width, FN(part) * make) {
  REAL *room = (REAL *)j->room + worker * j->room_size;
  for (int64_t line = worker; line < j->lines; line += j->workers)
    for (int64_t output = 0; output < j->outputs; output += j->stretch)
      for (int64_t column = 0; column < width; column += j->part)
        make(j, line / height, line % height, column, (int)least(j->part, width - column), output,
             (int)least(j->stretch, j->outputs - output), room);
}
static void FN(forward_lines)(void *job, int64_t worker) {
  const depthwise_job *j = job;
  FN(lines)(j, worker, j->d.h.out, j->d.w.out, FN(forward_part));
}
static void FN(backward_lines)(void *job, int64_t worker) {
  const depthwise_job *j = job;
  FN(lines)(j, worker, j->d.h.in, j->d.w.in, FN(backward_part));
}

/* Parts, and room for the sums and three buffers of every worker. */
static tfu_code FN(deal_out)(tfu_call *call, depthwise_job *j, int64_t height, int64_t width) {
  const int64_t m = j->d.multiplier;
  j->stretch = least(j->outputs, m > STRETCH ? m : STRETCH / m * m); /* whole channels of x */
  j->part = least(width, j->stretch < PART ? PART / j->stretch : 1);
  j->lines = j->d.batch * height;
  j->workers = least(j->lines, WORKERS);
  j->room_size = (j->part + 3) * j->stretch;
  return tfu_scratch(call, (size_t)(j->workers * j->room_size) * sizeof(REAL), &j->room);
}

static tfu_code FN(tfu_depthwise_conv_cpu)(tfu_call *call) {
  const tfu_tensor *x = &call->in[TFU_DEPTHWISE_X], *kernel = &call->in[TFU_DEPTHWISE_KERNEL];
  const tfu_tensor *bias = &call->in[TFU_DEPTHWISE_BIAS];
  depthwise_job j = {.outputs = tfu_cols(&call->out[TFU_DEPTHWISE_Y].shape),
                     .from = *x,
                     .to = call->out[TFU_DEPTHWISE_Y],
                     .pre = call->out[TFU_DEPTHWISE_PRE],
                     .act = &tfu_activations[call->attr[TFU_DEPTHWISE_ACTIVATION].i]};
  TFU_TRY(tfu_depthwise_read(&x->shape, &kernel->shape, call->attr, &j.d, call->err));
  TFU_TRY(FN(widened)(call, kernel, &j.kernel));
  if (tfu_count(&bias->shape)) TFU_TRY(FN(widened)(call, bias, &j.bias));
  TFU_TRY(FN(deal_out)(call, &j, j.d.h.out, j.d.w.out));
  tfu_parallel(j.workers, FN(forward_lines), &j);
  return TFU_OK;
}

/* ---- dkernel ---- */

static void FN(filter_block)(void *job, int64_t task) {
  const depthwise_job *j = job;
  const tfu_window *h = &j->d.h, *w = &j->d.w;
  const int64_t block = task / j->stretches, output = task % j->stretches * j->stretch, taps = h->size * w->size;
  const int n = (int)least(j->stretch, j->outputs - output);
  double *sums = j->sums + block * taps * j->outputs + output;
  REAL x_wide[STRETCH], dy_wide[STRETCH], narrow[STRETCH];
  for (int64_t tap = 0; tap < taps; tap++) memset(sums + tap * j->outputs, 0, (size_t)n * sizeof *sums);
  for (int64_t line = block; line < j->lines; line += j->blocks) {
    const int64_t batch = line / h->out, row = line % h->out;
    for (int64_t o = 0; o < w->out; o++) {
      const REAL *dy = FN(tfu_load)(j->from.data, j->from.dtype, (line * w->out + o) * j->outputs + output, n, dy_wide);
      for (int64_t tap = 0; tap < taps; tap++) {
        const int64_t i = seen(h, row, tap / w->size), k = seen(w, o, tap % w->size);
        if (i < 0 || k < 0) continue;
        const REAL *x = FN(spread)(j, &j->to, (batch * h->in + i) * w->in + k, output, n, x_wide, narrow);
        double *restrict sum = sums + tap * j->outputs;
        TFU_VECTORISED(c, n) sum[c] += (double)x[c] * dy[c];
      }
    }
  }
}

static tfu_code FN(filter)(tfu_call *call, depthwise_job *j, const tfu_tensor *dkernel) {
  enum { MOST = 1 << 22 }; /* sums of all blocks, unless one has more */
  const int64_t count = tfu_count(&dkernel->shape);
  j->lines = j->d.batch * j->d.h.out;
  j->blocks = least(least(j->lines, WORKERS), count < MOST ? MOST / count : 1);
  if (j->blocks < 1) j->blocks = 1; /* no lines still have sums: zero */
  j->stretch = least(j->outputs, STRETCH);
  j->stretches = divide_up(j->outputs, j->stretch);
  TFU_SCRATCH(call, j->blocks * count, j->sums);
  tfu_parallel(j->blocks * j->stretches, FN(filter_block), j);
  for (int64_t i = 0; i < count; i++) {
    double total = j->sums[i];
    for (int64_t block = 1; block < j->blocks; block++) total += j->sums[block * count + i];
    const REAL rounded = (REAL)total;
    FN(tfu_store)(dkernel->data, dkernel->dtype, i, 1, &rounded);
  }
  return TFU_OK;
}

static tfu_code FN(tfu_depthwise_conv_grad_cpu)(tfu_call *call) {
  const tfu_tensor *x = &call->in[TFU_DEPTHGRAD_X], *kernel = &call->in[TFU_DEPTHGRAD_KERNEL];
  const tfu_tensor *dx = &call->out[TFU_DEPTHGRAD_DX], *dkernel = &call->out[TFU_DEPTHGRAD_DKERNEL];
  depthwise_job j = {.outputs = tfu_cols(&call->in[TFU_DEPTHGRAD_DY].shape)};
  TFU_TRY(tfu_depthwise_read(&x->shape, &kernel->shape, call->attr, &j.d, call->err));
  TFU_TRY(tfu_act_grad_cpu(call, call->attr[TFU_DEPTHWISE_ACTIVATION].i, &call->in[TFU_DEPTHGRAD_DY],
                           &call->in[TFU_DEPTHGRAD_PRE], &j.from, &call->out[TFU_DEPTHGRAD_DBIAS]));
  if (tfu_count(&dx->shape) && j.outputs == 0) { /* a multiplier of 0: sums of nothing */
    memset(dx->data, 0, (size_t)tfu_count(&dx->shape) * tfu_dtype_size(dx->dtype));
  } else if (tfu_count(&dx->shape)) {
    j.to = *dx;
    TFU_TRY(FN(widened)(call, kernel, &j.kernel));
    TFU_TRY(FN(deal_out)(call, &j, j.d.h.in, j.d.w.in));
    tfu_parallel(j.workers, FN(backward_lines), &j);
  }
  j.to = *x;
  return tfu_count(&dkernel->shape) ? FN(filter)(call, &j, dkernel) : TFU_OK;
}
#endif
