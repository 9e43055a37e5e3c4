import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Timed, bars, ones, refusing, volume

ODD = (37, 513, 65, 129)


def _gradient(dy, x, perm=None):
    return [np.transpose(dy, None if perm is None else np.argsort(perm))]


def _of_rank(rank):
    """Makes of any shape one with so many axes: more before it, of 2 and 3 elements, or the first ones joined."""
    def fit(shape):
        if len(shape) < rank:
            return (*(2, 3, 2, 3)[:rank - len(shape)], *shape)
        return (volume(shape[:len(shape) - rank + 1]), *shape[len(shape) - rank + 1:])
    return fit


def _transpose(name, perm=None, **more):
    to = lambda shape: tuple(shape[axis] for axis in perm or range(len(shape))[::-1])
    return Case(name=name, run=tfuse.transpose, plain=tf.transpose, reference=lambda x, perm=None: np.transpose(x, perm),
                gradient=_gradient, inputs={"a": lambda shape: shape}, outputs={"value": to},
                options=[{} if perm is None else {"perm": perm}], **more)


def _pixels(shape):
    """Of any shape, one of 4 axes with an even height, width and depth: batch, height, width, depth."""
    return shape[0], 2, 4, 4 * min(shape[-1], 33)


def _to_depth(x, s):
    b, h, w, c = x.shape
    return x.reshape(b, h // s, s, w // s, s, c).transpose(0, 1, 3, 2, 4, 5).reshape(b, h // s, w // s, s * s * c)


def _to_space(x, s):
    b, h, w, c = x.shape
    less = c // (s * s)
    return x.reshape(b, h, w, s, s, less).transpose(0, 1, 3, 2, 4, 5).reshape(b, h * s, w * s, less)


def _blocks(name, run, stock, there, back, to, **more):
    """In both formats. Stock TensorFlow has "NCHW" on GPUs alone."""
    last, first = [0, 2, 3, 1], [0, 3, 1, 2]

    def either(f, transpose):
        def call(x, data_format="NHWC"):
            return f(x, 2) if data_format == "NHWC" else transpose(f(transpose(x, last), 2), first)
        return call

    def case(name, data_format, fit, to, **more):
        return Case(name=name, run=lambda x, data_format: run(x, 2, data_format), plain=either(stock, tf.transpose),
                    reference=either(there, np.transpose), fit=fit, inputs={"input": lambda shape: shape},
                    gradient=lambda dy, x, data_format: [either(back, np.transpose)(dy, data_format)], outputs={"value": to},
                    options=[{"data_format": data_format}], shapes=[(4, 8), (1, 1), (7, 3), (0, 8), (33, 130)], **more)

    transposed = lambda shape, order: tuple(shape[axis] for axis in order)
    return [case(name, "NHWC", _pixels, lambda shape: to(*shape), **more),
            case(name + ", NCHW", "NCHW", lambda shape: transposed(_pixels(shape), first),
                 lambda shape: transposed(to(*transposed(shape, last)), first))]


def _timed(case, sizes, **more):
    return Timed(case, sizes, passes=(2, 2), **more)


_refused, _to_depth_refused = refusing(tfuse.transpose, a=ones(2, 3)), refusing(tfuse.space_to_depth, block_size=2)
CASES = [
    _transpose("transpose", rejects=[
        _refused(r"transpose: perm must name each axis of a \(2, 3\) once, got \[0, 0\]", perm=[0, 0]),
        _refused("transpose: perm must name each axis of a .* once, got .0, 2.", perm=[0, 2]),
        _refused("transpose: perm must have one entry for each axis of a .*, got .1.", perm=[1]),
        _refused("transpose: perm must have one entry for each axis of a .*, got 1", perm=1),
        _refused("transpose: a has 9 axes; at most 8 that move apart are supported, got 9",
                 a=ones(*[2] * 9), perm=[8, 6, 4, 2, 0, 7, 5, 3, 1]),
    ]),
    _transpose("transpose, last two", (0, 2, 1), shapes=[(3, 5, 129), (2, 64, 96), (7, 3), (2, 0, 8)], fit=_of_rank(3)),
    _transpose("transpose, last first", (0, 3, 1, 2), shapes=[(3, 5, 129), (2, 3, 64, 5), (70, 9)], fit=_of_rank(4)),
    _transpose("transpose, middle", (0, 2, 1, 3), shapes=[(3, 5, 7, 129), (2, 33, 5, 8), (4, 8)], fit=_of_rank(4)),
    _transpose("transpose, ends", (2, 1, 0), shapes=[(37, 5, 129), (64, 3, 32), (4, 8)], fit=_of_rank(3)),
    *_blocks("space_to_depth", tfuse.space_to_depth, tf.nn.space_to_depth, _to_depth, _to_space,
             lambda b, h, w, c: (b, h // 2, w // 2, c * 4), rejects=[
                 _to_depth_refused("space_to_depth: input's height must be a multiple of 2, got 3", input=ones(1, 3, 4, 1)),
                 _to_depth_refused("space_to_depth: input must have 4 axes, NHWC, got shape", input=ones(3, 4, 1)),
                 _to_depth_refused("space_to_depth: block_size must be an integer of at least 2, got 1",
                                   input=ones(1, 2, 4, 1), block_size=1),
                 _to_depth_refused("space_to_depth: data_format must be 'NHWC' or 'NCHW', got 'NCHW_VECT_C'",
                                   input=ones(1, 2, 4, 1), data_format="NCHW_VECT_C")]),
    *_blocks("depth_to_space", tfuse.depth_to_space, tf.nn.depth_to_space, _to_space, _to_depth,
             lambda b, h, w, c: (b, h * 2, w * 2, c // 4), rejects=[refusing(tfuse.depth_to_space)(
                 "depth_to_space: input's depth must be a multiple of 4, got 6", input=ones(1, 3, 4, 6), block_size=2)]),
]
TIMES = [
    _timed(CASES[0], [(16384, 8192), (16383, 8191)], bars=bars((16384, 8192), forward=85)),
    _timed(CASES[2], [ODD], bars=bars(ODD, forward=75)),
    _timed(CASES[3], [ODD], bars=bars(ODD, forward=75)),
    _timed(CASES[4], [(1237, 513, 129)], bars=bars((1237, 513, 129), forward=75)),
    _timed(CASES[5], [(64, 512, 512, 8)]),
    _timed(CASES[7], [(64, 512, 512, 8)]),
]
