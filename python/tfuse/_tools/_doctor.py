"""python -m tfuse doctor: what is here, whether it works, and what to do where it does not."""

import argparse
import ctypes
import glob
import json
import os
import platform
import sys

import keras
import numpy as np
import tensorflow as tf

import tfuse
from tfuse import cases
from tfuse._core import _library
from tfuse._keras import _enable, _missing
from tfuse._tools import _driver

OK, NOTE, BAD = "ok", "note", "FAIL"
SERVED = ((2, 16), (2, 21))
OLDEST_DRIVER = 525
SYMBOLS = {
    "_ZNK10tensorflow15OpKernelContext12eigen_deviceIN5Eigen9GpuDeviceEEERKT_v": "TensorFlow's GPU stream",
    "_ZN3tsl21OpDeterminismRequiredEv": "enable_op_determinism",
}
# Library, sonames in the order tried, function that tells its version, how to write that version.
LIBRARIES = [
    ("cuDNN", ["libcudnn.so.9", "libcudnn.so.8"], "cudnnGetVersion", None),
    ("cuBLASLt", ["libcublasLt.so.12", "libcublasLt.so.13"], "cublasLtGetVersion", None),
    ("NCCL", ["libnccl.so.2"], "ncclGetVersion", 1),
    ("NVRTC", ["libnvrtc.so.12", "libnvrtc.so.13"], "nvrtcVersion", 2),
]


def row(check, state, found, advice=""):
    return {"check": check, "state": state, "found": found, "advice": advice}


def software():
    version = _missing.release(tf.__version__)
    served = SERVED[0] <= version <= SERVED[1]
    older = "tested with %d.%d to %d.%d; install one of them" % (*SERVED[0], *SERVED[1])
    yield row("TensorFlow", OK if served else NOTE, tf.__version__,
              "" if served else newer("tensorflow", SERVED[1]) if version > SERVED[1] else older)
    yield keras_row()
    if keras.backend.backend() == "tensorflow":
        yield enable_row()
    yield row("Python", OK, "%s on %s" % (platform.python_version(), platform.machine()))


def newer(package, tested):
    """What to do about a release that is newer than those that were tested."""
    return ("newer than %d.%d, the newest that was tested. Should something fail that works with that: %spip install "
            "'%s<%d.%d', and please report it" % (
                *tested, "pip uninstall keras-nightly; " * (".dev" in keras.__version__ and package == "keras"), package,
                tested[0], tested[1] + 1))


def keras_row():
    found = "%s on %s" % (keras.__version__, keras.backend.backend())
    if keras.backend.backend() != "tensorflow":
        return row("Keras", NOTE, found, "tfuse's layers need KERAS_BACKEND=tensorflow")
    if _missing.release(keras.__version__) < (3, 3):
        return row("Keras", NOTE, found, "older than 3.3, the first that tfuse.enable() serves")
    is_newer = _missing.is_newer("keras")
    return row("Keras", NOTE if is_newer else OK, found, newer("keras", _missing.TESTED["keras"][1]) if is_newer else "")


def enable_row():
    """What tfuse.enable() replaces of Keras, and what it finds no place for."""
    count, missing = _enable.replaced_of("keras")
    if not missing:
        return row("enable()", OK, "all %d functions and methods of Keras that tfuse replaces are there" % count)
    return row("enable()", NOTE, "%d of %d functions and methods of Keras that tfuse replaces are not there, and Keras's own "
               "code runs in their place" % (len(missing), count), _missing.summary(missing))


def library():
    build = json.loads(_library.library.tfu_build())
    same = build.get("version") == tfuse.__version__
    yield row("library", OK if same else BAD, "%s, version %s" % (_library.path, build.get("version", "unknown")),
              "" if same else "Python's part is version %s: reinstall tfuse, or unset TFUSE_LIBRARY" % tfuse.__version__)
    yield row("device code", OK, "%s by NVRTC %s; cubins need driver %d, PTX 575 or later" % (
        ", ".join(build["architectures"]) or "none, for machines without a GPU", build.get("nvrtc", "unknown"), OLDEST_DRIVER))
    framework = ctypes.CDLL("libtensorflow_framework.so.2", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    for symbol, meaning in SYMBOLS.items():
        there = hasattr(framework, symbol)
        yield row("symbol", OK if there else NOTE, "%s: %s" % (meaning, "exported" if there else "missing"),
                  "" if there else "another route serves instead")
    yield row("stream route", OK, _library.library.tfu_stream_route().decode())
    closed = _library.xla_status()
    yield row("XLA route", NOTE if closed else OK, closed or "open",
              "inside jit_compile=True ops run as plain TensorFlow; TensorFlow 2.18 or later opens the route" if closed else "")
    yield row("CPU threads", OK, "%d (TFUSE_NUM_THREADS changes it)" % _library.library.tfu_threads())


def gpus():
    driver = _driver.Driver.find()
    if driver is None:
        yield row("GPU", NOTE, "no NVIDIA driver", "ops run on the CPU")
        return
    if driver.error:
        yield row("GPU", BAD, driver.error, "check the driver: nvidia-smi should list the GPU")
        return
    for gpu in driver.devices():
        image = _library.library.tfu_image_name(gpu.capability).decode()
        missing = "" if image else _library.library.tfu_image_missing(gpu.capability).decode()
        yield row("GPU %d" % gpu.ordinal, OK if image else BAD, "%s, compute capability %d.%d, %.0f GB, served by %s" % (
            gpu.name, gpu.capability // 10, gpu.capability % 10, gpu.memory / 1e9, image or "nothing"),
            missing)
    cuda = driver.version()
    yield row("driver", OK if cuda >= 12000 else BAD, "serves CUDA %d.%d" % (cuda // 1000, cuda % 1000 // 10),
              "" if cuda >= 12000 else "install driver %d or later" % OLDEST_DRIVER)
    seen = tf.config.list_physical_devices("GPU")
    if driver.devices() and not seen:
        yield row("TensorFlow's GPUs", BAD, "none", "this TensorFlow cannot use the GPU: pip install 'tensorflow[and-cuda]' "
                  "(NVIDIA support exists for x86_64 only)")


def nvidia_libraries():
    """Libraries that fused ops may use: where they are, and whether they are the ones TensorFlow has loaded."""
    for name, sonames, function, parts in LIBRARIES:
        handle = path = None
        for soname in sonames:
            for mode in (os.RTLD_NOLOAD | os.RTLD_NOW, os.RTLD_NOW):
                for candidate in [soname] + (_packaged(soname) if mode == os.RTLD_NOW else []):
                    try:
                        handle = handle or ctypes.CDLL(candidate, mode=mode)
                    except OSError:
                        continue
                    path = path or (candidate, "shared with TensorFlow" if mode & os.RTLD_NOLOAD else "not loaded by TensorFlow")
        if handle is None:
            yield row(name, NOTE, "not found", "needed only by ops that use it on a GPU; comes with tensorflow[and-cuda]")
        else:
            yield row(name, OK, "version %s, %s, %s" % (_version(handle, function, parts), *path))


def _packaged(soname):
    import importlib.util
    spec = importlib.util.find_spec("nvidia")
    return [p for d in (spec.submodule_search_locations if spec else []) for p in glob.glob(d + "/*/lib/" + soname)]


def _version(handle, function, parts):
    try:
        call = getattr(handle, function)
        if parts is None:
            call.restype = ctypes.c_size_t
            return str(call())
        numbers = [ctypes.c_int() for _ in range(parts)]
        call(*[ctypes.byref(n) for n in numbers])
        return ".".join(str(n.value) for n in numbers)
    except AttributeError:
        return "unknown"


def ops():
    """Every case once per device, forward and gradient, against NumPy; on a GPU where TensorFlow's switch allows TF32, with
    and without it."""
    allowed = tf.config.experimental.tensor_float_32_execution_enabled()
    gpus = tf.config.list_logical_devices("GPU")
    if gpus and allowed:
        yield row("TF32", OK, "on, TensorFlow's default: GPUs that have it read the factors of float32 products with 10 bits "
                  "after the point; tf.config.experimental.enable_tensor_float_32_execution(False) switches it off")
    for device in ["CPU:0"] + ["GPU:%d" % i for i in range(len(gpus))]:
        for family, members in cases.all_cases().items():
            try:
                found = [_worst(members, device, tf32=False)]
                if allowed and "GPU" in device:
                    found.append("with TF32 " + _worst(members, device, tf32=True))
                yield row("op " + family, OK, "right on %s, %s" % (device, ", ".join(found)))
            except Exception as error:  # whatever it is belongs in the report
                yield row("op " + family, BAD, "%s on %s: %s" % (type(error).__name__, device, str(error).split("\n")[0]),
                          "please report this with the output of python -m tfuse doctor --json")


def _worst(members, device, tf32):
    """The largest error, and how much of its bound one has at most, in words."""
    was = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(tf32)
    try:
        with tf.device(device):
            found = [_check(case, options, tf32=tf32) for case in members for options in case.options]
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(was)
    errors, shares = zip(*found)
    return "largest relative error %.0e, at most %.0f%% of what rounding explains" % (max(errors), 100 * max(shares))


def _check(case, options, shape=(64, 129), dtype="float32", tf32=False):
    """The largest error, and the largest in terms of its bound.

    With TF32, inputs have the 10 bits after the point that TF32 keeps. So only what is rounded on the way differs, and no
    product that decides, as before a relu, falls on another side than the reference's.
    """
    drawn = case.tensors(shape, dtype, seed=1)
    *inputs, dy = tf.nest.map_structure(_as_tf32, drawn) if tf32 else drawn
    want = case.truth(inputs, dy, options)
    got = case.step(case.run, inputs, dy, options)
    summed, errors, shares = case.summed(case.fit(shape)), [0.0], [0.0]
    for name, g, w in zip(case.results(), got, want):
        error, bound = cases.error(g, w), cases.bound(w, g.dtype.name, summed, tf32)
        if not np.all(np.isfinite(g)) or error > bound:
            raise ArithmeticError("%s %s: %s is off by %.1e%s, and rounding explains %.1e" % (
                case.name, options, name, error, " with TF32" if tf32 else "", bound))
        errors.append(error)
        shares.append(error / bound if bound else 0.0)
    return max(errors), max(shares)


def _as_tf32(tensor):
    """Without the last 13 of float32's 23 bits after the point. The last that is left is set, so that no number falls on one
    at which a formula bends, as 3 is for hard_swish."""
    if tensor.dtype != tf.float32:
        return tensor
    bits = tf.bitwise.bitwise_or(tf.bitwise.bitwise_and(tf.bitcast(tensor, tf.int32), ~0x1fff), 0x2000)
    return tf.where(tf.equal(tensor, 0), tensor, tf.bitcast(bits, tf.float32))


def report():
    for part in (software, library, gpus, nvidia_libraries, ops):
        try:
            yield from part()
        except Exception as error:
            yield row(part.__name__, BAD, "%s: %s" % (type(error).__name__, error), "please report this")


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tfuse doctor", description=(
        "Checks this machine and says what to do where something is wrong. Exit status 0 when all is well, 1 otherwise."))
    parser.add_argument("--json", action="store_true", help="the same as JSON, for a bug report or a script")
    chosen = parser.parse_args(arguments)
    rows = []
    for r in report():
        rows.append(r)
        if not chosen.json:
            print("%-4s  %-18s %s" % (r["state"], r["check"], r["found"]), flush=True)
            if r["advice"]:
                print("%-4s  %-18s -> %s" % ("", "", r["advice"]), flush=True)
    bad = sum(r["state"] == BAD for r in rows)
    if chosen.json:
        json.dump({"healthy": not bad, "rows": rows}, sys.stdout, indent=1)
        print()
    else:
        print("\n" + ("%d checks failed; the arrows say what to do" % bad if bad else "tfuse %s is well here" % tfuse.__version__))
    return 1 if bad else 0
