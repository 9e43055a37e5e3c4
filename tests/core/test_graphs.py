"""Custom calls that XLA may capture into CUDA graphs: which they are, what they tell XLA, and their room for scratch."""

import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import skip_broken_xla
from tfuse._core import _library, _op

CAPTURABLE = 1  # XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE
STEMS = sorted(op.stem for op in _op.registry.values())


def traits(target):
    return _library.library.tfu_xla_traits(target.encode())


def room(stem):
    return _library.library.tfu_xla_room(stem.encode())


@pytest.mark.parametrize("stem", STEMS)
def test_only_captured_targets_say_so(stem):
    """Scratch of a plain call is gone when a graph would run it again."""
    if _library.xla_status():
        pytest.skip(_library.xla_status())
    assert traits("tfuse." + stem) == 0
    assert traits("tfuse.%s.captured" % stem) == (CAPTURABLE if room(stem) >= 0 else -1)


def test_page_says_why():
    """docs/design.md has a reason for every op that is not capturable, and for no other."""
    page = pathlib.Path(__file__).parents[2] / "docs" / "design.md"
    if not page.exists():
        pytest.skip("the pages are not here")
    section = page.read_text().split("## CUDA graphs")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`(\w+)`", "".join(rows))) == [stem for stem in STEMS if room(stem) < 0]


def test_target(monkeypatch):
    assert room("softmax") > 0 and room("square") == 0 and room("norm_grad") == room("nothing") == -1
    monkeypatch.setenv("TFUSE_GRAPHS", "0")
    assert _library.xla_target("softmax") == ("tfuse.softmax", 0)
    monkeypatch.setenv("TFUSE_GRAPHS", "1")
    assert _library.xla_target("softmax") == ("tfuse.softmax.captured", room("softmax"))
    assert _library.xla_target("norm_grad") == ("tfuse.norm_grad", 0)


CALLS = {
    "softmax": lambda x: tfuse.softmax(x),
    "square": lambda x: tfuse.square(x),
    "layer_norm": lambda x: tfuse.layer_norm(x, tf.ones([64]), tf.zeros([64])),
    "linear": lambda x: _op.registry["Linear"](x, tf.eye(64) * 2, None, None, None, activation="gelu")[0],
    "attention": lambda x: tf.reshape(tfuse.attention(*[tf.reshape(x, [1, -1, 4, 16])] * 3), [-1, 64]),
}


def paged(x):
    queries = tf.reshape(x, [-1, 1, 4, 16])
    sequences, pages = tf.shape(queries)[0], tf.zeros([4, 16, 4, 16], tf.uint8)
    return tfuse.paged_attention(queries, pages, pages, tf.zeros([sequences, 2], tf.int64), tf.ones([sequences], tf.int64))


@pytest.mark.parametrize("name, call", {
    "cache of 8 bits": paged,
    "quantized": lambda x: tfuse.quantized_linear(x, tf.ones([64, 32], tf.int8), tf.ones([32]), quantize_rows=True),
    "float8": lambda x: tfuse.quantized_linear(x, *tfuse.float8_kernel(tf.ones([64, 32])), float8=True, order="columns",
                                               quantize_rows=True),
}.items(), ids=lambda of: of if isinstance(of, str) else "")
def test_what_wants_room_for_unknown_sizes_is_not_captured(monkeypatch, name, call):
    """Its memory would have to come while XLA captures, when there is none to be had."""
    skip_broken_xla()
    if _library.xla_status():
        pytest.skip(_library.xla_status())
    monkeypatch.setenv("TFUSE_GRAPHS", "1")
    for sizes in [6, 64], [2, 3, 64], [None, 64], [2, None, 64], [None, None, 64]:
        traced = tf.function(call, autograph=False, jit_compile=True, input_signature=[tf.TensorSpec(sizes, tf.float32)])
        graph = str(traced.get_concrete_function().graph.as_graph_def())
        assert "tfuse." in graph and (".captured" in graph) == (None not in sizes), sizes


@pytest.mark.parametrize("sizes", [[6, 64], [None, 64]], ids=["known", "unknown"])
@pytest.mark.parametrize("name", sorted(CALLS))
def test_room_is_nobodys_result(monkeypatch, name, sizes):
    """With one more result, and without, the call gives the same bits and the same gradient."""
    skip_broken_xla()
    if _library.xla_status():
        pytest.skip(_library.xla_status())
    x = tf.random.stateless_normal([6, 64], [1, 2])

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = CALLS[name](x)
        return y, tape.gradient(y, x, x)

    results = []
    for graphs in "01":
        monkeypatch.setenv("TFUSE_GRAPHS", graphs)
        call = tf.function(lambda x: step(x), autograph=False, jit_compile=True,
                           input_signature=[tf.TensorSpec(sizes, tf.float32)])
        results.append(call(x))
        assert (".captured" in str(call.get_concrete_function().graph.as_graph_def())) == (graphs == "1")
    for plain, captured in zip(*results):
        np.testing.assert_array_equal(plain, captured)
