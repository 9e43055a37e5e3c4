"""FusedOp: one op on every route.

Eagerly and in a tf.function it is the TensorFlow op. While a jit_compile=True function is traced it is an XLA custom
call of the same kernel. Where neither can serve, it is `plain`, the composition of TensorFlow's own ops that says what
the op computes. The gradient is written once and serves all three.
"""

import functools
import inspect
import numbers
import re

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, record
from tensorflow.python.eager.core import _FallbackException, _NotOkStatusException
from tensorflow.python.framework import ops
from tensorflow.python.framework.ops import EagerTensor
from tensorflow.python.pywrap_tfe import TFE_Py_FastPathExecute as execute

from tfuse._core import _library, _made, _row, _xla
from tfuse._core._op_sizes import SizedByInputs
from tfuse._core._registered import Registered, given, registry

Tensor = tf.Tensor  # a global is found faster than an attribute of tf
FLOATS = (tf.float32, tf.float16, tf.bfloat16, tf.float64)
MOST_AXES = 8  # TFU_MAX_RANK of the library
_COMPLEX = (tf.complex64, tf.complex128)
_LARGEST = {dtype: float(dtype.real_dtype.max) for dtype in (*FLOATS, *_COMPLEX, tf.int32, tf.int64, tf.int8, tf.uint8)}
composites = {}  # by name, and those of others by module and name


class FusedOp(Registered, SizedByInputs):
    """Callable as op(*inputs, **attributes). An input may be None where the op takes an empty tensor for "not given".

    The registered op says what dtypes the inputs take: T that of the first input, S real(T), K either of them, others what
    they name. What is not a tensor is converted; a tensor of another dtype is refused. An output's K is T, unless the
    attribute K says otherwise.

    Args:
      name: CamelCase, as in the op's row.
      plain: function(*inputs, **attributes), the same in plain TensorFlow. Not-given inputs come as empty tensors.
      gradient: function(node, *output_gradients) -> gradients of the inputs, None for integers and what is not wanted.
        node has inputs, outputs, attr(name), attrs(*names), a dict, and wanted(i), whether the gradient of input i may be
        needed. Of several outputs, the gradients of all but the first are None where they are not used. None: differentiate
        `plain`, which also gives every gradient op its own gradient.
      axes: for inputs whose axes are not the same as those of the other inputs in the same place, a letter for each axis,
        by name of the input: {"key": "bskd"}. Of an input with fewer axes the last letters count. Or a function(inputs)
        that returns this.
      multiples: ("h", "k"): the size of axis h is a multiple of that of k.
      stretched: the letters of axes that broadcast: an input may have 1 of them where others have more.
      stretching: the names of the inputs that may; none: any.
      like: {"dbias": "dbias_for"}: output dbias is like input dbias_for, where that is given, along such axes too.
    """

    def __init__(self, name, plain, gradient=None, axes=None, multiples=None, stretched="", stretching=(), like=None):
        super().__init__(name, plain)
        self.axes, self.multiples, self.stretched = axes or {}, multiples, set(stretched)
        self.stretching, self.like = stretching, like or {}
        self._asks_shapes, self._asks_room = _row.asks(self.stem)
        self._defaults = {a.name: default(a) for a in self._definition.attr
                          if a.type != "type" and a.HasField("default_value")}
        first, self._inputs = self._definition.input_arg[0].type_attr, len(self._definition.input_arg)
        # What the first input may be, in the row's order.
        self.first_dtypes = [tf.as_dtype(t) for a in self._definition.attr if a.name == first for t in a.allowed_values.list.type]
        self._uniform = {a.type_attr for a in self._definition.input_arg} == {"T"} and not self._told
        self._plans = {}  # by number of the first input's dtype: what _complete needs to know
        self._gradient = gradient or self._plain_gradient
        tf.RegisterGradient(self._registered)(self._gradient_of_node)

    def __call__(self, *inputs, **attributes):
        # Eagerly, what the generated wrapper does, but less: in a small op every microsecond of Python shows. Of inputs
        # that all have one dtype TensorFlow checks this itself, and faster; only when it objects do we look whether that is
        # the reason. An op that has run and failed does not run again.
        first, eager = inputs[0], context.context()
        if type(first) is EagerTensor and len(inputs) == self._inputs and eager.executing_eagerly():
            given, told = inputs, ()
            try:
                if not self._uniform:
                    given, told = self._complete(inputs)
                else:
                    for value in inputs:
                        if type(value) is not EagerTensor:
                            given, told = self._complete(inputs)
                            break
                told = () if told and "K" in attributes else told
                return execute(eager, self._registered, None, *given, *flat(attributes), *told)
            except _NotOkStatusException as error:
                self._convert(inputs)  # names the input of a wrong dtype
                ops.raise_from_not_ok_status(error, None)
            except (_FallbackException, _Symbolic):  # nothing has run: what was given is no tensor, or no attribute, yet
                pass
        return self._run(inputs, attributes)

    def _complete(self, inputs):
        """Eager inputs with empty tensors for what is not given, and the types to tell; numbers, variables and wrong
        dtypes take the slow way."""
        plan = self._plans.get(inputs[0]._datatype_enum())
        if plan is None:
            plan = self._plan(inputs[0].dtype)
        arguments, told = plan
        complete = []
        for value, (allowed, nothing) in zip(inputs, arguments):
            if value is None:
                value = nothing
            elif type(value) is not EagerTensor or value._datatype_enum() not in allowed:
                return self._convert(inputs), told
            complete.append(value)
        return complete, told

    def _plan(self, dtype):
        arguments = []
        for types in self.dtypes(self.check_dtype(dtype)):
            arguments.append((tuple(t.as_datatype_enum for t in types), _nothing(types[0])))
        plan = self._plans[dtype.as_datatype_enum] = arguments, flat(self._told_types(dtype))
        return plan

    def _run(self, inputs, attributes):
        try:
            inputs = self._convert(inputs)
        except _Symbolic:
            from tfuse._core import _symbolic
            return _symbolic.apply(self, inputs, attributes)
        if not context.executing_eagerly() and inside_xla():
            return self._in_xla(inputs, {**self._defaults, **attributes})
        return self._in_graph(inputs, attributes)

    def _in_graph(self, inputs, attributes):
        outputs = self._raw(*inputs, **{**self._told_types(inputs[0].dtype), **attributes})
        if self._asks_shapes and not context.executing_eagerly():
            each = outputs if isinstance(outputs, (list, tuple)) else [outputs]
            for output, shape in zip(each, _row.shapes(self.stem, inputs, self._scalars(attributes), len(each))):
                output.set_shape(shape)
        return outputs

    def _scalars(self, attributes):
        """All attributes but types, which are the tensors' own."""
        given = {**self._defaults, **attributes}
        return {name: given[name] for name in self._attributes}

    def output_specs(self, inputs, attributes):
        """Dtypes and shapes that the op's own shape rule gives, as a list of TensorSpecs; inputs may be TensorSpecs."""
        if not all(map(has_dtype, inputs)):
            return self._new_specs(inputs, attributes)
        shapes = (tf.TensorShape(i.shape) for i in inputs)
        inputs = tuple((i.dtype, None if shape.rank is None else tuple(shape)) for i, shape in zip(inputs, shapes))
        try:
            return list(_specs(self, inputs, tuple(attributes.items())))
        except TypeError:  # an attribute that cannot be a key; the op says what is wrong with it
            return self._new_specs([tf.TensorSpec(shape, dtype) for dtype, shape in inputs], attributes)

    def _new_specs(self, inputs, attributes):
        with tf.Graph().as_default():
            inputs = self._convert([tf.compat.v1.placeholder(i.dtype, i.shape) if has_dtype(i) else i for i in inputs])
            outputs = self._in_graph(inputs, attributes)
        outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        return [tf.TensorSpec(o.shape, o.dtype) for o in outputs]

    # ---- inputs ----

    def tensors(self, *inputs):
        """Inputs as the op takes them: tensors of its dtypes, empty ones for None. Raises what a call would."""
        return self._convert(inputs)

    def dtypes(self, dtype):
        """For each input, the dtypes it may have where the first has `dtype`; what is not given takes the first of them."""
        parts = real(dtype).real_dtype  # of complex numbers, what their parts are
        types = {"T": [dtype], "S": [parts], "K": list(dict.fromkeys([dtype, parts]))}
        for a in self._definition.attr:
            if a.type == "type" and a.name not in types:  # of floats only the first input's, where that is one
                allowed = [t for t in map(tf.as_dtype, a.allowed_values.list.type)
                           if t not in FLOATS or t == dtype or dtype not in FLOATS]
                types[a.name] = sorted(allowed, key=lambda t: t.as_datatype_enum != a.default_value.type)
        return [types[a.type_attr] if a.type_attr else [tf.as_dtype(a.type)] for a in self._definition.input_arg]

    def _told_types(self, dtype):
        return {kind: real(dtype).real_dtype if kind == "S" else dtype for kind in self._told}

    def _convert(self, inputs):
        first = inputs[0]
        if not isinstance(first, Tensor):
            first = self._tensor(0, first, None)
        allowed = self.dtypes(self.check_dtype(first.dtype))
        converted = [first]
        for i, value in enumerate(inputs[1:], 1):
            if value is None:
                converted.append(_nothing(allowed[i][0]))
                continue
            if not isinstance(value, Tensor):
                value = self._tensor(i, value, allowed[i])
            if value.dtype not in allowed[i]:
                raise self._wrong_dtype(i, allowed[i], value.dtype)
            converted.append(value)
        return converted

    def check_dtype(self, dtype):
        if dtype not in self.first_dtypes:
            *most, last = (t.name for t in self.first_dtypes)
            raise ValueError("%s: %s must be %s%s, got %s" % (
                self.stem, self._argument(0), "%s or " % ", ".join(most) if most else "", last, dtype.name))
        return dtype

    def _wrong_dtype(self, i, allowed, got):
        kind = self._definition.input_arg[i].type_attr
        kind = "T" if kind == "K" and len(allowed) == 1 else kind
        which = {"T": " like %s", "S": ", the arithmetic type of %s,"}.get(kind, "")
        return ValueError("%s: %s must be %s%s%s got %s; cast %s" % (
            self.stem, self._argument(i), " or ".join(t.name for t in allowed), which % self._argument(0) if which else "",
            "" if kind == "S" else ",", got.name, "it" if kind != "T" else "one of them" if got.is_complex == allowed[0].is_complex
            else "the real one"))

    def _tensor(self, i, value, allowed):
        """A variable or Keras tensor keeps its dtype; numbers and arrays take the one of `allowed` that is of their kind, if
        their values fit it."""
        if is_symbolic(value):
            raise _Symbolic
        if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
            raise ValueError("%s: %s must be a dense tensor, got a %s; tf.ragged.map_flat_values serves elementwise ops" % (
                self.stem, self._argument(i), type(value).__name__))
        if allowed is None or has_dtype(value):
            return tf.convert_to_tensor(value)
        dtype = allowed[0]
        try:
            natural = tf.as_dtype(np.asarray(value).dtype)
            if natural.is_complex and not dtype.is_complex:  # NumPy would drop the imaginary parts
                raise self._wrong_dtype(i, allowed, natural)
            if allowed != [dtype] or not (dtype.is_floating or dtype.is_complex):
                floats = all(t.is_floating for t in allowed)
                dtype = dtype if floats and natural not in allowed else self._of_kind(i, natural, allowed)
            largest = 0 if dtype.is_bool else np.max(np.abs(np.where(np.isfinite(value), value, 0)), initial=0)
        except NotImplementedError:  # a list of symbolic tensors
            return tf.convert_to_tensor(value, dtype)
        except TypeError:
            raise ValueError("%s: %s must be a tensor, a number or an array of numbers, got %r" % (
                self.stem, self._argument(i), value)) from None
        if largest > _LARGEST.get(dtype, 1):
            raise ValueError("%s: %s must fit %s, whose largest value is %g; got %g" % (
                self.stem, self._argument(i), dtype.name, _LARGEST[dtype], largest))
        return tf.convert_to_tensor(np.asarray(value, dtype.as_numpy_dtype) if dtype not in FLOATS else value, dtype)

    def _of_kind(self, i, natural, allowed):
        for dtype in [t for t in allowed if t == natural] + allowed:
            if (dtype.is_bool, dtype.is_integer) == (natural.is_bool, natural.is_integer):
                return dtype
        raise self._wrong_dtype(i, allowed, natural)

    def _argument(self, i):
        return self._definition.input_arg[i].name

    # ---- gradients ----

    def _gradient_of_node(self, node, *dy):
        skipped = getattr(node, "skip_input_indices", None) or ()
        return self._differentiate(_Node(node.inputs, node.outputs, functools.partial(self._attribute, node),
                                         lambda i: i not in skipped), *dy)

    def _differentiate(self, node, *dy):
        first = tf.zeros_like(node.outputs[0]) if dy[0] is None else dy[0]
        none = lambda d, output: d is None or not given(output) or _is_zero(d)
        return self._gradient(node, first, *(None if none(d, y) else d for d, y in zip(dy[1:], node.outputs[1:])))

    def _attribute(self, node, name):
        try:
            return _text(node.get_attr(name))
        except KeyError:  # eagerly, what was not said is not recorded
            return self._defaults[name]

    def _plain_gradient(self, node, *dy):
        attributes = {name: node.attr(name) for name in self._attributes}
        return vjp(self.plain)(dy if len(dy) > 1 else dy[0], *node.inputs, **attributes)

    # ---- inside XLA ----

    def _in_xla(self, inputs, attributes):
        specs = self.output_specs(inputs, attributes)  # the same checks and messages as on the other routes
        dims, reason = (None, _library.xla_status()) if _library.xla_status() else self._output_dims(inputs, attributes, specs)
        if reason:
            _row.check(self.stem, inputs, self._scalars(attributes), len(specs))
            return self._left(reason, inputs)(*inputs, **attributes)
        scalars = self._scalars(attributes)
        more_room = lambda: _row.more_room(self.stem, inputs, scalars, specs) if self._asks_room else 0
        gradient = lambda inputs, outputs, *dy: self._differentiate(
            _Node(inputs, outputs, attributes.get, lambda i: True), *dy)  # XLA drops what nobody uses
        outputs = self._custom_call(inputs, specs, dims, scalars, gradient, more_room=more_room)
        for output, own in zip(outputs, dims):
            _made.keep(output, _made.Sized(inputs, self, own))
        return outputs if len(outputs) > 1 else outputs[0]


def of_node(node):
    """The FusedOp that a graph's node is of, or None."""
    op = registry.get(node.type.removeprefix("Tfuse>")) if node.type.startswith("Tfuse>") else None
    return op if isinstance(op, FusedOp) else None


# Kept, since layers of one shape ask the same, and the shape rule wants a graph of its own. Of (dtype, shape) of each input and
# (name, value) of each attribute.
@functools.lru_cache(1024)
def _specs(op, inputs, attributes):
    return op._new_specs([tf.TensorSpec(shape, dtype) for dtype, shape in inputs], dict(attributes))


def vjp(plain):
    """The gradient of a plain composition, as a plain composition: (dy, *inputs) -> gradients of the inputs.

    Of a composition with several outputs dy is a list, None for those that are not used. Integers have no gradient: None.
    """

    def composition(dy, *inputs, **attributes):
        inputs = [tf.identity(i) for i in inputs]  # the same tensor given twice would get the sum of both gradients, twice
        differs = lambda i: i.dtype.is_floating or i.dtype.is_complex
        watched = [i for i in inputs if differs(i)]
        with tf.GradientTape() as tape:
            tape.watch(watched)
            y = plain(*inputs, **attributes)
        if isinstance(y, (list, tuple)):
            y, dy = zip(*[(a, b) for a, b in zip(y, dy) if b is not None])
        gradients = iter(tape.gradient(y, watched, dy, unconnected_gradients=tf.UnconnectedGradients.ZERO))
        gradients = [next(gradients) if differs(i) else None for i in inputs]
        return gradients if len(gradients) > 1 else gradients[0]

    return composition


def function(f):
    """Marks a public function as finished code, which AutoGraph need not translate in every trace."""
    f.autograph_info__ = {}
    return f


def composite(f):
    """`function`, for one that does more than call an op: on KerasTensors the whole call becomes one operation of the
    model, and what it draws or decides is drawn and decided when the model runs."""

    @functools.wraps(f)
    def call(*inputs, **options):
        for value in (*inputs, *options.values()):
            if is_symbolic(value) or isinstance(value, (list, tuple)) and any(map(is_symbolic, value)):
                from tfuse._core import _symbolic
                return _symbolic.FusedFunction(name)(*inputs, **options)
        try:
            return f(*inputs, **options)
        except (TypeError, ValueError) as error:
            clearer = _clearer(f, inputs, options, error)
            if clearer is None:
                raise
            raise clearer from None

    ours = f.__module__.startswith("tfuse.")
    name = f.__name__ if ours else "%s.%s" % (f.__module__, f.__name__)
    composites[name] = function(call)
    return keras.saving.register_keras_serializable("tfuse")(call) if ours else call  # Keras's files name it


def _clearer(f, inputs, options, error):
    """An error of what a public function calls, in the words of that function: its name, and those of its arguments. None
    where it has them already."""
    names, found = list(inspect.signature(f).parameters), re.match(r"(\w+): (\w*)", str(error))
    who = found[1] if found else ""
    op = next((op for op in registry.values() if op.stem == who), None)
    if who in registry:  # of the op itself, in a graph
        return None
    if type(error) is not ValueError or not (op or who in composites):  # TensorFlow's
        for name, value in [*zip(names, inputs), *options.items()]:
            if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
                return ValueError("%s: %s must be a dense tensor, got a %s" % (f.__name__, name, type(value).__name__))
        return None
    first = op is not None and found[2] not in names and found[2] == op._definition.input_arg[0].name
    text = "%s: %s%s" % (f.__name__, names[0] if first else found[2], str(error)[found.end():])
    return None if text == str(error) else ValueError(text)


def real(dtype):
    """What values of a dtype are computed in: float64 and complex numbers in their own dtype, all others in float32."""
    return tf.as_dtype(dtype) if dtype in (tf.float64, *_COMPLEX) else tf.float32


def may_record(training=None):
    """Whether a gradient may be asked for, so that something is worth keeping for it: eagerly where a tape records, in a graph
    unless training is False."""
    return record.could_possibly_record() if context.executing_eagerly() else training is not False


def mark(dtype):
    """An optional input that is given and has no elements: to say yes to an op."""
    return _zeros(dtype, 0, 0)


def sized(*sizes):
    """An input without elements whose axes say sizes, as an attribute could not: they may be known late. [*sizes, 0]."""
    if all(isinstance(size, numbers.Integral) for size in sizes):
        return _zeros(tf.bool, *map(int, sizes), 0)
    return tf.zeros([*sizes, 0], tf.bool)


def _zeros(dtype, *shape):
    return _kept_zeros(dtype, *shape) if context.executing_eagerly() else tf.zeros(shape, dtype)


@functools.lru_cache(512)  # kept, since making one costs as much as a small op
def _kept_zeros(dtype, *shape):
    return tf.zeros(shape, dtype)


class _Node:
    def __init__(self, inputs, outputs, attr, wanted):
        self.inputs, self.outputs, self.attr, self.wanted = list(inputs), list(outputs), attr, wanted

    def attrs(self, *names):
        return {name: self.attr(name) for name in names}


inside_xla = _xla.is_inside


class _Symbolic(Exception):
    """An input is a KerasTensor: a place in a functional model."""


def is_symbolic(value):
    return type(value).__name__ == "KerasTensor"


def has_dtype(value):
    return hasattr(value, "dtype") and not isinstance(value, (np.ndarray, np.generic))


def _is_zero(tensor):
    """Whether a gradient is the zeros that TensorFlow makes up, in a graph, for an output that is not used."""
    if type(tensor) is EagerTensor or not isinstance(tensor, Tensor):
        return False
    value = tensor.op.inputs[1] if tensor.op.type == "Fill" else tensor
    return value.op.type == "ZerosLike" or value.op.type == "Const" and not np.any(tf.get_static_value(value))


def default(attribute):
    """The default value of an op's attribute, or "no default"."""
    kind = attribute.default_value.WhichOneof("value")
    return _text(getattr(attribute.default_value, kind)) if kind else "no default"


def _text(value):
    return value.decode() if isinstance(value, bytes) else value


def flat(attributes):
    """name, value, name, value …, as the eager call takes them."""
    return [part for pair in attributes.items() for part in pair] if attributes else ()


def _nothing(dtype):
    """The empty tensor that stands for an input which is not given."""
    return _zeros(dtype, 0)
