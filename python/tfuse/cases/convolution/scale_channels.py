import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Timed, bars, ones, refusing, sums, volume

# (images, positions …, channels): many positions, so that a gradient's sum comes in parts; single channels; several tiles.
_SHAPES = [
    (4, 3, 8), (1, 3, 1), (7, 3, 3), (0, 3, 8), (3, 5, 129), (513, 3, 1030), (4099, 3, 2), (1, 3, 100003),
    (2, 65, 33, 8), (1, 150, 129, 24), (3, 5, 7, 2056), (2, 7, 300), (5, 4, 3, 2, 16), (0, 4, 8), (3, 0, 8), (3, 4, 0), (4, 6)]
_SIZE = (256, 56, 56, 144)


def _scale(shape):
    return (shape[0], *[1] * (len(shape) - 2), shape[-1])


def _gradient(dy, x, scale):
    positions = tuple(range(1, x.ndim - 1))
    return [dy * scale, sums(lambda dy, x: np.sum(dy * x, positions, keepdims=True), dy, x)]


_refused = refusing(tfuse.scale_channels, x=ones(2, 4, 3))
CASES = [
    Case(name="scale_channels", run=tfuse.scale_channels, plain=lambda x, scale: x * scale,
         reference=lambda x, scale: x * scale, gradient=_gradient, shapes=_SHAPES, summed=lambda shape: volume(shape[1:-1]),
         inputs={"x": lambda shape: shape, "scale": _scale}, rejects=[
             _refused("x must be .images, positions …, channels., got shape .3.", x=ones(3), scale=ones(3)),
             _refused("scale must have the shape of x, .2, 4, 3., with 1 for all but the first and last axis, got .2, 4, 3.",
                      scale=ones(2, 4, 3)),
             _refused("scale must have the shape of x, .2, 4, 3., .* got .2, 1, 4.", scale=ones(2, 4)),
             _refused("scale must be float32 like x, got float16", scale=ones(2, 3, dtype=tf.float16)),
             _refused("x must be float32.*got int32", x=ones(2, 4, 3, dtype=tf.int32), scale=ones(2, 3, dtype=tf.int32)),
         ]),
]
TIMES = [Timed(CASES[0], [_SIZE], cpu_sizes=[(8, 56, 56, 144)], bars=bars(_SIZE, forward=90, backward=85))]
