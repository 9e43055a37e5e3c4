"""A functional model whose convolutions run in int8: which parts of it become one convolution, and the model that is made of
them.

A part is a Conv2D and what follows it where nobody else sees that: a BatchNormalization, whose numbers go into the kernel and
the bias, the sum with a residual, and relu. Between parts numbers stay int8.
"""

import collections
import dataclasses

import keras
import numpy as np

from tfuse.convolution import batch_norm, conv_layers
from tfuse.convolution.quantized_conv_layer import Quantize, QuantizedConv2D

CHANNELS = 16  # bytes that tensor cores take at a time
_CONVS = keras.layers.Conv2D, conv_layers.Conv2D
_NORMS = keras.layers.BatchNormalization, batch_norm.BatchNormalization
_DTYPES = "float32", "float16", "bfloat16"


@dataclasses.dataclass
class Part:
    """Tensors are those of the model."""
    conv: object
    x: object
    y: object
    norm: object = None
    residual: object = None
    relu: bool = False
    nodes: list = dataclasses.field(default_factory=list)
    why_not: str = ""

    def floats(self):
        """Kernel and bias, with the norm in them."""
        kernel = np.asarray(self.conv.kernel, "float64")
        bias = np.zeros(kernel.shape[-1]) if self.conv.bias is None else np.asarray(self.conv.bias, "float64")
        if self.norm is None:
            return kernel, bias
        number = lambda weight, otherwise: otherwise if weight is None else np.asarray(weight, "float64")
        by = number(self.norm.gamma, 1.0) / np.sqrt(np.asarray(self.norm.moving_variance, "float64") + self.norm.epsilon)
        return kernel * by, (bias - np.asarray(self.norm.moving_mean, "float64")) * by + number(self.norm.beta, 0.0)

    def layer(self, ranges, narrow):
        """The part as one layer, built; its results are int8 where narrow."""
        conv, of = self.conv, lambda t: ranges[id(t)]
        made = QuantizedConv2D(
            conv.filters, conv.kernel_size, conv.strides, conv.padding, conv.dilation_rate, "relu" if self.relu else None,
            x_range=of(self.x), y_range=of(self.y) if narrow else None,
            residual_range=None if self.residual is None else of(self.residual), name=conv.name,
            dtype=self.conv.dtype_policy)
        made.build(tuple(self.x.shape))
        made.set_floats(*self.floats())
        return made


class Graph:
    """The nodes of a functional model, and who sees which tensor."""

    def __init__(self, model):
        self.model = getattr(model, "_functional", None) or model  # of a Sequential
        depths = self.model._nodes_by_depth
        self.nodes = [node for depth in sorted(depths, reverse=True) for node in depths[depth] if not node.is_input]
        self._seers = {}
        for node in self.nodes:
            for t in node.input_tensors:
                self._seers.setdefault(id(t), []).append(node)
        for t in self.model.outputs:
            self._seers.setdefault(id(t), []).append(None)

    def seers(self, t):
        """The nodes that see a tensor; None for the model's result."""
        return self._seers.get(id(t), [])

    def next(self, t, *kinds):
        """The one node that sees a tensor, where it is of such a layer; else None."""
        seers = self.seers(t)
        node = seers[0] if len(seers) == 1 else None
        return node if node is not None and type(node.operation) in kinds else None


def is_functional(model):
    return isinstance(getattr(model, "_functional", None) or model, keras.Model) and hasattr(
        getattr(model, "_functional", None) or model, "_nodes_by_depth")


def parts_of(graph):
    """All parts that begin with a Conv2D; those that stay floats say why. A layer that is called more than once is one part, of
    its first call."""
    parts, taken = [], set()
    calls = collections.Counter(id(node.operation) for node in graph.nodes)
    for node in graph.nodes:
        if type(node.operation) not in _CONVS or any(part.conv is node.operation for part in parts):
            continue
        part = _part(graph, node, taken, calls[id(node.operation)])
        taken |= {id(n) for n in part.nodes}
        parts.append(part)
    return parts


def _part(graph, node, taken, calls):
    conv = node.operation
    x = node.input_tensors[0]
    part = Part(conv, x, node.output_tensors[0], nodes=[node], why_not=_why_not(conv, x, calls))
    if part.why_not:
        return part
    part.relu = conv.activation is keras.activations.relu

    def follow(*kinds, when=lambda layer: True):
        found = None if part.relu else graph.next(part.y, *kinds)
        if found is None or id(found) in taken or not when(found.operation) or _trains(found):
            return None
        part.nodes.append(found)
        part.y = found.output_tensors[0]
        return found

    norm = follow(*_NORMS, when=lambda layer: layer.axis in (-1, 3))
    part.norm = norm.operation if norm else None
    before = part.y
    two = lambda node: (len(node.input_tensors) == 2 and node.input_tensors[0] is not node.input_tensors[1] and
                        {tuple(t.shape) for t in node.input_tensors} == {tuple(before.shape)})
    added = graph.next(before, keras.layers.Add)
    if added is not None and two(added) and follow(keras.layers.Add):
        part.residual = next(t for t in added.input_tensors if t is not before)
    if follow(keras.layers.Activation, when=lambda layer: layer.activation is keras.activations.relu) or follow(
            keras.layers.ReLU, when=lambda layer: not (layer.max_value or layer.negative_slope or layer.threshold)):
        part.relu = True
    return part


def _trains(node):
    """Whether the layer is called with training=True, for which a norm takes the statistics of the batch."""
    return True in (node.arguments.kwargs.get("training"), *node.arguments.args[1:2])


def _why_not(conv, x, calls):
    if calls > 1:
        return "it is called more than once"
    if not conv.built or conv.groups != 1 or conv.data_format != "channels_last":
        return "it has groups" if conv.groups != 1 else "its channels come first"
    if conv.compute_dtype not in _DTYPES:
        return "it computes in %s" % conv.compute_dtype
    for size, name in ((x.shape[-1], "channels"), (conv.filters, "filters")):
        if size % CHANNELS:
            return "its %d %s are no multiple of %d" % (size, name, CHANNELS)
    known = conv.activation in (keras.activations.linear, keras.activations.relu)
    return "" if known else "int8 has no such activation"


def watched(parts):
    """The tensors whose ranges are needed, by id."""
    return {id(t): t for part in parts for t in (part.x, part.residual, part.y) if t is not None}


def converted(graph, parts, ranges):
    """The model with these parts in int8. Its other layers are the model's own."""
    inside = {id(node) for part in parts for node in part.nodes}
    last = {id(part.nodes[-1]): part for part in parts}
    takers = {}  # by id of a tensor: how many parts take its numbers as int8
    for part in parts:
        for t in (part.x, part.residual):
            takers[id(t)] = takers.get(id(t), 0) + (t is not None)
    floats, codes = {id(t): t for t in graph.model.inputs}, {}

    def narrow(t):
        if id(t) not in codes:
            codes[id(t)] = Quantize(ranges[id(t)])(floats[id(t)])
        return codes[id(t)]

    for node in graph.nodes:
        part = last.get(id(node))
        if part:
            stays = takers.get(id(part.y), 0) == len(graph.seers(part.y))
            x = narrow(part.x)
            inputs = x if part.residual is None else [x, narrow(part.residual)]
            (codes if stays else floats)[id(part.y)] = part.layer(ranges, stays)(inputs)
        elif id(node) not in inside:
            arguments, options = node.arguments.fill_in(floats)
            results = node.operation(*arguments, **options)
            floats.update((id(t), made) for t, made in zip(node.output_tensors, keras.tree.flatten(results)))
    model = graph.model
    outputs = keras.tree.map_structure(lambda t: floats[id(t)], model._outputs_struct)
    return keras.Model(model._inputs_struct, outputs, name=model.name)
