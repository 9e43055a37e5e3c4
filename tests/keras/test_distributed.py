"""examples/gpt2.py on two replicas and by two workers: the losses are those of one, and the ops are the fused ones."""

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
from gpt2_example import PATH, arguments, command, explained, runs, trained
from tfuse._core import _library

# Those that a step has, whatever else is fused on a GPU.
FUSED = {"Attention", "AttentionGrad", "Norm", "NormGrad", "LinearCrossEntropy", "TensorsUpdate"}
# Runs a script as Python does, and writes down what tfuse.explain() tells at its end.
EXPLAINED = """
import json, runpy, sys, tfuse
rows, sys.argv = sys.argv[1], sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
with open(rows, "w") as file:
    json.dump(tfuse.explain(64), file)
"""


def assert_fused(rows):
    assert FUSED <= set(runs(rows)), rows
    assert not [row for row in rows if row["route"] == "Keras's own step"], rows


@pytest.mark.parametrize("dtype, error", [("float32", 1e-5), ("mixed_float16", 2e-3)])
def test_two_replicas_train_as_one(tmp_path, dtype, error):
    """And each runs all the fused ops that one would: the library remembers the runs of the last step."""
    options = {"mode": "tfuse", "dtype": dtype, "length": 16, "layers": 1}
    with tf.device("CPU:0"):
        alone, _ = trained(steps=5, save=tmp_path / "alone", **options)
        (further, _), of_one = explained(trained, steps=1, resume=tmp_path / "alone", **options)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    together, _ = trained(strategy, steps=5, save=tmp_path, **options)
    (last, _), of_two = explained(trained, strategy, steps=1, resume=tmp_path, **options)
    np.testing.assert_allclose(together + last, alone + further, rtol=error)
    assert_fused(of_two)
    # Of a loss scale, Keras asks one replica alone whether gradients are finite, which is TensorsNorm.
    assert runs(of_two) == {op: count if op == "TensorsNorm" else 2 * count for op, count in runs(of_one).items()}


def test_the_command_line_on_replicas(tmp_path, capsys):
    options = {"mode": "tfuse", "steps": 4, "length": 16, "layers": 1}
    alone = command(tmp_path, generate=20, **options)["losses"]
    text = capsys.readouterr().out.splitlines()[-1]
    together, rows = explained(command, tmp_path, strategy="mirrored", save=tmp_path, **options)
    np.testing.assert_allclose(together["losses"], alone, rtol=1e-5)
    assert_fused(rows)
    command(tmp_path, strategy="mirrored", resume=tmp_path, generate=20, **{**options, "steps": 0})
    assert capsys.readouterr().out.splitlines()[-1] == text


def test_a_batch_that_replicas_cannot_share(tmp_path):
    if len(tf.config.list_logical_devices("GPU")) == 1:
        pytest.skip("one GPU is one replica")
    with pytest.raises(SystemExit, match="--batch 7 cannot be shared by . replicas evenly"):
        command(tmp_path, mode="tfuse", strategy="mirrored", batch=7, steps=1, length=16, layers=1)


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
                       "PYTHONPATH": os.pathsep.join([home, str(PATH.parent), os.environ.get("PYTHONPATH", "")]),
                       "CUDA_VISIBLE_DEVICES": "-1"}
        outputs = {"json": tmp_path / str(i), "save": tmp_path / "saved"}
        script = [PATH, *arguments(**options, strategy="multiworker", **outputs)]
        processes.append(subprocess.Popen([sys.executable, "-c", EXPLAINED, tmp_path / ("rows%d" % i), *script],
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
        rows = json.loads((tmp_path / ("rows%d" % i)).read_text())
        assert_fused(rows)
        assert {row["input"] for row in rows if row["op"] == "Attention"} == {"float32[4, 16, 2, 16]"}  # its half of the batch
    with tf.device("CPU:0"):
        further, _ = trained(mode="tfuse", steps=1, length=16, layers=1, resume=tmp_path / "saved")
        np.testing.assert_allclose(further, trained(mode="tfuse", steps=7, length=16, layers=1)[0][6:], rtol=1e-5)
