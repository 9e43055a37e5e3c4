"""Kernel: one kernel of tfuse.jit as all routes take it, and run(), which runs it: as the op Jit, eagerly and in graphs,
as XLA's custom call of it, or where neither can serve, as the kernel's `plain` composition."""

import ctypes
import dataclasses
import functools
import re
import weakref
from collections.abc import Callable

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.eager.core import _NotOkStatusException
from tensorflow.python.framework import ops
from tensorflow.python.pywrap_tfe import TFE_Py_FastPathExecute as execute

from tfuse._core import _explain, _library, _op, _xla

KINDS = "elementwise", "rows", "raw"  # as the library numbers them
_names = {}  # what kernels are called, by the names that eager calls give for them; the library has few of those


@dataclasses.dataclass(frozen=True)
class Kernel:
    name: str  # the C name of the kernel, and what errors and explain() call it
    kind: str  # "elementwise", "rows" or "raw"
    source: str  # CUDA C in the types T0, T1 … of inputs, U0, U1 … of outputs and R of arithmetic
    program: str  # the same for the CPU, as postfix text (kernels/jit/program.h); "" for raw
    inputs: tuple  # names, for messages
    outputs: tuple
    types: tuple  # for each output: the number of the input whose dtype it has, or a dtype
    shapes: str  # "broadcast", "row", "row keep", or sizes as text (ops/jit/jit.h)
    launch: str  # raw only: "grid; block; shared; arguments" as such texts
    plain: Callable | None  # (list of tensors) -> list of tensors, in TensorFlow's own ops; None for raw

    def info(self):
        """What was compiled of it in this process, as the GPU's driver tells: a list of dicts, one for each variant
        (dtypes, shapes of inputs) that has run. Registers of a thread, bytes of local memory that it spills to, bytes of
        shared memory, threads of a block, and how many blocks fit on a multiprocessor at a time."""
        text, found, number = ctypes.create_string_buffer(512), [], 0
        name, source = self.name.encode(), self.source.encode()
        while _library.library.tfu_jit_info(name, source, number, text, len(text)):
            fields = dict(part.split("=") for part in text.value.decode().split("\t"))
            found.append({key: int(value) if value.lstrip("-").isdigit() else value for key, value in fields.items()})
            number += 1
        return found

    @functools.cached_property
    def attributes(self):
        names = {key: ", ".join(getattr(self, key)) for key in ("inputs", "outputs")}
        texts = {key: getattr(self, key) for key in ("kind", "source", "program", "shapes", "launch")}
        return {"kernel": self.name, **names, **texts}

    @functools.cached_property
    def eager_attributes(self):
        """name, value, …: a name under which the library knows all texts, for eager calls of this process and nothing else.
        It is another kernel's when this one is gone; so calls that wait to be run have the texts."""
        if not context.context().is_async():
            name = _library.library.tfu_jit_register(*(
                KINDS.index(self.kind) if key == "kind" else self.attributes[key].encode()
                for key in ("kernel", "kind", "source", "program", "inputs", "outputs", "shapes", "launch")))
            if name:
                _names[name] = self.name
                weakref.finalize(self, _library.library.tfu_jit_forget, name).atexit = False
                return "kernel", name
        return tuple(_op.flat(self.attributes))


def run(kernel, tensors):
    """The outputs of a kernel, a list."""
    if context.executing_eagerly():
        arguments = prepared(kernel, tensors)
        try:  # what the generated wrapper does, but less
            if arguments:
                return execute(context.context(), "Tfuse>Jit", None, list(tensors), *arguments)
        except _NotOkStatusException as error:
            if not (kernel.plain and lacks_nvrtc(error)):
                ops.raise_from_not_ok_status(error, None)
        return _plain(kernel, tensors, _without_nvrtc(), "called")
    if _op.inside_xla():
        return _in_xla(kernel, tensors)
    if kernel.plain and _without_nvrtc():
        return _plain(kernel, tensors, _without_nvrtc(), "traced")
    outputs = _library.ops.tfuse_jit(tensors, Out=_dtypes(kernel, tensors), **kernel.attributes)
    if all(t.shape.rank is not None for t in tensors):
        for output, dims in zip(outputs, _dims(kernel, tensors)):
            output.set_shape(_known(dims))
    return list(outputs)


def prepared(kernel, tensors):
    """What execute() of "Tfuse>Jit" takes after a list of tensors that have the dtypes of these. None: the kernel is computed
    in another way here."""
    if kernel.plain and _without_nvrtc():
        return None
    return *kernel.eager_attributes, "Out", tuple(t.as_datatype_enum for t in _dtypes(kernel, tensors))


def _dtypes(kernel, tensors):
    return [tensors[t].dtype if isinstance(t, int) else t for t in kernel.types]


@functools.lru_cache(None)
def _without_nvrtc():
    """Why kernels cannot be compiled for the GPU that is there; "" where they can, or there is none."""
    return "" if _library.without_gpu() else _library.library.tfu_jit_status().decode()


def lacks_nvrtc(error):
    """Whether a run failed since the library has only now found out that it cannot open NVRTC."""
    if error.code != tf.errors.FAILED_PRECONDITION:
        return False
    _without_nvrtc.cache_clear()
    return bool(_without_nvrtc())


def _plain(kernel, tensors, reason, when):
    _explain.note("Jit " + kernel.name, "plain TensorFlow", reason, tensors, when)
    return kernel.plain(tensors)


def _in_xla(kernel, tensors):
    reason = _library.xla_status() or _without_nvrtc()
    if any(t.shape.rank is None for t in tensors):
        reason = "a tensor has an unknown number of dimensions inside jit_compile=True"
    dims = None if reason else _dims(kernel, tensors)
    if dims and any(size is None for shape in dims for size in shape):
        reason = "the result's sizes are computed from unknown ones inside jit_compile=True"
    if reason and not kernel.plain:
        raise ValueError("%s: cannot run inside jit_compile=True: %s" % (kernel.name, reason))
    if reason:
        return _plain(kernel, tensors, reason, "traced")
    _explain.note("Jit " + kernel.name, "XLA custom call", "traced inside jit_compile=True", tensors)
    target, room = _library.xla_target("jit")
    specs = [tf.TensorSpec(_known(shape), dtype) for shape, dtype in zip(dims, _dtypes(kernel, tensors))]
    counts = {"In": len(tensors), "Out": len(specs)}
    return list(_xla.custom_call(target, tensors, specs, dims, {**kernel.attributes, **counts}, room=room))


@tf.RegisterGradient("Tfuse>Jit")
def _no_gradient(node, *dy):
    name = node.get_attr("kernel")
    name = _names.get(name, name)
    raise LookupError("%s has no gradient: give it one (grad= of elementwise and rows, gradient= of raw); one that comes "
                      "from a SavedModel has a gradient, but no second one" % (
        name.decode() if isinstance(name, bytes) else name))


# ---- shapes, as the library's own rule has them (ops/jit/jit.c) ----


def _dims(kernel, tensors):
    """For each output, where its dimensions come from, as _xla.custom_call takes it; None: from unknown sizes."""
    shapes = [t.shape for t in tensors]
    if kernel.shapes == "broadcast":
        rank = max(shape.rank for shape in shapes)
        return [[_broadcast([(i, s.rank - back) for i, s in enumerate(shapes) if s.rank >= back], shapes)
                 for back in range(rank, 0, -1)]] * len(kernel.types)
    if kernel.shapes.startswith("row"):
        return [_like(0, shapes)[:-1] + [1] * ("keep" in kernel.shapes)] * len(kernel.types)
    lists = kernel.shapes.split(";")
    if len(lists) != len(kernel.types):
        raise ValueError("%s: shapes %r are of %d outputs, there are %d" % (
            kernel.name, kernel.shapes, len(lists), len(kernel.types)))
    return [[size for part in text.split(",") if part.strip() for size in sizes(kernel.name, part, shapes)]
            for text in lists]


def _broadcast(places, shapes):
    """One dimension of what broadcasts: those that are known to be 1 say nothing, any other known one says it all."""
    known = {shapes[i][axis] for i, axis in places} - {None, 1}
    if known:
        return min(known)
    unknown = [(i, axis) for i, axis in places if shapes[i][axis] is None]
    return unknown if len(unknown) > 1 else unknown[0] if unknown else 1


def _like(i, shapes):
    return [(i, axis) if size is None else size for axis, size in enumerate(shapes[i])]


def sizes(name, text, shapes):
    """The sizes that a part of a text between commas gives: one, or with "like 0" all of an input."""
    try:
        like = re.fullmatch(r"\s*like\s*(\d+)\s*", text)
        if like:
            return _like(int(like[1]), shapes)
        alone = re.fullmatch(r"\s*(\d+)\.(-?\d+)\s*", text)
        if alone:
            i = int(alone[1])
            return [_like(i, shapes)[int(alone[2])]]
        value = lambda shape, what: shape.num_elements() if what == "n" else shape[int(what)]
        known = re.sub(r"(\d+)\.(n|-?\d+)", lambda m: str(value(shapes[int(m[1])], m[2])), text)
        if "None" in known:
            return [None]
        size = ctypes.c_int64()
        wrong = _library.library.tfu_jit_size(known.encode(), size).decode(errors="replace")
        if wrong:
            raise IndexError(wrong)
        return [size.value]
    except IndexError as error:
        raise ValueError("%s: %r gives no size of inputs %s: %s" % (
            name, text.strip()[:100], ", ".join(map(str, shapes)), error)) from None


def listed(value):
    """One or several, as a list."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _known(dims):
    return [size if isinstance(size, int) else None for size in dims]
