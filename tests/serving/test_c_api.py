"""Models outside of Python: by the C API, and in a C program, with the results that Python has."""

import os
import pathlib
import shutil
import subprocess
import threading

import numpy as np
import pytest
import tensorflow as tf

from conftest import GPUS, ROOT
from exported import MODELS, expected, folder, needs_library, same_bits, saved, values_for
from servers import like_a_server
from tfuse._core import _library
from tfuse._tools import _check, _config, _model

pytestmark = needs_library


@pytest.mark.parametrize("name", MODELS)
def test_the_c_api_gives_what_python_gives(folder, name):
    model = _model.Model(saved(folder, name))
    values = values_for(folder, name, 5)
    assert any("Tfuse>" in op for op in _check.ops_in(saved(folder, name))) != name.endswith("stock")
    wanted = expected(folder, name, values)
    same_bits(model.run(values), wanted)
    results, threads = [None] * 4, []
    for i in range(len(results)):
        threads.append(threading.Thread(target=lambda i=i: results.__setitem__(i, model.run(values))))
        threads[-1].start()
    for thread, i in zip(threads, range(len(results))):
        thread.join()
        same_bits(results[i], wanted)
    model.close()


def test_options(folder):
    """Threads, XLA and the CPU by name are heard: a wrong one would be an error of the session."""
    values = values_for(folder, "resnet_stock", 2)
    model = _model.Model(saved(folder, "resnet_stock"), device="CPU", inter_threads=2, intra_threads=2, xla=1)
    with tf.device("CPU"):
        (wanted,) = expected(folder, "resnet_stock", values).values()
    (got,) = model.run(values).values()
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    model.close()


def test_strings_and_scalars(folder):
    model = _model.Model(saved(folder, "strings"))
    assert model.inputs["s"].shape.as_list() == [None] and model.inputs["k"].shape.rank == 0
    got = model.run({"s": ["a", "é", "", "x" * 100], "k": np.int32(7)})
    assert got["joined"].tolist() == [b"a-7", "é-7".encode(), b"-7", b"x" * 100 + b"-7"] and got["k"] == 8
    model.close()


def test_what_the_c_api_refuses(folder, tmp_path):
    model = _model.Model(saved(folder, "sums"), most_bytes=1000)
    for values, why in [([[1.5]], "input ids must be int32, got float64"), (np.int32([1]), r"input ids must have shape \[\?, \?\]"),
                        (np.zeros([100, 10], np.int32), "the inputs are 4000 bytes, and the limit is 1000"),
                        (np.int32([[13]]), "an unlucky number")]:
        with pytest.raises(_model.NotThere, match=why):
            model.run({"ids": values})
    assert model.run({"ids": np.int32([[1, 2]])})["sum"] == 3  # all the same afterwards
    model.close()
    broken = tmp_path / "broken"
    shutil.copytree(saved(folder, "bert"), broken)
    (broken / "variables/variables.index").write_bytes(b"")
    if not GPUS:
        with pytest.raises(_model.NotThere, match="GPU was asked for, and TensorFlow .* sees none"):
            _model.Model(saved(folder, "sums"), device="GPU")
    for make, why in [(lambda: _model.Model(tmp_path / "nowhere"), "No such file"), (lambda: _model.Model(broken), "checkpoint|sstable|corrupt"),
                      (lambda: _model.Model(saved(folder, "sums"), "other"), "has no signature other"),
                      (lambda: _model.Model(saved(folder, "sums"), tags="train"), 'no graph with the tags "train"')]:
        with pytest.raises(_model.NotThere, match=why):
            make()


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_the_example_in_c(folder, tmp_path, capsys):
    """Compiled by the one command that it names; it finds TensorFlow by itself."""
    assert _config.main(["--cflags", "--libs"]) == 0
    flags = capsys.readouterr().out.split()
    subprocess.run(["cc", "-Wall", "-Werror", ROOT / "examples/serve.c", "-o", tmp_path / "serve", *flags], check=True)
    environment = {**os.environ, "TFUSE_TENSORFLOW": _model.tensorflow_folder(), "TFUSE_LIBRARY": _library.path}
    call = lambda path: subprocess.run([tmp_path / "serve", path], env=environment, capture_output=True, text=True)
    wanted = expected(folder, "resnet", {key: np.ones_like(value) for key, value in values_for(folder, "resnet", 1).items()})
    done = call(saved(folder, "resnet"))
    (name, value), = wanted.items()
    assert done.returncode == 0, done.stderr
    head, _, number = done.stdout.strip().rpartition(" ")
    assert head == "%s: float32, rank 2, 1 × 4; begins with" % name and np.float32(number) == value[0, 0]
    assert call("/nowhere").returncode == 1 and "No such file" in call("/nowhere").stderr


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_ops_that_are_linked_into_a_program(folder, tmp_path, capsys):
    """As TensorFlow Serving has them: the archive, and no libtfuse.so."""
    archive, tensorflow = pathlib.Path(_library.path).with_name("libtfuse.a"), _model.tensorflow_folder()
    if not archive.exists():
        pytest.skip("./run build //:libtfuse.a makes it")
    _config.main([])
    flags = capsys.readouterr().out.split()
    environment = {name: value for name, value in os.environ.items() if name != "TFUSE_LIBRARY"}
    for linked in (False, True):
        ops = ["-Wl,--whole-archive", archive, "-Wl,--no-whole-archive", "-L" + tensorflow, "-l:libtensorflow_framework.so.2",
               "-Wl,-rpath," + tensorflow, "-lm"]
        subprocess.run(["cc", ROOT / "examples/serve.c", "-o", tmp_path / "serve", *flags, *ops * linked], check=True)
        done = subprocess.run([tmp_path / "serve", saved(folder, "resnet")], env={**environment, "TFUSE_TENSORFLOW": tensorflow},
                              capture_output=True, text=True)
        assert done.returncode == 1 - linked, done.stderr
        assert "1 × 4" in done.stdout if linked else "needs tfuse's ops" in done.stderr
