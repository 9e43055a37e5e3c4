import functools

import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Input, Timed, ones, refusing, sums

_SEGMENTS = 7
_SHAPES = [(4, 8), (1, 1), (0, 8), (3, 5, 129), (513, 1030), (4099, 2)]


def _added(x, ids):
    y = np.zeros((_SEGMENTS, *x.shape[1:]))
    np.add.at(y, ids[ids >= 0], x[ids >= 0])
    return y


def _gradient(dy, x, ids):
    return [np.where((ids >= 0).reshape(-1, *[1] * (x.ndim - 1)), dy[np.maximum(ids, 0)], 0)]


def _case(name, ids, run, **more):
    rows = Input(lambda shape: shape[:1], ids, "int64", gradient=False)
    return Case(name=name, run=run, plain=lambda data, ids: tf.math.unsorted_segment_sum(data, ids, _SEGMENTS),
                reference=lambda x, ids: sums(lambda x: _added(x, ids), x), gradient=_gradient, shapes=_SHAPES, special=False,
                inputs={"data": lambda shape: shape, "segment_ids": rows},
                outputs={"value": lambda shape: (_SEGMENTS, *shape[1:])}, summed=lambda shape: shape[0], **more)


def _ids(*values):
    return functools.partial(tf.constant, values)


_sorted, _unsorted = refusing(tfuse.segment_sum, data=ones(2, 2)), refusing(tfuse.unsorted_segment_sum, data=ones(2, 2))
CASES = [
    _case("segment_sum", lambda rng, own, shape: np.sort(rng.integers(0, _SEGMENTS, own)),
          lambda data, ids: tfuse.segment_sum(data, ids, num_segments=_SEGMENTS), rejects=[
              _sorted("segment_ids must be a vector, got shape .2, 2.", segment_ids=_ids([0, 1], [1, 1])),
              _sorted("segment_ids must have an id for each row of data .3, 2., got shape .2.",
                      data=ones(3, 2), segment_ids=_ids(0, 1), num_segments=2),
              _sorted("segment_sum: segment_ids must be int32 or int64, got float32", segment_ids=ones(2)),
          ]),
    _case("segment_sum, unsorted", lambda rng, own, shape: rng.integers(-1, _SEGMENTS, own),
          lambda data, ids: tfuse.unsorted_segment_sum(data, ids, _SEGMENTS), rejects=[
              _unsorted("unsorted_segment_sum: num_segments must not be negative, got -1",
                        segment_ids=_ids(0, 1), num_segments=-1),
              _unsorted("unsorted_segment_sum: data .2, 2. must begin with the shape of segment_ids, .3, 2.",
                        segment_ids=ones(3, 2, dtype=tf.int32), num_segments=2),
          ]),
]
TIMES = [Timed(case, [(16384, 8192)], passes=(1, 1)) for case in CASES]
