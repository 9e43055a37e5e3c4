"""Fused ops on KerasTensors: a call inside a functional model becomes an operation of that model, saved with it."""

import keras
import tensorflow as tf

from tfuse._core import _op


@keras.saving.register_keras_serializable("tfuse")
class FusedOperation(keras.Operation):
    """One fused op with its attributes, as a node of a Keras model."""

    def __init__(self, op, attributes, name=None):
        super().__init__(name=name)
        self.op, self.attributes = op, attributes

    def call(self, *inputs):
        return _op.registry[self.op](*inputs, **self.attributes)

    def compute_output_spec(self, *inputs):
        specs = [keras.KerasTensor(s.shape.as_list(), s.dtype.name)
                 for s in _op.registry[self.op].output_specs(inputs, self.attributes)]
        return specs if len(specs) > 1 else specs[0]

    def get_config(self):
        return {**super().get_config(), "op": self.op, "attributes": self.attributes}


@keras.saving.register_keras_serializable("tfuse")
class FusedFunction(keras.Operation):
    """One call of a public function, as a node of a Keras model."""

    def __init__(self, function, name=None):
        super().__init__(name=name)
        self.function = function

    def call(self, *inputs, **options):
        return _op.composites[self.function](*inputs, **options)

    def get_config(self):
        return {**super().get_config(), "function": self.function}


def apply(op, inputs, attributes):
    op.check_dtype(tf.as_dtype(next(i for i in inputs if hasattr(i, "dtype")).dtype))
    return FusedOperation(op.name, attributes)(*inputs)
