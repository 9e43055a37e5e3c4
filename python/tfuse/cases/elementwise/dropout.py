import numpy as np
import tensorflow as tf

import tfuse
from tfuse._core import _philox
from tfuse.cases import Case, Timed, bars, ones, refusing


def _reference(x, rate, seed):
    return x * _philox.kept_numpy(x.shape, seed, rate) / (1 - float(np.float32(rate)))  # the op's attribute is a float


_refused = refusing(tfuse.dropout, x=ones(3), rate=0.5)
CASES = [
    Case(name="dropout", run=tfuse.dropout, reference=_reference,
         plain=lambda x, rate, seed: _philox.dropped(x, _philox.seed_tensor(seed), rate),
         gradient=lambda dy, x, rate, seed: [_reference(dy, rate, seed)],
         options=[{"rate": 0.25, "seed": 7}, {"rate": 0.1, "seed": 2**40 + 5}, {"rate": 0.999, "seed": -1}], rejects=[
             _refused("dropout: rate must be at least 0 and less than 1, got 1.0", rate=1.0),
             _refused("dropout: rate must be at least 0 and less than 1, got -0.5", rate=-0.5),
             _refused("seed must be a single number .shape ..., got shape .2.", seed=ones(2, dtype=tf.int64)),
             _refused("dropout: x must be float32.*got int32", x=ones(1, dtype=tf.int32)),
         ]),
]
TIMES = [Timed(CASES[0], [(16384, 8192)], [{"rate": 0.1, "seed": 1}], passes=(2, 2),
               bars=bars((16384, 8192), forward=90, backward=90), rival=lambda x, rate, seed: tf.nn.dropout(x, rate))]
