"""What tfuse.enable() replaces in Keras's optimizers: the step of Adam, AdamW, Lamb, Lion and SGD, and the loss scale around
it. Exact classes only: a subclass may look at gradients between the parts of a step.

apply() clips, decays and updates, by three methods. While tfuse is enabled and apply() runs, the first two leave everything to
the third (together.methods). Where that leaves variables to Keras, the three are called again, as Keras's own; as they are
for whoever calls them outside of apply().
"""

import keras
import tensorflow as tf

from tfuse._core import _library, _op
from tfuse._core._explain import reason
from tfuse._keras._replaced import Row
from tfuse.lists import together


@reason
def _why_not(optimizer):
    """Why Keras's own step is left in place."""
    name, bases = type(optimizer).__name__, [base.__name__ for base in together.RULES if isinstance(optimizer, base)]
    if type(optimizer) not in together.RULES:
        yield "%s is a subclass of %s" % (name, bases[0]) if bases else "tfuse has no step for %s" % name
    # On two cores, AdamW takes 6.5 ms for 8 matrices of 1024 by 1024, our op 13.
    in_xla = _library.without_gpu() and not tf.executing_eagerly() and _op.inside_xla()
    yield in_xla and "there is no GPU: XLA's own code is faster"
    yield together.why_not(optimizer)


def _where(applies, serve):
    return lambda own, optimizer, *inputs, **options: (
        serve(own, optimizer, *inputs, **options) if applies(optimizer) else own(optimizer, *inputs, **options))


_BASE, _TF = "keras.src.optimizers.base_optimizer.BaseOptimizer", "keras.src.backend.tensorflow.optimizer.TFOptimizer"
_SCALE = "keras.src.optimizers.loss_scale_optimizer.LossScaleOptimizer"
_HOMES = {"apply": _BASE, "_clip_gradients": _BASE, "_apply_weight_decay": _TF, "_backend_update_step": _TF,
          "check_finite": _SCALE, "_stateful_handle_finite_grads": _SCALE}


def _row(method, serve):
    module, _, owner = _HOMES[method].rpartition(".")
    return Row(module, "%s.%s" % (owner, method), serve, part_of="the step of an optimizer")


# Those of tfuse.optimizers see to themselves.
TABLE = [
    *(_row(method, _where(lambda optimizer: not together.is_made_here(optimizer), serve))
      for method, serve in together.methods(_why_not).items()),
    *(_row(method, _where(lambda wrapper: type(wrapper) is keras.optimizers.LossScaleOptimizer, serve))
      for method, serve in together.scale_methods(lambda inner: not _why_not(inner)).items()),
]
