"""Windows that move along axes, as ops/convolution/window.h has them: sizes, strides, dilations and padding."""

import numbers
import operator

import tensorflow as tf

BITS = 20  # TFU_AXIS_BITS of the library
AXES = {1: ["width"], 2: ["height", "width"], 3: ["depth", "height", "width"]}


def per_axis(op, name, value, axes):
    """One integer for all axes, or one for each, as a list."""
    values = [value] * axes if isinstance(value, numbers.Integral) else list(value) if isinstance(value, (list, tuple)) else []
    if len(values) != axes or not all(isinstance(v, numbers.Integral) and v >= 1 for v in values):
        raise ValueError("%s: %s must be an integer of at least 1, or %d of them, one for each axis, got %r" % (
            op, name, axes, value))
    return list(map(int, values))


def check_padding(op, padding, allowed=("valid", "same")):
    """The padding in small letters."""
    if not isinstance(padding, str) or padding.lower() not in allowed:
        raise ValueError("%s: padding must be %s, got %r" % (op, " or ".join(map(repr, allowed)), padding))
    return padding.lower()


def check_pairs(op, padding, axes, words):
    """(before, after) for each axis, of padding that is none of these words. axes: 0 where their number is not known."""
    try:
        pairs = [] if isinstance(padding, str) else [tuple(map(operator.index, pair)) for pair in padding]
    except TypeError:
        pairs = []
    if len(pairs) != (axes or len(pairs)) or not pairs or not all(
            len(pair) == 2 and 0 <= min(pair) and max(pair) < 1 << BITS for pair in pairs):
        raise ValueError("%s: padding must be one of %s, or (before, after) for each of %s spatial axes, got %r" % (
            op, ", ".join(words), axes or "the", padding))
    return pairs


def word(values):
    """Numbers per axis as the ops take them: some bits for each, the lowest for the first."""
    return sum(value << BITS * axis for axis, value in enumerate(values))


def numbers_of(word, axes):
    """The other way round."""
    return [word >> BITS * axis & (1 << BITS) - 1 for axis in range(axes)]


def reach(size, dilation=1):
    """How many positions a window spans."""
    return (size - 1) * dilation + 1


def results(op, sizes, windows, strides, padding, dilations):
    """How many positions the result has along each axis: numbers, or tensors where the sizes are such. padding is a word, or
    (before, after) for each axis."""
    found = []
    pairs = [(0, 0)] * len(sizes) if isinstance(padding, str) else padding
    for axis, n, window, stride, dilation, pair in zip(AXES[len(sizes)], sizes, windows, strides, dilations, pairs):
        span = reach(window, dilation)
        n = n + sum(pair)
        if padding in ("same", "causal"):
            found.append((n + stride - 1) // stride)
        elif not isinstance(n, numbers.Integral) or not isinstance(window, numbers.Integral):
            found.append(tf.maximum((n - span + stride) // stride, 0))  # the op refuses what does not fit
        elif n - span + stride <= -stride:  # less is no result, as in TensorFlow, whose division rounds towards zero
            raise too_far(op, axis, span, n, pair)
        else:
            found.append(max((n - span + stride) // stride, 0))
    return found


def too_far(op, axis, span, n, pair):
    """An exception: a window spans more than the n positions that an axis has with its padding."""
    return ValueError("%s: the window reaches over %d positions along the %s, and x has %d%s; padding 'same' would make room" % (
        op, span, axis, n, " with its padding" * (sum(pair) > 0)))


def pads(n, out, window, stride, dilation, padding):
    """How much is missing before and after n positions, so that `out` windows see something everywhere. padding is a word, or
    what is before them."""
    span = reach(window, dilation)
    greatest = max if all(isinstance(v, numbers.Integral) for v in (n, out, window)) else tf.maximum
    total = greatest((out - 1) * stride + span - n, 0)
    before = {"valid": 0, "same": total // 2, "causal": span - 1}[padding] if isinstance(padding, str) else padding
    return before, greatest(total - before, 0)
