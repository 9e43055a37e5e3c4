import tensorflow as tf

import tfuse
from tfuse.cases import Case, Timed, ones, refusing, total

_refused = refusing(tfuse.add_constant, x=ones(3))
CASES = [
    Case(name="add_constant", run=tfuse.add_constant, plain=lambda x, constant: x + constant,
         reference=lambda x, constant: x + constant, gradient=lambda dy, x, constant: [dy, total(dy)],
         inputs={"x": lambda shape: shape, "constant": lambda shape: ()}, rejects=[
             _refused("constant must be a single number .*got shape .2.", x=ones(3, 2), constant=ones(2)),
             _refused("add_constant: constant must be float32 like x, got float64", constant=ones(dtype=tf.float64)),
             _refused("add_constant: constant must fit float16, whose largest value is 65504; got 1e.06",
                      x=ones(3, dtype=tf.float16), constant=1e6),
             ("AddConstant: constant must fit float16.*got 70000",
              lambda: tfuse.AddConstant(dtype="float16").set_constant(7e4))]),
]
TIMES = [Timed(CASES[0], passes=(2, 1))]
