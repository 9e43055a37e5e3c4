"""Runs with or without Bazel: TFUSE_LIBRARY names the library, unless tfuse is installed with it."""

import importlib.util
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
if importlib.util.find_spec("tfuse") is None:
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))

import pytest
import tensorflow as tf

GPUS = tf.config.list_physical_devices("GPU")
for gpu in GPUS:
    tf.config.experimental.set_memory_growth(gpu, True)
# Two logical CPUs, so that a distribution strategy has two replicas to work with.
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0],
                                           [tf.config.LogicalDeviceConfiguration()] * 2)

import tfuse
from tfuse import _library


@pytest.fixture(params=["CPU:0"] + ["GPU:0"] * bool(GPUS))
def device(request):
    with tf.device(request.param):
        yield request.param


needs_gpu = pytest.mark.skipif(not GPUS, reason="needs an NVIDIA GPU")
needs_xla = pytest.mark.skipif(bool(_library.xla_status()), reason=_library.xla_status() or "-")


def pytest_report_header():
    return "tfuse %s, TensorFlow %s, %d GPU(s), XLA route %s" % (
        tfuse.__version__, tf.__version__, len(GPUS), _library.xla_status() or "open")
