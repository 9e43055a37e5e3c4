/* window.h - windows that move along an axis: of convolutions and of pooling, in rows, kernels and shape rules.
 *
 * Position o of the result sees the positions o * stride - before + k * dilation of the input, k = 0 .. size - 1, of
 * which those outside of the input count as nothing. "valid" has no such; "same" has ceil(in / stride) results and as
 * much padding on both sides, the odd one after; "causal" has as many, and all of the padding before. "pairs" has the
 * padding that is given, before and after; so has "zeros", where what is outside counts, as 0. */
#ifndef TFUSE_WINDOW_H_
#define TFUSE_WINDOW_H_

#include "tfuse.h"

enum { TFU_PAD_VALID, TFU_PAD_SAME, TFU_PAD_CAUSAL, TFU_PAD_PAIRS, TFU_PAD_ZEROS };
#define TFU_PADDING_ATTR "padding: {'valid', 'same', 'causal'} = 'valid'"

/* Numbers per axis share one attribute, TFU_AXIS_BITS bits each, the first axis in the lowest ones. */
enum { TFU_AXIS_BITS = 20 };
static inline int64_t tfu_axis_number(int64_t word, int axis) {
  return word >> axis * TFU_AXIS_BITS & ((1 << TFU_AXIS_BITS) - 1);
}

typedef struct tfu_window {
  int64_t in, out, size, stride, dilation, before, after;
} tfu_window;

/* Completes a window of which in, size, stride and dilation are set, and before and after where padding is by numbers.
 * Fails where it does not fit; `axis` names it. */
static inline TFU_MUST_USE tfu_code tfu_window_position(tfu_window *w, int64_t padding, const char *axis,
                                                        tfu_error *err) {
  enum { MOST = 1 << 24, LONGEST = 1 << 30 }; /* of stride and dilation; of what kernels count in 32 bits */
  TFU_REQUIRE(err, w->size >= 1, "the window must have at least one position along the %s, got %lld", axis,
              (long long)w->size);
  TFU_REQUIRE(err, w->stride >= 1 && w->stride <= MOST, "the stride along the %s must be 1 to %d, got %lld", axis,
              (int)MOST, (long long)w->stride);
  TFU_REQUIRE(err, w->dilation >= 1 && w->dilation <= MOST, "the dilation along the %s must be 1 to %d, got %lld", axis,
              (int)MOST, (long long)w->dilation);
  TFU_REQUIRE(err, w->in <= LONGEST, "x must have at most 2^30 positions along the %s, got %lld", axis,
              (long long)w->in);
  const int64_t reach = w->size > LONGEST ? w->size : (w->size - 1) * w->dilation + 1;
  TFU_REQUIRE(err, reach <= LONGEST, "the window must reach over at most 2^30 positions along the %s, got %lld", axis,
              (long long)reach);
  if (padding == TFU_PAD_VALID) w->before = w->after = 0;
  if (padding != TFU_PAD_SAME && padding != TFU_PAD_CAUSAL) {
    /* A window that is too long has no results, as in TensorFlow; as there, whose division rounds towards zero, it is a
     * mistake from two strides on. */
    const int64_t in = w->in + w->before + w->after, room = in - reach + w->stride;
    TFU_REQUIRE(err, room > -w->stride,
                "the window reaches over %lld positions along the %s, and x has %lld%s; padding 'same' would make room",
                (long long)reach, axis, (long long)in, in > w->in ? " with its padding" : "");
    w->out = room / w->stride;
    TFU_REQUIRE(
        err, padding != TFU_PAD_PAIRS || !w->out || (w->in > 0 && w->before < reach && w->after < reach),
        "padding must be less than the window, along the %s %lld positions over an x of %lld, unless zeros count, "
        "got %lld before and %lld after",
        axis, (long long)reach, (long long)w->in, (long long)w->before, (long long)w->after);
    return TFU_OK;
  }
  w->out = (w->in + w->stride - 1) / w->stride;
  const int64_t lacking = (w->out - 1) * w->stride + reach - w->in;
  w->before = padding == TFU_PAD_CAUSAL ? reach - 1 : lacking > 0 ? lacking / 2 : 0;
  return TFU_OK;
}

#endif
