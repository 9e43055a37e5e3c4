import tensorflow as tf

from tfuse._core import _library
from tfuse.cases import Case, Input, Timed
from tfuse.products.quantized_linear import dequantized

# A case's shape is (rows, inputs, outputs): those of a gated unit and the norm before it, as in projections. Groups are of 128
# rows, and scales of x's dtype.
_op, _EPSILON, _GROUP = _library.raw("quantized_projections"), 1e-5, 128


def _gated(bits):
    def run(x, gamma, gate, up, gate_scale, up_scale):
        none, nothing = tf.zeros([0], x.dtype), tf.zeros([0], tf.uint8)
        return _op(x, gamma, gate, up, nothing, *[none] * 4, gate_scale, up_scale, none, activation="silu", gated=True,
                   epsilon=_EPSILON, bits=bits, group=_GROUP)[0]
    return run


def _plain(bits):
    def run(x, gamma, gate, up, gate_scale, up_scale):
        wide, none = tf.cast(x, gamma.dtype), tf.zeros([0])
        normed = tf.cast(wide * tf.math.rsqrt(tf.reduce_mean(wide * wide, -1, keepdims=True) + _EPSILON) * gamma, x.dtype)
        gate, up = (dequantized(x.dtype, kernel, scale, none, none, none, bits=bits, group=_GROUP, order="tiles")
                    for kernel, scale in ((gate, gate_scale), (up, up_scale)))
        return tf.nn.silu(tf.matmul(normed, gate)) * tf.matmul(normed, up)
    return run


def _case(bits):
    kernel = Input(lambda s: (-(-s[2] // 64), s[1] // 16, 128 * bits), lambda rng, own, _: rng.integers(0, 256, own), "uint8",
                   gradient=False)
    scale = Input(lambda s: (-(-s[1] // _GROUP), 2, s[2]), lambda rng, own, s: rng.uniform(0.5, 1.5, own) / 32 / s[1]**0.5,
                  gradient=False)
    return Case(name="quantized_projections, %d bits" % bits, run=_gated(bits), plain=_plain(bits),
                inputs={"x": Input(lambda shape: shape[:2], gradient=False),
                        "gamma": Input(lambda shape: shape[1:2], dtype="real", gradient=False), "gate": kernel, "up": kernel,
                        "gate_scale": scale, "up_scale": scale},
                outputs={"value": lambda shape: (shape[0], shape[2])})


def _elements(bits):
    return lambda shape: (shape[0] * (shape[1] + shape[2]) + 2 * shape[1] * shape[2] * bits // 16, 0)


_SIZES = [(rows, *sizes) for sizes in ((2048, 8192), (4096, 14336)) for rows in (1, 8, 16, 64)]
TIMES = [Timed(_case(bits), _SIZES, in_xla=False, cpu_sizes=[(1, 512, 2048)], elements=_elements(bits)) for bits in (8, 4)]
