"""FusedOp: one op on every route.

Eagerly and in a tf.function it is the TensorFlow op. While a jit_compile=True function is traced it is an XLA custom
call of the same kernel. Where neither can serve, it is `plain`, the composition of TensorFlow's own ops that says what
the op computes. The gradient is written once and serves all three.
"""

import functools
import re

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework.ops import EagerTensor
from tensorflow.python.ops import control_flow_util
from tensorflow.python.pywrap_tfe import TFE_Py_FastPathExecute as execute

from tfuse import _explain, _library, _xla

Tensor = tf.Tensor  # a global is found faster than an attribute of tf
FLOATS = (tf.float32, tf.float16, tf.bfloat16, tf.float64)
_LARGEST = {dtype: float(dtype.max) for dtype in FLOATS}
_MARKS = (1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049)  # stand for unknown sizes; a tensor of them has no 2^63 elements
registry = {}  # by name
_empty = {}  # by number of the dtype


class FusedOp:
    """Callable as op(*inputs, **attributes). An input may be None where the op takes an empty tensor for "not given".

    Args:
      name: CamelCase, as in the op's row.
      plain: function(*inputs, **attributes), the same in plain TensorFlow. Not-given inputs come as empty tensors.
      gradient: function(node, *output_gradients) -> gradients of the inputs; node has inputs, outputs and
        attr(name). None: differentiate `plain`, which also gives every gradient op its own gradient.
    """

    def __init__(self, name, plain, gradient=None):
        self.name, self.plain = name, plain
        self.stem = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
        self._registered = "Tfuse>" + name
        self._raw = getattr(_library.ops, "tfuse_" + self.stem)
        self._arguments = re.findall(r"\b(\w+): A `Tensor`", self._raw.__doc__ or "")
        self._gradient = gradient or self._plain_gradient
        tf.RegisterGradient(self._registered)(self._gradient_of_node)
        registry[name] = self

    def __call__(self, *inputs, **attributes):
        # Eagerly, what the generated wrapper does, but less: in a small op every microsecond of Python shows. TensorFlow
        # checks dtypes itself, and faster; only when it objects do we look for the reason, in _run.
        first, eager = inputs[0], context.context()
        if type(first) is EagerTensor and eager.executing_eagerly():
            given = inputs
            try:
                for value in inputs:
                    if type(value) is not EagerTensor:
                        given = self._complete(inputs)
                        break
                return execute(eager, self._registered, None, *given, *_flat(attributes))
            except Exception:
                pass
        return self._run(inputs, attributes)

    def _complete(self, inputs):
        """Eager inputs with empty tensors for what is not given; numbers and variables take the slow way."""
        complete = []
        for value in inputs:
            if value is None:
                value = _nothing_like(inputs[0])
            elif type(value) is not EagerTensor:
                return self._convert(inputs)
            complete.append(value)
        return complete

    def _run(self, inputs, attributes):
        try:
            inputs = self._convert(inputs)
        except _Symbolic:
            from tfuse import _symbolic
            return _symbolic.apply(self, inputs, attributes)
        if context.executing_eagerly():
            return self._raw(*inputs, **attributes)
        if not control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
            return self._raw(*inputs, **attributes)
        return self._in_xla(inputs, attributes)

    def output_specs(self, inputs, attributes):
        """Dtypes and shapes that the op's own shape rule gives, as a list of TensorSpecs."""
        with tf.Graph().as_default():
            outputs = self._raw(*[tf.compat.v1.placeholder(i.dtype, i.shape) for i in inputs], **attributes)
        outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        return [tf.TensorSpec(o.shape, o.dtype) for o in outputs]

    # ---- inputs ----

    def _convert(self, inputs):
        first = inputs[0]
        if not isinstance(first, Tensor):
            first = self._tensor(0, first, None)
        dtype = self.check_dtype(first.dtype)
        converted = [first]
        for i, value in enumerate(inputs[1:], 1):
            if value is None:
                converted.append(_nothing(dtype))
                continue
            if not isinstance(value, Tensor):
                value = self._tensor(i, value, dtype)
            if value.dtype != dtype:
                raise ValueError("%s: %s must be %s like %s, got %s; cast one of them" % (
                    self.stem, self._argument(i), dtype.name, self._argument(0), value.dtype.name))
            converted.append(value)
        return converted

    def check_dtype(self, dtype):
        if dtype not in _LARGEST:
            raise ValueError("%s: %s must be float32, float16, bfloat16 or float64, got %s" % (
                self.stem, self._argument(0), dtype.name))
        return dtype

    def _tensor(self, i, value, dtype):
        """A variable or Keras tensor keeps its dtype; numbers and arrays take `dtype` if their values fit it."""
        if _is_symbolic(value):
            raise _Symbolic
        if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
            raise ValueError("%s: %s must be a dense tensor, got a %s; tf.ragged.map_flat_values serves elementwise ops" % (
                self.stem, self._argument(i), type(value).__name__))
        if dtype is None or hasattr(value, "dtype") and not isinstance(value, (np.ndarray, np.generic)):
            return tf.convert_to_tensor(value)
        try:
            largest = np.max(np.abs(np.where(np.isfinite(value), value, 0)), initial=0)
        except NotImplementedError:  # a list of symbolic tensors
            return tf.convert_to_tensor(value, dtype)
        except TypeError:
            raise ValueError("%s: %s must be a tensor, a number or an array of numbers, got %r" % (
                self.stem, self._argument(i), value)) from None
        if largest > _LARGEST[dtype]:
            raise ValueError("%s: %s must fit %s, whose largest value is %g; got %g" % (
                self.stem, self._argument(i), dtype.name, _LARGEST[dtype], largest))
        return tf.convert_to_tensor(value, dtype)

    def _argument(self, i):
        return self._arguments[i] if i < len(self._arguments) else "input %d" % i

    # ---- gradients ----

    def _gradient_of_node(self, node, *dy):
        return self._gradient(_Node(node.inputs, node.outputs, lambda name: _text(node.get_attr(name))), *dy)

    def _plain_gradient(self, node, *dy):
        attributes = {name: node.attr(name) for name in _attribute_names(self._raw)}
        return vjp(self.plain)(dy if len(dy) > 1 else dy[0], *node.inputs, **attributes)

    # ---- inside XLA ----

    def _in_xla(self, inputs, attributes):
        specs = self.output_specs(inputs, attributes)  # the same checks and messages as on the other routes
        dims, reason = self._output_dims(inputs, attributes, specs)
        if reason:
            _explain.note(self.name, "plain TensorFlow", reason, inputs)
            return self.plain(*inputs, **attributes)
        _explain.note(self.name, "XLA custom call", "traced inside jit_compile=True", inputs)

        @tf.custom_gradient
        def differentiable(*inputs):
            outputs = _xla.custom_call("tfuse." + self.stem, inputs, specs, dims, attributes)
            node = _Node(inputs, outputs, attributes.get)
            return (outputs if len(outputs) > 1 else outputs[0]), functools.partial(self._gradient, node)

        return differentiable(*inputs)

    def _output_dims(self, inputs, attributes, specs):
        """Where each dimension of each output comes from, a number or (input, axis), and "" or why that is not known.

        XLA compiles for the sizes it meets at run time, so a dimension may be unknown while tracing (a Keras batch is) if
        it is some input's. Which one, the shape rule tells: asked with a mark for the size of every unknown axis.
        """
        if _library.xla_status():
            return None, _library.xla_status()
        for i, value in enumerate(inputs):
            if value.shape.rank is None:
                return None, "%s has an unknown number of dimensions inside jit_compile=True" % self._argument(i)
        sizes = {size for value in inputs for size in value.shape}
        if None not in sizes:
            return [spec.shape.as_list() for spec in specs], ""
        marks = [mark for mark in _MARKS if mark not in sizes] + [None] * len(_MARKS)
        marked = [tf.TensorSpec([marks[axis] if size is None else size for axis, size in enumerate(value.shape)], value.dtype)
                  for value in inputs]
        unknown = {marks[axis]: (i, axis) for i, value in reversed(list(enumerate(inputs)))
                   for axis, size in enumerate(value.shape) if size is None}
        try:
            shapes = [spec.shape.as_list() for spec in self.output_specs(marked, attributes)]
        except ValueError:  # two unknown sizes on one axis that are not the same
            return None, "which unknown dimensions are equal cannot be told inside jit_compile=True"
        return [[unknown.get(size, size) for size in shape] for shape in shapes], ""


def vjp(plain):
    """The gradient of a plain composition, as a plain composition: (dy, *inputs) -> gradients of the inputs."""

    def composition(dy, *inputs, **attributes):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            y = plain(*inputs, **attributes)
        gradients = tape.gradient(y, inputs, dy, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return gradients if len(gradients) > 1 else gradients[0]

    return composition


def function(f):
    """Marks a public function as finished code, which AutoGraph need not translate in every trace."""
    f.autograph_info__ = {}
    return f


class _Node:
    def __init__(self, inputs, outputs, attr):
        self.inputs, self.outputs, self.attr = list(inputs), list(outputs), attr


class _Symbolic(Exception):
    """An input is a KerasTensor: a place in a functional model."""


def _is_symbolic(value):
    return type(value).__name__ == "KerasTensor"


def _text(value):
    return value.decode() if isinstance(value, bytes) else value


@functools.lru_cache(None)
def _attribute_names(raw):
    import inspect
    return [p.name for p in inspect.signature(raw).parameters.values()
            if p.default is not inspect.Parameter.empty and p.name != "name"]


def _flat(attributes):
    """name, value, name, value …, as the eager call takes them."""
    return [part for pair in attributes.items() for part in pair] if attributes else ()


def _nothing(dtype):
    """The empty tensor that stands for an input which is not given."""
    return tf.constant([], dtype)


def _nothing_like(x):
    """The same for an eager tensor; kept, since making one costs as much as a small op."""
    nothing = _empty.get(x._datatype_enum())
    if nothing is None:
        nothing = _empty[x._datatype_enum()] = _nothing(x.dtype)
    return nothing
