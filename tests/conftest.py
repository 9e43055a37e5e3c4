"""What all tests share. They run with or without Bazel: TFUSE_LIBRARY names the library, unless tfuse is installed with it.

A test imports modules of its own folder and of this one: pytest puts both on sys.path. So no two modules have one name, and
only this folder has a conftest.py.
"""

import functools
import gc
import importlib.util
import itertools
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent  # of the source tree, also where Bazel runs the tests on links to it

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Stock TensorFlow is the yardstick. By oneDNN, on x86, it takes zeros along any axis for a convolution's padding, refuses
# tensors of eight axes, and dies of windows larger than the image.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
# NumPy's products are small here. Threads that wait for the next one spin, on cores that another test needs.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
if importlib.util.find_spec("tfuse") is None:
    sys.path.insert(0, str(ROOT / "python"))

import pytest
import tensorflow as tf
from tensorflow.python.framework import config

GPUS = tf.config.list_physical_devices("GPU")
for gpu in GPUS:
    tf.config.experimental.set_memory_growth(gpu, True)
# Whether every cell runs all of its shapes (see shapes_of() in ops/case_runs.py), and XLA compiles as it does for users.
FULL = os.environ.get("TFUSE_TESTS") == "full"
# Under a sanitizer that looks for races every access takes a thousand times as long: test_repeats has small shapes there.
SMALL = os.environ.get("TFUSE_TESTS") == "small"
RELEASE = tuple(map(int, tf.__version__.split(".")[:2]))
if not (FULL or GPUS) and RELEASE >= (2, 21):
    # What XLA makes of stock ops on the CPU is not what is tested, and takes half the time of many tests: neither LLVM's passes
    # nor MLIR's, by which 2.21 compiles each fusion; 2.22 has no such flag, and XLA ends a process that sets an unknown one.
    # With TensorFlow 2.16 on Arm, XLA is broken, and by this it would seem not to be.
    emitters = ["--xla_cpu_use_fusion_emitters=false"] if RELEASE == (2, 21) else []
    os.environ.setdefault("XLA_FLAGS", " ".join(["--xla_backend_optimization_level=0", *emitters]))

# Two logical CPUs, so that a distribution strategy has two replicas to work with.
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0],
                                           [tf.config.LogicalDeviceConfiguration()] * 2)

# Or TensorFlow's own products, which results are compared with, are off by 1e-3 on a GPU.
tf.config.experimental.enable_tensor_float_32_execution(False)

import keras
import tfuse
from tfuse._core import _explain, _library

_collectives = itertools.count(0, 100000)
# Python's search for cycles goes over all that tests have left: by default, it takes a twelfth of the time.
gc.set_threshold(50000, 20, 100)


@pytest.fixture(params=["CPU:0"] + ["GPU:0"] * bool(GPUS))
def device(request):
    with tf.device(request.param):
        yield request.param


@pytest.fixture(autouse=True, scope="module")
def old_objects_stay():
    """No collection has to look at them again: Keras does one for each variable that a layer loses when it is quantised, which
    takes half a second where hundreds of tests have run before."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def own_collectives(monkeypatch):
    """TensorFlow numbers what replicas exchange from the same number on in every strategy of a process, and refuses a
    number that comes again with another shape."""
    monkeypatch.setattr(tf.distribute.MirroredStrategy, "_collective_key_base", next(_collectives))


@pytest.fixture
def tf32():
    """TensorFlow's switch as it is by default."""
    tf.config.experimental.enable_tensor_float_32_execution(True)
    yield
    tf.config.experimental.enable_tensor_float_32_execution(False)


@pytest.fixture
def determinism():
    """Results have to repeat, bit for bit."""
    tf.config.experimental.enable_op_determinism()
    yield
    config.disable_op_determinism()


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """What is left to TensorFlow where there is no GPU is done by tfuse all the same."""
    monkeypatch.setattr(_library, "without_gpu", lambda: False)


def since_now():
    """A function that gives the rows of tfuse.explain() that came after this call and have the values that it is asked for, such
    as when="ran"."""
    mark = _explain.mark()
    return lambda **values: [row for row in _explain.since(mark) if values.items() <= row.items()]


def new_process(program, *arguments):
    """Runs a Python program in a process of its own, with this tfuse and without TF32; returns it when done, without what
    TensorFlow logs before it has read the level of its log, on x86."""
    home = str(pathlib.Path(tfuse.__file__).parent.parent)
    path = os.pathsep.join([home, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = {"TFUSE_LIBRARY": _library.path, "PYTHONPATH": path, "TF_FORCE_GPU_ALLOW_GROWTH": "true",
                   "NVIDIA_TF32_OVERRIDE": "0"}
    done = subprocess.run([sys.executable, "-c", program, *map(str, arguments)], env={**os.environ, **environment},
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    done.stdout = re.sub(r"(?m)^(WARNING: All log messages before absl::|[IWE]0000 00:00:).*\n", "", done.stdout)
    return done


@functools.lru_cache(None)
def stock_xla_error():
    """On some machines XLA's CPU compiler in stock TensorFlow up to 2.20 dies of an illegal instruction, and takes the
    process along. Whether it does here is asked in a process of its own, without tfuse."""
    if RELEASE > (2, 20):
        return ""
    code = ("import tensorflow as tf\nx = tf.ones([257, 130])\ns = tf.ones([130])\n"
            "def step(x, s):\n  with tf.GradientTape() as t:\n    t.watch([x, s]); y = tf.nn.relu(x * s + s)\n"
            "  return t.gradient(y, [x, s])\n"
            "with tf.device('CPU:0'): tf.function(step, jit_compile=True)(x, s)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return "stock XLA dies here with status %d" % done.returncode if done.returncode else ""


def skip_broken_xla():
    """For tests that compile with XLA, whichever route tfuse takes there."""
    if stock_xla_error():
        pytest.skip(stock_xla_error())


# How a function is called; without AutoGraph, which takes longer than most functions here, and of which they need nothing.
ROUTES = {"eager": lambda f: f, "graph": functools.partial(tf.function, autograph=False),
          "xla": functools.partial(tf.function, autograph=False, jit_compile=True)}


@pytest.fixture(params=list(ROUTES))
def route(request):
    if request.param == "xla":
        skip_broken_xla()
    return ROUTES[request.param]


@pytest.fixture(params=[False, True], ids=["graph", "xla"])
def jit(request):
    """What compile() and tf.function take as jit_compile."""
    if request.param:
        skip_broken_xla()
    return request.param


@pytest.fixture
def xla():
    """For tests of the XLA route itself."""
    if _library.xla_status():
        pytest.skip(_library.xla_status())
    skip_broken_xla()


needs_gpu = pytest.mark.skipif(not GPUS, reason="needs an NVIDIA GPU")
needs_xla = pytest.mark.usefixtures("xla")


def pytest_report_header():
    return "tfuse %s, TensorFlow %s, %d GPU(s), XLA route %s" % (
        tfuse.__version__, tf.__version__, len(GPUS), _library.xla_status() or "open")


def check_files_go_both_ways(models, x, folder, close):
    """Of our model and of Keras's, which have the same weights: each loads what the other has saved; and ours comes back
    from a .keras file."""
    for i, model in enumerate(models):
        path = folder / ("%d.weights.h5" % i)
        model.save_weights(path)
        other = models[1 - i]
        other.set_weights([0 * w for w in other.get_weights()])
        other.load_weights(path)
        close(other(x), model(x))
    models[0].save(folder / "model.keras")
    again = keras.saving.load_model(folder / "model.keras")
    assert type(again.layers[0]) is type(models[0].layers[0])
    close(again(x), models[0](x))


def check_lora(ours, theirs, x, close):
    """Of our layer and of Keras's, which have the same weights."""
    for layer in (ours, theirs):
        if not hasattr(layer, "enable_lora"):
            pytest.skip("this Keras has no LoRA")
        layer.enable_lora(2)
        layer.lora_kernel_b.assign(tf.ones(layer.lora_kernel_b.shape))
    theirs.lora_kernel_a.assign(ours.lora_kernel_a)
    close(ours(x), theirs(x))
