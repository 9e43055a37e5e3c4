import numpy as np
import tensorflow as tf

from tfuse._core import _library
from tfuse.cases import Case, Input, Timed

# A case's shape is (rows, experts, experts of a row, inputs, inner width): a row for each sequence of a batch.
_op = _library.raw("experts")


def _run(x, weights, numbers, gate, up, down):
    return _op(x, weights, numbers, gate, up, down, tf.zeros([0], x.dtype), activation="silu")


def _plain(x, weights, numbers, gate, up, down):
    """All experts of all rows, as KerasHub does it."""
    inner = tf.nn.silu(tf.einsum("ti,eio->eto", x, gate)) * tf.einsum("ti,eio->eto", x, up)
    counts = tf.reduce_sum(tf.one_hot(numbers, gate.shape[0], dtype=x.dtype) * weights[..., None], 1)
    return tf.reduce_sum(tf.einsum("eti,eio->eto", inner, down) * tf.transpose(counts)[..., None], 0)


def _read(shape):
    """Elements of the experts that are named, and of x and the result."""
    rows, experts, of_a_row, inputs, inner = shape
    return 3 * min(experts, rows * of_a_row) * inputs * inner + 2 * rows * inputs, 0


_KERNEL = Input(lambda shape: (shape[1], *shape[3:]), gradient=False)
_IN_TURN = Input(lambda shape: (shape[0], shape[2]), lambda rng, own, shape: np.arange(np.prod(own)).reshape(own) % shape[1],
                 dtype="int64", gradient=False)
_CASE = Case(name="experts", run=_run, plain=_plain, outputs={"value": lambda shape: (shape[0], shape[3])},
             inputs={"x": Input(lambda shape: (shape[0], shape[3]), gradient=False),
                     "weights": Input(lambda shape: (shape[0], shape[2]), gradient=False), "numbers": _IN_TURN, "gate": _KERNEL,
                     "up": _KERNEL, "down": Input(lambda shape: (shape[1], shape[4], shape[3]), gradient=False)})

TIMES = [Timed(_CASE, [(rows, *sizes) for sizes in ((8, 2, 2048, 7168), (64, 8, 2048, 768)) for rows in (1, 16, 128)],
               in_xla=False, cpu_sizes=[(1, 8, 2, 256, 512)], elements=_read)]
