import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Input, Timed, bars, ones, refusing


def _turned(f):
    """A function of tensors that are scanned along their first axis, forward, as one of any axis and direction; the last of its
    inputs, and of its results, is what the first position begins with."""
    def whole(*tensors, axis=1, reverse=False):
        moved = lambda t: np.moveaxis(t, axis, 0)[::-1 if reverse else 1]
        back = lambda t: np.moveaxis(t[::-1 if reverse else 1], 0, axis)
        *results, end = f(*map(moved, tensors[:-1]), tensors[-1])
        return [*map(back, results), end]
    return whole


@_turned
def states(a, b, h):
    y = np.zeros_like(a)
    for i in range(len(a)):
        y[i] = h = a[i] * h + b[i]
    return y, h


@_turned
def behind(dy, a, y, initial):
    da, db, s = np.zeros_like(a), np.zeros_like(a), np.zeros_like(initial)
    for i in range(len(a))[::-1]:
        db[i] = g = dy[i] + s
        da[i], s = g * (y[i - 1] if i else initial), a[i] * g
    return da, db, s


def _gradient(dy, a, b, initial, **options):
    return behind(dy, a, states(a, b, initial, **options)[0], initial, **options)


def stock(a, b, initial, axis=1, reverse=False):
    """Step by step, as one writes it."""
    rank = len(a.shape)
    order = [axis % rank, *(i for i in range(rank) if i != axis % rank)]
    by_step = [tf.transpose(t, order) for t in (a, b)]
    if a.shape[axis] == 0:
        return tf.zeros_like(a) + 0 * tf.expand_dims(initial, axis)
    y = tf.scan(lambda h, t: t[0] * h + t[1], by_step, initial, reverse=reverse)
    return tf.transpose(y, np.argsort(order))


def _without(shape):
    """Of the second axis."""
    return shape[:1] + shape[2:]


_refused = refusing(tfuse.scan_linear, a=ones(2, 3, 4), b=ones(2, 3, 4))
_INPUTS = {"a": Input(lambda s: s, lambda rng, own, _: rng.uniform(-1, 1, own)), "b": lambda s: s, "initial": _without}
CASES = [
    Case(name="scan_linear", run=tfuse.scan_linear, plain=stock, special=False, summed=lambda s: s[1],
         reference=lambda *inputs, **options: states(*inputs, **options)[0], gradient=_gradient, inputs=_INPUTS,
         options=[{}, {"reverse": True}],
         fit=lambda s: s if len(s) > 2 else (s[0], min(s[1], 20)),
         shapes=[(2, 3), (1, 1), (0, 4), (3, 0), (3, 40, 5), (2, 7, 3, 9), (3, 5, 600), (2, 700, 3), (700, 9), (3, 1400), (2, 1301)], rejects=[
             _refused("scan_linear: b must be float32 like a", b=ones(2, 3, 4, dtype=tf.float16)),
             _refused("b must have the shape of a, .2, 3, 4., got .2, 3.", b=ones(2, 3)),
             _refused("initial must have the shape of a without the axis, .2, 4., got .2, 3.", initial=ones(2, 3)),
             _refused("axis must be one of a .2, 3, 4., got 3", axis=3)]),
]
_SIZES = (16, 8192, 2048), (131072, 2048)
TIMES = [Timed(CASES[0], [*_SIZES], [{}], cpu_sizes=[(4, 256, 256)], passes=(3, 5), xla_can=False,
               bars=bars(*_SIZES, dtypes=["bfloat16"], forward=80, backward=80))]
