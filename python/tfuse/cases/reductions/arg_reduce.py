import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Input

_OUT = {"value": Input(lambda shape: shape[:-1], dtype="int64")}


def _of(kind, functions):
    return functions[0] if kind == "max" else functions[1]


CASES = [
    Case(name="arg_reduce", run=lambda x, kind="max": _of(kind, (tfuse.argmax, tfuse.argmin))(x, -1),
         plain=lambda x, kind="max": _of(kind, (tf.argmax, tf.argmin))(x, -1),
         reference=lambda x, kind="max": _of(kind, (np.argmax, np.argmin))(x, -1), gradient=lambda dy, x, **_: [],
         inputs={"x": Input(lambda shape: shape, gradient=False)}, outputs=_OUT, options=[{"kind": "max"}, {"kind": "min"}],
         special=False, passes=(1, 0), sizes=[(16384, 8192)], timed=[{"kind": "max"}], rejects=[
             ("argmax: axis must be an axis of x .2, 3., got 2", lambda: tfuse.argmax(tf.ones([2, 3]), 2)),
             ("argmin: axis must be an axis of x .., got 0", lambda: tfuse.argmin(tf.constant(1.0))),
             ("argmax: output_type must be int32 or int64, got float32", lambda: tfuse.argmax(tf.ones([2]), 0, tf.float32)),
             ("argmax: input must be float32.*got bool", lambda: tfuse.argmax(tf.constant([True]))),
         ]),
]
