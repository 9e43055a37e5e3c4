"""python -m tfuse profile: what it says of a script's steps."""

import re
import sys
import types

import keras
import pytest
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

import tfuse
from conftest import GPUS, needs_xla, new_process, since_now, skip_broken_xla
from tfuse._core import _library
from tfuse._tools import _idle, _profile

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
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile="xla" in sys.argv)
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


def test_ops_of_onednn():
    """On x86 they stand in the place of TensorFlow's own."""
    plane = xplane_pb2.XPlane()
    line = plane.lines.add()
    for number, kind in enumerate(["MatMul", "_MklSoftmax", "_MklFusedMatMul", "_MklNativeConv2D"]):
        plane.event_metadata[number].name = "a/b:" + kind
        line.events.add(metadata_id=number, duration_ps=10**9)
    assert [event.type for event in _profile._ops(plane, {})] == ["MatMul", "Softmax", "_FusedMatMul", "Conv2D"]


def test_stock_keras_could_be_served(profile):
    done = profile("SCRIPT")
    assert done.returncode == 0, done.stdout
    assert "the end of the script" not in done.stdout and "By tfuse: 0.0%" in done.stdout
    for what, by in [("LayerNormalization", "layer_norm"), ("Adam", "optimizers.Adam")]:
        assert "tfuse.enable() was not called" in line(done.stdout, what, "tfuse.%s " % by)
    if GPUS:
        assert "tfuse.enable() was not called" in line(done.stdout, "Dense", "tfuse.linear ")
    else:  # enable() would leave it to Keras
        assert "faster at it where there is no GPU: Dense, " in done.stdout and "tfuse.linear" not in done.stdout
    shares = [float(share) for share in re.findall(r"^ +([\d.]+)%", done.stdout.split("By tfuse")[0], re.M)]
    assert len(shares) > 5 and shares == sorted(shares, reverse=True) and 50 < sum(shares) < 100.5


@pytest.mark.parametrize("kind", _profile.BY_LAYER)
def test_what_is_offered_without_a_gpu(kind, monkeypatch):
    """What enable() leaves to Keras there is what the profile does not offer."""
    layer = getattr(keras.layers, kind, None)
    if kind in ("Softmax", "Dropout", "MultiHeadAttention", "GroupedQueryAttention"):  # of other arguments, and served
        assert _profile.BY_LAYER[kind] not in _profile.ON_A_GPU
        return
    if layer is None:
        pytest.skip("this Keras has no " + kind)
    monkeypatch.setattr(_library, "without_gpu", lambda: True)
    axes = int(kind[kind.index("D", 1) - 1]) if re.search(r"\dD", kind) else 1
    by_kind = {"Dense": [4], "EinsumDense": ["abc,cd->abd", [None, 4]], "GroupNormalization|Depthwise|(Max|Average)Pool.*": [2],
               "(Separable)?Conv.*": [4, 2]}
    arguments = next((values for pattern, values in by_kind.items() if re.match(pattern, kind)), [])
    told = since_now()
    with tfuse.enabled():
        layer(*arguments)(tf.ones([2, *[5] * axes, 4]))
    left = ["there is no GPU" in row["why"] for row in told(when="called")]
    assert any(left) == (_profile.BY_LAYER[kind] in _profile.ON_A_GPU)


def test_what_is_served_and_why_the_rest_is_not(profile):
    done = profile("--steps", 3, "--top", 50, "SCRIPT", "enable", "whole")
    assert done.returncode == 0, done.stdout
    for op in ("Tfuse>Norm", "Tfuse>NormGrad", "Tfuse>SparseCrossEntropyGrad"):
        assert re.search(r"%% .* %s$" % op, done.stdout, re.M), done.stdout
    assert "softmax over all axes at once" in line(done.stdout, "tfuse.softmax ")
    assert "Tfuse>TensorsUpdate" in done.stdout and "tfuse.optimizers.Adam" not in done.stdout


@needs_xla
def test_what_is_served_inside_xla(profile):
    done = profile("--top", 50, "SCRIPT", "enable", "whole", "xla")
    assert done.returncode == 0, done.stdout
    for op in ("norm", "norm_grad", "attention", "attention_grad", "sparse_cross_entropy_grad"):
        assert re.search(r"%% .* XLA tfuse\.%s$" % op, done.stdout, re.M), done.stdout
    assert "By tfuse: 0.0%" not in done.stdout
    assert "softmax over all axes at once" in line(done.stdout, "tfuse.softmax ")
    if GPUS:
        assert "XLA tfuse.tensors_update" in done.stdout and "tfuse.optimizers.Adam" not in done.stdout
    else:
        assert "there is no GPU: XLA's own code is faster" in line(done.stdout, "tfuse.optimizers.Adam ")


OTHERS_CALLS = """
import tensorflow as tf
x = tf.random.normal([256, 256])

@tf.function(jit_compile=True)
def step(x):
    x = tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, tf.sin(tf.matmul(x, x))), [0, x])[1]
    y = tf.reshape(x, [16, 64, 64])
    return tf.nn.softmax(x), tf.math.top_k(x, 3)[0], tf.matmul(y, y)

for _ in range(10):
    step(x)
"""


def test_what_xla_calls_is_not_all_ours(profile):
    """XLA sorts by a custom call of its own; a loop's time is that of what it runs; and stock ops could be served."""
    skip_broken_xla()
    done = profile("SCRIPT", script=OTHERS_CALLS)
    if not GPUS and tf.__version__.startswith(("2.16", "2.17")):
        assert done.returncode == 1 and "the profiler saw none of them run" in done.stdout
        return
    assert done.returncode == 0, done.stdout
    assert "By tfuse: 0.0%" in done.stdout and not re.search("XLA while$", done.stdout, re.M)
    assert "it is no layer's: call tfuse.linear in its place" in line(done.stdout, " MatMul", "tfuse.linear ")
    assert "call tfuse.batched_matmul in its place" in line(done.stdout, " BatchMatMul", "tfuse.batched_matmul ")


def test_xla_whose_program_is_not_kept(capsys):
    """The report does not pass over what it does not know."""
    stats = {"hlo_op": "multiply_add_fusion.3", "hlo_module": "a", "program_id": "0"}
    found = [_profile._xla_event(stats, 3.0, {}), _profile._xla_event({**stats, "tf_op": "a/b:MatMul"}, 1.0, {})]
    watch = types.SimpleNamespace(seen=1, name="step", function=None, seconds={id(None): 1.0}, owners=_profile.Owners())
    _profile.report("GPU", found, watch, top=9)
    text = capsys.readouterr().out
    assert "100.0%" in line(text, "XLA multiply_add_fusion") and "By tfuse: 0.0%" in text
    assert "75.0%" in line(text, "the profiler does not tell") and "25.0%" in line(text, "MatMul", "tfuse.linear")


def test_a_script_without_steps(profile):
    done = profile("SCRIPT", script="print(1 + 1)")
    assert done.returncode == 1 and "no tf.function was called 4 times" in done.stdout
    done = profile("SCRIPT", script="raise ValueError('its own')")
    assert done.returncode == 1 and "ValueError: its own" in done.stdout


@pytest.mark.parametrize("arguments, why", [
    (["/nowhere.py"], "/nowhere.py is no file that can be read"), (["--skip", "0", "x.py"], "at least 1, got 0"), (["/"], "/ is no file"),
])
def test_what_is_no_script(capsys, arguments, why):
    with pytest.raises(SystemExit) as ended:
        _profile.main(arguments)
    assert why in "%s%s" % (ended.value, capsys.readouterr().err)


def test_a_scripts_own_errors_keep_their_trace(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "script.py").write_text("open('/nowhere/at/all')\n")
    with pytest.raises(SystemExit) as ended:
        _profile.main([str(tmp_path / "script.py")])
    assert ended.value.code == 1 and "script.py\", line 1" in capsys.readouterr().err


def works(*rows):
    """(begin, end, kind) in microseconds."""
    return [_idle.Work(int(begin * 1e6), int(end * 1e6), kind) for begin, end, kind in rows]


@pytest.mark.parametrize("copies, cause", [
    ([], _idle.LAUNCH),
    ([(120, 180, "to GPU")], _idle.COPY),
    ([(95, 101, "to host")], _idle.READ),
    ([(95, 101, "to host"), (120, 180, "to GPU")], _idle.COPY),
    ([(10, 60, "to GPU"), (250, 260, "to host")], _idle.LAUNCH),  # they ran beside kernels
])
def test_what_the_gpu_waited_for(copies, cause):
    """Kernels from 0 to 100 and from 200 to 300 on two streams, and 5 microseconds between two of them."""
    kernels = [(0, 60, "kernel"), (50, 100, "kernel"), (200, 240, "kernel"), (245, 300, "kernel"), (210, 220, "kernel")]
    whole, waited = _idle.waits(works(*kernels, *copies))
    assert whole == 300e6 and waited == {cause: 100e6, _idle.BETWEEN: 5e6}


def test_idle_in_words():
    plane = types.SimpleNamespace(
        name="/device:GPU:0", event_metadata={1: types.SimpleNamespace(name="gemm"), 2: types.SimpleNamespace(name="MemcpyH2D")},
        lines=[types.SimpleNamespace(name="Stream #%d" % i, timestamp_ns=7000, events=[
            types.SimpleNamespace(metadata_id=kind, offset_ps=int(begin * 1e9), duration_ps=int(ms * 1e9)) for begin, ms in at])
            for i, (kind, at) in enumerate([(1, [(0, 4), (6, 2)]), (2, [(4.5, 1)])])])
    first, second = _idle.report([plane], 2)
    assert first == "The GPU was idle for 1.00 of 4.00 ms of a step. It waited for:" and second.endswith(_idle.COPY)
    assert _idle.report([types.SimpleNamespace(name="/host:CPU")], 2) == []


@pytest.mark.skipif(not GPUS, reason="there is no GPU")
def test_idle_times_of_a_model(profile):
    done = profile("SCRIPT", "enable")
    idle, whole = map(float, re.search(r"idle for ([\d.]+) of ([\d.]+) ms", done.stdout).groups())
    assert 0 < idle < whole
