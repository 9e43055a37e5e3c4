import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Input, of_terms

_SEGMENTS = 7
_SHAPES = [(4, 8), (1, 1), (0, 8), (3, 5, 129), (513, 1030), (4099, 2)]


def _added(x, ids):
    y = np.zeros((_SEGMENTS, *x.shape[1:]))
    np.add.at(y, ids[ids >= 0], x[ids >= 0])
    return y


def _gradient(dy, x, ids):
    return [np.where((ids >= 0).reshape(-1, *[1] * (x.ndim - 1)), dy[np.maximum(ids, 0)], 0)]


def _case(name, ids, run, plain, **more):
    rows = Input(lambda shape: shape[:1], ids, "int64", gradient=False)
    return Case(name=name, run=run, plain=plain, reference=lambda x, ids: of_terms(_added(x, ids), _added(x * x, ids)),
                gradient=_gradient, inputs={"data": lambda shape: shape, "segment_ids": rows},
                outputs={"value": lambda shape: (_SEGMENTS, *shape[1:])}, shapes=_SHAPES, special=False, passes=(1, 1),
                summed=lambda shape: shape[0], **more)


CASES = [
    _case("segment_sum", lambda rng, own, shape: np.sort(rng.integers(0, _SEGMENTS, own)),
          lambda data, ids: tfuse.segment_sum(data, ids, num_segments=_SEGMENTS),
          lambda data, ids: tf.math.unsorted_segment_sum(data, ids, _SEGMENTS), sizes=[(16384, 8192)], rejects=[
              ("segment_ids must be a vector, got shape .2, 2.",
               lambda: tfuse.segment_sum(tf.ones([2, 2]), tf.constant([[0, 1], [1, 1]]))),
              ("segment_ids must have an id for each row of data .3, 2., got shape .2.",
               lambda: tfuse.segment_sum(tf.ones([3, 2]), tf.constant([0, 1]), num_segments=2)),
              ("segment_sum: segment_ids must be int32 or int64, got float32",
               lambda: tfuse.segment_sum(tf.ones([2, 2]), tf.ones([2]))),
          ]),
    _case("segment_sum, unsorted", lambda rng, own, shape: rng.integers(-1, _SEGMENTS, own),
          lambda data, ids: tfuse.unsorted_segment_sum(data, ids, _SEGMENTS),
          lambda data, ids: tf.math.unsorted_segment_sum(data, ids, _SEGMENTS), sizes=[(16384, 8192)], rejects=[
              ("unsorted_segment_sum: num_segments must not be negative, got -1",
               lambda: tfuse.unsorted_segment_sum(tf.ones([2, 2]), tf.constant([0, 1]), -1)),
              ("unsorted_segment_sum: data .2, 2. must begin with the shape of segment_ids, .3, 2.",
               lambda: tfuse.unsorted_segment_sum(tf.ones([2, 2]), tf.zeros([3, 2], tf.int32), 2)),
          ]),
]
