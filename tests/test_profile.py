"""python -m tfuse profile: what it says of a script's steps."""

import re

import keras
import pytest

from conftest import new_process
from tfuse import _profile

PROFILE = "import sys; from tfuse.__main__ import main; sys.exit(main(['profile', *sys.argv[1:]]))"
MODEL = """
import sys
import keras, numpy as np, tfuse
if "enable" in sys.argv:
    tfuse.enable()
x = keras.Input((16, 64))
y = keras.layers.LayerNormalization()(keras.layers.Dense(256, activation="gelu")(x))
y = keras.ops.reshape(y, (-1, 16, 4, 64))
y = keras.ops.dot_product_attention(y, y, y)
if "whole" in sys.argv:
    y = y + keras.ops.softmax(y, axis=None)
model = keras.Model(x, keras.layers.Dense(10)(keras.ops.reshape(y, (-1, 16, 256))))
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
model.fit(np.ones([512, 16, 64], "float32"), np.ones([512, 16]), batch_size=32, verbose=0)
print("the end of the script")
"""


@pytest.fixture
def profile(tmp_path):
    def run(*arguments, script=MODEL):
        (tmp_path / "script.py").write_text(script)
        return new_process(PROFILE, *[tmp_path / "script.py" if a == "SCRIPT" else a for a in arguments])

    return run


def line(text, *parts):
    """The one line of the report that holds all parts."""
    found = [line for line in text.splitlines() if all(part in line for part in parts)]
    assert len(found) == 1, text
    return found[0]


def test_casts_and_sums_beside_a_layer():
    """A norm's own casts are part of it; a layer's of its weights are not, nor is where gradients meet."""
    norm, dense = keras.layers.LayerNormalization(name="a_norm"), keras.layers.Dense(1, name="a_dense")
    owners = _profile.Owners()
    offered = lambda layer, kind: owners.offer(_profile.Event("model/%s/x" % layer.name, kind, 1.0))[0]
    assert [offered(norm, "Cast"), offered(dense, "Cast"), offered(dense, "MatMul")] == ["layer_norm", "", "linear"]
    assert offered(norm, "AddN") == ""


def test_stock_keras_could_be_served(profile):
    done = profile("SCRIPT")
    assert done.returncode == 0, done.stdout
    assert "the end of the script" not in done.stdout and "By tfuse: 0.0%" in done.stdout
    for what, by in [("Dense", "linear"), ("LayerNormalization", "layer_norm")]:
        assert "tfuse.enable() was not called" in line(done.stdout, what, "tfuse." + by)
    shares = [float(share) for share in re.findall(r"^ +([\d.]+)%", done.stdout.split("By tfuse")[0], re.M)]
    assert len(shares) > 5 and shares == sorted(shares, reverse=True) and 50 < sum(shares) < 100.5


def test_what_is_served_and_why_the_rest_is_not(profile):
    done = profile("--steps", 3, "--top", 50, "SCRIPT", "enable", "whole")
    assert done.returncode == 0, done.stdout
    for op in ("Tfuse>Norm", "Tfuse>NormGrad", "Tfuse>SparseCrossEntropyGrad"):
        assert re.search(r"%% .* %s$" % op, done.stdout, re.M), done.stdout
    assert "softmax over all axes at once" in line(done.stdout, "tfuse.softmax ")
    assert "the optimizer is Keras's own" in line(done.stdout, "tfuse.optimizers.Adam ")


def test_a_script_without_steps(profile):
    done = profile("SCRIPT", script="print(1 + 1)")
    assert done.returncode == 1 and "no tf.function was called 4 times" in done.stdout
    done = profile("SCRIPT", script="raise ValueError('its own')")
    assert done.returncode == 1 and "ValueError: its own" in done.stdout
