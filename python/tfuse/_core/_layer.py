"""What tfuse's Keras layers share: a call() that leaves some inputs to Keras, and weights with what Keras asks of them."""

import functools
import inspect

import keras
import tensorflow as tf

from tfuse._core._op import FLOATS


def served(why_not, serve):
    """Decorates a class made of one of Keras's layers: its call() is serve(layer, inputs, …), with the arguments that this has,
    where why_not(layer, inputs) is "", else Keras's own. The class is registered for Keras's files."""
    def decorate(cls):
        own = cls.call
        known = inspect.signature(own).parameters

        @functools.wraps(serve)
        def call(self, inputs, **options):
            if why_not(self, inputs):
                return own(self, inputs, **{name: value for name, value in options.items() if name in known})
            return serve(self, inputs, **options)

        cls.call = call
        return keras.saving.register_keras_serializable("tfuse")(cls)

    return decorate


def layer_of(name, why_not, serve, text, example):
    """A class of serve's module, made of Keras's layer of this name as `served` makes it, with a docstring."""
    doc = "keras.layers.%s %s\n\n    Example:\n      layer = tfuse.%s(%s)\n    " % (name, text, name, example)
    stock = getattr(keras.layers, name)
    return served(why_not, serve)(type(name, (stock,), {"__doc__": doc, "__module__": serve.__module__}))


def not_computed_in(layer, x):
    """Why an input is none that a layer computes with as it is, or ""."""
    if not isinstance(x, tf.Tensor):
        return "a %s is not dense" % type(x).__name__
    if x.dtype not in FLOATS or x.dtype != layer.compute_dtype:
        return "the input is %s, the layer computes in %s" % (x.dtype.name, layer.compute_dtype)
    return ""
