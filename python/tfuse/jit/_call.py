"""Operation: what elementwise and rows share. It takes numbers, arrays and tensors, finds the dtypes that placeholders
stand for, runs the kernel, and differentiates it. The gradient is an Operation too, so those of any order are
kernels."""

import functools
import numbers
import re
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, record
from tensorflow.python.eager.core import _NotOkStatusException
from tensorflow.python.framework import ops
from tensorflow.python.framework.ops import EagerTensor
from tensorflow.python.pywrap_tfe import TFE_Py_FastPathExecute as execute

from tfuse._core import _explain, _xla
from tfuse._core._op import FLOATS, has_dtype, is_symbolic, real
from tfuse.jit import _cuda, _parse, _tree
from tfuse.jit._kernel import lacks_nvrtc, prepared, run
from tfuse.jit._plain import arithmetic
from tfuse.reductions.reduce import reduce_sum

DTYPES = (*FLOATS, tf.int32, tf.int64, tf.bool)
KEPT = 256  # of so many kinds of calls is kept how they go
MOST = {"inputs": 16, "outputs": 8, "passes": 12, "locals": 64,  # of one kernel: kernels/jit/program.h, jit_args.h
        "operations, as docs/jit.md counts them": _cuda.MOST_COST}


def _kinds(values):
    """What of the values decides how a call goes: dtypes of eager tensors, as numbers, and numbers; floats as text, by which
    NaN is found again. None where there is something else."""
    found = []
    for v in values:
        kind = type(v)
        if kind is EagerTensor:
            found.append(v._datatype_enum())
        elif kind is float:
            found.append(v.hex())
        elif kind is int:
            found.append((v,))
        else:
            return None
    return tuple(found)


class _Ready(NamedTuple):
    """How a call goes whose values are of kinds that were checked before."""
    numbers: tuple  # (place, the tensor that the number there became), …
    arguments: tuple  # of execute(), after the tensors
    wanted: tuple  # inputs that a tape may ask the gradients of


class Operation:
    """Callable as op(*inputs). Returns a tensor, or a list of them where there are several outputs.

    A subclass sets `kernel`. Its _derived gives passes and roots of the gradient; _gradient_kind makes it of them.

    Args:
      name: what messages and explain() call it; a name that C takes.
      inputs, outputs: [(placeholder, name), …].
      grad: None, True, text, or a function(*inputs, *outputs, *gradients of outputs) -> gradients of the inputs.
      recipe: {"kind": …, arguments} by which a Keras file makes it anew.
    """
    autograph_info__ = {}  # finished code, which AutoGraph need not translate
    passes = ()

    def __init__(self, name, inputs, outputs, grad, recipe=None):
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise ValueError("tfuse.jit: name must be letters, digits and _, as names in C are, got %r" % (name,))
        if not (grad is None or grad is True or isinstance(grad, str) or callable(grad)):
            raise ValueError("%s: grad must be True, text, a function or None, got %r" % (name, grad))
        self.name, self.inputs, self.outputs, self.grad, self.recipe = name, inputs, outputs, grad, recipe
        self.names = [n for _, n in inputs]
        twice = [n for n in self.output_names if n in self.names]
        if twice:
            raise ValueError("%s: %s is declared as an input and as an output; use two names" % (name, twice[0]))
        letters = [letter for letter, _ in inputs]
        for letter, output in outputs:
            if letter not in letters:
                raise ValueError("%s: output %s is %s, which stands for the dtype of an input, and no input is %s; "
                                 "inputs are %s" % (name, output, letter, letter, ", ".join(map(" ".join, inputs))))
        self._ready = {}  # a _Ready for each _kinds() of values
        self.types = tuple(letters.index(letter) for letter, _ in outputs)
        self._gradient_operation = functools.lru_cache(None)(self._gradient_operation)
        if isinstance(grad, str):
            self._gradient_operation(tuple(range(len(inputs))))  # errors in a text come before anything runs

    @property
    def output_names(self):
        return [n for _, n in self.outputs]

    def __repr__(self):
        texts = {key: value for key, value in (self.recipe or {}).items() if key in ("text", "map", "reduce", "post", "final")}
        texts = ", ".join("%s=%s" % (key, _short(value)) for key, value in texts.items() if value is not None)
        inputs, outputs = (", ".join(map(" ".join, pairs)) for pairs in (self.inputs, self.outputs))
        return "<tfuse.jit.%s %s(%s) -> %s%s>" % (self.kernel.kind, self.name, inputs, outputs, texts and ": " + texts)

    def __call__(self, *values, **named):
        if named:
            raise TypeError("%s takes its inputs in their order and without names, %s(%s); got %s" % (
                self.name, self.name, ", ".join(self.names), ", ".join("%s=…" % n for n in named)))
        # What was checked before goes straight to the kernel: in a small op every microsecond of Python shows.
        eager, kinds = context.context(), None
        if eager.executing_eagerly():
            kinds = _kinds(values)
            ready = self._ready.get(kinds)
            if ready is not None:
                tensors = list(values)
                for i, number in ready.numbers:
                    tensors[i] = number
                try:
                    if not record.could_possibly_record():
                        outputs = execute(eager, "Tfuse>Jit", None, tensors, *ready.arguments)
                    else:
                        with record.stop_recording():
                            outputs = execute(eager, "Tfuse>Jit", None, tensors, *ready.arguments)
                        self._record(ready.wanted, tensors, outputs)
                    return outputs[0] if len(outputs) == 1 else outputs
                except _NotOkStatusException as error:
                    if not lacks_nvrtc(error):  # else the long way computes it without
                        self._check(self._tensors(values))  # says it in the names that were declared
                        ops.raise_from_not_ok_status(error, None)
        if any(map(is_symbolic, values)):
            from tfuse.jit import _symbolic
            return _symbolic.JitOperation(self.recipe)(*values)
        tensors = self._tensors(values)
        self._check(tensors)
        wanted = tuple(i for i, t in enumerate(tensors) if t.dtype.is_floating and not _is_number(values[i]))
        if not eager.executing_eagerly():
            return self._unpacked(_xla.differentiable(self._run, functools.partial(self._gradient, wanted), tensors))
        with record.stop_recording():  # what tf.custom_gradient does, but less
            outputs, known = self._run(tensors), {*map(id, tensors)}
            for i, y in enumerate(outputs):  # an input given back, or one tensor twice, is nothing for a tape
                outputs[i] = tf.identity(y) if id(y) in known else y
                known.add(id(y))
        if kinds is not None:
            self._make_ready(kinds, values, tensors, wanted)
        if record.could_possibly_record():
            self._record(wanted, tensors, outputs)
        return self._unpacked(outputs)

    def _make_ready(self, kinds, values, tensors, wanted):
        arguments = None if self._too_much else prepared(self.kernel, tensors)
        if arguments is not None:
            if len(self._ready) >= KEPT:
                self._ready.clear()
            numbers = tuple((i, tensors[i]) for i, v in enumerate(values) if type(v) is not EagerTensor)
            self._ready[kinds] = _Ready(numbers, arguments, wanted)

    def _record(self, wanted, inputs, outputs):
        record.record_operation(self.name, outputs, inputs, functools.partial(self._gradient, wanted, inputs, outputs))

    @staticmethod
    def _unpacked(outputs):
        return outputs[0] if len(outputs) == 1 else list(outputs)

    def _run(self, tensors):
        if self._too_much:
            _explain.note("Jit " + self.name, "plain TensorFlow", self._too_much, tensors, "called")
            return self.kernel.plain(list(tensors))
        return run(self.kernel, list(tensors))

    @functools.cached_property
    def _too_much(self):
        """"" or why the formula is too large for one kernel; gradients of gradients may be."""
        program = self.kernel.program
        counts = {"inputs": len(self.inputs), "outputs": len(self.outputs), "passes": program.count("reduce"),
                  "locals": 1 + max(map(int, re.findall(r"=t(\d+)", program)), default=-1),
                  "operations, as docs/jit.md counts them": self.cost}
        return "; ".join("a kernel has at most %d %s, this one %d" % (MOST[what], what, count)
                         for what, count in counts.items() if count > MOST[what])

    def _results(self):
        """{name: node} of what a text may use besides inputs."""
        return {}

    # ---- inputs ----

    def _tensors(self, values):
        """Tensors as they are; arrays and numbers in the dtype that their placeholder has by a tensor, else arrays in
        their own and numbers in R."""
        if len(values) != len(self.inputs):
            raise TypeError("%s takes %d input%s (%s), got %d" % (
                self.name, len(self.inputs), "s" * (len(self.inputs) > 1), ", ".join(self.names), len(values)))
        tensors, by_letter = [None] * len(values), {}
        kinds = [0 if has_dtype(v) else 2 if _is_number(v) else 1 for v in values]
        for i in sorted(range(len(values)), key=kinds.__getitem__):
            (letter, name), value = self.inputs[i], values[i]
            dtype = by_letter.get(letter)
            if kinds[i] and (letter == "R" or kinds[i] == 2):
                dtype = dtype or arithmetic([t for t in tensors if t is not None])
            if value is None or isinstance(value, (str, bytes, tf.RaggedTensor, tf.SparseTensor)):
                raise ValueError("%s: %s must be a dense tensor, an array or a number, got %r" % (
                    self.name, name, value))
            t = tensors[i] = tf.convert_to_tensor(value, dtype if kinds[i] else None)
            if t.dtype not in DTYPES:
                raise ValueError("%s: %s must be %s, got %s" % (
                    self.name, name, " or ".join(d.name for d in DTYPES), t.dtype.name))
            if by_letter.setdefault(letter, t.dtype) != t.dtype:
                other = next(n for k, n in self.inputs if k == letter)
                raise ValueError("%s: %s and %s are both %s and must have one dtype, got %s and %s; cast one, or give "
                                 "it another placeholder" % (
                                     self.name, other, name, letter, by_letter[letter].name, t.dtype.name))
        wide = arithmetic(tensors)
        if by_letter.get("R", wide) != wide:
            name = next(n for letter, n in self.inputs if letter == "R")
            raise ValueError("%s: %s must be %s, the type that is computed in, got %s; cast it, or give it a "
                             "placeholder other than R" % (self.name, name, wide.name, by_letter["R"].name))
        for letter, output in self.outputs:
            if by_letter[letter] not in FLOATS:
                raise ValueError("%s: output %s is %s, which is %s in this call; outputs must be of a float dtype" % (
                    self.name, output, letter, by_letter[letter].name))
        return tensors

    def _check(self, tensors):
        """Raises for shapes that do not go together."""
        try:
            functools.reduce(tf.broadcast_static_shape, (t.shape for t in tensors))
        except ValueError:
            shapes = ", ".join("%s %s" % (n, t.shape) for n, t in zip(self.names, tensors))
            raise ValueError("%s: shapes must broadcast, got %s" % (self.name, shapes)) from None

    # ---- gradients ----

    def _gradient(self, wanted, inputs, outputs, *dy):
        if self.grad is None:
            raise LookupError("%s has no gradient: make it with grad=True, which derives one, or grad=\"d%s = …\"" % (
                self.name, self.names[0]))
        dy = [tf.zeros_like(y) if d is None else d for y, d in zip(outputs, dy)]
        if callable(self.grad):
            found = self.grad(*inputs, *outputs, *dy)
            found = list(found) if isinstance(found, (list, tuple)) else [found]
            if len(found) != len(inputs):
                raise ValueError("%s: grad must return a gradient, or None, for each of %s; got %d" % (
                    self.name, ", ".join(self.names), len(found)))
            return found
        gradients = [tf.zeros_like(t) if i in wanted else None for i, t in enumerate(inputs)]
        operation, given = self._gradient_operation(wanted)
        if operation:
            known = dict(zip(self._gradient_names(), [*inputs, *(self._spread(t) for t in [*outputs, *dy])]))
            found = operation(*(known[n] for n in operation.names))
            for i, gradient in zip(given, found if isinstance(found, list) else [found]):
                gradients[i] = _summed_like(gradient, inputs[i])
        return gradients

    def _spread(self, output):
        """An output, or its gradient, such that it broadcasts to the inputs."""
        return output

    def _gradient_operation(self, wanted):
        """The gradients of inputs `wanted` as an Operation, or None, and the inputs whose gradient is not 0."""
        names, passes = self._gradient_names(), self.passes
        if self.grad is True:
            dy = [_tree.name(n) for n in names[-len(self.outputs):]]
            passes, roots = self._derived(dy, [self.names[i] for i in wanted])
        else:
            known = {**{n: _tree.name(n) for n in names}, **self._results()}
            found, own = _parse.parse(self.name, self.grad, known, "grad"), ["d" + n for n in self.names]
            if not any(n in found for n in own):
                raise ValueError("%s: grad assigns none of %s" % (self.name, ", ".join(own)))
            roots = [found.get(own[i], _tree.ZERO) for i in wanted]
        given = [i for i, root in zip(wanted, roots) if root is not _tree.ZERO]
        roots = [root for root in roots if root is not _tree.ZERO]
        if not given:
            return None, given
        outputs = [(self.inputs[i][0], fresh("d" + self.names[i], names)) for i in given]
        passes = needed(passes, roots)
        inputs = self._gradient_inputs(_tree.names([*roots, *(p.map for p in passes)]), given)
        return self._gradient_kind(self.name + "_grad", inputs, outputs, passes, roots), given

    def _gradient_names(self):
        """What the gradient may use: inputs, outputs, gradients of outputs."""
        found = [*self.names, *self.output_names]
        for output in self.output_names:
            if "d" + output in found and isinstance(self.grad, str):
                raise ValueError("%s: d%s is declared and is also the gradient of %s; rename it" % (
                    self.name, output, output))
            found.append(fresh("d" + output, found))
        return found

    def _gradient_inputs(self, used, given):
        """What the gradient's kernel reads, as declarations: what is used, at least one gradient of an output, for its
        shape, what says the dtypes of its results, and the first input where that has the rows."""
        letters = [letter for letter, _ in [*self.inputs, *self.outputs, *self.outputs]]
        every = list(zip(letters, self._gradient_names()))
        kept = used | ({self.names[0]} if self.passes else set())
        if not kept & {n for _, n in every[-len(self.outputs):]}:
            kept.add(every[-1][1])
        for letter, name in (self.inputs[i] for i in given):
            if letter not in {k for k, n in every if n in kept}:
                kept.add(name)
        return [pair for pair in every if pair[1] in kept]


def assigned(owner, found, names, what):
    """The nodes of all outputs among the assignments of a text; an expression alone is the one output."""
    if None in found and len(names) == 1 and names[0] not in found:
        return [found[None]]
    missing = [n for n in names if n not in found]
    if missing:
        raise ValueError("%s: %s must assign every output; %s is missing%s" % (
            owner, what, missing[0], ", assigned are " + ", ".join(n for n in found if n) if any(found) else ""))
    return [found[n] for n in names]


def needed(passes, roots):
    """The passes whose results roots use, directly or not."""
    used, kept = _tree.names(roots), []
    for p in reversed(passes):
        if p.name in used:
            kept.insert(0, p)
            used |= _tree.names([p.map])
    return kept


def fresh(name, taken):
    """The name, or one like it that is not taken."""
    while name in taken:
        name += "_"
    return name


def _short(value):
    """A text, or a list of texts, in one line that is not long."""
    if isinstance(value, (list, tuple)):
        return "[%s]" % ", ".join(map(_short, value))
    text = " ".join(str(value).split())
    return repr(text if len(text) <= 100 else text[:99] + "…")


def _is_number(value):
    return isinstance(value, (numbers.Number, np.generic))


def _summed_like(gradient, x):
    """The gradient of x, where x was broadcast to the gradient's shape: a sum in a fixed order."""
    if x.shape.is_fully_defined() and gradient.shape.is_fully_defined():
        before = gradient.shape.rank - x.shape.rank
        axes = [a for a, size in enumerate(gradient.shape) if a < before or x.shape[a - before] != size]
        return tf.reshape(reduce_sum(gradient, axes), x.shape) if axes else gradient
    shape = tf.shape(x)
    axes = tf.raw_ops.BroadcastGradientArgs(s0=shape, s1=tf.shape(gradient)).r0
    wide = tf.cast(gradient, real(x.dtype))
    return tf.ensure_shape(tf.reshape(tf.cast(tf.reduce_sum(wide, axes), x.dtype), shape), x.shape)
