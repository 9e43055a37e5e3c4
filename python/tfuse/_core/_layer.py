"""What tfuse's Keras layers share: a call() that leaves some inputs to Keras, and why."""

import functools
import inspect

import keras
import tensorflow as tf

from tfuse._core._op import FLOATS


def layer_of(name, why_not, serve, text, example):
    """A class of serve's module, made of Keras's layer of this name and registered for Keras's files: its call() is
    serve(layer, inputs, …), with the arguments that this has, where why_not(layer, inputs) is "", else Keras's own."""
    stock = getattr(keras.layers, name)
    known = inspect.signature(stock.call).parameters

    @functools.wraps(serve)
    def call(self, inputs, **options):
        if why_not(self, inputs):
            return stock.call(self, inputs, **{name: value for name, value in options.items() if name in known})
        return serve(self, inputs, **options)

    doc = "keras.layers.%s %s\n\n    Example:\n      layer = tfuse.%s(%s)\n    " % (name, text, name, example)
    cls = type(name, (stock,), {"__doc__": doc, "__module__": serve.__module__, "call": call})
    return keras.saving.register_keras_serializable("tfuse")(cls)


def not_computed_in(layer, x):
    """Why an input is none that a layer computes with as it is, or ""."""
    if not isinstance(x, tf.Tensor):
        return "a %s is not dense" % type(x).__name__
    if x.dtype not in FLOATS or x.dtype != layer.compute_dtype:
        return "the input is %s, the layer computes in %s" % (x.dtype.name, layer.compute_dtype)
    return ""
