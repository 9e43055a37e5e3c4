"""Libraries of ops outside of tfuse: the example does what its own test asks; what cannot be loaded or built."""

import importlib
import pathlib
import re
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import GPUS, ROOT, needs_xla
from tfuse._core import _library
from tfuse._tools import _build_op, _new_op

EXAMPLE = ROOT / "examples/own_op"
pytestmark = [pytest.mark.skipif(not EXAMPLE.exists(), reason="not in the source tree"),
              pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")]


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """The example, built in a copy by the documented command, with device code where it can be compiled; its module."""
    folder = tmp_path_factory.mktemp("mine") / "my_ops"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    if GPUS and not _build_op.nvidia():
        pytest.skip("needs NVRTC, for the GPUs that are here")
    named = [] if GPUS else ["--arch", "sm_90" if _build_op.nvidia() else "none"]
    assert _build_op.main([str(folder), *named]) == 0
    sys.path.insert(0, str(folder))
    yield importlib.import_module("own_op")
    sys.path.remove(str(folder))


def test_the_examples_own_test(example):
    folder = pathlib.Path(example.__file__).parent
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."], cwd=folder, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0 and "13 passed" in done.stdout, done.stdout


@needs_xla
def test_inside_xla_it_is_a_custom_call(example):
    tf.function(example.soft_cap, jit_compile=True)(tf.ones([5, 7]), 2.0)
    assert [(row["op"], row["route"]) for row in tfuse.explain() if row["when"] == "traced"][-1] == (
        "SoftCap", "XLA custom call")


def test_second_gradient(example):
    x = tf.constant([0.5, -3.0], tf.float64)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = example.soft_cap(x, 2.0)
        slope = tape.gradient(y, x)
    t = np.tanh(x / 2)
    np.testing.assert_allclose(outer.gradient(slope, x), -t * (1 - t * t), rtol=1e-12)


def test_in_a_keras_model_that_is_saved(example, tmp_path):
    x = keras.Input([4])
    model = keras.Model(x, example.soft_cap(x, 2.0))
    model.save(tmp_path / "model.keras")
    values = tf.constant([[1.0, -9.0, 0.0, 3.0]])
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again(values), 2 * np.tanh(values / 2), rtol=1e-6)


# ---- what new-op writes into a repository of one's own ----


def test_new_op_into_a_repository(tmp_path, monkeypatch, capsys):
    """From any folder, and a second op beside the first: they build, and do what their own tests ask."""
    folder = tmp_path / "repository/my_ops"
    monkeypatch.chdir(tmp_path)
    for arguments in (["my_bend", "--inputs", "x, gain", "--attributes", "alpha: float = 0.3, beta: float = 1", "--layer"],
                      ["my_rows", "--kind", "rows", "--attributes", "alpha: float = 0.3"]):
        assert _new_op.main([*arguments, "--into", "repository/my_ops"]) == 0
    out = capsys.readouterr().out
    assert "changed:\n  ops.def\n" in out and "then:\n  python -m tfuse build-op repository/my_ops\n" in out
    assert re.search(r"formulas, where there is .*sqrt.*:\n  my_rows_cpu.c +the formulas\n  my_rows.cu +the formulas\n", out)
    assert (folder / "ops.def").read_text() == "X(my_bend)\nX(my_bend_grad)\nX(my_rows)\nX(my_rows_grad)\n"
    if GPUS and not _build_op.nvidia():
        pytest.skip("needs NVRTC, for the GPUs that are here")
    named = [] if GPUS else ["--arch", "sm_90" if _build_op.nvidia() else "none"]
    assert _build_op.main([str(folder), *named]) == 0
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."], cwd=folder, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0 and "29 passed" in done.stdout, done.stdout


@pytest.mark.parametrize("name, message", [
    ("gelu", "there is gelu already: take another name"),
    ("layer_norm", "there is layer_norm already"),
    ("scale_bias_act", "there is scale_bias_act, scale_bias_act_grad, ScaleBiasAct already"),
    ("numpy", "there is a Python module numpy already"),
    ("there", "there is .*there.h already"),
])
def test_names_that_new_op_refuses(tmp_path, capsys, name, message):
    (tmp_path / "there.h").touch()
    assert _new_op.main([name, "--into", str(tmp_path)]) == 1
    assert re.search(message, capsys.readouterr().err)
    assert [path.name for path in tmp_path.iterdir()] == ["there.h"]


# ---- what cannot be loaded ----


def compiled(folder, code):
    (folder / "bad.c").write_text(code)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "libbad.so", folder / "bad.c", _library.path], check=True)
    return folder / "libbad.so"


REGISTER = """
void tfu_register(void *);
static struct { int abi, count; const void *entries, *next; } library = {%s};
__attribute__((constructor)) static void start(void) { tfu_register(&library); }
"""


@pytest.mark.parametrize("code, message", [
    (REGISTER % 99, "it was built for version 99 of tfuse's interface, and this tfuse has version 6: build it again"),
    ("int nothing;", "registers no ops with tfuse"),
    ("void tfu_of_a_later_tfuse(void);\n"
     "__attribute__((constructor)) static void start(void) { tfu_of_a_later_tfuse(); }",
     "tfu_of_a_later_tfuse(.|\n)*another tfuse than this: build it again"),
], ids=["another version", "no ops", "a function that is missing"])
def test_what_cannot_be_loaded(tmp_path, code, message):
    path = compiled(tmp_path, code)
    for _ in range(2):
        with pytest.raises(ImportError, match=message):
            tfuse.load(path)


def test_what_is_no_library(tmp_path):
    (tmp_path / "text.so").write_text("not a library\n")
    with pytest.raises(ImportError, match="text.so cannot be loaded"):
        tfuse.load(tmp_path / "text.so")
    with pytest.raises(ImportError, match="there is no file .*nowhere.so: python -m tfuse build-op .*there is text.so"):
        tfuse.load(tmp_path / "nowhere.so")


def test_another_libtfuse_is_refused_and_the_same_one_is_there_already(tmp_path):
    """Before it registers anything: TensorFlow would run no op any more that it has two of."""
    other, same = shutil.copy(_library.path, tmp_path / "other.so"), tmp_path / "same.so"
    same.symlink_to(_library.path)
    with pytest.raises(ImportError, match="other.so cannot be loaded: it is a whole libtfuse.so, and .* is loaded already: TFUSE_LIBRARY"):
        tfuse.load(other)
    before = len(_library._loaded)
    assert "gelu" not in tfuse.load(same) and "scale_bias_act" in tfuse.load(_library.path) and len(_library._loaded) == before
    assert tfuse.reduce_prod(tf.constant([2.0, 3.0])).numpy() == 6


def test_names_that_are_taken(example, tmp_path):
    again = shutil.copy(pathlib.Path(example.__file__).with_name("libmy_ops.so"), tmp_path / "libagain.so")
    with pytest.raises(ImportError, match="there is an op called SoftCap already: take another name"):
        tfuse.load(again)
    with pytest.raises(ValueError, match="no op called nowhere_op is loaded"):
        tfuse.own.FusedOp("NowhereOp", plain=None)


def test_a_row_that_is_too_long(tmp_path):
    folder = shutil.copytree(EXAMPLE, tmp_path / "long", ignore=shutil.ignore_patterns("*.so", "*.py"))
    row = (folder / "soft_cap.c").read_text()
    attributes = ", ".join('"a%d: int = 0"' % i for i in range(11))
    (folder / "soft_cap.c").write_text(row.replace("TFU_T_FLOATS, TFU_S_REALS", attributes))
    assert _build_op.main([str(folder), "--arch", "none"]) == 0
    with pytest.raises(ImportError, match="SoftCap has more than 13 inputs or outputs, or more than 10 attributes"):
        tfuse.load(folder / "liblong.so")


# ---- what cannot be built ----


def test_what_cannot_be_built(example, tmp_path, monkeypatch, capsys):
    refused = lambda *arguments: _build_op.main([str(tmp_path), *arguments]) and capsys.readouterr().err
    assert "there is no %s" % (tmp_path / "ops.def") in refused()
    (tmp_path / "ops.def").write_text("X(missing)\n")
    assert "tfu_missing" in refused("--arch", "none")
    (tmp_path / "missing.cu").write_text("__global__ void f() { wrong; }\n")
    if _build_op.nvidia():
        assert "missing.cu(1): error: identifier \"wrong\" is undefined" in refused("--arch", "sm_90")
    monkeypatch.setattr(_build_op, "nvidia", lambda: None)
    assert "pip install nvidia-cuda-nvrtc-cu12" in refused("--arch", "sm_90")
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    assert "a C compiler is needed" in refused("--arch", "none")
    assert not list(tmp_path.glob("*.so*"))
