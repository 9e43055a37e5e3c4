"""Softmax cross entropy of logits, against labels or against probabilities: one pass over the logits forward, two backward,
nothing of their size in between; and Keras's losses of that. Arithmetic and losses are in float32 (float64 for float64
logits), whatever the logits are."""

import keras
import tensorflow as tf
from tensorflow.python.eager import context, record

from tfuse._core import _rows
from tfuse._core._op import FusedOp, composite, given, real, vjp

NOTHING = -2**63  # the label that `ignore` names where nothing is ignored


def _real(x):
    return tf.cast(x, real(x.dtype))


def _softened(loss, x, lse, smoothing, z_loss):
    """The loss with the parts that its target has no say in."""
    if smoothing:
        loss = (1 - smoothing) * loss + smoothing * (lse - tf.reduce_mean(x, -1))
    return loss + z_loss * lse * lse if z_loss else loss


def _maximum_and_sum(x, lse):
    """What the kernels keep of a row: its maximum, and the sum of exponentials relative to it."""
    maximum = tf.reduce_max(x, -1)
    return [maximum, tf.exp(lse - maximum)]


def plain_sparse(x, labels, smoothing=0.0, z_loss=0.0, ignore=NOTHING):
    x, kept = _real(x), tf.not_equal(tf.cast(labels, tf.int64), tf.constant(ignore, tf.int64))
    if ignore != NOTHING:
        x = tf.where(kept[..., None], x, 0)  # what is ignored may be infinite
    lse = tf.reduce_logsumexp(x, -1)
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.where(kept, labels, 0), x)
    return tf.where(kept, _softened(loss, x, lse, smoothing, z_loss), 0), tf.stack(_maximum_and_sum(x, lse), -1)


def plain_dense(x, targets, smoothing=0.0, z_loss=0.0):
    x, targets = _real(x), _real(targets)
    lse, mass = tf.reduce_logsumexp(x, -1), tf.reduce_sum(targets, -1)
    loss = tf.reduce_sum(targets * (lse[..., None] - x), -1)
    return (_softened(loss, x, lse, smoothing, z_loss),
            tf.stack([*_maximum_and_sum(x, lse), (1 - smoothing) * mass + smoothing], -1))


def _sparse_gradient(x, labels, _, dloss, **attributes):
    """The gradient op's composition. What the forward pass kept of each row is not used, so that it need not carry a
    gradient of its own."""
    return vjp(lambda x: plain_sparse(x, labels, **attributes)[0])(dloss, x)


def _dense_gradient(x, targets, stats, dloss, dtargets_for, smoothing=0.0, z_loss=0.0):
    """Of what the forward pass kept, the value of the targets' sum is used: stock_cross_entropy gives another. How it
    depends on the targets is known from them."""
    wide, targets = _real(x), _real(targets)
    lse, dloss = tf.reduce_logsumexp(wide, -1, keepdims=True), dloss[..., None]
    smooth = (1 - smoothing) * targets + smoothing / tf.cast(tf.shape(x)[-1], wide.dtype)
    mass = tf.reduce_sum(smooth, -1, keepdims=True)
    mass += tf.stop_gradient(stats[..., 2:] - mass)
    dx = dloss * ((mass + 2 * z_loss * lse) * tf.nn.softmax(wide) - smooth)
    dtargets = (1 - smoothing) * dloss * (lse - wide) if given(dtargets_for) else tf.zeros([0])
    return tf.cast(dx, x.dtype), tf.cast(dtargets, x.dtype)


# Axes by letters: c classes, those before them, and one of stats.
_AXES = {**dict.fromkeys(["x", "targets", "dtargets_for"], "abdefghc"), "labels": "abdefgh", "dloss": "abdefgh",
         "stats": "abdefghs"}

_sparse_grad = FusedOp("SparseCrossEntropyGrad", plain=_sparse_gradient, axes=_AXES)
_sparse = FusedOp("SparseCrossEntropy", plain=plain_sparse, axes=_AXES, gradient=lambda node, dloss, _: [
    _sparse_grad(*node.inputs, node.outputs[1], dloss, **node.attrs("smoothing", "z_loss", "ignore")), None])


def _gradient(node, dloss, _):
    x, targets = node.inputs
    dx, dtargets = _dense_grad(x, targets, node.outputs[1], dloss, targets if node.wanted(1) else None,
                               **node.attrs("smoothing", "z_loss"))
    return [dx, dtargets if node.wanted(1) else None]


_dense_grad = FusedOp("CrossEntropyGrad", plain=_dense_gradient, axes=_AXES)
_dense = FusedOp("CrossEntropy", plain=plain_dense, gradient=_gradient, axes=_AXES)


@tf.custom_gradient
def stock_cross_entropy(logits, targets):
    """cross_entropy(logits, targets) with the gradient of tf.nn.softmax_cross_entropy_with_logits, which takes targets to
    sum to one: softmax(logits) - targets, also where they do not."""
    loss, stats = _dense(logits, targets)
    constant = context.executing_eagerly() and not record.should_record_backprop([targets])

    def gradient(dloss):
        one = tf.concat([stats[..., :2], tf.ones_like(stats[..., 2:])], -1)
        dlogits, _ = _dense_grad(logits, tf.stop_gradient(targets), one, dloss, None)
        # Outside the op, so that a graph whose targets are constants drops it.
        dtargets = None if constant else tf.cast(-dloss[..., None] * tf.nn.log_softmax(_real(logits)), logits.dtype)
        return dlogits, dtargets

    return loss, gradient


@composite
def sparse_cross_entropy(logits, labels, label_smoothing=0.0, ignore_class=None, z_loss=0.0, weights=None, axis=-1):
    """Returns the cross entropy of softmax(logits) against labels, one number per row.

    Args:
      logits: float tensor; the classes are its last axis.
      labels: integer tensor with logits' shape but the last axis. A label that is no class is an error on the CPU; on
        the GPU its loss is NaN and its gradient 0.
      label_smoothing: this part of each target is spread evenly over all classes.
      ignore_class: rows with this label have loss 0 and gradient 0; it need not be a class.
      z_loss: this times log(sum(exp(logits)))^2 is added, which keeps logits from drifting.
      weights: one number per row, or what broadcasts to that; multiplies the losses.
      axis: the axis of the classes. Another than the last is first moved there, at the price of a copy.

    Returns:
      Losses in float32; in float64 for float64 logits.

    Example:
      logits, labels = tf.random.normal([32, 1000]), tf.zeros([32], tf.int32)
      loss = tf.reduce_mean(tfuse.sparse_cross_entropy(logits, labels, label_smoothing=0.1))
    """
    check_smoothing("sparse_cross_entropy", label_smoothing)
    ignore = NOTHING if ignore_class is None else int(ignore_class)
    loss, _ = _sparse(_last("sparse_cross_entropy", logits, axis), integers(labels), smoothing=float(label_smoothing),
                      z_loss=float(z_loss), ignore=ignore)
    return _weighted(loss, weights)


@composite
def cross_entropy(logits, targets, label_smoothing=0.0, z_loss=0.0, weights=None, axis=-1):
    """Returns the cross entropy of softmax(logits) against probabilities, one number per row.

    Args:
      logits: float tensor; the classes are its last axis.
      targets: tensor of logits' shape and dtype, which need not sum to one.
      label_smoothing, z_loss, weights, axis: as in tfuse.sparse_cross_entropy.

    Returns:
      Losses in float32; in float64 for float64 logits.

    Example:
      logits, targets = tf.random.normal([32, 10]), tf.one_hot(tf.zeros([32], tf.int32), 10)
      loss = tf.reduce_mean(tfuse.cross_entropy(logits, targets))
    """
    check_smoothing("cross_entropy", label_smoothing)
    logits, targets = (_last("cross_entropy", x, axis) for x in (logits, targets))
    loss, _ = _dense(logits, targets, smoothing=float(label_smoothing), z_loss=float(z_loss))
    return _weighted(loss, weights)


def check_smoothing(name, value):
    if not 0 <= value <= 1:
        raise ValueError("%s: label_smoothing must be from 0 to 1, got %r" % (name, value))


def integers(labels):
    """Labels as int32 or int64, which the op takes; other integers become the one that holds them all."""
    labels = _rows.tensor(labels)
    if labels.dtype in (tf.int32, tf.int64) or not labels.dtype.is_integer:
        return labels
    return tf.cast(labels, tf.int64 if labels.dtype in (tf.uint32, tf.uint64) else tf.int32)


def _last(op, x, axis):
    if axis == -1:
        return x
    x = _rows.tensor(x)
    return _rows.Rows(op, x, axis).take(x)


def _weighted(loss, weights):
    return loss if weights is None else loss * tf.cast(weights, loss.dtype)


# ---- Keras's losses ----


class _Given(keras.losses.Loss):
    """Keras's masks, weights and reduction, for losses that are computed already."""

    def call(self, y_true, y_pred):
        return y_pred


class _FromLogits:
    """What the two losses share. Keras casts logits and targets to the loss's dtype before it calls a loss; here logits
    stay as they are, and only what a row has lost is cast. A loss of dtype float64 still gets float64 logits."""

    def __call__(self, y_true, y_pred, sample_weight=None):
        if not self.from_logits:
            return super().__call__(y_true, y_pred, sample_weight)
        losses = self.call(y_true, y_pred)
        mask, ignored = (getattr(value, "_keras_mask", None) for value in (y_pred, losses))
        if mask is not None:
            losses._keras_mask = mask if ignored is None else keras.ops.logical_and(mask, ignored)
        dtype = {} if self._asked_dtype is None else {"dtype": self._asked_dtype}
        return _Given(self.name, self.reduction, **dtype)(losses, losses, sample_weight)

    def get_config(self):
        return {**super().get_config(), "axis": self.axis, "label_smoothing": self.label_smoothing,
                "z_loss": self.z_loss, "dtype": self._asked_dtype}

    def _set(self, axis, label_smoothing, z_loss, dtype):
        check_smoothing(type(self).__name__, label_smoothing)
        self.axis, self.label_smoothing, self.z_loss = axis, label_smoothing, z_loss
        self._asked_dtype = dtype and self.dtype
        for name, nothing in self._ONLY_FROM_LOGITS.items():
            if not self.from_logits and getattr(self, name) != nothing:
                raise ValueError("%s: %s needs from_logits=True, got %r" % (type(self).__name__, name, getattr(self, name)))

    def _logits(self, y_pred):
        y_pred = keras.ops.convert_to_tensor(y_pred)
        as_it_is = y_pred.dtype.is_floating and self.dtype != "float64"
        return y_pred if as_it_is else keras.ops.cast(y_pred, self.dtype)


@keras.saving.register_keras_serializable("tfuse")
class SparseCategoricalCrossentropy(_FromLogits, keras.losses.SparseCategoricalCrossentropy):
    """keras.losses.SparseCategoricalCrossentropy, from logits unless told otherwise, by tfuse.sparse_cross_entropy.

    Args:
      from_logits, ignore_class, reduction, axis, name, dtype: as in Keras, where from_logits is False unless given. With
        False, Keras's own loss is computed.
      label_smoothing, z_loss: as in tfuse.sparse_cross_entropy.

    Example:
      model = keras.Sequential([keras.layers.Dense(10)])
      model.compile("adam", tfuse.SparseCategoricalCrossentropy(label_smoothing=0.1))
    """

    _ONLY_FROM_LOGITS = {"axis": -1, "label_smoothing": 0, "z_loss": 0}  # what asks Keras's own loss for nothing

    def __init__(self, from_logits=True, ignore_class=None, reduction="sum_over_batch_size", axis=-1,
                 name="sparse_categorical_crossentropy", dtype=None, label_smoothing=0.0, z_loss=0.0):
        super().__init__(from_logits=from_logits, ignore_class=ignore_class, reduction=reduction, name=name,
                         **({} if dtype is None else {"dtype": dtype}))
        self._set(axis, label_smoothing, z_loss, dtype)

    def call(self, y_true, y_pred):
        if not self.from_logits:
            return super().call(y_true, y_pred)
        labels, y_pred = keras.ops.convert_to_tensor(y_true), self._logits(y_pred)
        labels = integers(keras.ops.cast(labels, "int64") if labels.dtype.is_floating else labels)
        if len(labels.shape) == len(y_pred.shape) and labels.shape[self.axis] == 1:
            labels = keras.ops.squeeze(labels, self.axis)
        loss = sparse_cross_entropy(y_pred, labels, self.label_smoothing, self.ignore_class, self.z_loss, axis=self.axis)
        if self.ignore_class is not None:
            loss._keras_mask = tf.not_equal(labels, tf.cast(self.ignore_class, labels.dtype))
        return loss


@keras.saving.register_keras_serializable("tfuse")
class CategoricalCrossentropy(_FromLogits, keras.losses.CategoricalCrossentropy):
    """keras.losses.CategoricalCrossentropy, from logits unless told otherwise, by tfuse.cross_entropy.

    Args:
      from_logits, label_smoothing, axis, reduction, name, dtype: as in Keras, where from_logits is False unless given.
        With False, Keras's own loss is computed. Targets are taken in the dtype of the logits.
      z_loss: as in tfuse.cross_entropy.

    Example:
      model = keras.Sequential([keras.layers.Dense(10)])
      model.compile("adam", tfuse.CategoricalCrossentropy())
    """

    _ONLY_FROM_LOGITS = {"z_loss": 0}

    def __init__(self, from_logits=True, label_smoothing=0.0, axis=-1, reduction="sum_over_batch_size",
                 name="categorical_crossentropy", dtype=None, z_loss=0.0):
        super().__init__(from_logits=from_logits, label_smoothing=label_smoothing, axis=axis, reduction=reduction,
                         name=name, **({} if dtype is None else {"dtype": dtype}))
        self._set(axis, label_smoothing, z_loss, dtype)

    def call(self, y_true, y_pred):
        if not self.from_logits:
            return super().call(y_true, y_pred)
        y_pred = self._logits(y_pred)
        return cross_entropy(y_pred, keras.ops.cast(y_true, y_pred.dtype), self.label_smoothing, self.z_loss, axis=self.axis)
