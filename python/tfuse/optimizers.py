"""Keras's optimizers, with one op, or a few, for all variables: tfuse.optimizers.Adam, AdamW, Lion, Lamb, SGD, and
LossScaleOptimizer around them.

Arguments, state, names and results are Keras's: a checkpoint moves both ways. Moving averages, accumulated gradients and
constraints are Keras's own code around the step, which is in lists/together.py. tfuse.enable() gives the same step to
Keras's own optimizers; these are for those who want it without enable().
"""

import keras

from tfuse.lists import together


def _made_of(stock):
    """Our class of a Keras optimizer: its own text, and a serialized name of ours."""
    cls = type(stock.__name__, (together.Together, stock), {
        "__doc__": "%s of Keras, all variables in one op or a few.\n\n%s" % (stock.__name__, stock.__doc__ or ""),
        "__module__": __name__, "_rule": staticmethod(together.RULES[stock])})
    return keras.saving.register_keras_serializable(package="tfuse")(cls)


Adam = _made_of(keras.optimizers.Adam)
AdamW = _made_of(keras.optimizers.AdamW)
Lion = _made_of(keras.optimizers.Lion)
SGD = _made_of(keras.optimizers.SGD)
if hasattr(keras.optimizers, "Lamb"):  # from Keras 3.5 on
    Lamb = _made_of(keras.optimizers.Lamb)


@keras.saving.register_keras_serializable(package="tfuse")
class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    __doc__ = "LossScaleOptimizer of Keras, all variables in one op or a few.\n\n%s" % (
        keras.optimizers.LossScaleOptimizer.__doc__ or "")

    def check_finite(self, grads):
        return together.check_finite(grads, self.inner_optimizer if self._hands_on() else None, super().check_finite)

    def _stateful_handle_finite_grads(self, grads, trainable_variables):
        if not self._hands_on():
            return super()._stateful_handle_finite_grads(grads, trainable_variables)
        return together.hand_on(self, grads, trainable_variables, super()._stateful_handle_finite_grads)

    def _hands_on(self):
        """Whether the inner optimizer takes gradients that are still scaled. A subclass of one may look at them."""
        return together.Together in type(self.inner_optimizer).__bases__ and together.takes_scaled(self.inner_optimizer)
