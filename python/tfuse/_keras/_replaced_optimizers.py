"""What tfuse.enable() replaces in Keras's optimizers: the step of Adam, AdamW, Lamb, Lion and SGD, and the loss scale around
it. Exact classes only: a subclass may look at gradients between the parts of a step.

apply() clips, decays and updates, by three methods. While tfuse is enabled and apply() runs, the first two leave everything to
the third, which is together.Step. Where that leaves variables to Keras, the three are called again, as Keras's own; as they are
for whoever calls them outside of apply().
"""

import functools
import sys

import keras
import tensorflow as tf

from tfuse._core import _library, _op
from tfuse._keras._replaced import Row
from tfuse.lists import together


def _is_ours(optimizer):
    """Whether its step is to be tfuse's: not that of tfuse.optimizers, which see to themselves."""
    return not _why_not(optimizer) and type(optimizer) in together.RULES


def _why_not(optimizer):
    """Why Keras's own step is left in place, or ""; also for those that are tfuse's own."""
    name = type(optimizer).__name__
    if isinstance(optimizer, together.Together):
        return ""
    if type(optimizer) not in together.RULES:
        bases = [base.__name__ for base in together.RULES if isinstance(optimizer, base)]
        return "%s is a subclass of %s" % (name, bases[0]) if bases else "tfuse has no step for %s" % name
    if _library.without_gpu() and not tf.executing_eagerly() and _op.inside_xla():
        # On two cores, AdamW takes 6.5 ms for 8 matrices of 1024 by 1024, our op 13.
        return "there is no GPU: XLA's own code is faster"
    return together.why_not(optimizer)


def _apply(own, optimizer, grads, *arguments, **options):
    if not _is_ours(optimizer):
        return own(optimizer, grads, *arguments, **options)
    with together.taking(optimizer):
        return own(optimizer, together.to_accumulate(optimizer, grads), *arguments, **options)


def _clip(own, optimizer, grads):
    return grads if together.is_taken(optimizer) else own(optimizer, grads)


def _decay(own, optimizer, variables):
    return None if together.is_taken(optimizer) else own(optimizer, variables)


def _update(own, optimizer, grads, trainable_variables, learning_rate):
    if not together.is_taken(optimizer):
        together.explain_own(optimizer, _why_not(optimizer), grads)
        return own(optimizer, grads, trainable_variables, learning_rate)
    stock = together.Stock(optimizer._clip_gradients, optimizer._apply_weight_decay, optimizer._backend_update_step)
    step = together.Step(optimizer, together.RULES[type(optimizer)], stock, getattr(optimizer, "_scale", None))
    return step(grads, trainable_variables, learning_rate)


# ---- the loss scale ----


def _hands_on(wrapper):
    inner = wrapper.inner_optimizer
    return type(wrapper) is keras.optimizers.LossScaleOptimizer and _is_ours(inner) and together.takes_scaled(inner)


def _check_finite(own, wrapper, grads):
    if type(wrapper) is not keras.optimizers.LossScaleOptimizer:
        return own(wrapper, grads)
    inner = wrapper.inner_optimizer if _hands_on(wrapper) else None
    return together.check_finite(grads, inner, functools.partial(own, wrapper))


def _finite_step(own, wrapper, grads, trainable_variables):
    if not _hands_on(wrapper):
        return own(wrapper, grads, trainable_variables)
    return together.hand_on(wrapper, grads, trainable_variables, functools.partial(own, wrapper))


_BASE, _TF = "keras.src.optimizers.base_optimizer", "keras.src.backend.tensorflow.optimizer"
_SCALE = "keras.src.optimizers.loss_scale_optimizer"
_STEP = [
    Row(_BASE, "BaseOptimizer.apply", _apply),
    Row(_BASE, "BaseOptimizer._clip_gradients", _clip),
    Row(_TF, "TFOptimizer._apply_weight_decay", _decay),
    Row(_TF, "TFOptimizer._backend_update_step", _update),
]
_AROUND = [
    Row(_SCALE, "LossScaleOptimizer.check_finite", _check_finite),
    Row(_SCALE, "LossScaleOptimizer._stateful_handle_finite_grads", _finite_step),
]


def _is_there(row):
    owner, method = row.attribute.split(".")
    return method in vars(getattr(sys.modules.get(row.module), owner, object))


# The parts of a step belong together: a Keras that has not all of them where they are looked for keeps its own.
TABLE = _STEP + _AROUND if all(map(_is_there, _STEP + _AROUND)) else []
