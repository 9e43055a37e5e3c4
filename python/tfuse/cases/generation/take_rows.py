import tensorflow as tf

from tfuse._core import _library
from tfuse.cases import Case, Input, Timed

# A case's shape is (ids, words, width).
_IDS = Input(lambda shape: shape[:1], lambda rng, own, shape: rng.integers(shape[1], size=own), dtype="int64", gradient=False)
_CASE = Case(name="take_rows", run=_library.raw("take_rows"), plain=lambda table, ids: tf.gather(table, ids),
             inputs={"table": Input(lambda shape: shape[1:], gradient=False), "ids": _IDS},
             outputs={"value": lambda shape: (shape[0], shape[2])})

TIMES = [Timed(_CASE, [(128, 32000, 2048), (16384, 32000, 2048)], cpu_sizes=[(2048, 1000, 512)], in_xla=False,
               elements=lambda shape: (2 * shape[0] * shape[2], 0))]
