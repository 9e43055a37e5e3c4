"""A model's decoder, whose tensors one function reads from the model's variables, as they are when it is called.

Layer by layer, from Python, that takes tens of milliseconds. What has to be converted, such as float32 variables of a model
that computes in bfloat16, is converted for each call: nothing tells whether a variable has changed. Vectors, such as the
float32 weights of norms, are then put where they were in the call before, so that a captured step finds them there. Kernels
that are quantised are put in tiles, which stay (tiles.py).
"""

import dataclasses
import itertools
import weakref

import tensorflow as tf

from tfuse.generation import steps, tiles
from tfuse.generation.decoders import NotServed, Quantized, all_of, mapped
from tfuse.generation.families import decoder_of


class Weights:
    """How to read a model's decoder. Raises NotServed."""

    def __init__(self, model):
        self._model = weakref.ref(model)
        self._function = weakref.ref(model.generate_function) if model.generate_function is not None else None
        layers = model.backbone._flatten_layers() if getattr(model, "backbone", None) is not None else []
        self._adaptable = [(weakref.ref(layer), _mode(layer)) for layer in layers if hasattr(layer, "lora_enabled")]
        self._parts = self._quantized = None
        self._read = tf.function(self._tensors, autograph=False).get_concrete_function()
        self.device = self._device()
        self._vectors, self._chains = None, {}

    def are_of(self, model):
        """Whether the model has the layers that it had when this was made, as far as its own function would know of it:
        compile() and quantize() have that made anew, and LoRA weights are looked for here."""
        function = None if self._function is None else self._function()
        return self._model() is model and function is model.generate_function and not any(
            layer is None or layer.lora_enabled or _mode(layer) != mode
            for layer, mode in ((ref(), mode) for ref, mode in self._adaptable))

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
            tensors = [*others, *itertools.chain(*self._vectors)]
            kernels = [mapped(part, _Number, lambda number: tensors[number.at]) for part in self._quantized]
            return tensors + list(itertools.chain(*tiles.of(self._model(), kernels)))

    def decoder(self, tensors):
        """The decoder, of tensors that were read."""
        return mapped(self._parts, _Number, lambda number: tensors[number.at])

    def _tensors(self):
        """Vectors as tables, of those that are alike, and before them the other tensors.

        Vectors of quantised kernels are among the others: tiles.py must see the variables' own memory."""
        decoder = decoder_of(self._model())
        others, alike = {}, {}
        for part in all_of(decoder, Quantized):
            others.update((id(tensor), tensor) for tensor in all_of(dataclasses.replace(part, bias=None), tf.Tensor))
        for tensor in all_of(decoder, tf.Tensor):  # a head that is the table is read once
            if tensor.shape.rank == 1 and id(tensor) not in others:
                alike.setdefault((tensor.dtype, tensor.shape[0]), []).append(tensor)
            else:
                others[id(tensor)] = tensor
        numbers = {id(tensor): _Number(i) for i, tensor in enumerate([*others.values(), *itertools.chain(*alike.values())])}
        parts = mapped(decoder, tf.Tensor, lambda tensor: numbers[id(tensor)])
        self._quantized, after = all_of(parts, Quantized), itertools.count(len(numbers))
        made = {id(part): tiles.tiled(part, _Number(next(after)), _Number(next(after))) for part in self._quantized}
        self._parts = mapped(parts, Quantized, lambda part: made[id(part)])
        return list(others.values()), [tf.stack(some) for some in alike.values()]


def _mode(layer):
    return getattr(layer, "quantization_mode", None)


@dataclasses.dataclass(frozen=True)
class _Number:
    """Stands for a tensor."""
    at: int
