import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Timed, bars, ones, refusing, sums, volume
from tfuse._core._op import sized
from tfuse.cases.convolution.depthwise_conv import Geometry
from tfuse.convolution.pool import _NAMES, _plain_average, _plain_max

_SHAPES = {1: [(2, 9, 12), (1, 7, 1), (3, 70, 5), (0, 9, 4), (2, 12, 66)],
           2: [(2, 9, 8, 12), (1, 7, 7, 1), (3, 8, 15, 5), (0, 9, 8, 4), (2, 12, 12, 66), (1, 8, 70, 3), (3, 11, 6, 16)],
           3: [(2, 5, 6, 7, 8), (1, 4, 4, 4, 3), (0, 4, 5, 5, 2)]}


class Pools(Geometry):
    """Windows of pooling: what they see, stacked, and where it comes from."""

    def __init__(self, size, strides, padding="valid", zeros=False):
        super().__init__(size, strides, padding)
        self.zeros = zeros

    def stack(self, x, outside):
        wide = self.wide(x, outside)
        return np.stack([wide[positions] for _, positions in self.taps(x.shape[1:-1])])

    def spread(self, x, parts):
        """Of parts for each position of the window, the sums where these are in x."""
        total = np.zeros(self.wide(x).shape)
        for (_, positions), part in zip(self.taps(x.shape[1:-1]), parts):
            total[positions] += part
        return total[self.padded(x.shape[1:-1])[1]]

    def options(self):
        return {"size": self.size, "strides": self.strides, "padding": self.padding, "zeros": self.zeros}

    def volumes(self, f):
        def call(x):
            given = x, sized(*self.out(x.shape[1:-1])), *[tf.zeros([0], tf.bool)] * (f is _plain_max)
            y = f(*given, padding=self.padding, **dict(zip(_NAMES, [*self.size, *self.strides])))
            return y[0] if f is _plain_max else y
        return call

    def stock(self, f):
        if len(self.size) == 3:  # stock TensorFlow has no float64 there
            return self.volumes({tf.nn.max_pool: _plain_max, tf.nn.avg_pool: _plain_average}[f])
        layout = {1: "NWC", 2: "NHWC", 3: "NDHWC"}[len(self.size)]  # not said, that of avg_pool3d's gradient is missing
        if self.zeros:
            return lambda x: f(tf.pad(x, [(0, 0), *self.padding, (0, 0)]), self.size, self.strides, "VALID", layout)
        return lambda x: f(x, self.size, self.strides, self.padding.upper(), layout)


def _case(name, run, geometry, stock, reference, gradient, **more):
    return Case(name=name, run=lambda x: run(x, **geometry.options()), plain=geometry.stock(stock), reference=reference,
                gradient=gradient, outputs={"value": geometry.result}, fit=geometry.fit, shapes=_SHAPES[len(geometry.size)],
                summed=lambda shape: volume(geometry.size), special=False, **more)


def _max(name, *window, **more):
    g = Pools(*window)
    outside = 0 if g.zeros else -np.inf

    def gradient(dy, x):
        where = np.argmax(g.stack(x, outside), 0)
        return [g.spread(x, [dy * (where == tap) for tap in range(volume(g.size))])]

    return _case(name, tfuse.max_pool, g, tf.nn.max_pool, lambda x: g.stack(x, outside).max(0), gradient, **more)


def _average(name, *window, **more):
    g = Pools(*window)
    count = lambda x: g.stack(np.ones_like(x), int(g.zeros)).sum(0)

    def gradient(dy, x):
        return [sums(lambda share: g.spread(x, [share] * volume(g.size)), dy / count(x))]

    def reference(x):
        return sums(lambda x, share: g.stack(x, 0).sum(0) * share, x, 1 / count(x))

    return _case(name, tfuse.average_pool, g, tf.nn.avg_pool, reference, gradient, **more)


_refused = refusing(tfuse.max_pool, x=ones(2, 3, 3, 1), size=2)
CASES = [
    _max("max_pool", (3, 3), 2, "same", rejects=[
        _refused(r"max_pool: x must be .batch, 1 to 3 sizes, channels., got shape \(2, 3\)", x=ones(2, 3)),
        _refused("max_pool: size must be an integer of at least 1, or 2 of them, one for each axis, got 0", size=0),
        _refused(r"max_pool: strides must be .* got \(1, 2, 3\)", strides=(1, 2, 3)),
        _refused("max_pool: padding must be one of valid, same, or .before, after. for each of 2 spatial axes, got 'causal'",
                 padding="causal"),
        _refused(r"max_pool: padding must be .* got \[\(1, -1\), \(0, 0\)\]", padding=[(1, -1), (0, 0)]),
        _refused("(?i)max_?pool: padding must be less than the window, along the height 2 positions over an x of 3, unless zeros "
                 "count, got 2 before and 1 after", padding=[(2, 1), (0, 0)]),
        _refused("(?i)max_?pool: padding must be less than the window, along the width 2 positions over an x of 3, unless zeros "
                 "count, got 1 before and 2 after", padding=[(0, 0), (1, 2)]),
        _refused("(?i)max_?pool: padding must be less than the window, along the height 2 positions over an x of 0, unless zeros "
                 "count, got 1 before and 1 after", x=ones(2, 0, 3, 1), padding=[(1, 1), (0, 0)]),
        _refused("max_pool: with zeros=True padding must be .before, after. for each of 2 axes, got 'same'",
                 padding="same", zeros=True),
        _refused("max_pool: the window reaches over 5 positions along the height, and x has 3; padding 'same' would make room",
                 size=5, strides=1),
        _refused("max_pool: x must be float32.*got int32", x=ones(2, 3, 3, 1, dtype=tf.int32)),
    ]),
    _max("max_pool, side by side", (2, 2), 2),
    _max("max_pool, of lines", (3,), 1, "same"),
    _max("max_pool, zeros around", (3, 3), 2, ((1, 1), (1, 2)), True),
    _max("max_pool, of volumes", (2, 3, 2), (1, 2, 2), "same"),
    _average("average_pool", (3, 3), 2, "same", rejects=[refusing(tfuse.average_pool)(
        "average_pool: the window reaches over 5 positions along the width, and x has 3",
        x=ones(2, 9, 3, 1), size=5, strides=1)]),
    _average("average_pool, side by side", (2, 2), 2),
    _average("average_pool, of lines", (3,), 1, "same"),
    _average("average_pool, zeros around", (3, 3), 2, ((1, 1), (0, 4)), True),
    _average("average_pool, of volumes", (2, 3, 2), (1, 2, 2), "valid"),
]
_LARGE = (256, 112, 112, 64)
# What is read and written at least: the input, and the result of a quarter of it.
TIMES = [Timed(case, [_LARGE], cpu_sizes=[(8, 28, 28, 64)], elements=lambda shape: [volume(shape) * 5 // 4] * 2,
               bars=bars(_LARGE, dtypes=["bfloat16"], forward=60))
         for case in (_max("max_pool, speed", (3, 3), 2, "same"), _average("average_pool, speed", (2, 2), 2, "valid"))]
