import tensorflow as tf

import tfuse
from tfuse.cases import Case, total

CASES = [
    Case(name="add_constant", run=tfuse.add_constant, plain=lambda x, constant: x + constant,
         reference=lambda x, constant: x + constant, gradient=lambda dy, x, constant: [dy, total(dy)],
         inputs={"x": lambda shape: shape, "constant": lambda shape: ()}, passes=(2, 1),
         rejects=[("constant must be a single number .*got shape .2.",
                   lambda: tfuse.add_constant(tf.ones([3, 2]), tf.ones([2]))),
                  ("add_constant: constant must be float32 like x, got float64",
                   lambda: tfuse.add_constant(tf.ones([3]), tf.constant(1, tf.float64))),
                  ("add_constant: constant must fit float16, whose largest value is 65504; got 1e.06",
                   lambda: tfuse.add_constant(tf.ones([3], tf.float16), 1e6)),
                  ("AddConstant: constant must fit float16.*got 70000",
                   lambda: tfuse.AddConstant(dtype="float16").set_constant(7e4))]),
]
