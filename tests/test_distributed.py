"""examples/gpt2.py on two replicas and by two workers: the losses are those of one."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import tfuse
from gpt2_example import PATH, arguments, trained
from tfuse import _library


@pytest.mark.parametrize("dtype, error", [("float32", 1e-5), ("mixed_float16", 2e-3)])
def test_two_replicas_train_as_one(tmp_path, dtype, error):
    options = {"mode": "tfuse", "dtype": dtype, "length": 16, "layers": 1}
    with tf.device("CPU:0"):
        alone, _ = trained(steps=6, **options)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    together, _ = trained(strategy, steps=4, save=tmp_path, **options)
    together += trained(strategy, steps=2, resume=tmp_path, **options)[0]
    np.testing.assert_allclose(together, alone, rtol=error)


def _free_ports(count):
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def test_two_workers_train_as_one(tmp_path):
    options = {"mode": "tfuse", "steps": 6, "length": 16, "layers": 1}
    workers, processes = ["localhost:%d" % port for port in _free_ports(2)], []
    home = str(pathlib.Path(tfuse.__file__).parent.parent)
    for i in range(2):
        config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": i}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(config), "TFUSE_LIBRARY": _library.path,
                       "PYTHONPATH": os.pathsep.join([home, os.environ.get("PYTHONPATH", "")]), "CUDA_VISIBLE_DEVICES": "-1"}
        outputs = {"json": tmp_path / str(i), "save": tmp_path / "saved"}
        processes.append(subprocess.Popen([sys.executable, PATH, *arguments(**options, strategy="multiworker", **outputs)],
                                          env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    with tf.device("CPU:0"):
        alone, _ = trained(**options)
    try:
        for process in processes:
            text, _ = process.communicate(timeout=180)
            assert process.returncode == 0, text
    finally:
        for process in processes:
            process.kill()
    for i in range(2):
        np.testing.assert_allclose(json.loads((tmp_path / str(i)).read_text())["losses"], alone, rtol=1e-5)
    with tf.device("CPU:0"):
        further, _ = trained(mode="tfuse", steps=1, length=16, layers=1, resume=tmp_path / "saved")
        np.testing.assert_allclose(further, trained(mode="tfuse", steps=7, length=16, layers=1)[0][6:], rtol=1e-5)
