import tensorflow as tf

from tfuse._core import _library
from tfuse.cases import Case, Input, Timed, each

# A case's shape is (sequences, words).
_op = _library.raw("sample_logits")
_DRAWS = {"greedy": (0.0, 0, 1.0), "top_k": (0.8, 50, 1.0), "top_p": (0.8, 0, 0.9)}  # temperature, k, p


def _run(logits, draw):
    temperature, k, p = _DRAWS[draw]
    of_each = lambda value, dtype: tf.fill(logits.shape[:1], tf.constant(value, dtype))
    return _op(logits, of_each(temperature, tf.float32), of_each(k, tf.int64), of_each(p, tf.float32), of_each(7, tf.int64),
               of_each(3, tf.int64))


def _plain(logits, draw):
    """As KerasHub's samplers do it, of which the last two sort or choose before they draw."""
    temperature, k, p = _DRAWS[draw]
    if draw == "greedy":
        return tf.argmax(logits, -1)
    values, words = tf.math.top_k(tf.nn.softmax(tf.cast(logits, tf.float32) / temperature), k or logits.shape[-1])
    if p < 1:
        values = tf.where(tf.cumsum(values, -1, exclusive=True) < p, values, 0.0)
    drawn = tf.random.stateless_categorical(tf.math.log(values), 1, seed=[7, 3])
    return tf.cast(tf.gather(words, drawn, batch_dims=1)[:, 0], tf.int64)


_IDS = Input(lambda shape: shape[:1], lambda rng, own, shape: rng.integers(9, size=own), dtype="int64")
_CASE = Case(name="sample_logits", run=_run, plain=_plain, options=each("draw", _DRAWS), outputs={"value": _IDS},
             inputs={"logits": Input(lambda shape: shape, gradient=False)})

TIMES = [Timed(_CASE, [(1, 32000), (32, 32000), (128, 32000), (64, 128256)], cpu_sizes=[(4, 32000)], in_xla=False,
               elements=lambda shape: (shape[0] * shape[1], 0))]
