import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Input, Timed, each, ones, refusing

_OUT = {"value": Input(lambda shape: shape[:-1], dtype="int64")}


def _of(kind, functions):
    return functions[0] if kind == "max" else functions[1]


CASES = [
    Case(name="arg_reduce", run=lambda x, kind="max": _of(kind, (tfuse.argmax, tfuse.argmin))(x, -1),
         plain=lambda x, kind="max": _of(kind, (tf.argmax, tf.argmin))(x, -1),
         reference=lambda x, kind="max": _of(kind, (np.argmax, np.argmin))(x, -1),
         inputs={"x": Input(lambda shape: shape, gradient=False)}, outputs=_OUT, options=each("kind", ["max", "min"]),
         special=False, rejects=[
             refusing(tfuse.argmax)("argmax: axis must be an axis of x .2, 3., got 2", input=ones(2, 3), axis=2),
             refusing(tfuse.argmin)("argmin: axis must be an axis of x .., got 0", input=1.0),
             refusing(tfuse.argmax)("argmax: output_type must be int32 or int64, got float32",
                                    input=ones(2), output_type=tf.float32),
             refusing(tfuse.argmax)("argmax: input must be float32.*got bool", input=ones(1, dtype=tf.bool)),
         ]),
]
TIMES = [Timed(CASES[0], [(16384, 8192)], each("kind", ["max"]), passes=(1, 0))]
