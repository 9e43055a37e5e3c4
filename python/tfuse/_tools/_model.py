"""The C API of serving/model.h from Python: a SavedModel as a server runs it. Which files serving needs, and where they are."""

import ctypes
import os
import pathlib

import numpy as np
import tensorflow as tf

from tfuse._core import _library

MAX_RANK = 8
STRING = tf.string.as_datatype_enum


class NotThere(Exception):
    """A file of tfuse's own is missing, or a model does not open or run; the text says what to do."""


def file(name):
    """A library of serving: beside libtfuse.so, as a wheel has it, or in the folder where Bazel builds it."""
    home = pathlib.Path(_library.path).parent
    for path in (home / name, home / "serving" / name):
        if path.exists():
            return path
    raise NotThere("%s is not beside %s: reinstall the wheel, or build it with ./run build //serving:all" % (name, _library.path))


def tensorflow_folder():
    return os.environ.get("TFUSE_TENSORFLOW") or str(pathlib.Path(tf.__file__).parent)


class Shape(ctypes.Structure):
    _fields_ = [("rank", ctypes.c_int), ("dim", ctypes.c_int64 * MAX_RANK)]


class Port(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("dtype", ctypes.c_int), ("shape", Shape), ("tensor", ctypes.c_char_p)]

    def spec(self):
        """A tf.TensorSpec; sizes that are open are None."""
        sizes = [None if n < 0 else n for n in self.shape.dim[:max(self.shape.rank, 0)]]
        return tf.TensorSpec(None if self.shape.rank < 0 else sizes, tf.as_dtype(self.dtype), self.name.decode())


class Signature(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("inputs", ctypes.c_int), ("outputs", ctypes.c_int),
                ("input", ctypes.POINTER(Port)), ("output", ctypes.POINTER(Port))]


class Array(ctypes.Structure):
    _fields_ = [("dtype", ctypes.c_int), ("shape", Shape), ("data", ctypes.c_void_p), ("held", ctypes.c_void_p)]


class Text(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]


class Options(ctypes.Structure):
    _fields_ = [(name, ctypes.c_char_p) for name in ("tensorflow", "library", "libraries", "tags", "device")]
    _fields_ += [(name, ctypes.c_int) for name in ("inter_threads", "intra_threads", "xla")] + [("most_bytes", ctypes.c_size_t)]


def _functions():
    functions = ctypes.CDLL(str(file("libtfuse_model.so")))
    pointer = ctypes.c_void_p
    for name, result, arguments in [
            ("tfu_model_open", ctypes.c_int, [ctypes.c_char_p, pointer, pointer, pointer]),
            ("tfu_model_close", None, [pointer]),
            ("tfu_model_signature_at", ctypes.POINTER(Signature), [pointer, ctypes.c_int]),
            ("tfu_model_signature", ctypes.POINTER(Signature), [pointer, ctypes.c_char_p]),
            ("tfu_model_run", ctypes.c_int, [pointer, pointer, pointer, pointer, pointer]),
            ("tfu_array_free", None, [pointer])]:
        function = getattr(functions, name)
        function.restype, function.argtypes = result, arguments
    return functions


def _array_in(value, kept):
    """`kept` gets what must live as long as the array."""
    value = np.asarray(value)
    dtype = tf.string if value.dtype.kind in "OSU" else tf.as_dtype(value.dtype)
    array = Array(dtype.as_datatype_enum, Shape(value.ndim, (ctypes.c_int64 * MAX_RANK)(*value.shape[:MAX_RANK])))
    if dtype == tf.string:
        texts = [text.encode() if isinstance(text, str) else bytes(text) for text in value.ravel().tolist()]
        value = (Text * (len(texts) + 1))(*[Text(ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p), len(text)) for text in texts])
        kept.append(texts)
        array.data = ctypes.addressof(value)
    else:
        value = np.ascontiguousarray(value)
        array.data = value.ctypes.data
    kept.append(value)
    return array


def _value_of(array):
    shape, dtype = tuple(array.shape.dim[:array.shape.rank]), tf.as_dtype(array.dtype)
    count = int(np.prod(shape))
    if dtype == tf.string:
        texts = ctypes.cast(array.data, ctypes.POINTER(Text))
        return np.array([ctypes.string_at(texts[i].data, texts[i].bytes) for i in range(count)], object).reshape(shape)
    return np.frombuffer(ctypes.string_at(array.data, count * dtype.size), dtype.as_numpy_dtype).reshape(shape)


class Model:
    """A SavedModel, opened as libtfuse_model.so does it: model.run({"x": …}) gives {"y": …}."""

    def __init__(self, folder, signature=None, **options):
        self._c, self._error, self._model = _functions(), ctypes.create_string_buffer(2000), ctypes.c_void_p()
        coded = {name: os.fsencode(value) if isinstance(value, (str, os.PathLike)) else value for name, value in options.items()}
        coded.setdefault("library", os.fsencode(_library.path))
        self._do(self._c.tfu_model_open(os.fsencode(folder), ctypes.byref(Options(**coded)), ctypes.byref(self._model), self._error))
        self.signature = self._c.tfu_model_signature(self._model, signature and signature.encode())
        if not self.signature:
            there = ", ".join(self._names())
            self.close()
            raise NotThere("%s has no signature %s: it has %s" % (folder, signature or "serving_default", there))
        s = self.signature.contents
        self.name = s.name.decode()  # of the signature
        self.inputs = {s.input[i].name.decode(): s.input[i].spec() for i in range(s.inputs)}
        self.outputs = {s.output[i].name.decode(): s.output[i].spec() for i in range(s.outputs)}

    def _names(self):
        i = 0
        while signature := self._c.tfu_model_signature_at(self._model, i):
            yield signature.contents.name.decode()
            i += 1

    def _do(self, code):
        if code:
            raise NotThere(self._error.value.decode(errors="replace"))

    def run(self, values):
        kept, results = [], (Array * len(self.outputs))()
        arrays = (Array * (len(self.inputs) + 1))(*[_array_in(values[name], kept) for name in self.inputs])
        self._do(self._c.tfu_model_run(self._model, self.signature, arrays, results, self._error))
        try:
            return {name: _value_of(array) for name, array in zip(self.outputs, results)}
        finally:
            for array in results:
                self._c.tfu_array_free(ctypes.byref(array))

    def close(self):
        self._c.tfu_model_close(self._model)
        self._model = ctypes.c_void_p()
