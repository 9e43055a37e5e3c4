"""ListOp: an op over lists of tensors, on the routes that FusedOp has."""

import functools

import tensorflow as tf
from tensorflow.python.eager import context

from tfuse._core import _library, _op, _row
from tfuse._core._registered import Registered


class ListOp(Registered):
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
        super().__init__(name, plain)
        self._outputs, self._gradient, self._in_place, self._not_in_xla = outputs, gradient, in_place, not_in_xla
        if gradient:
            tf.RegisterGradient(self._registered)(lambda node, *dy: self._differentiate(
                {name: node.get_attr(name) for name in self._attributes}, node.inputs, node.outputs, *dy))
        else:
            tf.no_gradient(self._registered)

    def __call__(self, *arguments, **attributes):
        if context.executing_eagerly() or not _op.inside_xla():
            told = {"S": _op.real(arguments[0][0].dtype).real_dtype} if "S" in self._told else {}
            results = self._raw(*arguments, **attributes, **told)
            results = self._flat(results if isinstance(results, (list, tuple)) else [results])
            return self._nested(self._definition.output_arg, results, arguments)
        inputs = self._flat(arguments)
        reason = self._not_in_xla or _library.xla_status()
        if not reason and any(t.shape.rank is None for t in inputs):
            reason = "a tensor has an unknown number of dimensions inside jit_compile=True"
        scalars = {**self._numbers(self._definition.input_arg, arguments), **attributes}
        if reason:
            outputs = sum(scalars[d.number_attr] if d.number_attr else 1 for d in self._definition.output_arg)
            _row.check(self.stem, inputs, scalars, outputs)
            return self._left(reason, inputs)(*arguments, **attributes)
        specs, dims = [], []
        for like in self._outputs(*arguments):
            dtype, shape = (inputs[like].dtype, inputs[like].shape) if isinstance(like, int) else like
            specs.append(tf.TensorSpec(shape, dtype))
            dims.append([(like, axis) if size is None else size for axis, size in enumerate(specs[-1].shape)])
        aliases = [self._in_place(i, *arguments) for i in range(len(specs))] if self._in_place else []
        outputs = self._custom_call(inputs, specs, dims, scalars, aliases=aliases, gradient=self._gradient and functools.partial(
            self._differentiate, attributes))
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

    def _differentiate(self, attributes, inputs, outputs, *dy):
        own = len(inputs) - sum(not d.number_attr for d in self._definition.input_arg)  # one list, and single tensors
        numbers = {d.number_attr: own for d in self._definition.input_arg if d.number_attr}
        nested = functools.partial(self._nested, numbers=numbers)
        definition = self._definition
        return self._gradient(nested(definition.input_arg, inputs), nested(definition.output_arg, outputs),
                              nested(definition.output_arg, dy), **attributes)
