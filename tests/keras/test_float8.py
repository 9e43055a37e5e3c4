"""Keras's float8 layers by real products in float8: results, updates of scales and histories, files; on every route."""

import contextlib
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import since_now
from tfuse.products import quantized_layers

BY_STRATEGY = quantized_layers.BY_STRATEGY
pytestmark = pytest.mark.skipif(not (BY_STRATEGY or hasattr(keras.layers.Dense, "_float8_call")),
                                reason="this Keras has no float8")
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(8, 6, 24)).astype("float32"), RNG.normal(size=(8, 6, 16)).astype("float32")


# On a GPU what is rounded to 8 bits differs from Keras's in its last bit, so some of the rounded numbers are neighbours.
GPU = bool(tf.config.list_physical_devices("GPU"))
LOSSES = 1e-2 if GPU else 2e-3


def check_results(found, want):
    off = np.abs(found - want)
    assert np.mean(off > 1e-4) <= (0.05 if GPU else 0)
    assert off.max() <= 0.05 * np.abs(want).max()


def made(dtype=None, kind=keras.layers, moved=False):
    """`moved`: each weight by a unit in its last place."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([
        keras.Input(X.shape[1:]), kind.Dense(32, "gelu", dtype=dtype, name="inside"),
        kind.EinsumDense("abc,cde->abde", (None, 2, 16), bias_axes="de", dtype=dtype, name="heads"),
        kind.EinsumDense("abde,dec->abc", (None, 32), dtype=dtype, name="joined"),
        kind.Dense(16, "relu", dtype=dtype, name="out")])
    model.quantize("float8")
    for weight in model.trainable_variables if moved else ():
        weight.assign(np.nextafter(weight.numpy(), np.float32(np.inf)))
    return model


def weights(model):
    return {w.path.partition("/")[2]: np.asarray(w.numpy(), "float64") for w in model.weights}


@functools.lru_cache(None)  # no test changes the weights
def trained(on, steps=20, dtype=None, kind=keras.layers, moved=False, **how):
    """The losses of all steps, the weights after the first and after the last, what ran, and the model."""
    since, model = since_now(), made(dtype, kind, moved)
    with tfuse.enabled() if on else contextlib.nullcontext():
        model.compile(keras.optimizers.Adam(3e-3), "mse", **how)
        losses, first = [model.train_on_batch(X, Y)], weights(model)
        losses += [model.train_on_batch(X, Y) for _ in range(steps - 1)]
    return losses, first, weights(model), since(), model


def stock():
    """Keras's own, outside of XLA, whose cast to float8 goes by way of float16 on a CPU, and rounds twice."""
    return trained(False, jit_compile=False)


def spread(weights, states):
    """Twice as far as stock Keras gets from itself where all weights begin a unit in the last place higher: in largest gradients
    a third, after 20 steps. Of states of one kind, such as histories of gradients, the farthest counts."""
    _, _, others, *_ = trained(False, jit_compile=False, moved=True)
    kind, far = lambda name: name.rpartition("/")[2], {}
    for name in states:
        there = weights[name] != 0
        far.setdefault(kind(name), []).append(np.max(np.abs(others[name][there] / weights[name][there] - 1), initial=0.025))
    return {name: 2 * max(far[kind(name)]) for name in states}


@pytest.mark.parametrize("how", [{}, {"jit_compile": True}], ids=["graph", "xla"])
def test_training_is_keras_own(how):
    losses, _, weights, *_ = stock()
    ours, _, updated, told, _ = trained(True, **how)
    assert [row for row in told if row["op"] == "Float8Linear"], told
    assert not [row for row in told if "float8_call" in row["op"]]  # which would say why not
    np.testing.assert_allclose(ours, losses, rtol=LOSSES)
    assert losses[-1] < 0.9 * losses[0]
    states = [name for name in weights if "scale" in name or "history" in name]
    assert len(states) == 24
    bounds = dict.fromkeys(states, 0.05) if not GPU else spread(weights, states)
    for name in states:
        assert not np.all(updated[name] == (1 if "scale" in name else 0)), name
        least = 1e-6 * np.abs(weights[name]).max()
        np.testing.assert_allclose(updated[name], weights[name], rtol=bounds[name], atol=least, err_msg=name)


def test_the_first_updates_are_equal():
    """Before results differ by rounding: of the inputs and the kernels of the first step."""
    (_, theirs, *_), (_, ours, *_) = stock(), trained(True)
    for name in theirs:
        if "kernel_amax" in name or name.startswith("inside/inputs") or name.endswith("scale"):
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def test_mixed_precision():
    losses, *_ = trained(False, 10, "mixed_bfloat16")
    since = since_now()
    ours, *_, model = trained(True, 10, "mixed_bfloat16")
    assert since(op="Float8LinearGrad", when="ran")
    np.testing.assert_allclose(ours, losses, rtol=0.02)
    assert model.layers[0]._kernel.dtype == "float32" and model.layers[0].inputs_scale.dtype == "float32"


def test_eagerly():
    """Where Keras itself fails: its gradient functions do not take the variables that TensorFlow finds in them."""
    np.testing.assert_allclose(trained(True, 5, run_eagerly=True)[0], trained(True)[0][:5], rtol=2e-3 if GPU else 1e-4)


def test_layers_of_tfuse():
    since = since_now()
    np.testing.assert_allclose(trained(False, 5, kind=tfuse)[0], stock()[0][:5], rtol=LOSSES)
    assert since(op="Float8Linear", when="ran")


def test_inference_updates_nothing():
    _, _, before, _, model = stock()
    want = model.predict(X, verbose=0)
    since = since_now()
    with tfuse.enabled():
        check_results(model.predict(X, verbose=0), want)
        check_results(np.asarray(model(X)), want)
    assert since(op="Float8Linear", when="ran")
    np.testing.assert_equal(weights(model), before)


def test_files_go_both_ways(tmp_path):
    *_, model = trained(True)
    want = model.predict(X, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    named = lambda model: {"/".join(w.path.split("/")[-2:]): w.numpy() for w in model.weights}
    np.testing.assert_equal(named(again), named(model))
    check_results(again.predict(X, verbose=0), want)
    again.save(tmp_path / "again.keras")
    with tfuse.enabled():
        check_results(keras.saving.load_model(tmp_path / "again.keras").predict(X, verbose=0), want)


def test_a_layer_is_as_exact_as_keras_own():
    """Against float64, with the same rounded numbers."""
    for dtype, at_least in ("float32", 1e-6), ("bfloat16", 4e-3):
        layer = keras.layers.Dense(48, "gelu", dtype=dtype)
        layer.build((None, 64))
        layer._kernel.assign(RNG.normal(size=(64, 48)))
        layer.quantize("float8")
        layer.inputs_scale.assign(2.0**-7)  # which Keras does not round, nor what it multiplies with
        layer.kernel_scale.assign(2.0**-6)
        x = tf.cast(RNG.normal(size=(33, 64)), dtype)
        rounded = lambda v, scale: np.asarray(tf.cast(tf.cast(tf.clip_by_value(
            tf.cast(v, tf.float32) / scale, -448, 448), tf.dtypes.experimental.float8_e4m3fn), tf.float64)) * scale
        pre = rounded(x, 2.0**-7) @ rounded(layer._kernel.value, 2.0**-6)
        right = keras.ops.gelu(tf.constant(pre), approximate=False).numpy()
        stock = np.asarray(layer(x), "float64")
        with tfuse.enabled():
            ours = np.asarray(layer(x), "float64")
        error = lambda y: np.abs(y - right).max() / np.abs(right).max()
        assert error(ours) <= 2 * error(stock) + at_least, dtype


def test_what_is_left_to_keras():
    layer = keras.layers.EinsumDense("btd,ndh->btnh", (None, 2, 4))
    layer.build(X.shape)
    layer.quantize("float8")
    want, since = layer(X), since_now()
    with tfuse.enabled():
        np.testing.assert_array_equal(layer(X), want)
    assert since(op="Float8Strategy.call" if BY_STRATEGY else "EinsumDense._float8_call")[-1]["why"] == "btd,ndh->btnh is not one matrix product"


def test_an_activation_that_follows_is_joined():
    layer = keras.layers.Dense(16)
    layer.build(X.shape)
    layer.quantize("float8")
    want, since = keras.ops.gelu(layer(X)), since_now()
    with tfuse.enabled():
        found = tf.function(lambda x: keras.ops.gelu(layer(x)), autograph=False)(X)
    np.testing.assert_allclose(found, want, atol=1e-5)
    assert [row["why"] for row in since(route="joined by looking back")] == ["gelu_tanh of a product of float8"]
