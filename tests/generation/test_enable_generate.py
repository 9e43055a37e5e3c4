"""tfuse.enable() behind KerasHub's generate(): what a user calls, and what is left to KerasHub and why."""

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import since_now
from generating import assert_same, fresh, model, prompts, writer
from tfuse._core import _library


@pytest.fixture
def on(as_on_a_gpu):
    """tfuse is enabled, and serves what it would where there is a GPU."""
    with tfuse.enabled():
        yield


CALLS = [dict(inputs="the fox"), dict(inputs=["the fox", "a"]), dict(inputs=["the fox", "a"], max_length=8),
         dict(inputs=["the fox", "a"], strip_prompt=True), dict(inputs=["the fox", "a"], stop_token_ids=None),
         dict(inputs=["the fox", "a"], stop_token_ids=[19])]


def test_texts(as_on_a_gpu):
    lm = writer()
    stock, told = [lm.generate(**call) for call in CALLS], since_now()
    with tfuse.enabled():
        assert [lm.generate(**call) for call in CALLS] == stock
    assert told(route="chain") and not told(op="CausalLM.generate")
    assert len({str(texts) for texts in stock}) == len(CALLS)  # each of them says something else


def test_batches_of_a_data_set(on):
    lm, x = model("Llama", num_layers=1), prompts([4, 6, 3], 12)
    told, whole = since_now(), lm.generate(x, stop_token_ids=None)
    assert_same(lm.generate(tf.data.Dataset.from_tensor_slices(x).batch(2), stop_token_ids=None), whole)
    assert told(route="chain") and not told(op="CausalLM.generate")


def test_compile_again(on):
    """With XLA, which has nothing to compile; with another sampler; and with weights that were loaded."""
    lm, x = fresh("Llama", num_layers=1), prompts([4, 6], 30)
    tokens = lambda: lm.generate(x, stop_token_ids=None)["token_ids"]
    told, first = since_now(), tokens()
    lm.compile(sampler="greedy", jit_compile=True)
    np.testing.assert_array_equal(tokens(), first)
    lm.compile(sampler=keras_hub.samplers.RandomSampler(temperature=3.0, seed=1))
    assert (tokens() != first).any()
    lm.compile(sampler="greedy")
    lm.set_weights([w[::-1] for w in lm.get_weights()])
    assert (tokens() != first).any()
    assert told(route="chain") and not told(op="CausalLM.generate")


def test_disable_gives_back_what_was_there(as_on_a_gpu):
    lm = fresh("Llama", num_layers=1)
    with tfuse.enabled():
        assert lm.make_generate_function() is not lm.generate_function
    assert lm.make_generate_function() is lm.generate_function


# ---- what is left to KerasHub ----


def small(**options):
    return fresh("Llama", num_layers=1, **options)


def compiled(lm, **options):
    lm.compile(**options)
    return lm


def quantised():
    lm = small()
    lm.quantize("float8")
    return lm


def quantised_experts():
    lm = fresh("QwenMoe", num_layers=1, mlp_only_layers=[], hidden_dim=32, shared_expert_intermediate_dim=32)
    lm.quantize("int8")
    return lm


def mixed_experts():
    """Which compute in another dtype than the rest."""
    lm = fresh("Mixtral", num_layers=1, dtype="bfloat16")
    lm.backbone.transformer_layers[0]._sparse_moe_block.expert_bank.dtype_policy = "float32"
    return lm


def adapted():
    """LoRA weights that come after a first call."""
    lm = small()
    lm.generate_function = keras_hubs
    lm.make_generate_function()(prompts([4], 12))
    lm.backbone.enable_lora(2)
    return lm


class OwnSampler(keras_hub.samplers.Sampler):
    def get_next_token(self, probabilities):
        return keras.ops.argmax(probabilities, axis=-1)


class OwnModel(keras_hub.models.LlamaCausalLM):
    def call_with_cache(self, *arguments):
        return super().call_with_cache(*arguments)


def distributed():
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        return small()


def left_padded():
    return {name: value[:, ::-1] for name, value in prompts([4], 12).items()}


LEFT = {
    "beam": (lambda: compiled(small(), sampler=keras_hub.samplers.BeamSampler(num_beams=2)), "the sampler is a BeamSampler"),
    "contrastive": (lambda: compiled(small(), sampler="contrastive"), "the sampler is a ContrastiveSampler"),
    "own sampler": (lambda: compiled(small(), sampler=OwnSampler()), "the sampler is a OwnSampler, which wants probabilities"),
    "own model": (lambda: OwnModel(small().backbone), "OwnModel.call_with_cache is of test_enable_generate, and not KerasH"),
    "family": (lambda: keras_hub.models.GptOssCausalLM(keras_hub.models.GptOssBackbone(
        vocabulary_size=97, num_layers=1, num_query_heads=2, num_key_value_heads=1, num_experts=2, hidden_dim=8,
        intermediate_dim=8)), "no steps for a GptOssBackbone"),
    "rotation": (lambda: keras_hub.models.GPTNeoXCausalLM(keras_hub.models.GPTNeoXBackbone(
        vocabulary_size=97, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=8)), "rotates the query of each new"),
    "Bloom": (lambda: keras_hub.models.BloomCausalLM(keras_hub.models.BloomBackbone(
        vocabulary_size=97, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=8)), "(ALiBi)"),
    "Falcon": (lambda: keras_hub.models.FalconCausalLM(keras_hub.models.FalconBackbone(
        vocabulary_size=97, num_layers=1, num_attention_heads=2, hidden_dim=8, intermediate_dim=8)), "(ALiBi)"),
    "quantised experts": (quantised_experts, "shared_expert_dense is quantised, and steps have experts in floats alone"),
    "mixed experts": (mixed_experts, "experts computes in float32, and the model in bfloat16"),
    "beyond": (lambda: fresh("Phi3, su", num_layers=1, pretraining_sequence_length=8), "has 8 positions, and rows are of 12"),
    "both ways": (lambda: fresh("Gemma3", num_layers=1, use_bidirectional_attention=True), "tokens attend to those after them"),
    "clipped": (lambda: fresh("Gemma3", num_layers=1, dtype="float16"), "float16 is clipped"),
    "quantised": (quantised, "tfuse has no float8 products"),
    "adapted": (adapted, "has LoRA weights"),
    "eager": (lambda: compiled(small(), run_eagerly=True), "the model has run_eagerly=True"),
    "distributed": (distributed, "the model is distributed"),
}
LEFT_INPUTS = {
    "left padded": (left_padded, None, "prompts do not begin their rows"),
    "no prompt": (lambda: prompts([0, 3], 12), None, "prompts do not begin their rows"),
    "stops": (lambda: prompts([4], 12), (5, 0), "what comes after the prompts has a stop token"),
    "lists": (lambda: {name: value.tolist() for name, value in prompts([4], 12).items()}, None, "not [batch, length], or"),
    "more inputs": (lambda: {**prompts([4], 12), "images": 1}, None, "the inputs are not token_ids and padding_mask"),
}


def keras_hubs(inputs, stop_token_ids=None):
    """Stands for the function that KerasHub makes."""
    return "KerasHub's own"


def reasons(told):
    return [row["why"] for row in told(op="CausalLM.generate", route="Keras's own code", when="called")]


@pytest.mark.parametrize("name", LEFT)
def test_models_that_are_left(on, name):
    make, why = LEFT[name]
    lm, told = make(), since_now()
    lm.generate_function = keras_hubs
    assert lm.make_generate_function()(prompts([4], 12)) == "KerasHub's own"
    assert len(reasons(told)) == 1 and why in reasons(told)[0]


def test_texts_of_a_model_that_reads_images(on):
    """Its preprocessor has images for texts, too: none."""
    lm, inputs, told = model("Gemma3"), prompts([4, 7], 12), since_now()
    want = lm.make_generate_function()(inputs)
    images = {"images": np.zeros([2, 0, 16, 16, 3]), "vision_mask": np.zeros([2, 12]), "vision_indices": np.zeros([2, 0])}
    got = lm.make_generate_function()({**inputs, **images})
    np.testing.assert_array_equal(got["token_ids"], want["token_ids"])
    assert not reasons(told)


@pytest.mark.parametrize("name", LEFT_INPUTS)
def test_inputs_that_are_left(on, monkeypatch, name):
    make, stops, why = LEFT_INPUTS[name]
    lm, told = model("Llama", num_layers=1), since_now()
    monkeypatch.setattr(lm, "generate_function", keras_hubs)
    assert lm.make_generate_function()(make(), stop_token_ids=stops) == "KerasHub's own"
    assert len(reasons(told)) == 1 and why in reasons(told)[0]


def test_weights_on_a_cpu_beside_a_gpu(on, monkeypatch):
    with tf.device("CPU:0"):
        lm, told = small(), since_now()
    lm.generate_function = keras_hubs
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind=None: ["one"])
    assert lm.make_generate_function()(prompts([4], 12)) == "KerasHub's own"
    assert reasons(told) == ["the weights are on the CPU, where KerasHub's own generate() is faster"]


def test_weights_on_two_devices(on):
    with tf.device("CPU:0"):
        lm, told = small(), since_now()
    lm.generate_function, scale = keras_hubs, lm.backbone.layer_norm.scale
    with tf.device("CPU:1"):
        scale._value = tf.Variable(scale.numpy())
    assert lm.make_generate_function()(prompts([4], 12)) == "KerasHub's own"
    assert reasons(told) == ["the weights are on 2 devices"]


def test_positions_that_a_model_has_not(on, monkeypatch):
    lm, told = model("GPT2"), since_now()
    monkeypatch.setattr(lm, "generate_function", keras_hubs)
    assert lm.make_generate_function()(prompts([4], 101)) == "KerasHub's own"
    assert reasons(told) == ["the model has 100 positions, and rows are of 101"]


def test_inside_a_function(on, monkeypatch):
    lm, told = model("Llama", num_layers=1), since_now()
    monkeypatch.setattr(lm, "generate_function", lambda inputs, stop_token_ids=None: inputs["token_ids"] + 1)
    x = prompts([4], 12)
    found = tf.function(lambda: lm.make_generate_function()({name: tf.constant(value) for name, value in x.items()}))()
    np.testing.assert_array_equal(found, x["token_ids"] + 1)
    assert reasons(told) == ["it is called while a function is traced"]


def test_on_a_cpu(monkeypatch):
    monkeypatch.setattr(_library, "without_gpu", lambda: True)
    lm, x, told = model("Llama", num_layers=1), prompts([4, 2], 12), since_now()
    stock = lm.generate(x, stop_token_ids=None)
    with tfuse.enabled():
        lm.compile(sampler="greedy", jit_compile=False)
        assert_same(lm.generate(x, stop_token_ids=None), stock)
    assert reasons(told) == ["there is no GPU, and KerasHub's own generate() is faster on the CPU"]
