import dataclasses

import tfuse
from tfuse.cases import each
from tfuse.cases.convolution import conv
from tfuse.cases.convolution.conv import Geometry
from tfuse.convolution.conv_own import RUNGS


def _without_rung(f):
    return lambda *tensors, rung: f(*tensors)


def _case(name, geometry, rungs=RUNGS, **more):
    """That of tfuse.conv with nothing after the sums, by every rung. A shape is (batch, axes …, channels, outputs)."""
    of_conv = conv.case(name, geometry, inputs=(), activations=("linear",), **more)

    def run(x, kernel, rung):
        return tfuse.conv_own(x, kernel, rung, **geometry.options())

    return dataclasses.replace(of_conv, run=run, options=each("rung", rungs), **{
        which: _without_rung(getattr(of_conv, which)) for which in ("plain", "reference", "gradient")})


def _timed(name, geometry, size, rungs):
    """Stock TensorFlow's convolution is cuDNN's."""
    return conv.timed(_case(name, geometry, rungs), geometry, [size], cpu_sizes=[conv.cpu_size(geometry, size)],
                      rival=_without_rung(lambda x, kernel: conv.by_stock(geometry, x, kernel)))


_refused, _rejects = conv.rejects("conv_own", tfuse.conv_own)
CASES = [
    _case("conv_own", Geometry((3, 3), padding="same"), shapes=[*conv.PLANE, (1, 13, 10, 136, 264)], rejects=[
        _refused("conv_own: rung must be one of tensor, shared, constant, direct, got 'fast'", rung="fast"), *_rejects]),
    _case("conv_own, strides", Geometry((3, 2), strides=(2, 3), padding=[(1, 2), (0, 1)]), shapes=[
        (2, 9, 7, 8, 16), (3, 12, 11, 6, 34), (2, 33, 35, 16, 8)]),
    _case("conv_own, groups", Geometry((3, 3), padding="same", dilation=2, groups=2), shapes=[
        (2, 9, 7, 32, 48), (3, 12, 11, 6, 34)]),
    _case("conv_own, one axis", Geometry((4,), padding="causal", dilation=3), shapes=[(2, 31, 8, 5), (3, 101, 16, 40)]),
    _case("conv_own, three axes", Geometry((2, 3, 2), strides=(1, 2, 3)), shapes=[(2, 5, 7, 6, 8, 5), (1, 4, 9, 8, 8, 16)]),
]
TIMES = [
    _timed("conv_own, speed", Geometry((3, 3), padding="same"), (64, 56, 56, 256, 256), ["tensor", "shared", "direct"]),
    _timed("conv_own, stem", Geometry((7, 7), strides=2, padding=[(3, 3), (3, 3)]), (64, 224, 224, 3, 64),
           ["shared", "constant", "direct"]),
]
