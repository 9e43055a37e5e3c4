import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Input, Timed, ones, refusing

_RANGE, _BINS = [-3.0, 2.5], 37


def _reference(x):
    width = (_RANGE[1] - _RANGE[0]) / _BINS
    return np.bincount(np.clip((np.maximum(x, _RANGE[0]) - _RANGE[0]) / width, 0, _BINS - 1).astype(int).ravel(),
                       minlength=_BINS)


def _plain(x):
    """Stock TensorFlow has no histogram of 16 bits."""
    x = tf.cast(x, tf.float32) if x.dtype.size == 2 else x
    return tf.histogram_fixed_width(x, tf.constant(_RANGE, x.dtype), _BINS)


_refused = refusing(tfuse.histogram, values=ones(3))
CASES = [
    Case(name="histogram_fixed_width", run=lambda x: tfuse.histogram_fixed_width(x, tf.constant(_RANGE, x.dtype), _BINS),
         plain=_plain, reference=_reference, special=False, inputs={"values": Input(lambda shape: shape, gradient=False)},
         outputs={"counts": Input(lambda shape: (_BINS,), dtype="int32")}, rejects=[
             _refused("histogram: value_range must be a value and a greater one, got .3.0, 1.0.", value_range=[3.0, 1.0]),
             refusing(tfuse.histogram_fixed_width)("histogram_fixed_width: nbins must be at least 1, got 0",
                                                   values=ones(3), value_range=[0.0, 1.0], nbins=0),
             _refused("range must be two values, got shape .3.", value_range=[0.0, 1.0, 2.0]),
             _refused("histogram: values must be .*got bool", values=ones(1, dtype=tf.bool), value_range=[0.0, 1.0])]),
]
TIMES = [Timed(CASES[0], [(1 << 27,)], cpu_sizes=[(4096, 4096)], passes=(1, 0), xla_can=False)]
