"""Servers that tests start: `python -m tfuse serve` as a process, or a Triton as that starts it."""

import contextlib
import os
import pathlib
import socket
import subprocess
import sys

import pytest
import tensorflow as tf

import tfuse
from tfuse._core import _library
from tfuse._tools import _serve

NO_TRITON = "no Triton here: pip install nvidia-pytriton, or TFUSE_TRITON=/path/to/tritonserver"

# Which kernel is fastest another process may find otherwise on a GPU, and another kernel gives other bits.
os.environ.update(TFUSE_AUTOTUNE="0", TF_CUDNN_USE_AUTOTUNE="0")


@pytest.fixture(scope="module", autouse=True)
def like_a_server():
    """With TF32, as TensorFlow has it by default: a server is another process."""
    tf.config.experimental.enable_tensor_float_32_execution(True)
    yield
    tf.config.experimental.enable_tensor_float_32_execution(False)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(folder, *arguments):
    """What it writes is read from its stdout."""
    home = str(pathlib.Path(tfuse.__file__).parent.parent)
    path = os.pathsep.join([home, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = {**os.environ, "TFUSE_LIBRARY": _library.path, "PYTHONPATH": path}
    return subprocess.Popen([sys.executable, "-m", "tfuse", "serve", str(folder), *map(str, arguments)], env=environment, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@contextlib.contextmanager
def triton(folder, log, *arguments, grpc_port=0):
    """The HTTP port of a Triton for a folder of models; arguments are its own."""
    port = free_port()
    own = [folder, "--http-port", port, "--grpc-port", grpc_port, "--metrics-port", 0, "--log", log, "--wait", 120, "--",
           "--exit-timeout-secs=5", *arguments]
    with _serve.running(_serve.parse([str(word) for word in own])):
        yield port
