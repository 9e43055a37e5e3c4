import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import SHAPES, Case, Input, Timed, bars, cancelling, ones, refusing, total
from tfuse.rows.cross_entropy import plain_dense, plain_sparse

_LOSS = {"loss": Input(lambda shape: shape[:-1], dtype="real")}
_SIZES, _CLASSES = [(8192, 50304)], (2097152, 21)
_SOFT = [{}, {"label_smoothing": 0.1, "z_loss": 1e-2}, {"label_smoothing": 0.3}, {"z_loss": 0.5}]


def _lse(x):
    top = x.max(-1, keepdims=True)
    return np.log(np.exp(x - top).sum(-1, keepdims=True)) + top


def parts(x, targets, label_smoothing=0.0, z_loss=0.0):
    smoothing, z_loss = (float(np.float32(value)) for value in (label_smoothing, z_loss))  # the op's attributes are floats
    return (1 - smoothing) * targets + smoothing / x.shape[-1], _lse(x), smoothing, z_loss


def _reference(x, targets, **options):
    targets, lse, _, z_loss = parts(x, targets, **options)
    return total(np.concatenate([targets * (lse - x), z_loss * lse**2], -1), -1)


def _gradient(dloss, x, targets, **options):
    targets, lse, smoothing, z_loss = parts(x, targets, **options)
    dloss = dloss[..., None]
    pull = (targets.sum(-1, keepdims=True) + 2 * z_loss * lse) * np.exp(x - lse)
    return [cancelling(dloss * pull, -dloss * targets), (1 - smoothing) * dloss * (lse - x)]


def one_hot(x, labels):
    return labels[..., None] == np.arange(x.shape[-1])


def _sparse_reference(x, labels, ignore_class=None, **options):
    return np.where(labels != ignore_class, np.asarray(_reference(x, one_hot(x, labels), **options)), 0)


def _sparse_gradient(dloss, x, labels, ignore_class=None, **options):
    return _gradient(np.where(labels != ignore_class, dloss, 0), x, one_hot(x, labels), **options)[:1]


def _plain_sparse(logits, labels, label_smoothing=0.0, z_loss=0.0, **ignore):
    return plain_sparse(logits, labels, label_smoothing, z_loss, *ignore.values())[0]


def _plain_dense(logits, targets, label_smoothing=0.0, z_loss=0.0):
    return plain_dense(logits, targets, label_smoothing, z_loss)[0]


def _stock_dense(logits, targets):
    """As users write it; right for targets that sum to one."""
    return tf.nn.softmax_cross_entropy_with_logits(tf.cast(targets, tf.float32), tf.cast(logits, tf.float32))


def _sparse_case(name, labels, first=0, **options):
    """A case of labels of the dtype `labels`, from `first` up."""
    labels = Input(lambda shape: shape[:-1], lambda rng, own, shape: rng.integers(first, shape[-1], own), labels, False)
    return Case(name=name, run=tfuse.sparse_cross_entropy, plain=_plain_sparse, reference=_sparse_reference,
                gradient=_sparse_gradient, inputs={"logits": lambda shape: shape, "labels": labels}, outputs=_LOSS,
                special=False, summed=lambda shape: shape[-1], **options)


def _dense_case(name, targets, gradient, **options):
    return Case(name=name, run=tfuse.cross_entropy, plain=_plain_dense, reference=_reference, gradient=gradient,
                inputs={"logits": lambda shape: shape, "targets": targets}, outputs=_LOSS, special=False,
                summed=lambda shape: shape[-1], **options)


_labels, _targets = refusing(tfuse.sparse_cross_entropy, logits=ones(3, 4)), refusing(tfuse.cross_entropy, targets=ones(3, 4))
CASES = [
    _sparse_case("sparse_cross_entropy", "int64", options=[*_SOFT, {"ignore_class": 0}], shapes=[*SHAPES, (300, 21)], rejects=[
        _labels("labels must have the shape of the rows of x, .3., got .2.", labels=[1, 2]),
        _labels("x must have at least one", logits=1.0, labels=0),
        _labels("sparse_cross_entropy: labels must be int32 or int64, got float32", labels=ones(3)),
        _labels("sparse_cross_entropy: logits must be float32, float16, bfloat16 or float64, got int32",
                logits=ones(3, 4, dtype=tf.int32), labels=[0, 1, 2]),
        _labels("sparse_cross_entropy: label_smoothing must be from 0 to 1, got 1.5",
                logits=ones(1, 4), labels=[0], label_smoothing=1.5),
    ]),
    _sparse_case("sparse_cross_entropy, some ignored", "int32", first=-1, options=[{**o, "ignore_class": -1} for o in _SOFT]),
    _dense_case("cross_entropy", Input(lambda shape: shape, gradient=False), lambda *a, **o: _gradient(*a, **o)[:1],
                options=_SOFT, rejects=[
                    _targets("targets must have the shape of x, .3, 4., got .3, 5.", logits=ones(3, 4), targets=ones(3, 5)),
                    _targets("cross_entropy: targets must be float16 like x, got float32",
                             logits=ones(3, 4, dtype=tf.float16))]),
    _dense_case("cross_entropy, with gradient of targets", Input(
        lambda shape: shape, lambda rng, own, shape: rng.random(own) * 2 / shape[-1]), _gradient, options=_SOFT),
]
TIMES = [
    Timed(CASES[0], _SIZES, [{}], sweep=[_CLASSES], passes=(1, 2), bars={
        **bars(*_SIZES, dtypes=["bfloat16"], ms=0.75), **bars(_CLASSES, dtypes=["bfloat16"], forward=60, backward=60)}),
    Timed(CASES[2], _SIZES, [{}], rival=_stock_dense),
]
