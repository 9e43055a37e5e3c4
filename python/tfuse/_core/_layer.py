"""What tfuse's Keras layers are made of: Keras's own with other methods, which leave some inputs to those, and a base class."""

import functools
import inspect

import keras
import tensorflow as tf
from keras.src.backend.common.variables import AutocastScope

from tfuse._core._explain import reason
from tfuse._core._op import FLOATS


def as_kept():
    """Inside of `with as_kept():` variables are read in the dtype that they have, not in the one that a layer computes in."""
    return AutocastScope(None)


def made_of(stock, methods, doc, module, **attributes):
    """A class made of one of Keras's, with its name, and registered for Keras's files. methods: by name, what takes the place of
    its methods; each is called with the method it replaces, then with that one's arguments."""
    def method(own, serve):
        return functools.wraps(own)(lambda self, *inputs, **options: serve(own, self, *inputs, **options))

    replaced = {of: method(getattr(stock, of), serve) for of, serve in methods.items()}
    cls = type(stock.__name__, (stock,), {"__doc__": doc, "__module__": module, **replaced, **attributes})
    return keras.saving.register_keras_serializable("tfuse")(cls)


def layer_of(name, why_not, serve, text, example):
    """A class of serve's module, made of Keras's layer of this name and registered for Keras's files: its call() is
    serve(layer, inputs, …), with the arguments that this has, where why_not(layer, inputs) is "", else Keras's own."""
    stock = getattr(keras.layers, name)
    known = inspect.signature(stock.call).parameters

    @functools.wraps(serve)
    def call(self, inputs, *others, **options):
        if why_not(self, inputs):
            return stock.call(self, inputs, *others, **{name: value for name, value in options.items() if name in known})
        return serve(self, inputs, *others, **options)

    doc = "keras.layers.%s %s\n\n    Example:\n      layer = tfuse.%s(%s)\n    " % (name, text, name, example)
    return made_of(stock, {}, doc, serve.__module__, call=call)


class Layer(keras.layers.Layer):
    """A layer of tfuse's own. Masks pass through it, and shapes, unless it says otherwise."""
    ARGUMENTS = ()  # of its own, each kept in an attribute of that name
    _OF_WEIGHTS = {"initializer": keras.initializers, "regularizer": keras.regularizers, "constraint": keras.constraints}

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking, self._asked = True, ()

    def _ask(self, weight, *asked):
        """Keeps what the arguments WEIGHT_initializer, WEIGHT_regularizer and WEIGHT_constraint say."""
        for (kind, module), value in zip(self._OF_WEIGHTS.items(), asked):
            setattr(self, "%s_%s" % (weight, kind), module.get(value))
            self._asked += (weight, kind),

    def _weight(self, name, shape):
        """A weight as it was asked for."""
        return self.add_weight(name=name, shape=shape, **{
            kind: getattr(self, "%s_%s" % (name, kind)) for weight, kind in self._asked if weight == name})

    def compute_output_shape(self, input_shape, **_):
        return input_shape

    def get_config(self):
        asked = {"%s_%s" % pair: self._OF_WEIGHTS[pair[1]].serialize(getattr(self, "%s_%s" % pair)) for pair in self._asked}
        return {**super().get_config(), **{name: getattr(self, name) for name in self.ARGUMENTS}, **asked}


@reason
def not_computed_in(layer, x):
    """Why an input is none that a layer computes with as it is."""
    yield not isinstance(x, tf.Tensor) and "a %s is not dense" % type(x).__name__
    odd = x.dtype not in FLOATS or x.dtype != layer.compute_dtype
    yield odd and "the input is %s, the layer computes in %s" % (x.dtype.name, layer.compute_dtype)
