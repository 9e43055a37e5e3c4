"""tools/keras_layers.py: that it has cells for all of Keras's layers, finds what is wrong, and tells one thing from another."""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys

import keras
import pytest

import tfuse
from conftest import ROOT
from tfuse._core import _library

sys.path.insert(0, str(ROOT / "tools"))
import keras_layers
import keras_layers_table

CELL = keras_layers.Cell("vector", "LeakyReLU()", "mixed_bfloat16", False)


@pytest.fixture(autouse=True)
def own_policy():
    before = keras.config.dtype_policy()
    yield
    keras.config.set_dtype_policy(before)


def patched(monkeypatch, call):
    """In the place of tfuse.enabled: LeakyReLU computes this."""

    @contextlib.contextmanager
    def enabled():
        with monkeypatch.context() as patch:
            patch.setattr(keras.layers.LeakyReLU, "call", call)
            yield

    return enabled


def test_every_layer_has_cells_or_a_reason():
    """Aliases, such as Convolution2D, are the layers that they name."""
    written = set(re.findall(r"\b([A-Z]\w*)\(", " ".join(keras_layers_table.LAYERS.values())))
    public = {name: value for name, value in vars(keras.layers).items() if isinstance(value, type)}
    covered = {public[name] for name in written | set(keras_layers_table.EXCLUDED) if name in public}
    assert not [name for name, value in public.items() if value not in covered]
    assert not written & set(keras_layers_table.EXCLUDED)


def test_names_are_their_own():
    names = [keras_layers.name_of(cell) for cell in keras_layers.cells()]
    assert len(set(names)) == len(names) > 1000


@pytest.mark.parametrize("layer", ["SimpleRNN(4, return_sequences=True) <- x, mask=m", "~ Dropout(0.5)", "Embedding(16, 8) <- ids"])
def test_right(layer):
    kind, why = keras_layers.result_of(CELL._replace(form="sequence", layer=layer), tfuse.enabled)
    assert kind == "right" and (why == "finite") == layer.startswith("~")


def test_a_wrong_result_is_found(monkeypatch):
    kind, why = keras_layers.result_of(CELL, patched(monkeypatch, lambda self, x: keras.ops.leaky_relu(x, 0.4)))
    assert kind == "different" and "times the bound" in why
    small = lambda self, x: keras.ops.leaky_relu(x, self.negative_slope) + 1e-3
    assert keras_layers.result_of(CELL, patched(monkeypatch, small))[0] == "right"  # a quarter of a rounding
    assert keras_layers.result_of(CELL._replace(policy="float32"), patched(monkeypatch, small))[0] == "different"


def test_an_error_and_a_nan_are_found(monkeypatch):
    def refused(self, x):
        raise ValueError("not this one")

    kind, why = keras_layers.result_of(CELL, patched(monkeypatch, refused))
    assert kind == "broken" and "not this one" in why
    kind, why = keras_layers.result_of(CELL, patched(monkeypatch, lambda self, x: x / 0))
    assert kind == "broken" and "nan" in why
    monkeypatch.setattr(keras.layers.LeakyReLU, "call", refused)
    assert keras_layers.result_of(CELL, tfuse.enabled)[0] == "stock fails"


def test_processes(tmp_path):
    """Cells go to processes, one of which a layer ends: the others still run."""
    layers = ["Flatten()", 'Lambda(lambda x: __import__("os")._exit(7))', "Dense(5)"]
    (tmp_path / "keras_layers_table.py").write_text("LAYERS, EXCLUDED = %r, {}" % {"vector": "\n".join(layers)})
    (tmp_path / "keras_layers.py").write_text((ROOT / "tools" / "keras_layers.py").read_text())
    home = os.pathsep.join([str(pathlib.Path(tfuse.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, tmp_path / "keras_layers.py", "--only", " float32$", "--jobs", "1", "--json", tmp_path / "out"]
    done = subprocess.run(command, env={**os.environ, "TFUSE_LIBRARY": _library.path, "PYTHONPATH": home}, text=True,
                          capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "2 right, 0 broken, 0 different, 1 stock fails"
    assert [kind for kind, _ in json.loads((tmp_path / "out").read_text()).values()] == ["right", "stock fails", "right"]
