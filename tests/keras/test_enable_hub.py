"""tfuse.enable() and KerasHub: small models with random weights give the same, train and write text, by tfuse's ops."""

import importlib.util
import inspect
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import new_process
from enabling import (SPARSE, TOKENS, TOLERANCE, check_declined, close, layer, left_as_it_was, normal, outcome, places, ran,
                      reasons, reasons_in, sampler_of_ones_own, same, start)
from tfuse._keras import _replaced_hub, _replaced_hub_attention, _replaced_hub_rotary, _replaced_hub_vision

HUB = {  # small, with random weights; the ops that must serve them
    "LlamaBackbone": (dict(num_query_heads=4, num_key_value_heads=2), {"Attention", "Norm", "Rope"}),
    "GemmaBackbone": (dict(num_query_heads=4, num_key_value_heads=1, head_dim=4), {"Attention", "Norm"}),
    "Qwen3Backbone": (dict(num_query_heads=4, num_key_value_heads=2, head_dim=8, sliding_window_size=4),
                      {"Attention", "Norm"}),
    "QwenBackbone": (dict(num_query_heads=4, num_key_value_heads=2, use_sliding_window_attention=True,
                          sliding_window_size=4), {"Attention", "Norm"}),
    "MistralBackbone": (dict(num_query_heads=4, num_key_value_heads=2, sliding_window=4), {"Attention", "Norm"}),
    "Phi3Backbone": (dict(num_query_heads=4, num_key_value_heads=2), {"Attention", "Norm"}),
    "MixtralBackbone": (dict(num_query_heads=4, num_key_value_heads=2, num_experts=2, sliding_window=4),
                        {"Attention", "Norm"}),
    "GPT2Backbone": (dict(num_heads=4, max_sequence_length=16, dropout=0.0), {"Attention", "Norm", "ScaleBiasAct"}),
    "GPTNeoXBackbone": (dict(num_heads=2, rotary_percentage=0.5, max_sequence_length=16, dropout=0.0),
                        {"Attention", "Norm"}),
}


@pytest.fixture(scope="module")
def hub():
    return pytest.importorskip("keras_hub", reason="needs keras-hub, tokenizers and regex").models


def backbone(hub, name):
    keras.utils.set_random_seed(0)
    return getattr(hub, name)(vocabulary_size=32, num_layers=2, hidden_dim=16, intermediate_dim=32, **HUB[name][0])


def hub_inputs():
    return {"token_ids": TOKENS, "padding_mask": TOKENS > 0}


@pytest.mark.parametrize("name", HUB)
def test_keras_hub(hub, name):
    model = backbone(hub, name)

    def results():
        with tf.GradientTape() as tape:
            y = model(hub_inputs())
            loss = tf.reduce_mean(tf.square(tf.boolean_mask(y, TOKENS > 0) - 1))
        return y, tape.gradient(loss, [w.value for w in model.trainable_weights])

    want, dwant = results()
    with tfuse.enabled():
        got, dgot = results()
    assert HUB[name][1] <= ran() and not reasons()
    np.testing.assert_allclose(got[TOKENS > 0], want[TOKENS > 0], rtol=1e-5, atol=1e-5)
    for a, b in zip(dgot, dwant, strict=True):
        if b is not None:
            close(tf.convert_to_tensor(a), tf.convert_to_tensor(b), 1e-4)


def norm_rows():
    rows = [row for row in _replaced_hub.TABLE if row.attribute.endswith(".call")]
    assert len(rows) > 15
    return rows


def norm_of(row, policy="float32"):
    """The norm that a row of the table names, for rows of 8."""
    of_class = getattr(importlib.import_module(row.module), row.attribute.split(".")[0])
    needs_dim = "dim" in inspect.signature(of_class.__init__).parameters
    return layer(lambda: of_class(dtype=policy, **({"dim": 8} if needs_dim else {})), 3, 5, 8)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16", "float64"])
def test_norms_of_keras_hub(hub, policy):
    """Every one in the table, against itself; with rows that are small beside epsilon, but where some norms square them in
    16 bits."""
    x = normal(3, 5, 8)
    if not policy.startswith("mixed"):
        x *= np.array([[1.0], [0.1], [1e-2], [1e-3], [1e-4]], "float32")
    for row in norm_rows():
        norm = norm_of(row, policy)
        want = norm(x)
        with tfuse.enabled():
            got = norm(x)
        assert got.dtype == want.dtype, row.attribute
        close(got, want, TOLERANCE.get(norm.compute_dtype, 1e-5), row.attribute)
    assert "Norm" in ran() and not reasons()


@pytest.mark.parametrize("what, why", [
    ((), ""), ((8,), ""), ((0, 8), ""), ((2, 2, 1, 1, 1, 1, 1, 8), ""),
    ((2, 2, 1, 1, 1, 1, 1, 1, 8), "up to 8 dimensions"), ((3, 1), "weights are not of the axes' shape"),
    ("unknown", "number of dimensions is not known"),
], ids=str)
def test_norms_of_keras_hub_take_whatever_keras_takes(hub, what, why):
    x = tf.constant(normal(*(what if what != "unknown" else (3, 8))))
    for row in norm_rows():
        norm = norm_of(row)
        if what == "unknown":
            call = lambda: tf.function(norm, input_signature=[tf.TensorSpec(None)])(x)
        else:
            call = lambda: norm(x)
        want = outcome(call)
        start()
        with tfuse.enabled():
            got = outcome(call)
        assert same(got, want), (row.attribute, got, want)
        if not isinstance(want, Exception) and (norm.weights or "weights" not in why):
            served = ("Norm" in ran()) == bool(np.size(want)) and not reasons()  # where nothing comes out, nothing runs
            assert why in reasons()[row.attribute] if why else served, row.attribute


def test_keras_hub_trains(hub, jit):
    def step():
        body = backbone(hub, "LlamaBackbone")
        model = keras.Model(body.input, body.token_embedding(body.output, reverse=True))
        model.compile(keras.optimizers.SGD(0.1), SPARSE(ignore_class=0), jit_compile=jit)
        return [model.train_on_batch(hub_inputs(), TOKENS) for _ in range(2)]

    want = step()
    with tfuse.enabled():
        got = step()
    np.testing.assert_allclose(got, want, rtol=1e-4)
    assert got[1] < got[0]


@pytest.mark.parametrize("name", ["Llama", "Qwen3"])
def test_keras_hub_generates(hub, name):
    """Token by token from a cache, in KerasHub's own loop; Qwen3 with a window."""
    def text():
        model = getattr(hub, name + "CausalLM")(backbone(hub, name + "Backbone"), preprocessor=None)
        model.compile(sampler=sampler_of_ones_own())
        padded = {"token_ids": np.where(np.arange(12) < 5, TOKENS[:4], 0), "padding_mask": np.tile(np.arange(12) < 5, (4, 1))}
        return model.generate(padded, stop_token_ids=None)["token_ids"]

    want = text()
    with tfuse.enabled():
        got = text()
    assert np.array_equal(got, want) and len(set(np.ravel(got))) > 4
    assert {"Attention", "Norm"} <= ran()


KEPT = {  # an option of Gemma, and why its attention is left to KerasHub
    "dropout": (0.1, "KerasHub's fused path has no dropout"),
}


@pytest.mark.parametrize("option", KEPT)
def test_what_keras_hub_keeps(hub, option):
    keras.utils.set_random_seed(0)
    value, why = KEPT[option]
    model = hub.GemmaBackbone(vocabulary_size=32, num_layers=1, num_query_heads=2, num_key_value_heads=1, hidden_dim=16,
                              intermediate_dim=32, head_dim=8, **{option: value})
    check_declined("CachedGemmaAttention._use_fused_attention_op", why, lambda: model(hub_inputs()))


NO_ARGUMENT = "KerasHub's fused path may leave out the soft cap, which this Keras has no argument for"


def test_a_keras_without_the_soft_cap(hub):
    """T5Gemma does so. Gemma hands the cap on, and is left to KerasHub all the same: it may not be told apart."""
    keras.utils.set_random_seed(0)
    model = hub.GemmaBackbone(vocabulary_size=32, num_layers=1, num_query_heads=2, num_key_value_heads=1, hidden_dim=16,
                              intermediate_dim=32, head_dim=8, attention_logit_soft_cap=2.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keras.ops, "dot_product_attention", lambda query, key, value, mask=None, scale=None: None)
        check_declined("CachedGemmaAttention._use_fused_attention_op", NO_ARGUMENT, lambda: model(hub_inputs()))


def test_every_reason_has_a_model():
    for pattern in reasons_in(_replaced_hub):
        assert any(re.fullmatch(pattern, why) for why in [NO_ARGUMENT, *(why for _, why in KEPT.values())]), pattern


AFTER = """
import sys
import tfuse
tfuse.enable()
assert "keras_hub" not in sys.modules
try:
    import keras_hub
except ImportError as error:
    print("no KerasHub:", error)
    sys.exit()
from keras_hub.src.models.llama import llama_attention, llama_layernorm
norm = llama_layernorm.LlamaLayerNorm.call
print(llama_attention.fused_attention_op_available(), hasattr(norm, "__wrapped__"))
tfuse.disable()
print(llama_attention.fused_attention_op_available(), llama_layernorm.LlamaLayerNorm.call is norm.__wrapped__)
"""


def test_keras_hub_imported_after():
    done = new_process(AFTER)
    assert done.returncode == 0, done.stdout
    if "no KerasHub" in done.stdout:
        pytest.skip(done.stdout.splitlines()[-1])
    assert done.stdout.split()[-4:] == ["True", "True", "False", "True"]


def is_there(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # nor is the package that it would be in
        return False


def test_names_of_keras_hub(hub):
    """A module that this release has, has what the table names, and enable() replaces it. From 0.28 on all modules are
    there; before 0.20 nothing asks whether attention is fused."""
    release = tuple(map(int, importlib.import_module("keras_hub").__version__.split(".")[:2]))
    table = _replaced_hub.TABLE + _replaced_hub_attention.TABLE + _replaced_hub_rotary.TABLE + _replaced_hub_vision.TABLE
    rows = [row for row in table if is_there(row.module)]
    assert {"LlamaLayerNorm.call", "MistralLayerNormalization.call"} <= {row.attribute for row in rows}
    assert rows == table or release < (0, 28)
    for row in rows:
        importlib.import_module(row.module)
    before = {place: value for place, value in places().items() if place[0].startswith("keras_hub") and value is not None}
    missing = {row.attribute for row in rows} - {attribute for _, attribute in before}
    assert not missing or release < (0, 20) and all("fused_attention" in name for name in missing)
    with tfuse.enabled():
        replaced = places()
    assert all(replaced[place] is not value for place, value in before.items())
