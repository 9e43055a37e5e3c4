import tensorflow as tf

from tfuse._core import _library
from tfuse.cases import Case, Input, Timed

# A case's shape is (rows, inputs, outputs): those of a gated unit and the norm before it, a row for each sequence of a batch.
_op, _EPSILON = _library.raw("projections"), 1e-5


def _gated(x, gamma, gate, up):
    none = tf.zeros([0], x.dtype)
    return _op(x, gamma, gate, up, *[none] * 5, activation="silu", gated=True, epsilon=_EPSILON)[0]


def _plain(x, gamma, gate, up):
    wide = tf.cast(x, gamma.dtype)
    normed = tf.cast(wide * tf.math.rsqrt(tf.reduce_mean(wide * wide, -1, keepdims=True) + _EPSILON) * gamma, x.dtype)
    return tf.nn.silu(tf.matmul(normed, gate)) * tf.matmul(normed, up)


_KERNEL = Input(lambda shape: shape[1:], gradient=False)
_GATED = Case(name="projections, gated", run=_gated, plain=_plain,
              inputs={"x": Input(lambda shape: shape[:2], gradient=False),
                      "gamma": Input(lambda shape: shape[1:2], dtype="real", gradient=False), "gate": _KERNEL, "up": _KERNEL},
              outputs={"value": lambda shape: (shape[0], shape[2])})

TIMES = [Timed(_GATED, [(rows, *sizes) for sizes in ((2048, 8192), (4096, 14336)) for rows in (1, 16, 128)], in_xla=False,
               cpu_sizes=[(1, 512, 2048)],
               elements=lambda shape: (shape[0] * (shape[1] + shape[2]) + 2 * shape[1] * shape[2], 0))]
