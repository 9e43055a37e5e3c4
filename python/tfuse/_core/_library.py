"""Finds libtfuse.so and loads it into TensorFlow; an ImportError names the piece that failed and what to do."""

import ctypes
import functools
import mmap
import os
import pathlib
import struct

try:
    import tensorflow as tf
except Exception as error:  # a package that does not go with it may raise any
    raise ImportError(
        "tfuse needs TensorFlow 2.16 to 2.21, which failed to import (%s). Install it: pip install tensorflow, "
        "or with NVIDIA's libraries: pip install 'tensorflow[and-cuda]'" % error) from error


def find():
    """The library's path: $TFUSE_LIBRARY, else the copy in the package."""
    path = os.environ.get("TFUSE_LIBRARY")
    if path and not os.path.exists(path):
        raise ImportError("TFUSE_LIBRARY names %s, which does not exist: build it with ./run build, or unset it" % path)
    home = pathlib.Path(path) if path else pathlib.Path(__file__).parent.with_name("libtfuse.so")
    if not home.exists():
        raise ImportError("tfuse's library is not at %s: reinstall the wheel, or build it with ./run build and set "
                          "TFUSE_LIBRARY to the result" % home)
    why = _damage(home) or ("" if _is_tfuse(home) else "it is another library than libtfuse.so")
    if why:
        raise ImportError("%s%s cannot be tfuse's library: %s. Build it with ./run build, or %s" % (
            "TFUSE_LIBRARY: " if path else "", home, why, "unset TFUSE_LIBRARY" if path else "reinstall the wheel"))
    return str(home.resolve())


def _damage(path):
    """Why a file is no whole library of this kind of machine, or "": the loader dies of a bus error of one that was cut short."""
    try:
        with open(path, "rb") as file:
            head, size = file.read(64), os.fstat(file.fileno()).st_size
    except OSError as error:
        return error.strerror.lower()
    if len(head) < 64 or head[:5] != b"\x7fELF\x02":
        return "it is no shared library of 64 bits"
    (sections,), (each, count) = struct.unpack_from("Q", head, 40), struct.unpack_from("HH", head, 58)
    return "it is cut short, at %d bytes" % size if sections + each * count > size else ""


def _is_tfuse(path):
    """Whether a file is a libtfuse.so, of whichever version: libraries with ops of one's own do not name this function."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(b"\0tfu_load_error\0") >= 0


def _load(path):
    try:
        ops = tf.load_op_library(path)
        library = ctypes.CDLL(path)
        _declare(library)
    except (OSError, tf.errors.OpError) as error:
        raise ImportError("TensorFlow %s cannot load %s: %s\nIt serves TensorFlow 2.16 to 2.21 on this architecture only; "
                          "`readelf -d` on it shows what it needs." % (tf.__version__, path, error)) from error
    except AttributeError as error:
        raise ImportError("%s is of another version than this Python package, and lacks a function: %s. Reinstall tfuse, or unset "
                          "TFUSE_LIBRARY" % (path, error)) from error
    failed = library.tfu_load_error().decode()
    if failed:
        raise ImportError("TensorFlow %s refused an op of %s: %s" % (tf.__version__, path, failed))
    return ops, library


def _declare(library):
    """Tells ctypes the types of the functions that Python calls."""
    for name, result, arguments in [
            ("tfu_load_error", ctypes.c_char_p, []),
            ("tfu_xla_status", ctypes.c_char_p, []),
            ("tfu_xla_room", ctypes.c_int64, [ctypes.c_char_p]),
            ("tfu_row_asks", ctypes.c_int, [ctypes.c_char_p]),
            ("tfu_row_shapes", ctypes.c_char_p, [ctypes.c_char_p, *[ctypes.c_void_p] * 3]),
            ("tfu_row_more_room", ctypes.c_int64, [ctypes.c_char_p, *[ctypes.c_void_p] * 3]),
            ("tfu_xla_traits", ctypes.c_int, [ctypes.c_char_p]),
            ("tfu_stream_route", ctypes.c_char_p, []),
            ("tfu_build", ctypes.c_char_p, []),
            ("tfu_chain_bytes", ctypes.c_char_p, [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]),
            ("tfu_doc", ctypes.c_char_p, [ctypes.c_char_p]),
            ("tfu_image_name", ctypes.c_char_p, [ctypes.c_int]),
            ("tfu_image_missing", ctypes.c_char_p, [ctypes.c_int]),
            ("tfu_jit_status", ctypes.c_char_p, []),
            ("tfu_jit_info", ctypes.c_int, [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t]),
            ("tfu_jit_folder", ctypes.c_char_p, []),
            ("tfu_jit_is_own", ctypes.c_int, [ctypes.c_char_p]),
            ("tfu_jit_size", ctypes.c_char_p, [ctypes.c_char_p, ctypes.POINTER(ctypes.c_int64)]),
            ("tfu_jit_register", ctypes.c_char_p, [ctypes.c_char_p, ctypes.c_int, *[ctypes.c_char_p] * 6]),
            ("tfu_jit_forget", None, [ctypes.c_char_p]),
            ("tfu_reports_open", ctypes.c_int, []),
            ("tfu_reports_close", None, [ctypes.c_int]),
            ("tfu_reports_steps", ctypes.c_int64, [ctypes.c_int]),
            ("tfu_reports_read", ctypes.c_int, [ctypes.c_int, ctypes.c_int64, ctypes.c_void_p, ctypes.c_size_t]),
            ("tfu_slot_open", ctypes.c_int, []),
            ("tfu_slot_close", None, [ctypes.c_int]),
            ("tfu_slot_put", ctypes.c_char_p, [ctypes.c_int, ctypes.c_int, *[ctypes.c_void_p] * 4]),
            ("tfu_threads", ctypes.c_int, []),
            ("tfu_tuned_path", ctypes.c_char_p, []),
            ("tfu_tuned_is_own", ctypes.c_int, []),
            ("tfu_tunable_text", ctypes.c_char_p, [ctypes.c_int]),
            ("tfu_tunable_set", ctypes.c_char_p, [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int]),
            ("tfu_trace_read", ctypes.c_int64, [ctypes.c_int, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64),
                                                ctypes.c_char_p, ctypes.c_size_t]),
            ("tfu_trace_stream", ctypes.c_void_p, [])]:
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments


path = find()
ops, library = _load(path)
_loaded = [ops]
_refused = {}  # by path: why; TensorFlow itself loads a library but once


def raw(stem):
    """What TensorFlow made of an op, in any of the libraries that are loaded."""
    for module in _loaded:
        if hasattr(module, "tfuse_" + stem):
            return getattr(module, "tfuse_" + stem)
    raise ValueError("no op called %s is loaded: tfuse.load(PATH) loads a library with ops of your own" % stem)


def _library_file():
    return path


def _stems(module):
    return [name[len("tfuse_"):] for name in dir(module) if name.startswith("tfuse_") and "eager_fallback" not in name]


def load(path):
    """Loads a library with ops of your own, beside tfuse's: what `python -m tfuse build-op` has built.

    Returns the stems of its ops, which tfuse.own.FusedOp makes functions of.

    Example:
      tfuse.load("libmine.so")
    """
    path = str(pathlib.Path(path).resolve())
    if not os.path.exists(path):
        there = ", ".join(sorted(p.name for p in pathlib.Path(path).parent.glob("*.so")))
        raise ImportError("tfuse.load: there is no file %s: python -m tfuse build-op builds it%s" % (
            path, ", and calls it after its folder; there is %s" % there if there else ""))
    if os.path.samefile(path, _library_file()):
        return _stems(ops)
    why = _damage(path) or _is_tfuse(path) and (  # TensorFlow would register its ops a second time, and then run none of them
        "it is a whole libtfuse.so, and %s is loaded already: TFUSE_LIBRARY names the one that is wanted" % _library_file())
    if why:
        raise ImportError("tfuse.load: %s cannot be loaded: %s. python -m tfuse build-op builds a library of your own" % (path, why))
    try:
        module = tf.load_op_library(path)
    except tf.errors.OpError as error:
        raise ImportError("tfuse.load: %s cannot be loaded: %s\nWhat is undefined or missing in it may be of another "
                          "tfuse than this: build it again with python -m tfuse build-op" % (path, error.message)) from error
    failed = _refused.setdefault(path, library.tfu_load_error().decode())
    if failed:
        raise ImportError("tfuse.load: %s: %s" % (path, failed))
    stems = _stems(module)
    if not stems:
        raise ImportError("tfuse.load: %s registers no ops with tfuse: it has no file that reads library.h" % path)
    for stem in stems:
        if not library.tfu_doc(b"tfuse." + stem.encode()):
            raise ImportError("tfuse.load: %s: the row of %s must be called X(%s) in ops.def, or have another name" % (
                path, stem, stem))
    _loaded.append(module)
    return stems


def xla_status():
    """'' when ops run inside XLA, otherwise why not."""
    return library.tfu_xla_status().decode()


def xla_target(stem):
    """An op's custom call, and how many bytes of scratch memory a call of it has as one more result: the one that XLA may
    capture into a CUDA graph, where there is one and a GPU. TFUSE_GRAPHS=0 or 1 says otherwise."""
    wanted = os.environ.get("TFUSE_GRAPHS")
    room = library.tfu_xla_room(stem.encode()) if wanted == "1" or wanted != "0" and not without_gpu() else -1
    return ("tfuse.%s.captured" % stem, room) if room >= 0 else ("tfuse." + stem, 0)


@functools.lru_cache(None)
def without_gpu():
    """Whether TensorFlow sees no GPU here."""
    return not tf.config.get_visible_devices("GPU")
