import dataclasses

import tensorflow as tf

import tfuse
from tfuse.cases.convolution import conv
from tfuse.cases.convolution.conv import Geometry
from tfuse.convolution.conv_own import RUNGS


def case(name, geometry, rungs=RUNGS, **more):
    """That of tfuse.conv with nothing behind the sums, by every rung. A shape is (batch, axes …, channels, outputs)."""
    of_conv = conv.case(name, geometry, inputs=(), activations=("linear",), **more)

    def run(x, kernel, rung):
        return tfuse.conv_own(x, kernel, rung, **geometry.options())

    def without(f):
        return lambda *tensors, rung: f(*tensors)

    return dataclasses.replace(
        of_conv, run=run, plain=without(of_conv.plain), reference=without(of_conv.reference),
        gradient=without(of_conv.gradient), rival=without(of_conv.rival), options=[{"rung": rung} for rung in rungs])


def timed(name, geometry, size, rungs):
    """A case that only the benchmark has; stock TensorFlow's convolution is cuDNN's."""
    def rival(x, kernel, activation="linear"):
        x = x if isinstance(geometry.padding, str) else tf.pad(x, [(0, 0), *geometry.padding, (0, 0)])
        return tf.nn.convolution(x, kernel, geometry.strides, "SAME" if geometry.padding == "same" else "VALID")

    return case(name, geometry, rungs, shapes=[], sizes=[size], cpu_sizes=[(2, 28, 28, *size[-2:])], rival=rival)


CASES = [
    case("conv_own", Geometry((3, 3), padding="same"), shapes=[*conv._PLANE, (1, 13, 10, 136, 264)], rejects=[
        ("conv_own: rung must be one of tensor, shared, constant, direct, got 'fast'",
         lambda: tfuse.conv_own(tf.ones([2, 5, 5, 4]), tf.ones([3, 3, 4, 6]), rung="fast")),
        *conv.rejects("conv_own", tfuse.conv_own)]),
    case("conv_own, strides", Geometry((3, 2), strides=(2, 3), padding=[(1, 2), (0, 1)]), shapes=[
        (2, 9, 7, 8, 16), (3, 12, 11, 6, 34), (2, 33, 35, 16, 8)]),
    case("conv_own, groups", Geometry((3, 3), padding="same", dilation=2, groups=2), shapes=[
        (2, 9, 7, 32, 48), (3, 12, 11, 6, 34)]),
    case("conv_own, one axis", Geometry((4,), padding="causal", dilation=3), shapes=[(2, 31, 8, 5), (3, 101, 16, 40)]),
    case("conv_own, three axes", Geometry((2, 3, 2), strides=(1, 2, 3)), shapes=[(2, 5, 7, 6, 8, 5), (1, 4, 9, 8, 8, 16)]),
    timed("conv_own, speed", Geometry((3, 3), padding="same"), (64, 56, 56, 256, 256), ["tensor", "shared", "direct"]),
    timed("conv_own, stem", Geometry((7, 7), strides=2, padding=[(3, 3), (3, 3)]), (64, 224, 224, 3, 64),
          ["shared", "constant", "direct"]),
]
