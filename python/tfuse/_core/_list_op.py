"""ListOp: an op over lists of tensors, on the routes that FusedOp has."""

import functools
import re

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import op_def_registry

from tfuse._core import _explain, _library, _op, _xla


class ListOp:
    """Callable as op(*arguments, **attributes), with a list for each argument that the row says is one. Returns a list of
    results, each a list where the row says so.

    Args:
      name: CamelCase, as in the op's row.
      plain: function(*arguments, **attributes), the same in plain TensorFlow.
      outputs: function(*arguments) -> for every output tensor its dtype and its shape, or the number of the input, all lists
        taken together, that it is like.
        Not needed where not_in_xla says something.
      gradient: function(arguments, results, output gradients, **attributes) -> gradients of all inputs, flat; None: there is
        none.
      not_in_xla: why inside XLA `plain` is better than the op.
      in_place: inside XLA, output i takes the memory of input in_place(i, *arguments), if nobody else needs that.
    """

    def __init__(self, name, plain, outputs=None, gradient=None, in_place=None, not_in_xla=""):
        self.name, self.plain, self._outputs, self._gradient, self._in_place = name, plain, outputs, gradient, in_place
        self._not_in_xla = not_in_xla
        self.stem = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
        self._raw = _library.raw(self.stem)
        self._definition = op_def_registry.get("Tfuse>" + name)
        of = lambda arguments: {a.type_attr for a in arguments}
        self._told = "S" in of(self._definition.output_arg) - of(self._definition.input_arg)  # types that only outputs have
        numbers = {a.number_attr for a in self._definition.input_arg}
        self._attributes = [a.name for a in self._definition.attr if a.type != "type" and a.name not in numbers]
        if gradient:
            tf.RegisterGradient("Tfuse>" + name)(self._gradient_of_node)
        else:
            tf.no_gradient("Tfuse>" + name)
        _op.registry[name] = self

    def __call__(self, *arguments, **attributes):
        if context.executing_eagerly() or not _op.inside_xla():
            told = {"S": _op.real(arguments[0][0].dtype)} if self._told else {}
            results = self._raw(*arguments, **attributes, **told)
            results = self._flat(results if isinstance(results, (list, tuple)) else [results])
            return self._nested(self._definition.output_arg, results, arguments)
        reason = self._why_not(arguments)
        if reason:
            _explain.note(self.name, "plain TensorFlow", reason, self._flat(arguments))
            return self.plain(*arguments, **attributes)
        _explain.note(self.name, "XLA custom call", "traced inside jit_compile=True", self._flat(arguments))
        return self._in_xla(arguments, attributes)

    def _why_not(self, arguments):
        """"" or why XLA cannot be given the op."""
        if self._not_in_xla or _library.xla_status():
            return self._not_in_xla or _library.xla_status()
        unknown = any(t.shape.rank is None for t in self._flat(arguments))
        return "a tensor has an unknown number of dimensions inside jit_compile=True" if unknown else ""

    def _in_xla(self, arguments, attributes):
        inputs = self._flat(arguments)
        numbers = self._numbers(self._definition.input_arg, arguments)
        specs, dims = [], []
        for like in self._outputs(*arguments):
            dtype, shape = (inputs[like].dtype, inputs[like].shape) if isinstance(like, int) else like
            specs.append(tf.TensorSpec(shape, dtype))
            dims.append([(like, axis) if size is None else size for axis, size in enumerate(specs[-1].shape)])
        aliases = [self._in_place(i, *arguments) for i in range(len(specs))] if self._in_place else []

        def call(inputs):
            target, room = _library.xla_target(self.stem)
            return _xla.custom_call(target, inputs, specs, dims, {**numbers, **attributes}, aliases, room)

        differentiate = functools.partial(self._differentiate, attributes)
        outputs = _xla.differentiable(call, differentiate, inputs) if self._gradient else call(inputs)
        return self._nested(self._definition.output_arg, list(outputs), arguments)

    # ---- lists and their lengths ----

    def _flat(self, arguments):
        return [t for a in arguments for t in (a if isinstance(a, (list, tuple)) else [a])]

    def _numbers(self, definitions, arguments):
        return {d.number_attr: len(a) for d, a in zip(definitions, arguments) if d.number_attr}

    def _nested(self, definitions, flat, arguments=None, numbers=None):
        numbers = numbers or self._numbers(self._definition.input_arg, arguments)
        flat = iter(flat)
        return [[next(flat) for _ in range(numbers[d.number_attr])] if d.number_attr else next(flat) for d in definitions]

    # ---- gradients ----

    def _gradient_of_node(self, node, *dy):
        return self._differentiate({name: node.get_attr(name) for name in self._attributes}, node.inputs, node.outputs, *dy)

    def _differentiate(self, attributes, inputs, outputs, *dy):
        own = len(inputs) - sum(not d.number_attr for d in self._definition.input_arg)  # one list, and single tensors
        numbers = {d.number_attr: own for d in self._definition.input_arg if d.number_attr}
        nested = functools.partial(self._nested, numbers=numbers)
        definition = self._definition
        return self._gradient(nested(definition.input_arg, inputs), nested(definition.output_arg, outputs),
                              nested(definition.output_arg, dy), **attributes)
