"""tfuse.enable() and whole models: they train as in stock Keras, by tfuse's ops, and are saved as stock."""

import functools

import keras
import numpy as np
import pytest

import tfuse
from conftest import GPUS
from enabling import ATTENTION, SPARSE, TOKENS, close, left_as_it_was, ran, reasons, told
from tfuse._core import _library


def transformer(seed=3):
    keras.utils.set_random_seed(seed)
    tokens = keras.Input((12,), dtype="int32")
    x = keras.layers.Embedding(32, 16, mask_zero=True)(tokens)
    h = keras.layers.LayerNormalization()(x)
    x = x + keras.layers.MultiHeadAttention(4, 4)(h, h, use_causal_mask=True)
    x = x + keras.layers.Dense(16)(keras.layers.Dense(32, "gelu")(x))
    return keras.Model(tokens, keras.layers.Dense(32)(x))


def losses(make, jit_compile):
    model = make()
    model.compile(keras.optimizers.SGD(1.0), SPARSE(ignore_class=0), jit_compile=jit_compile)
    return model.fit(TOKENS, TOKENS, batch_size=8, epochs=3, shuffle=False, verbose=0).history["loss"]


stock_losses = functools.lru_cache(None)(functools.partial(losses, jit_compile=False))  # with XLA they are the same


def test_training_follows_stock_keras(jit):
    want = stock_losses(transformer)
    with tfuse.enabled():
        got = losses(transformer, jit)
    assert got[-1] < got[0]
    np.testing.assert_allclose(got, want, rtol=1e-3)
    if not (jit and _library.xla_status()):
        linear = {"Linear", "LinearGrad"} if not _library.without_gpu() else {"ScaleBiasAct"}  # gelu is in Linear, or is not
        assert ATTENTION | linear | {"Norm", "NormGrad", "SparseCrossEntropyGrad"} <= ran()
        assert {row["route"] for row in told(when="ran")} == {
            "XLA custom call" if jit else "TensorFlow op"}
    assert not ATTENTION or not reasons()


@functools.lru_cache(None)
def float32_losses(seeds):
    """Of stock Keras."""
    return [losses(functools.partial(transformer, seed), "auto") for seed in seeds]


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_with_automatic_jit(policy):
    """As Keras compiles by default: with XLA where there is a GPU. At most twice as far from float32's losses as stock,
    which of one model may be near them by luck."""
    models, before = [functools.partial(transformer, seed) for seed in range(3, 7)], keras.mixed_precision.global_policy()
    exact = float32_losses(range(3, 7))
    keras.mixed_precision.set_global_policy(policy)
    try:
        want = [losses(model, "auto") for model in models]
        with tfuse.enabled():
            got = [losses(model, "auto") for model in models]
    finally:
        keras.mixed_precision.set_global_policy(before)
    assert all(losses[-1] < losses[0] for losses in got)
    off = lambda losses: np.max(np.abs(np.subtract(losses, exact)))
    assert off(got) <= 2 * off(want), (got, want, exact)
    if not (GPUS and _library.xla_status()):
        assert ATTENTION | {"NormGrad"} <= ran()


def test_what_is_saved_is_stock(tmp_path):
    want = transformer()(TOKENS).numpy()
    with tfuse.enabled():
        model = transformer()
        model.save(tmp_path / "model.keras")
        enabled = model(TOKENS).numpy()
    assert "tfuse" not in model.to_json()
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert np.array_equal(loaded(TOKENS), want)
    close(enabled[TOKENS > 0], want[TOKENS > 0], 1e-5)
