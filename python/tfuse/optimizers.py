"""Keras's optimizers, with one op, or a few, for all variables: tfuse.optimizers.Adam, AdamW, Lion, Lamb, SGD, and
LossScaleOptimizer around them.

Arguments, state, names and results are Keras's: a checkpoint moves both ways. Moving averages, accumulated gradients and
constraints are Keras's own code around the step, which is in lists/together.py. tfuse.enable() gives the same step to
Keras's own optimizers; these are for those who want it without enable().
"""

import keras

from tfuse._core import _layer
from tfuse.lists import together


def _made_of(stock, methods, **attributes):
    """Our class of a Keras optimizer: its own text, and a serialized name of ours."""
    doc = "%s of Keras, all variables in one op or a few.\n\n%s" % (stock.__name__, stock.__doc__ or "")
    return _layer.made_of(stock, methods, doc, __name__, **attributes)


def _optimizer(name):
    stock = getattr(keras.optimizers, name)
    return _made_of(stock, together.methods(together.why_not), _made_of=stock)


Adam, AdamW, Lion, SGD = map(_optimizer, ["Adam", "AdamW", "Lion", "SGD"])
if hasattr(keras.optimizers, "Lamb"):  # from Keras 3.5 on
    Lamb = _optimizer("Lamb")
# Of an inner optimizer's own class: a subclass may look at its gradients.
LossScaleOptimizer = _made_of(keras.optimizers.LossScaleOptimizer, together.scale_methods(
    lambda inner: "_made_of" in vars(type(inner)) and not together.why_not(inner)))
