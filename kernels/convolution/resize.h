/* resize.h - what resizing reads, for CPU and GPU alike.
 *
 * Along an axis, position o of the result is sum(w(o, i) x[i]) over a window of neighbouring positions i. With s = in /
 * out it lies at p = (o + 1/2) s - 1/2 of x (half_pixel), or at p = o s (asymmetric; align_corners, where s = (in - 1)
 * / (out - 1)), computed in float32 as TensorFlow does, since p decides which position is the nearest:
 *   nearest    floor((o + 1/2) s) or floor(o s), to the nearest for align_corners.
 *   bilinear   floor(p) and ceil(p), within x.
 *   cubic      4 positions around p, by Keys's polynomial at 1024 places between two positions; half_pixel: a = -1/2,
 *              and weights of those within x are scaled to a sum of 1; else a = -3/4, and those outside are the
 *              nearest within.
 *   spans      antialias and Lanczos: a kernel as wide as `reach` on both sides, scaled to a sum of 1.
 * The gradient is the transposed map: position i of dx is sum(w(o, i) dy[o]). As the beginnings and the ends of windows
 * rise with o, these o are neighbours as well. So both ways one gather serves, by a table of the positions of `to`: the
 * first position of `from` that each reads, how many, and their weights. */
#ifndef TFUSE_RESIZE_H_
#define TFUSE_RESIZE_H_

#include <stdint.h>

#include "kernels/core/divisor.h"

enum { RESIZE_NEAREST, RESIZE_BILINEAR, RESIZE_CUBIC, RESIZE_KEYS, SPAN_TRIANGLE, SPAN_KEYS, SPAN_LANCZOS };
enum { RESIZE_HALF, RESIZE_CORNERS, RESIZE_ASYMMETRIC };

typedef struct resize_axis {
  int in, out, kind, convention;
  float scale;         /* s */
  float reach, shrink; /* of spans: the kernel's radius in positions of x, and 1 over what widens it */
  float radius;        /* of the kernel itself */
  int from, to;        /* in and out, or in gradients out and in */
  int taps;            /* weights of an entry of the table, zeros at its end */
  int entry, weight;   /* where the axis begins in the table: its entries, and its weights */
} resize_axis;

typedef struct resize_args {
  const void *from;
  void *to, *table; /* table: NULL: every block makes it, in shared memory */
  int64_t units;    /* of `to`: positions, or strips of rows of them, times words */
  int back, channels, words;
  int aligned;          /* units are whole and begin on 16 bytes */
  int rows, strips;     /* of a strip; strips of an image */
  int entries, weights; /* in the table */
  resize_axis axis[3];
  tfu_divisor by[4]; /* words, and the sizes of `to`, the last axis first; with 2^31 units or more, by[0].by is 0 */
} resize_args;

/* Of bilinear resizing to twice the height and width, and of its gradient (resize_double.cu). */
typedef struct resize_double_args {
  const void *from;
  void *to;
  uint32_t units; /* packs of a column of x in a strip */
  unsigned step;  /* bytes of a position */
  int high, wide; /* of x, or dx */
  int rows;       /* of these in a strip */
  tfu_divisor by_words, by_wide, by_strips;
} resize_double_args;

/* What position o reads: `count` positions from `first` on. at: how far p is beyond floor(p), which is `base`; of
 * spans, p + 1/2. */
typedef struct resize_window {
  int first, count, base;
  float at;
} resize_window;

/* A product that is rounded by itself, and not joined with the addition that follows. */
#ifdef TFU_DEVICE
#define RESIZE_FUNCTION __device__ inline
#define RESIZE_PRODUCT(name, a, b) const float name = __fmul_rn(a, b)
#else
#include <tgmath.h>
#define RESIZE_FUNCTION static inline
#define RESIZE_PRODUCT(name, a, b) const volatile float name = (a) * (b)
#endif

RESIZE_FUNCTION int resize_inside(int i, int size) { return i < 0 ? 0 : i < size ? i : size - 1; }

RESIZE_FUNCTION resize_window resize_window_of(const resize_axis *a, int o) {
  const int half = a->convention == RESIZE_HALF;
  RESIZE_PRODUCT(s, (float)o + (half ? 0.5f : 0), a->scale);
  const float p = half ? s - 0.5f : s;
  resize_window w = {0, 1, 0, 0};
  int last;
  if (a->kind == RESIZE_NEAREST) {
    w.first = last = resize_inside((int)(a->convention == RESIZE_CORNERS ? roundf(s) : floorf(s)), a->in);
  } else if (a->kind == RESIZE_BILINEAR) {
    w.first = resize_inside((int)floorf(p), a->in), last = resize_inside((int)ceilf(p), a->in);
    w.at = p - floorf(p);
  } else if (a->kind == RESIZE_CUBIC || a->kind == RESIZE_KEYS) {
    w.base = (int)floorf(p), w.at = rintf((p - floorf(p)) * 1024) / 1024;
    w.first = resize_inside(w.base - 1, a->in), last = resize_inside(w.base + 2, a->in);
  } else {
    w.first = resize_inside((int)ceilf(s - a->reach - 0.5f), a->in);
    last = resize_inside((int)floorf(s + a->reach - 0.5f), a->in), w.at = s;
  }
  w.count = last - w.first + 1;
  return w;
}

/* The first position of the result whose window ends behind i. */
RESIZE_FUNCTION int resize_first_reader(const resize_axis *a, int i) {
  int low = 0, high = a->out;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    const resize_window w = resize_window_of(a, middle);
    if (w.first + w.count > i) high = middle;
    else low = middle + 1;
  }
  return low;
}

#ifndef TFU_DEVICE
#include "kernels/core/arithmetic.h"
#include "ops/convolution/resize.h"

/* Up to so many positions of the result, the most readers that a position of x has are counted; else estimated. */
enum { RESIZE_COUNTED = 4096 };

/* The most positions of `from` that one of `to` reads. */
static inline int resize_taps(const resize_axis *a, int back) {
  static const int width[] = {[RESIZE_NEAREST] = 1, [RESIZE_BILINEAR] = 2, [RESIZE_CUBIC] = 4, [RESIZE_KEYS] = 4};
  const int most = a->kind <= RESIZE_KEYS ? width[a->kind] : (int)least(2 * (int64_t)ceilf(a->reach) + 1, a->in);
  if (!back) return most;
  if (a->out > RESIZE_COUNTED) return (int)least((int64_t)((most + 1) / (double)a->scale) + 3, a->out);
  int readers = 0;
  for (int o = 0, begin = 0; o < a->out; o++) {
    const int first = resize_window_of(a, o).first;
    for (resize_window w; w = resize_window_of(a, begin), w.first + w.count <= first;) begin++;
    readers = o - begin + 1 > readers ? o - begin + 1 : readers;
  }
  return readers;
}

static inline resize_axis resize_axis_of(const tfu_value *attr, int64_t in, int64_t out, int back) {
  const int64_t interpolation = attr[TFU_RESIZE_INTERPOLATION].i, convention = attr[TFU_RESIZE_CONVENTION].i;
  const int half = convention == TFU_HALF_PIXEL, antialias = attr[TFU_RESIZE_ANTIALIAS].b;
  const int kinds[] = {RESIZE_NEAREST, antialias ? SPAN_TRIANGLE : RESIZE_BILINEAR,
                       antialias ? SPAN_KEYS
                       : half    ? RESIZE_KEYS
                                 : RESIZE_CUBIC,
                       SPAN_LANCZOS, SPAN_LANCZOS};
  const float radius[] = {0, 1, 2, 3, 5};
  resize_axis a = {.in = (int)in, .out = (int)out, .kind = kinds[interpolation], .convention = (int)convention};
  a.from = back ? a.out : a.in, a.to = back ? a.in : a.out;
  if (in == out) a.kind = RESIZE_NEAREST, a.convention = RESIZE_HALF; /* each position is its own */
  a.scale = a.convention == RESIZE_CORNERS && out > 1 ? (float)(in - 1) / (float)(out - 1) : (float)in / (float)out;
  if (a.kind >= SPAN_TRIANGLE) {
    a.scale = (float)(1.0 / ((float)out / (float)in)); /* as TensorFlow has it, whose scale is the inverse */
    const float widened = antialias && a.scale > 1 ? a.scale : 1;
    a.radius = radius[interpolation], a.reach = a.radius * widened, a.shrink = 1 / widened;
  }
  a.taps = resize_taps(&a, back);
  return a;
}

/* The axes from `from` to `to`, [batch, depth, height, width, channels]. What stays as it is at their beginning belongs
 * to the batch, which is returned. */
static inline int64_t resize_axes_of(const tfu_call *call, int back, resize_axis *axis) {
  const tfu_shape *from = &call->in[TFU_RESIZE_X].shape, *to = &call->out[0].shape;
  const tfu_shape *x = back ? to : from, *y = back ? from : to;
  int64_t batch = to->dim[0];
  for (int i = 0, begins = 1; i < TFU_RESIZE_AXES; i++) {
    int64_t in = x->dim[1 + i], out = y->dim[1 + i];
    begins = begins && in == out && i < TFU_RESIZE_AXES - 1;
    if (begins) batch *= in, in = out = 1;
    axis[i] = resize_axis_of(call->attr, in, out, back);
  }
  return batch;
}

/* Where each axis begins in the table, which has so many entries and weights. */
static inline void resize_place(resize_axis *axis, int *entries, int *weights) {
  *entries = *weights = 0;
  for (int i = 0; i < TFU_RESIZE_AXES; i++) {
    axis[i].entry = *entries, axis[i].weight = *weights;
    *entries += axis[i].to, *weights += axis[i].to * axis[i].taps;
  }
}
#endif

#endif
