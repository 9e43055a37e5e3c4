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


def result(n, window, stride, dilation, padding):
    """How many positions the result has along an axis; padding is a word or (before, after). Below 0 where the window does not
    fit, and is not only too long for a result, as in TensorFlow, whose division rounds towards zero."""
    if padding in ("same", "causal"):
        return -(-n // stride)
    room = n + (0 if padding == "valid" else sum(padding)) - reach(window, dilation) + stride
    return tf.truncatediv(room, stride) if tf.is_tensor(room) else int(room / stride)


def results(op, sizes, windows, strides, dilations, paddings):
    """Along all axes: numbers, or tensors where the sizes are such. Numbers below 0 are refused."""
    found = list(map(result, sizes, windows, strides, dilations, paddings))
    for i, size in enumerate(found):
        if isinstance(size, numbers.Integral) and size < 0:
            span, pair = reach(windows[i], dilations[i]), (0, 0) if paddings[i] == "valid" else paddings[i]
            raise too_far(op, AXES[len(sizes)][i], span, sizes[i] + sum(pair), pair)
    return found


def at_least_none(sizes):
    """The same for ops that refuse windows that do not fit themselves, in their own words: tensors are 0 there."""
    return [tf.maximum(size, 0) if tf.is_tensor(size) else size for size in sizes]


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
