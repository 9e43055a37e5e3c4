"""Fused ops on KerasTensors: a call inside a functional model becomes an operation of that model, saved with it."""

import keras
import numpy as np
import tensorflow as tf

from tfuse import _op


@keras.saving.register_keras_serializable("tfuse")
class FusedOperation(keras.Operation):
    """One fused op with its attributes, as a node of a Keras model."""

    def __init__(self, op, attributes, name=None):
        super().__init__(name=name)
        self.op, self.attributes = op, attributes

    def call(self, *inputs):
        return _op.registry[self.op](*inputs, **self.attributes)

    def compute_output_spec(self, *inputs):
        tensors = [_spec(i, inputs[0].dtype) for i in inputs]
        specs = [keras.KerasTensor(s.shape.as_list(), s.dtype.name)
                 for s in _op.registry[self.op].output_specs(tensors, self.attributes)]
        return specs if len(specs) > 1 else specs[0]

    def get_config(self):
        return {**super().get_config(), "op": self.op, "attributes": self.attributes}


def _spec(value, dtype):
    """Of a KerasTensor, of a number or array that will take the first input's dtype, or of nothing."""
    if value is None:
        return tf.TensorSpec([0], dtype)
    if hasattr(value, "shape") and not isinstance(value, (np.ndarray, np.generic)):
        return tf.TensorSpec(value.shape, value.dtype)
    return tf.TensorSpec(np.shape(value), dtype)


def apply(op, inputs, attributes):
    op.check_dtype(tf.as_dtype(next(i for i in inputs if hasattr(i, "dtype")).dtype))
    return FusedOperation(op.name, attributes)(*inputs)
