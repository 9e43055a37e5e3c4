import tensorflow as tf

import tfuse
from tfuse.cases import Case, Timed, ones, refusing

_refused = refusing(tfuse.square)
CASES = [
    Case(name="square", run=tfuse.square, plain=tf.square, reference=lambda x: x * x, gradient=lambda dy, x: [2 * x * dy],
         rejects=[_refused("square: x must be float32.*got int32", x=ones(2, dtype=tf.int32)),
                  _refused("x: T has 9 dimensions, at most 8", x=ones(*[1] * 9))]),
]
TIMES = [Timed(CASES[0])]
