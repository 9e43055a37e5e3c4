"""A list here is a tensor and one more, of another shape, made of it."""

import numpy as np
import tensorflow as tf

import tfuse
from tfuse._core._op import real
from tfuse.cases import Case, Input, of_terms, ones, refusing, volume
from tfuse.lists import tensors_norm

_BOTH = {"x": lambda shape: shape, "y": lambda shape: shape[-1:]}
_elements = lambda shape: volume(shape) + shape[-1]
# The norm of one number is rounded once; of nothing it has no gradient.
_SHAPES = [(4, 8), (7, 3), (3, 5, 129), (513, 1030), (4099, 2), (1, 100003)]


def _plain(x, y):
    return tf.linalg.global_norm([tf.cast(t, real(t.dtype)) for t in (x, y)])


def _norm(x, y):
    return np.sqrt(np.sum(x * x) + np.sum(y * y))


def _norm_gradient(dy, x, y):
    return [dy * x / _norm(x, y), dy * y / _norm(x, y)]


def _clip(x, y, clip):
    scale = clip / max(_norm(x, y), clip)
    return [x * scale, y * scale]


def _clip_gradient(dy, x, y, clip):
    """With y = x * clip / norm: of norm, too, as long as it is more than clip."""
    norm = _norm(x, y)
    if norm <= clip:
        return dy
    along = (np.sum(dy[0] * x) + np.sum(dy[1] * y)) / norm**2
    return [of_terms(clip / norm * (d - along * v), np.max((clip / norm * d)**2, initial=0)) for d, v in zip(dy, (x, y))]


def _plain_clipped(x, y, clip):
    norm = _plain(x, y)
    return tensors_norm._plain_clip([x, y], norm, tf.cast(clip, norm.dtype))[0]


CASES = [
    Case(name="global_norm", run=lambda x, y: tfuse.global_norm([x, y]), plain=_plain,
         reference=_norm, gradient=_norm_gradient, inputs=_BOTH, outputs={"norm": Input(lambda shape: (), dtype="real")},
         shapes=_SHAPES, summed=_elements, rejects=[
             refusing(tfuse.global_norm)("global_norm: tensor 1 must be float32, .*got int32",
                                         tensors=[ones(2), ones(1, dtype=tf.int32)]),
             refusing(tfuse.global_norm)("global_norm: wants a list of tensors, got", tensors=ones(2)),
             refusing(tfuse.all_finite)("all_finite: tensor 0 must be float32, .*got complex64",
                                        tensors=[ones(2, dtype=tf.complex64)]),
             refusing(tfuse.clip_by_global_norm)("clip must be a single number, got shape .2.",
                                                 t_list=[ones(3)], clip_norm=ones(2)),
             ("norm and clip must be float64 where x is float64, got float32",
              lambda: tensors_norm._clip([tf.ones([3], tf.float64)], tf.ones([]), tf.ones([]))),
         ]),
    Case(name="clip_by_global_norm", run=lambda x, y, clip: tfuse.clip_by_global_norm([x, y], clip)[0], plain=_plain_clipped,
         reference=_clip, gradient=_clip_gradient, inputs=_BOTH, outputs=_BOTH, shapes=_SHAPES, summed=_elements,
         options=[{"clip": 1e6}, {"clip": 1.5}]),
]
