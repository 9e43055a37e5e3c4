"""Quantized layers of tfuse: weights, results and files are those of Keras's own, in every mode that this Keras has."""

import contextlib
import functools
import inspect
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import check_files_go_both_ways, since_now
from tfuse._keras import _replaced_quantized
from tfuse.products import quantized_layers

MODES = ["int8", "int4", "float8", "gptq", "awq"] if quantized_layers.BY_STRATEGY else getattr(
    keras.src.dtype_policies.dtype_policy, "QUANTIZATION_MODES", ["int8"])
TOKENS = np.random.default_rng(6).integers(0, 32, (4, 6))


def quantized(kind, mode):
    """A model of layers of tfuse or of keras.layers, quantized; what it gave before; and the layers that were left out."""
    keras.utils.set_random_seed(1)
    block = keras.Sequential([
        kind.Dense(8, "gelu", name="dense"),
        kind.EinsumDense("abc,cde->abde", (None, 2, 3), bias_axes="e", name="einsum")], name="block")
    model = keras.Sequential([
        keras.Input((6,), dtype="int32"), keras.layers.Embedding(32, 4, name="embedding"), block], name="model")
    before, config = model(TOKENS).numpy(), {}
    if mode in ("gptq", "awq"):
        make, more = {"gptq": ("GPTQConfig", {}), "awq": ("AWQConfig", {"num_grid_points": 2})}[mode]
        config["config"] = getattr(keras.quantizers, make)(
            TOKENS.astype("int32"), lambda text: text, sequence_length=6, num_samples=2, group_size=4, **more)
        model.get_quantization_layer_structure = lambda mode: {
            "pre_block_layers": model.layers[:1], "sequential_blocks": [block]}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        model.quantize(mode, **config)
    return model, before, {layer for layer in ("Dense", "EinsumDense") if "Layer %s " % layer in "".join(map(str, warned))}


@pytest.mark.skipif("type_check" not in inspect.signature(keras.layers.Dense.quantize).parameters,
                    reason="this Keras quantizes no class but its own")
@pytest.mark.parametrize("mode", MODES)
def test_quantized_layers_are_keras_own(as_on_a_gpu, mode, tmp_path):
    (ours, before, left_out), (theirs, _, _) = (quantized(kind, mode) for kind in (tfuse, keras.layers))
    assert not left_out
    want = theirs(TOKENS).numpy()
    assert not np.allclose(want, before, atol=1e-5)
    assert [w.path for w in ours.weights] == [w.path for w in theirs.weights]
    # awq's scales are powers of mean activations, whose last bit may differ.
    same = functools.partial(np.allclose, rtol=1e-6, atol=0) if mode == "awq" else np.array_equal
    assert all(same(a, b) for a, b in zip(ours.get_weights(), theirs.get_weights(), strict=True))
    policies = [[layer.dtype_policy.name for layer in model.layers[1].layers] for model in (ours, theirs)]
    assert policies[0] == policies[1] and policies[0][0].startswith(mode)
    np.testing.assert_allclose(ours(TOKENS), want, atol=1e-6)
    with tfuse.enabled():
        for model in (ours, theirs):
            np.testing.assert_allclose(model(TOKENS), want, atol=1e-5)
    if mode == "float8":  # the one that trains all of its weights
        losses = []
        for model in (ours, theirs):
            model.compile(keras.optimizers.SGD(0.1), "mse")
            losses.append([model.train_on_batch(TOKENS, want + 1) for _ in range(3)])
        # On a GPU a last bit may differ, and so the number of 8 bits that it is rounded to.
        np.testing.assert_allclose(*losses, rtol=1e-3 if tf.config.list_physical_devices("GPU") else 1e-5)
        assert losses[0][2] < losses[0][0]
    if mode not in ("gptq", "awq"):  # whose files Keras does not load, of its own layers neither
        check_files_go_both_ways([ours, theirs], TOKENS, tmp_path, functools.partial(np.testing.assert_allclose, atol=1e-6))
        again = keras.saving.load_model(tmp_path / "model.keras").layers[1].layers
        assert [type(layer) for layer in again] == [type(layer) for layer in ours.layers[1].layers]
        assert [layer.dtype_policy.name for layer in again] == policies[0]


def test_a_class_made_of_ours_is_not_quantized():
    """It may compute something else than Dense does, so Keras's rule holds for it."""
    class Own(tfuse.Dense):
        pass

    layer = Own(4)
    layer.build((None, 8))
    with pytest.raises(NotImplementedError):
        layer.quantize("int8")


# ---- one layer, by tfuse.quantized_linear ----

RNG = np.random.default_rng(0)
CONFIG = dict(dataset=["a"], tokenizer=lambda text: text)
# Mode, and what makes its config.
FORMATS = {
    "int8": ("int8", lambda q: None),
    "int8, weights alone": ("int8", lambda q: q.Int8QuantizationConfig(activation_quantizer=None)),
    "int4": ("int4", lambda q: q.Int4QuantizationConfig(block_size=-1)),
    "int4, blocks": ("int4", lambda q: q.Int4QuantizationConfig(block_size=4)),
    "gptq": ("gptq", lambda q: q.GPTQConfig(**CONFIG, group_size=8)),
    "gptq, ordered, 8 bits": ("gptq", lambda q: q.GPTQConfig(**CONFIG, group_size=8, activation_order=True, weight_bits=8)),
    "awq": ("awq", lambda q: q.AWQConfig(**CONFIG, group_size=8)),
}
LAYERS = {
    "Dense": (lambda dtype: keras.layers.Dense(7, "gelu", dtype=dtype), (3, 24)),
    "EinsumDense": (lambda dtype: keras.layers.EinsumDense("abc,cde->abde", (None, 3, 5), bias_axes="e", dtype=dtype),
                    (2, 3, 24)),
    "EinsumDense of heads": (lambda dtype: keras.layers.EinsumDense("abhd,hde->abe", (None, 25), dtype=dtype), (2, 3, 4, 6)),
}
BY_FORMATS = pytest.mark.skipif(tuple(map(int, keras.__version__.split(".")[:2])) < (3, 15),
                                reason="this Keras has other formats")


def one(layer, form, dtype, shape):
    """The layer, quantized, with numbers of every kind, the same for all dtypes."""
    mode, config = FORMATS[form]
    keras.utils.set_random_seed(3)
    layer = LAYERS[layer][0](dtype)
    layer.build(shape)
    rng = np.random.default_rng(4)
    for weight in layer.weights:
        weight.assign(rng.normal(size=weight.shape))
    layer.quantize(mode, config=config(keras.quantizers))
    if mode in ("gptq", "awq"):
        if quantized_layers.BY_STRATEGY:
            layer.calibration_pending = False
        setattr(layer, "is_%s_calibrated" % mode, True)  # up to Keras 3.15
        layer.quantized_kernel.assign(rng.integers(0, 256, layer.quantized_kernel.shape))
        layer.kernel_scale.assign(rng.uniform(0.5, 1, layer.kernel_scale.shape))
        layer.kernel_zero.assign(rng.integers(0, 16, layer.kernel_zero.shape))
        layer.g_idx.assign(np.repeat(np.arange(3), 8)[rng.permutation(24) if "ordered" in form else slice(None)])
        if mode == "awq":
            layer.awq_scales.assign(rng.uniform(0.5, 2, 24))
    return layer


def results(layer, x, upstream):
    """What it gives for x, and to x."""
    x = tf.cast(x, layer.compute_dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
    return [np.asarray(v, "float64") for v in (y, tape.gradient(y, x, tf.cast(upstream, x.dtype)))]


@BY_FORMATS
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("form", FORMATS)
def test_a_layer_is_as_exact_as_keras_own(form, layer):
    shape = LAYERS[layer][1]
    x = tf.constant(RNG.normal(size=shape), tf.bfloat16)  # which is the same in all dtypes
    made = {dtype: one(layer, form, dtype, shape) for dtype in ("float64", "float32", "mixed_bfloat16")}
    upstream = RNG.normal(size=made["float64"](tf.cast(x, "float64")).shape).astype("float32")
    exact = results(made.pop("float64"), x, upstream)
    for dtype, at_least in ("float32", 1e-6), ("mixed_bfloat16", 4e-3):
        stock = results(made[dtype], x, upstream)
        since = since_now()
        with tfuse.enabled():
            ours = results(made[dtype], x, upstream)
        assert since(op="QuantizedLinear", when="ran"), since()
        for mine, keras_own, right in zip(ours, stock, exact):
            error = lambda y: np.abs(y - right).max() / np.abs(right).max()
            assert error(mine) <= 2 * error(keras_own) + at_least


@BY_FORMATS
def test_groups_beyond_256_are_what_was_meant():
    """In bfloat16, numbers of groups are rounded by Keras 3.15.1."""
    layer = keras.layers.Dense(2, use_bias=False, dtype="bfloat16")
    layer.build((None, 600))
    layer._kernel.assign(RNG.normal(size=(600, 2)) * np.arange(1, 601)[:, None])
    layer.quantize("int4", config=keras.quantizers.Int4QuantizationConfig(block_size=2))
    codes = np.asarray(keras.quantizers.unpack_int4(layer._kernel, 2, axis=-1), "float64")
    scale, zero = (np.repeat(np.asarray(tf.cast(w, "float64")), 2, 0) for w in (layer.kernel_scale, layer.kernel_zero))
    with tfuse.enabled():
        found = quantized_layers.serve(layer, tf.eye(600, dtype=tf.bfloat16))
    np.testing.assert_allclose(tf.cast(found, "float64"), (codes - zero) * scale, rtol=5e-3)


@BY_FORMATS
@pytest.mark.parametrize("form, layer", [("int8", "Dense"), ("int4, blocks", "EinsumDense")])
def test_lora_beside_a_quantized_kernel_trains(form, layer):
    x, losses = RNG.normal(size=LAYERS[layer][1]).astype("float32"), []
    for on in (False, True):
        trained = one(layer, form, "float32", x.shape)
        trained.enable_lora(2, lora_alpha=4)
        trained.lora_kernel_b.assign(np.random.default_rng(1).normal(size=trained.lora_kernel_b.shape))
        model = keras.Sequential([keras.Input(x.shape[1:]), trained])
        with tfuse.enabled() if on else contextlib.nullcontext():
            model.compile(keras.optimizers.SGD(0.01), "mse")
            losses.append([model.train_on_batch(x, np.ones(trained(x).shape)) for _ in range(4)])
    np.testing.assert_allclose(*losses, rtol=1e-4)
    assert losses[1][3] < losses[1][0]


@BY_FORMATS
def test_lora_that_gptq_has_quantised():
    """It is a part of the kernel then, and Keras adds nothing."""
    layer, x = one("Dense", "gptq", "float32", (3, 24)), tf.constant(RNG.normal(size=(3, 24)), tf.float32)
    want = layer(x)
    layer.lora_enabled = True
    with tfuse.enabled():
        np.testing.assert_allclose(layer(x), want, rtol=1e-4, atol=1e-4)


@BY_FORMATS
def test_an_int4_embedding_in_a_mixed_policy():
    """Its scales are float32 inside of a model, and its rows of 16 bits."""
    layer = keras.layers.Embedding(32, 8, dtype="mixed_bfloat16")
    made = keras.Sequential([keras.Input([3], dtype="int32"), layer])
    layer.quantize("int4", config=keras.quantizers.Int4QuantizationConfig(block_size=4))
    want = made(TOKENS)
    with tfuse.enabled():
        np.testing.assert_array_equal(made(TOKENS), want)


@BY_FORMATS
def test_lora_without_an_alpha():
    """As layers are before Keras 3.10."""
    layer, x = one("Dense", "int8", "float32", (3, 24)), tf.constant(RNG.normal(size=(3, 24)), tf.float32)
    layer.enable_lora(2)
    layer.lora_kernel_b.assign(RNG.normal(size=layer.lora_kernel_b.shape))
    want = layer(x)
    del layer.lora_alpha
    np.testing.assert_allclose(quantized_layers.serve(layer, x), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("says", [True, False])
def test_float8_where_keras_does_not_say_if_it_trains(says):
    """As in Keras 3.3: there, scales follow whatever has a gradient."""
    layer = keras.layers.Dense(4)
    layer.build((None, 8))
    layer.quantize("float8")
    own = (lambda layer, inputs, training=None: None) if says else lambda layer, inputs: None
    with tf.GradientTape() as tape:
        y = _replaced_quantized._float8(own, layer, tf.ones([2, 8]))
    assert (tape.gradient(y, layer.inputs_amax_history.value) is None) == says


@BY_FORMATS
def test_an_activation_that_follows_is_joined():
    layer, x = one("EinsumDense", "int8", "float32", (2, 3, 24)), RNG.normal(size=(2, 3, 24)).astype("float32")
    want, since = keras.ops.gelu(layer(x)), since_now()
    with tfuse.enabled():
        found = tf.function(lambda x: keras.ops.gelu(layer(x)), autograph=False)(x)
    np.testing.assert_allclose(found, want, atol=1e-5)
    joined = since(op="QuantizedLinear", route="joined by looking back")
    assert [row["why"] for row in joined] == ["gelu_tanh of a quantised product"]


@BY_FORMATS
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_embeddings(mode, tied):
    layer = keras.layers.ReversibleEmbedding(32, 8, tie_weights=tied, logit_soft_cap=30.0)
    layer.build()
    layer.quantize(mode, config=keras.quantizers.Int4QuantizationConfig(block_size=4) if mode == "int4" else None)
    hidden = RNG.normal(size=(2, 3, 8)).astype("float32")
    own = [layer(TOKENS), layer(hidden, reverse=True)]
    since = since_now()
    with tfuse.enabled():
        np.testing.assert_array_equal(layer(TOKENS), own[0])
        np.testing.assert_allclose(layer(hidden, reverse=True), own[1], atol=1e-6)
    if mode == "int8":
        assert since(op="QuantizedLinear", when="ran")
    else:
        row, = since(route="Keras's own code")
        assert "two numbers of one row" in row["why"]


@BY_FORMATS
@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_rows_of_embeddings_are_gathered_where_the_table_is(mode):
    """TensorFlow has no gather of bytes for GPUs: it would copy the table to the CPU in every call."""
    layer = keras.layers.Embedding(32, 16)
    layer.build()
    layer.quantize(mode, config=keras.quantizers.Int4QuantizationConfig(block_size=4) if mode == "int4" else None)
    with tfuse.enabled():
        graph = tf.function(layer, autograph=False).get_concrete_function(tf.TensorSpec([None, 3], tf.int32)).graph
    gathered = {op.get_attr("Tparams") for op in graph.get_operations() if op.type == "GatherV2"}
    assert gathered == {tf.int32, tf.float32}


@BY_FORMATS
def test_what_is_not_served_says_why():
    def why(layer, x=(2, 24), **options):
        since = since_now()
        with tfuse.enabled():
            layer(np.ones(x, "float32"), **options)
        return since(route="Keras's own code")[-1]["why"]

    gptq = keras.layers.Dense(4)
    gptq.build((None, 24))
    gptq.quantize("gptq", config=FORMATS["gptq"][1](keras.quantizers))
    assert "not calibrated" in why(gptq)
    narrow = keras.layers.Dense(4)
    narrow.build((None, 24))
    narrow.quantize("int8", config=keras.quantizers.Int8QuantizationConfig(
        activation_quantizer=keras.quantizers.AbsMaxQuantizer(axis=-1, value_range=(-63, 63))))
    assert "AbsMaxQuantizer of its own" in why(narrow)
    gemma = keras.layers.EinsumDense("btd,ndh->btnh", (None, 2, 3))
    gemma.build((None, 5, 24))
    gemma.quantize("int8")
    assert "not one matrix product" in why(gemma, (2, 5, 24))
