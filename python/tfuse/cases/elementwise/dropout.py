import numpy as np
import tensorflow as tf

import tfuse
from tfuse._core import _philox
from tfuse.cases import Case, bars


def _reference(x, rate, seed):
    return x * _philox.kept_numpy(x.shape, seed, rate) / (1 - float(np.float32(rate)))  # the op's attribute is a float


CASES = [
    Case(name="dropout", run=tfuse.dropout, reference=_reference, inputs={"x": lambda shape: shape},
         plain=lambda x, rate, seed: _philox.dropped(x, _philox.seed_tensor(seed), rate),
         gradient=lambda dy, x, rate, seed: [_reference(dy, rate, seed)],
         rival=lambda x, rate, seed: tf.nn.dropout(x, rate),
         options=[{"rate": 0.25, "seed": 7}, {"rate": 0.1, "seed": 2**40 + 5}, {"rate": 0.999, "seed": -1}],
         passes=(2, 2), sizes=[(16384, 8192)], timed=[{"rate": 0.1, "seed": 1}],
         bars=bars((16384, 8192), forward=90, backward=90), rejects=[
             ("dropout: rate must be at least 0 and less than 1, got 1.0", lambda: tfuse.dropout(tf.ones([3]), 1.0)),
             ("dropout: rate must be at least 0 and less than 1, got -0.5", lambda: tfuse.dropout(tf.ones([3]), -0.5)),
             ("seed must be a single number .shape ..., got shape .2.",
              lambda: tfuse.dropout(tf.ones([3]), 0.5, tf.constant([1, 2], tf.int64))),
             ("dropout: x must be float32.*got int32", lambda: tfuse.dropout(tf.constant([1]), 0.5)),
         ]),
]
