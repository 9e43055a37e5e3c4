"""generate() of models that are quantised: the words of Keras's own layers, by kernels in tiles."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import since_now
from generating import assert_same, fresh, prompts
from tfuse.generation import batch, tiles
from tfuse.generation.decoders import NotServed

pytestmark = pytest.mark.skipif(tuple(map(int, keras.__version__.split(".")[:2])) < (3, 15),
                                reason="this Keras has other formats")
FORMATS = {"int8": ("int8", None),
           "int8, weights alone": ("int8", lambda q: q.Int8QuantizationConfig(activation_quantizer=None)),
           "int4": ("int4", lambda q: q.Int4QuantizationConfig(block_size=-1)),
           "int4, blocks": ("int4", lambda q: q.Int4QuantizationConfig(block_size=16))}


def quantized(family, form, **options):
    lm, (mode, config) = fresh(family, **options), FORMATS[form]
    lm.quantize(mode, config=config and config(keras.quantizers))
    lm.compile(sampler="greedy", jit_compile=False)
    return lm


@pytest.mark.parametrize("family, form", [*(("Llama", form) for form in FORMATS), ("Qwen3", "int4, blocks"), ("GPT2", "int8"),
                                          ("Gemma", "int8")])
def test_the_words_of_keras_own_layers(as_on_a_gpu, family, form):
    lm, x = quantized(family, form, num_layers=1, intermediate_dim=64), prompts([5, 3, 14], 20)
    stock = lm.make_generate_function()({name: tf.constant(value) for name, value in x.items()}, stop_token_ids=None)
    told = since_now()
    with tfuse.enabled():
        assert_same(lm.generate(x, stop_token_ids=None), stock)
    assert told(route="chain", when="ran") and not told(op="CausalLM.generate"), told()
    found = tfuse.generate(lm, [row[:n].tolist() for row, n in zip(x["token_ids"], (5, 3, 14))], [15, 17, 6])
    for new, row, n in zip(found, np.asarray(stock["token_ids"]), (5, 3, 14)):
        np.testing.assert_array_equal(new, row[n:])


def test_tiles_stay_until_a_kernel_changes(monkeypatch):
    lm, x, packed = quantized("Llama", "int4, blocks", num_layers=1), prompts([4], 12), []
    pack = tiles._packed
    monkeypatch.setattr(tiles, "_packed", lambda part: packed.append(part) or pack(part))
    first = batch.generate(lm, x)
    monkeypatch.setattr(tiles, "_same", None)  # nothing is compared where all lies where it lay
    assert len(packed) == 8  # three products and one of attention, three after it, and the head
    assert_same(batch.generate(lm, x), first)
    tfuse.generate(lm, [[5, 6, 7]], 2)
    assert len(packed) == 8
    monkeypatch.undo()
    monkeypatch.setattr(tiles, "_packed", lambda part: packed.append(part) or pack(part))
    down = lm.backbone.transformer_layers[0]._feedforward_output_dense
    for weight in (down._kernel, down.kernel_scale):
        weight.assign(weight.numpy()[:, ::-1])
    second = batch.generate(lm, x)
    assert len(packed) == 9 and packed[8].outputs == 32
    assert (np.asarray(first["token_ids"]) != np.asarray(second["token_ids"])).any()
    assert_same(second, lm.generate(x, stop_token_ids=None))
    down._kernel.assign(down._kernel.numpy())
    assert_same(batch.generate(lm, x), second)
    assert len(packed) == 9  # the same values elsewhere


def test_products_of_several_kinds(as_on_a_gpu):
    """A layer that was left in float beside two of 8 bits, which one op does not take."""
    lm, x = fresh("Llama", num_layers=1), prompts([4, 6], 16)
    lm.quantize("int8", filters=lambda layer: layer.name not in ("key", "feedforward_gate_dense"))
    lm.compile(sampler="greedy", jit_compile=False)
    assert {layer.quantization_mode for layer in lm._flatten_layers() if hasattr(layer, "lora_enabled")} == {"int8", None}
    assert_same(batch.generate(lm, x), lm.generate(x, stop_token_ids=None))


def test_what_is_left_to_keras_hub():
    lm = quantized("Llama", "int8", num_layers=1, intermediate_dim=40)
    with pytest.raises(NotServed, match="its 40 inputs are no multiple of 16"):
        batch.generate(lm, prompts([4], 12))
    lm = quantized("Gemma", "int4, blocks", num_layers=1, intermediate_dim=64)
    with pytest.raises(NotServed, match="int4 mixes the axes"):
        batch.generate(lm, prompts([4], 12))


@pytest.mark.parametrize("mode, make", [("gptq", "GPTQConfig"), ("awq", "AWQConfig")])
def test_kernels_by_columns(mode, make):
    """With values of their own in the place of what calibration would find; awq's inputs are scaled, which one op does not take."""
    lm, x, rng = fresh("Llama", num_layers=1), prompts([4, 6], 16), np.random.default_rng(2)
    config = getattr(keras.quantizers, make)(dataset=["a"], tokenizer=lambda text: text, group_size=16)
    for layer in lm.backbone.transformer_layers[0]._flatten_layers():
        if type(layer) in (keras.layers.Dense, keras.layers.EinsumDense):
            layer.quantize(mode, config=config)
            setattr(layer, "is_%s_calibrated" % mode, True)
            layer.quantized_kernel.assign(rng.integers(0, 256, layer.quantized_kernel.shape))
            layer.kernel_scale.assign(rng.uniform(0.02, 0.1, layer.kernel_scale.shape))
            layer.kernel_zero.assign(rng.integers(6, 10, layer.kernel_zero.shape))
            layer.g_idx.assign(np.arange(layer.g_idx.shape[0]) // 16)
            if mode == "awq":
                layer.awq_scales.assign(rng.uniform(0.5, 2, layer.awq_scales.shape))
    lm.compile(sampler="greedy", jit_compile=False)
    assert_same(batch.generate(lm, x), lm.generate(x, stop_token_ids=None))
