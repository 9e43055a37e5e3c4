import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, bars

ODD = (37, 513, 65, 129)


def _gradient(dy, x, perm=None):
    return [np.transpose(dy, None if perm is None else np.argsort(perm))]


def _of_rank(rank):
    """Makes of any shape one with so many axes: more before it, of 2 and 3 elements, or the first ones joined."""
    def fit(shape):
        if len(shape) < rank:
            return (*(2, 3, 2, 3)[:rank - len(shape)], *shape)
        return (int(np.prod(shape[:len(shape) - rank + 1])), *shape[len(shape) - rank + 1:])
    return fit


def _transpose(name, perm=None, **more):
    to = lambda shape: tuple(shape[axis] for axis in perm or range(len(shape))[::-1])
    return Case(name=name, run=tfuse.transpose, plain=tf.transpose, reference=lambda x, perm=None: np.transpose(x, perm),
                gradient=_gradient, inputs={"a": lambda shape: shape}, outputs={"value": to},
                options=[{} if perm is None else {"perm": perm}], passes=(2, 2), **more)


def _pixels(shape):
    """Of any shape, one of 4 axes with an even height, width and depth: batch, height, width, depth."""
    return shape[0], 2, 4, 4 * min(shape[-1], 33)


def _channels_first(f):
    return lambda x, block_size: np.transpose(f(np.transpose(x, [0, 2, 3, 1]), block_size), [0, 3, 1, 2])


def _to_depth(x, s):
    b, h, w, c = x.shape
    return x.reshape(b, h // s, s, w // s, s, c).transpose(0, 1, 3, 2, 4, 5).reshape(b, h // s, w // s, s * s * c)


def _to_space(x, s):
    b, h, w, c = x.shape
    less = c // (s * s)
    return x.reshape(b, h, w, s, s, less).transpose(0, 1, 3, 2, 4, 5).reshape(b, h * s, w * s, less)


def _by_format(f, block_size=2):
    return lambda x, data_format="NHWC": (f if data_format == "NHWC" else _channels_first(f))(x, block_size)


def _stock(f):
    """Stock TensorFlow has "NCHW" on GPUs alone."""
    def run(x, data_format="NHWC"):
        if data_format == "NHWC":
            return f(x, 2)
        return tf.transpose(f(tf.transpose(x, [0, 2, 3, 1]), 2), [0, 3, 1, 2])
    return run


def _blocks(name, run, stock, there, back, to, **more):
    def shape(data_format):
        def of(own):
            b, h, w, c = own if data_format == "NHWC" else (own[0], own[2], own[3], own[1])
            h, w, c = to(h, w, c)
            return (b, h, w, c) if data_format == "NHWC" else (b, c, h, w)
        return of

    return [Case(name=name if data_format == "NHWC" else name + ", NCHW",
                 run=lambda x, data_format="NHWC": run(x, 2, data_format), plain=_stock(stock), reference=_by_format(there),
                 gradient=lambda dy, x, data_format="NHWC": [_by_format(back)(dy, data_format)], fit=fit,
                 inputs={"input": lambda shape: shape}, outputs={"value": shape(data_format)},
                 options=[{"data_format": data_format}], passes=(2, 2), shapes=[(4, 8), (1, 1), (7, 3), (0, 8), (33, 130)],
                 sizes=sizes, **(more if data_format == "NHWC" else {}))
            for data_format, fit, sizes in (("NHWC", _pixels, [(64, 512, 512, 8)]),
                                            ("NCHW", lambda s: np.array(_pixels(s))[[0, 3, 1, 2]].tolist(), []))]


_ones = lambda *shape: tf.ones(shape)
CASES = [
    _transpose("transpose", sizes=[(16384, 8192), (16383, 8191)], bars=bars((16384, 8192), forward=85), rejects=[
        (r"transpose: perm must name each axis of a \(2, 3\) once, got \[0, 0\]",
         lambda: tfuse.transpose(_ones(2, 3), [0, 0])),
        ("transpose: perm must name each axis of a .* once, got .0, 2.", lambda: tfuse.transpose(_ones(2, 3), [0, 2])),
        ("transpose: perm must have one entry for each axis of a .*, got .1.", lambda: tfuse.transpose(_ones(2, 3), [1])),
        ("transpose: perm must have one entry for each axis of a .*, got 1", lambda: tfuse.transpose(_ones(2, 3), 1)),
        ("transpose: a has 9 axes; at most 8 that move apart are supported, got 9",
         lambda: tfuse.transpose(_ones(*[2] * 9), [8, 6, 4, 2, 0, 7, 5, 3, 1])),
    ]),
    _transpose("transpose, last two", (0, 2, 1), sizes=[], shapes=[(3, 5, 129), (2, 64, 96), (7, 3), (2, 0, 8)],
               fit=_of_rank(3)),
    _transpose("transpose, last first", (0, 3, 1, 2), sizes=[ODD], bars=bars(ODD, forward=75),
               shapes=[(3, 5, 129), (2, 3, 64, 5), (70, 9)], fit=_of_rank(4)),
    _transpose("transpose, middle", (0, 2, 1, 3), sizes=[ODD], bars=bars(ODD, forward=75),
               shapes=[(3, 5, 7, 129), (2, 33, 5, 8), (4, 8)], fit=_of_rank(4)),
    _transpose("transpose, ends", (2, 1, 0), sizes=[(1237, 513, 129)], bars=bars((1237, 513, 129), forward=75),
               shapes=[(37, 5, 129), (64, 3, 32), (4, 8)], fit=_of_rank(3)),
    *_blocks("space_to_depth", tfuse.space_to_depth, tf.nn.space_to_depth, _to_depth, _to_space,
             lambda h, w, c: (h // 2, w // 2, c * 4), rejects=[
                 ("space_to_depth: input's height must be a multiple of 2, got 3",
                  lambda: tfuse.space_to_depth(_ones(1, 3, 4, 1), 2)),
                 ("space_to_depth: input must have 4 axes, NHWC, got shape",
                  lambda: tfuse.space_to_depth(_ones(3, 4, 1), 2)),
                 ("space_to_depth: block_size must be an integer of at least 2, got 1",
                  lambda: tfuse.space_to_depth(_ones(1, 2, 4, 1), 1)),
                 ("space_to_depth: data_format must be 'NHWC' or 'NCHW', got 'NCHW_VECT_C'",
                  lambda: tfuse.space_to_depth(_ones(1, 2, 4, 1), 2, "NCHW_VECT_C"))]),
    *_blocks("depth_to_space", tfuse.depth_to_space, tf.nn.depth_to_space, _to_space, _to_depth,
             lambda h, w, c: (h * 2, w * 2, c // 4), rejects=[
                 ("depth_to_space: input's depth must be a multiple of 4, got 6",
                  lambda: tfuse.depth_to_space(_ones(1, 3, 4, 6), 2))]),
]
