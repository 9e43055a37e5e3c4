"""What tfuse.enable() replaces in Keras only where it can be joined with what came before (_look_back.py), as a
table: relu and relu6 after a product, a convolution or a batch norm, sums with these, products of an activation with another
tensor, heads that are repeated for attention, and the mean cross entropy of a product, whose logits then never exist as a whole.
"""

import contextlib
import functools
import threading

import keras
import tensorflow as tf

from tfuse._core import _explain, _made
from tfuse._core._explain import reason
from tfuse._keras import _look_back, _look_back_attention, _replaced_images
from tfuse._keras._replaced import Row, backend_module, class_in, or_own
from tfuse.products.linear_cross_entropy import linear_cross_entropy


def _watch(own, tape, tensor):
    if not tf.executing_eagerly():
        for x in tf.nest.flatten(tensor, expand_composites=True):
            _made.keep(x, _made.Watched())
    return own(tape, tensor)


# ---- the loss of a product ----

# With fewer classes the logits are a small part of what a step keeps, and making them in chunks wins little. The number is a
# choice, not a measurement.
LEAST_CLASSES = 4096
_SPARSE = keras.losses.SparseCategoricalCrossentropy, keras.src.losses.losses.LossFunctionWrapper

_running = threading.local()  # .models: [(model, training)], those whose loss is being computed, the innermost last


@contextlib.contextmanager
def _computing_loss_of(model, training):
    _running.models = [*getattr(_running, "models", []), (model, training)]
    try:
        yield
    finally:
        _running.models = _running.models[:-1]


def _loss_of_model(own, model, *inputs, **options):
    with _computing_loss_of(model, options.get("training", True)):
        return own(model, *inputs, **options)


def _loss(own, loss, y_true, y_pred, sample_weight=None):
    """Loss.__call__: a reduction of weighted losses is linear in the losses, so that it is a sum of losses by weights, which
    Keras's own code is asked for."""
    if type(loss) not in _SPARSE or loss.fn is not keras.losses.sparse_categorical_crossentropy:
        return own(loss, y_true, y_pred, sample_weight)
    # Whoever computes the loss outside of a model may ask for its gradient by the logits.
    model, training = (getattr(_running, "models", None) or [(None, None)])[-1]
    logits, product = _logits_of_a_product(loss, y_pred) if model is not None else (None, None)
    why = product and _why_not(loss, y_true, logits, product, model)
    if product is None or why:
        if why:
            _explain.note(loss.name, "not joined with the product", why, [logits])
        with _look_back.casts_by_keras(getattr(y_pred, "dtype", None) != _dtype(loss)):
            return own(loss, y_true, y_pred, sample_weight)
    _look_back.note("LinearCrossEntropy", "%s of a product: its logits are not made as a whole" % loss.name, product.x)
    labels = tf.cast(y_true, tf.int64)
    if labels.shape.rank == logits.shape.rank:
        labels = tf.squeeze(labels, -1)
    ignored = loss._fn_kwargs.get("ignore_class")
    masks = [getattr(y_pred, "_keras_mask", None), None if ignored is None else tf.not_equal(labels, int(ignored))]
    weights = _weights(loss, labels, sample_weight, [mask for mask in masks if mask is not None])
    if product.x.shape.rank != logits.shape.rank:  # rows of several axes as one
        labels, weights = tf.reshape(labels, [-1]), tf.reshape(weights, [-1])
    total = linear_cross_entropy(product.x, product.kernel, labels, product.bias, ignore_class=ignored, weights=weights,
                                 transpose_kernel=product.transposed, reduction="sum", training=training)
    return tf.cast(total, _dtype(loss))


def _dtype(loss):
    """What a loss is computed in; Keras up to 3.3 has no choice there."""
    return getattr(loss, "dtype", None) or keras.backend.floatx()


def _logits_of_a_product(loss, y_pred):
    """The logits of the predictions and the product that made them; or None twice. Of probabilities: what a softmax was taken
    of, where Keras finds that as well."""
    if loss._fn_kwargs.get("from_logits"):
        return y_pred, _look_back.product_before(y_pred, widened=True)[0]
    logits = getattr(y_pred, "_keras_logits", None)
    if logits is None or tf.executing_eagerly() or _look_back.readers_of(y_pred) or y_pred.dtype != _dtype(loss):
        return None, None
    return logits, _look_back.product_before(logits, readers=1)[0]


@reason
def _why_not(loss, y_true, logits, product, model):
    classes, rows, labels = logits.shape[-1], logits.shape[:-1], tf.convert_to_tensor(y_true).shape
    small = classes is None or classes < LEAST_CLASSES
    yield small and "there are fewer than %d classes: the logits are small" % LEAST_CLASSES
    yield product.x.dtype == tf.float16 and "in float16 the gradient would take the product once more"
    yield product.activation != "linear" and "the logits are %s of a product" % product.activation
    yield loss.reduction in (None, "none") and "the losses are not reduced to one number"
    yield loss._fn_kwargs.get("axis", -1) not in (-1, rows.rank) and "the classes are not the last axis"
    yield model._compile_metrics is not None and "a metric reads the logits, and the product is not worth repeating"
    labels = labels[:-1] if labels.rank == rows.rank + 1 and labels[-1] == 1 else labels
    fits = labels.rank == rows.rank and labels.is_compatible_with(rows)
    yield not fits and "the target's shape does not match the output's"


def _weights(loss, labels, sample_weight, masks):
    """What each loss is multiplied by in the result: the slope of Keras's own reduction."""
    losses = tf.zeros(tf.shape(labels), _dtype(loss))
    losses.set_shape(labels.shape)
    mask = None if not masks else masks[0] if len(masks) == 1 else masks[0] & masks[1]
    with tf.GradientTape() as tape:
        tape.watch(losses)
        total = keras.src.losses.loss.reduce_weighted_values(losses, sample_weight=sample_weight, mask=mask,
                                                             reduction=loss.reduction, dtype=_dtype(loss))
    return tape.gradient(total, losses)


_NUMPY, _TRAINER = backend_module("numpy"), "keras.src.trainers.trainer"
TABLE = [
    Row("tensorflow.python.eager.backprop", "GradientTape.watch", _watch),
    # As fast by TensorFlow where they stand alone.
    *(Row(backend_module("nn"), name, or_own(functools.partial(_look_back.activation, name=name)))
      for name in ("relu", "relu6")),
    Row(_NUMPY, "add", or_own(_look_back.add)),
    Row(_NUMPY, "multiply", or_own(_look_back.gate, _replaced_images.scaled)),
    Row(_NUMPY, "repeat", _look_back_attention.repeat),
    Row("keras.src.losses.loss", "Loss.__call__", _loss),
    Row(_TRAINER, class_in(_TRAINER, "Trainer", "BaseTrainer") + ".compute_loss", _loss_of_model),
]
