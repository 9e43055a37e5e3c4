"""A model's decoder, whose tensors one function reads from the model's variables, as they are when it is called.

Layer by layer, from Python, that takes tens of milliseconds. What has to be converted, such as float32 variables of a model
that computes in bfloat16, is converted for each call: nothing tells whether a variable has changed.
"""

import dataclasses
import weakref

import tensorflow as tf

from tfuse.generation.decoders import NotServed
from tfuse.generation.families import decoder_of


class Weights:
    """How to read a model's decoder. Raises NotServed."""

    def __init__(self, model):
        self._model = weakref.ref(model)
        self._function = weakref.ref(model.generate_function) if model.generate_function is not None else None
        layers = model.backbone._flatten_layers() if getattr(model, "backbone", None) is not None else []
        self._adaptable = [weakref.ref(layer) for layer in layers if hasattr(layer, "lora_enabled")]
        self._parts = None
        self.read = tf.function(self._tensors, autograph=False).get_concrete_function()  # gives all tensors, in one order
        self.device = self._device()

    def are_of(self, model):
        """Whether the model has the layers that it had when this was made, as far as its own function would know of it:
        compile() and quantize() have that made anew, and LoRA weights are looked for here."""
        function = None if self._function is None else self._function()
        return self._model() is model and function is model.generate_function and not any(
            layer is None or layer.lora_enabled or getattr(layer, "quantization_mode", None)
            for layer in (ref() for ref in self._adaptable))

    def _device(self):
        """Where all variables are."""
        first, *others = {variable.device for variable in self.read.variables}
        if others:
            raise NotServed("the weights are on %d devices" % (1 + len(others)))
        if "GPU" not in first and tf.config.list_logical_devices("GPU"):
            raise NotServed("the weights are on the CPU, where KerasHub's own generate() is faster")
        return first

    def decoder(self, tensors):
        """The decoder, of tensors that were read."""
        return _mapped(self._parts, _Number, lambda number: tensors[number.at])

    def _tensors(self):
        decoder = decoder_of(self._model())
        tensors = tensors_of(decoder)  # a head that is the table is read once
        numbers = {id(tensor): _Number(i) for i, tensor in enumerate(tensors)}
        self._parts = _mapped(decoder, tf.Tensor, lambda tensor: numbers[id(tensor)])
        return tensors


@dataclasses.dataclass(frozen=True)
class _Number:
    """Stands for a tensor."""
    at: int


def tensors_of(decoder):
    """All tensors that a decoder has, each once."""
    found = {}
    _mapped(decoder, tf.Tensor, lambda tensor: found.setdefault(id(tensor), tensor))
    return list(found.values())


def _mapped(part, kind, function):
    """A decoder, or a part of it, with function(x) for each x of a kind."""
    if isinstance(part, kind):
        return function(part)
    if isinstance(part, list):
        return [_mapped(p, kind, function) for p in part]
    if dataclasses.is_dataclass(part):
        return dataclasses.replace(part, **{field.name: _mapped(getattr(part, field.name), kind, function)
                                            for field in dataclasses.fields(part)})
    return part
