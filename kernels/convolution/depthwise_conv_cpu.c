/* depthwise_conv on the CPU: lines of the result are tasks. A line is made in parts, some positions of a stretch of
 * channels, whose sums stay in the first-level cache while the positions of x that they need pass by, each of which is
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
  int back;                  /* dx is made of dy, and not y of x */
  int64_t outputs;           /* channels of y */
  int64_t stretch, part;     /* channels of y, and positions, of a part */
  int64_t lines, workers;    /* lines are dealt out to as many tasks */
  tfu_tensor from, to, pre;  /* x, y, pre; or dy, dx and nothing */
  const void *kernel, *bias; /* in the arithmetic type */
  const tfu_activation *act;
  void *room; /* of the workers, room_size values each */
  int64_t room_size;
  double *sums; /* [blocks][positions of the window][outputs] */
  int64_t blocks, stretches;
} depthwise_job;

/* The position of a window's axis that meets position i of the input in tap k, or -1. */
static int64_t met(const tfu_window *w, int64_t i, int64_t k) {
  const int64_t from = i + w->before - k * w->dilation;
  return from < 0 || from % w->stride || from / w->stride >= w->out ? -1 : from / w->stride;
}
/* The position of the input that tap k of the window at o sees, or -1. */
static int64_t seen(const tfu_window *w, int64_t o, int64_t k) {
  const int64_t i = o * w->stride - w->before + k * w->dilation;
  return i < 0 || i >= w->in ? -1 : i;
}
static inline int64_t joined(const tfu_window *w, int64_t at, int64_t k, int sees) {
  return sees ? seen(w, at, k) : met(w, at, k);
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

/* n values for channels of the result from `output` on, at a position of x: every channel `multiplier` times. */
static const REAL *FN(spread)(const depthwise_job *j, const tfu_tensor *x, int64_t position, int64_t output, int n,
                              REAL *buffer, REAL *narrow) {
  const int64_t m = j->d.multiplier, channel = output / m;
  if (m == 1) return FN(tfu_load)(x->data, x->dtype, position * j->d.channels + channel, n, buffer);
  const int64_t last = (output + n - 1) / m;
  const REAL *values =
      FN(tfu_load)(x->data, x->dtype, position * j->d.channels + channel, (int)(last - channel + 1), narrow);
  for (int k = 0; k < n; k++) buffer[k] = values[(output + k) / m - channel];
  return buffer;
}

static void FN(multiply_add)(REAL *restrict sum, const REAL *restrict a, const REAL *restrict b, int n) {
  for (int k = 0; k < n; k++) sum[k] += a[k] * b[k];
}

/* ---- y, and dx ---- */

/* Some positions of a line of the result, and n of its channels from `output` on, counted as those of y. */
typedef struct FN(part) {
  int64_t batch, row, column, output;
  int positions, n;
  REAL *sums, *wide, *narrow, *ones; /* [positions][n], and of each other so many channels */
} FN(part);

/* The sums of a part. Every position of the other tensor that reaches it is loaded once, and goes to all that it
 * reaches.
 */
static void FN(sum_part)(const depthwise_job *j, const FN(part) * p) {
  const tfu_window *h = &j->d.h, *w = &j->d.w;
  const int64_t height = j->back ? h->out : h->in, width = j->back ? w->out : w->in;
  const REAL *kernel = (const REAL *)j->kernel + p->output;
  const int64_t reach = (w->size - 1) * w->dilation, last = p->column + p->positions - 1;
  const int64_t first = j->back ? (p->column + w->before - reach) / w->stride : p->column * w->stride - w->before;
  const int64_t end = j->back ? (last + w->before) / w->stride : last * w->stride - w->before + reach;
  memset(p->sums, 0, (size_t)(p->positions * p->n) * sizeof *p->sums);
  for (int64_t r = 0; r < h->size; r++) {
    const int64_t line = joined(h, p->row, r, !j->back);
    for (int64_t i = first < 0 ? 0 : first; line >= 0 && i <= end && i < width; i++) {
      const int64_t position = (p->batch * height + line) * width + i;
      const REAL *values = NULL;
      for (int64_t c = 0; c < w->size; c++) {
        const int64_t to = joined(w, i, c, j->back) - p->column;
        if (to < 0 || to >= p->positions) continue;
        if (!values)
          values = j->back ? FN(tfu_load)(j->from.data, j->from.dtype, position * j->outputs + p->output, p->n, p->wide)
                           : FN(spread)(j, &j->from, position, p->output, p->n, p->wide, p->narrow);
        FN(multiply_add)(p->sums + to * p->n, values, kernel + (r * w->size + c) * j->outputs, p->n);
      }
    }
  }
}

static void FN(forward_part)(const depthwise_job *j, const FN(part) * p) {
  const int n = p->n;
  for (int o = 0; o < p->positions; o++) {
    const int64_t position = (p->batch * j->d.h.out + p->row) * j->d.w.out + p->column + o;
    const int64_t at = position * j->outputs + p->output;
    REAL *values = p->sums + o * n;
    for (int k = 0; j->bias && k < n; k++) values[k] += ((const REAL *)j->bias)[p->output + k];
    if (tfu_count(&j->pre.shape)) FN(tfu_store)(j->pre.data, j->pre.dtype, at, n, values);
    for (int k = 0; k < n; k++) p->ones[k] = 1, p->narrow[k] = (REAL)-0.0;
    j->act->FN(value)(values, values, p->ones, p->narrow, n);
    FN(tfu_store)(j->to.data, j->to.dtype, at, n, values);
  }
}

/* A channel of dx is the sum of its `multiplier` ones. */
static void FN(backward_part)(const depthwise_job *j, const FN(part) * p) {
  const int64_t m = j->d.multiplier;
  const int channels = (int)(p->n / m);
  for (int i = 0; i < p->positions; i++) {
    const int64_t position = (p->batch * j->d.h.in + p->row) * j->d.w.in + p->column + i;
    REAL *values = p->sums + i * p->n;
    for (int c = 0; m > 1 && c < channels; c++) {
      REAL total = 0;
      for (int64_t k = 0; k < m; k++) total += values[c * m + k];
      values[c] = total;
    }
    FN(tfu_store)(j->to.data, j->to.dtype, position * j->d.channels + p->output / m, channels, values);
  }
}

static void FN(lines)(void *job, int64_t worker) {
  const depthwise_job *j = job;
  const int64_t height = j->back ? j->d.h.in : j->d.h.out, width = j->back ? j->d.w.in : j->d.w.out;
  REAL *room = (REAL *)j->room + worker * j->room_size, *after = room + j->part * j->stretch;
  FN(part) p = {.sums = room, .wide = after, .narrow = after + j->stretch, .ones = after + 2 * j->stretch};
  for (int64_t line = worker; line < j->lines; line += j->workers)
    for (p.output = 0; p.output < j->outputs; p.output += j->stretch)
      for (p.column = 0; p.column < width; p.column += j->part) {
        p.batch = line / height, p.row = line % height;
        p.positions = (int)least(j->part, width - p.column), p.n = (int)least(j->stretch, j->outputs - p.output);
        FN(sum_part)(j, &p);
        (j->back ? FN(backward_part) : FN(forward_part))(j, &p);
      }
}

/* Parts, and room for the sums and three buffers of every worker. */
static tfu_code FN(run_lines)(tfu_call *call, depthwise_job *j) {
  const int64_t m = j->d.multiplier, width = j->back ? j->d.w.in : j->d.w.out;
  j->stretch = least(j->outputs, m > STRETCH ? m : STRETCH / m * m); /* whole channels of x */
  j->part = least(width, j->stretch < PART ? PART / j->stretch : 1);
  j->lines = j->d.batch * (j->back ? j->d.h.in : j->d.h.out);
  j->workers = least(j->lines, WORKERS);
  j->room_size = (j->part + 3) * j->stretch;
  TFU_TRY(tfu_scratch(call, (size_t)(j->workers * j->room_size) * sizeof(REAL), &j->room));
  tfu_parallel(j->workers, FN(lines), j);
  return TFU_OK;
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
  return FN(run_lines)(call, &j);
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
  depthwise_job j = {.back = 1, .outputs = tfu_cols(&call->in[TFU_DEPTHGRAD_DY].shape)};
  TFU_TRY(tfu_depthwise_read(&x->shape, &kernel->shape, call->attr, &j.d, call->err));
  TFU_TRY(tfu_act_grad_cpu(call, call->attr[TFU_DEPTHWISE_ACTIVATION].i, &call->in[TFU_DEPTHGRAD_DY],
                           &call->in[TFU_DEPTHGRAD_PRE], &j.from, &call->out[TFU_DEPTHGRAD_DBIAS]));
  if (tfu_count(&dx->shape) && j.outputs == 0) { /* a multiplier of 0: sums of nothing */
    memset(dx->data, 0, (size_t)tfu_count(&dx->shape) * tfu_dtype_size(dx->dtype));
  } else if (tfu_count(&dx->shape)) {
    j.to = *dx;
    TFU_TRY(FN(widened)(call, kernel, &j.kernel));
    TFU_TRY(FN(run_lines)(call, &j));
  }
  j.to = *x;
  return tfu_count(&dkernel->shape) ? FN(filter)(call, &j, dkernel) : TFU_OK;
}
#endif
