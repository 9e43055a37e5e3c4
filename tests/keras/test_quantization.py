"""Quantized layers of tfuse: weights, results and files are those of Keras's own, in every mode that this Keras has."""

import functools
import inspect
import warnings

import keras
import numpy as np
import pytest

import tfuse
from conftest import check_files_go_both_ways

MODES = getattr(keras.src.dtype_policies.dtype_policy, "QUANTIZATION_MODES", ["int8"])
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
    assert all(np.array_equal(a, b) for a, b in zip(ours.get_weights(), theirs.get_weights(), strict=True))
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
        np.testing.assert_allclose(*losses, rtol=1e-5)
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
