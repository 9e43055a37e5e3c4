"""A model's decoder, whose tensors one function reads from the model's variables, as they are when it is called.

Layer by layer, from Python, that takes tens of milliseconds. What has to be converted, such as float32 variables of a model
that computes in bfloat16, is converted for each call: nothing tells whether a variable has changed. Vectors, such as the
float32 weights of norms, are then put where they were in the call before, so that a captured step finds them there.
"""

import dataclasses
import itertools
import weakref

import tensorflow as tf

from tfuse.generation import steps
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
        self._read = tf.function(self._tensors, autograph=False).get_concrete_function()
        self.device = self._device()
        self._vectors, self._chains = None, {}

    def are_of(self, model):
        """Whether the model has the layers that it had when this was made, as far as its own function would know of it:
        compile() and quantize() have that made anew, and LoRA weights are looked for here."""
        function = None if self._function is None else self._function()
        return self._model() is model and function is model.generate_function and not any(
            layer is None or layer.lora_enabled or getattr(layer, "quantization_mode", None)
            for layer in (ref() for ref in self._adaptable))

    def _device(self):
        """Where all variables are."""
        first, *others = {variable.device for variable in self._read.variables}
        if others:
            raise NotServed("the weights are on %d devices" % (1 + len(others)))
        if "GPU" not in first and tf.config.list_logical_devices("GPU"):
            raise NotServed("the weights are on the CPU, where KerasHub's own generate() is faster")
        return first

    def read(self):
        """All tensors as they are now, in one order."""
        with tf.device(self.device):
            others, tables = self._read()
            if self._vectors is None:
                self._vectors = [[tf.zeros(table.shape[1:], table.dtype) for _ in range(table.shape[0])] for table in tables]
            steps.put(self._chains, tables, self._vectors)
        return [*others, *itertools.chain(*self._vectors)]

    def decoder(self, tensors):
        """The decoder, of tensors that were read."""
        return _mapped(self._parts, _Number, lambda number: tensors[number.at])

    def _tensors(self):
        """Vectors as tables, of those that are alike, and before them the other tensors."""
        decoder = decoder_of(self._model())
        others, alike = [], {}
        for tensor in tensors_of(decoder):  # a head that is the table is read once
            (alike.setdefault((tensor.dtype, tensor.shape[0]), []) if tensor.shape.rank == 1 else others).append(tensor)
        numbers = {id(tensor): _Number(i) for i, tensor in enumerate([*others, *itertools.chain(*alike.values())])}
        self._parts = _mapped(decoder, tf.Tensor, lambda tensor: numbers[id(tensor)])
        return others, [tf.stack(some) for some in alike.values()]


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
