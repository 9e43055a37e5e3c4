import tensorflow as tf

import tfuse
from tfuse.cases import Case

CASES = [
    Case(name="square", run=tfuse.square, plain=tf.square, reference=lambda x: x * x,
         gradient=lambda dy, x: [2 * x * dy], inputs={"x": lambda shape: shape},
         rejects=[("square: x must be float32.*got int32", lambda: tfuse.square(tf.constant([1, 2]))),
                  ("x: T has 9 dimensions, at most 8", lambda: tfuse.square(tf.ones([1] * 9)))]),
]
