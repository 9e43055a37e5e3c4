"""Looking back (_look_back.py) from convolutions, pooling and batch norms: at the zeros around their input, at channels that
were moved for the op before, and from a batch norm at the convolution that it follows."""

import tensorflow as tf

from tfuse._core import _explain, _made, _op, _windows
from tfuse._core._op import real
from tfuse._keras import _look_back
from tfuse.convolution import channels_first


def last_of(x):
    """What x was made from by moving the channels from the end to the second axis, also if zeros were then put around it; or
    None."""
    if not (_look_back.on and _look_back.in_graph(x) and _made.of(x, _made.Watched) is None):
        return None
    made = _made.of(x, _made.Turned)
    if made is not None:
        return made.last
    inside, pairs = _unpadded(x, "channels_first")
    last = None if pairs is None else last_of(inside)
    return None if last is None else tf.pad(last, [(0, 0), *pairs, (0, 0)])


def turn(x):
    """x with its channels last, which are the second axis."""
    last = last_of(x)
    if last is not None:
        return last
    _explain.note("Transpose", "channels first", "moved to the end for this op, and back after it", [x])
    return channels_first.to_last(x)


def padding_of(layer, x, any_padding):
    """A layer's input and padding; where the input was made by putting zeros around another tensor, that one, with the zeros as
    padding. any_padding: whether that may be (before, after) for each spatial axis; else it is "same"."""
    takes = lambda inside, pairs: any_padding or _are_same(pairs, layer, inside)
    inside, pairs = _zeros_around(type(layer).__name__, x, layer.padding, layer.data_format, takes)
    return (x, layer.padding) if pairs is None else (inside, pairs if any_padding else "same")


def pool_padding_of(op, x, padding, data_format):
    """The same of pooling, which has any padding, as its input and arguments."""
    inside, pairs = _zeros_around(op, x, padding, data_format)
    return (x, {"padding": padding}) if pairs is None else (inside, {"padding": pairs, "zeros": True})


def _zeros_around(op, x, padding, data_format, takes=lambda inside, pairs: True):
    """_unpadded, where an op that has no padding yet takes these pairs as such."""
    inside, pairs = _unpadded(x, data_format)
    if pairs is None or padding.lower() != "valid" or not takes(inside, pairs):
        return x, None
    _look_back.note(op, "zeros around the input as padding", inside)
    return inside, pairs


def _unpadded(x, data_format):
    """(what x was made from by putting zeros around it, (before, after) for each spatial axis); or x and None."""
    if not (_look_back.on and _look_back.in_graph(x) and x.op.type == "Pad" and _made.of(x, _made.Watched) is None):
        return x, None
    pairs = tf.get_static_value(x.op.inputs[1])
    if pairs is None or x.shape.rank not in (3, 4, 5):
        return x, None
    first = 1 if data_format == "channels_last" else 2
    spatial = pairs[first:first + len(pairs) - 2]
    if pairs.sum() != spatial.sum():
        return x, None
    return x.op.inputs[0], [tuple(map(int, pair)) for pair in spatial]


def _are_same(pairs, layer, x):
    """Whether these zeros around x are those of padding="same"."""
    sizes = x.shape[1:-1] if layer.data_format == "channels_last" else x.shape[2:]
    windows = zip(pairs, sizes, layer.kernel_size, layer.strides, layer.dilation_rate)
    return None not in sizes and all(pair == _windows.pads(n, -(-n // s), k, s, d, "same") for pair, n, k, s, d in windows)


# ---- batch norms of convolutions ----


def convolution(x, last):
    """The _made.Convolved that made x, or of which x is the result with the channels, there last, moved; or None."""
    y = x if last is None else last
    if not (_look_back.on and _look_back.in_graph(x) and _look_back.readers_of(x) == 0):
        return None
    return _made.of(y, _made.Convolved) if last is None or _look_back.readers_of(last) == 1 else None


def folded(layer, made):
    """A batch norm of running statistics as part of the convolution before it; None where that is not ahead.

    The kernel is scaled before it is rounded to 16 bits, so that it is rounded once, as without this. What is left of float16's
    range may not do for that. Outside XLA the small ops that scale the weights cost about what the pass over x does; by
    reasoning, not by measurement.
    """
    dtype = made.x.dtype
    if dtype == tf.float16 or not _op.inside_xla():
        return None
    _look_back.note("Conv", "a batch norm of running statistics as part of a convolution", made.x)
    wide = lambda w: tf.cast(tf.convert_to_tensor(w), real(dtype))
    scale = tf.math.rsqrt(wide(layer.moving_variance) + layer.epsilon)
    scale = scale if layer.gamma is None else scale * wide(layer.gamma)
    bias = (wide(_look_back.unrounded(made.bias)) if _op.given(made.bias) else 0) - wide(layer.moving_mean)
    bias = bias * scale if layer.beta is None else bias * scale + wide(layer.beta)
    kernel = wide(_look_back.unrounded(made.kernel)) * scale
    return made.again(*(tf.cast(w, dtype) for w in (kernel, bias)))


def without_bias(made):
    """A convolution without its bias, and the bias, which changes nothing but the mean of what follows; or None where there is
    none."""
    if not _op.given(made.bias):
        return None
    _look_back.note("Conv", "a bias that the batch norm takes away again: its gradient is 0", made.x)
    return made.again(made.kernel, None), _look_back.unrounded(made.bias)
