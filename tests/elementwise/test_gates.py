"""Gates, dropout and rotary embedding beyond the cases: layers, statistics, and what stock Keras has."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import skip_broken_xla
from tfuse.elementwise.scale_bias_act import PLAIN

RNG = np.random.default_rng(11)
X = RNG.normal(size=(3, 4, 6)).astype("float32")


def round_trip(layer):
    config = layer.get_config()
    json.dumps(config)
    again = type(layer).from_config(config)
    assert again.get_config() == config
    return again


def saved(model, folder):
    model.save(folder / "model.keras")
    return keras.saving.load_model(folder / "model.keras")


# ---- gates ----


@pytest.mark.parametrize("call, activation", [
    (tfuse.swiglu, "silu"), (tfuse.geglu, "gelu"), (lambda *t: tfuse.geglu(*t, approximate=True), "gelu_tanh"),
    (tfuse.reglu, "relu"), (tfuse.glu, "sigmoid")], ids=["swiglu", "geglu", "geglu by tanh", "reglu", "glu"])
def test_named_gates(device, call, activation):
    a, b = X[..., :3], X[..., 3:]
    want = PLAIN[activation](a) * b
    np.testing.assert_allclose(call(X), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(call(a, b), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_small_tensors_are_as_large_ones(device, dtype):
    """Whatever path a few elements take, they come out as among many, up to a unit in the last place."""
    large = tf.constant(RNG.normal(size=(64, 256)) * 2, dtype)
    for rows, columns in [(1, 1), (1, 2), (7, 3), (3, 17)]:
        small = tf.concat([large[:rows, :columns], large[:rows, 128:128 + columns]], -1)
        results = []
        for x in (large, small):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tfuse.gated(x, activation="mish")
            results.append([tf.cast(t, tf.float64) for t in (y, tape.gradient(y, x))])
        (y, dx), (small_y, small_dx) = results
        epsilon = 2.0**-7 if dtype == "bfloat16" else float(np.finfo(dtype).eps)
        np.testing.assert_allclose(small_y, y[:rows, :columns], rtol=2 * epsilon)
        np.testing.assert_allclose(small_dx[:, :columns], dx[:rows, :columns], rtol=2 * epsilon)


@pytest.mark.parametrize("axis", [0, 1, -2, 2, -1])
def test_halves_of_another_axis(device, axis):
    x = RNG.normal(size=(4, 6, 8)).astype("float32")
    a, b = tf.split(x, 2, axis)
    np.testing.assert_allclose(tfuse.gated(x, axis=axis), tf.nn.silu(a) * b, rtol=1e-5, atol=1e-6)
    layer = tfuse.Gated(axis=axis)
    assert layer(x).shape == layer.compute_output_shape(x.shape) == a.shape


def test_gated_layer(tmp_path, jit):
    layer = round_trip(tfuse.Gated(keras.activations.gelu, name="gate", dtype="bfloat16"))
    assert layer.activation == "gelu" and layer.name == "gate" and layer(X).dtype == tf.bfloat16
    assert tuple(tfuse.Gated().compute_output_shape((None, None, 8))) == (None, None, 4)
    with pytest.raises(ValueError, match="two halves of one size, got shape .*7"):
        tfuse.Gated()(keras.Input((7,)))
    keras.utils.set_random_seed(1)
    model = keras.Sequential([
        keras.Input((None, 6)), keras.layers.Dense(16), tfuse.Gated("gelu_tanh"), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=jit)
    losses = model.fit(X, X[..., :1], epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert np.array_equal(saved(model, tmp_path).predict(X, verbose=0), model.predict(X, verbose=0))


def test_gated_layer_keeps_the_mask():
    tokens = np.array([[3, 1, 0, 0], [2, 2, 2, 0]])
    model = keras.Sequential([keras.Input((4,), dtype="int32"), keras.layers.Embedding(5, 6, mask_zero=True),
                              tfuse.Gated("relu"), keras.layers.GlobalAveragePooling1D()])
    table = model.layers[0].get_weights()[0]
    rows = np.maximum(table[:, :3], 0) * table[:, 3:]
    np.testing.assert_allclose(model.predict(tokens, verbose=0), [np.mean(rows[t[t > 0]], 0) for t in tokens], rtol=1e-5)


@pytest.mark.parametrize("call, want", [
    (lambda x: tfuse.swiglu(x), lambda x: tf.nn.silu(x[..., :3]) * x[..., 3:]),
    (lambda x: tfuse.gated(x, x + 1.0, "relu"), lambda x: tf.nn.relu(x) * (x + 1)),
    (lambda x: tfuse.gated(x, activation="tanh", axis=1), lambda x: tf.tanh(x[:, :2]) * x[:, 2:]),
    (lambda x: tfuse.dropout(x, 0.5, seed=3), lambda x: tfuse.dropout(x, 0.5, seed=3)),
    (lambda x: tfuse.rope(x[:, :, None]), lambda x: tfuse.rope(x[:, :, None])),
], ids=["halves", "two tensors", "another axis", "dropout", "rope"])
def test_on_symbolic_tensors(call, want, tmp_path):
    x = keras.Input((4, 6))
    model = keras.Model(x, call(x))
    np.testing.assert_allclose(model(X), want(tf.constant(X)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(saved(model, tmp_path)(X), want(tf.constant(X)), rtol=1e-5, atol=1e-6)


# ---- dropout ----


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("rate", [0.05, 0.5, 0.9])
def test_dropout_statistics(device, rate, dtype):
    """How many, in all and in every column and row, within five deviations; neighbours know nothing of each other."""
    n = 1024
    kept = np.asarray(tf.cast(tfuse.dropout(tf.ones([n, n], dtype), rate, seed=5), tf.float64)) > 0
    deviation = np.sqrt(rate * (1 - rate))
    assert abs(kept.mean() - (1 - rate)) < 5 * deviation / n
    for axis in (0, 1):
        assert np.all(np.abs(kept.mean(axis) - (1 - rate)) < 5 * deviation / np.sqrt(n))
    centred = (kept - kept.mean()) / deviation
    for shift in (1, 7, 8, n):
        flat = centred.reshape(-1)
        assert abs(np.mean(flat[shift:] * flat[:-shift])) < 5 / n
    other = np.asarray(tf.cast(tfuse.dropout(tf.ones([n, n], dtype), rate, seed=6), tf.float64)) > 0
    assert abs(np.mean(centred * (other - other.mean()) / deviation)) < 5 / n


def test_dropout_is_the_same_on_every_route(device):
    """And for every dtype, and for any part of the tensor's memory."""
    drop = lambda x, seed: tfuse.dropout(x, 0.3, seed)
    x, seed = tf.ones([37, 129]), tf.constant(-2**60 + 3, tf.int64)
    want = drop(x, seed).numpy()
    assert np.array_equal(tf.function(drop)(x, seed), want)
    assert np.array_equal(drop(x, -2**60 + 3), want)
    for dtype in ("float16", "bfloat16", "float64"):
        assert np.array_equal(tf.cast(drop(tf.cast(x, dtype), seed), tf.float32) > 0, want > 0)
    with tf.device("CPU:0"):
        assert np.array_equal(drop(tf.ones([37, 129]), seed), want)
        assert np.array_equal(drop(tf.ones([10, 129]), seed), want[:10])
    skip_broken_xla()
    assert np.array_equal(tf.function(drop, jit_compile=True)(x, seed), want)


def test_dropout_gradient_drops_the_same(device):
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tfuse.dropout(x, 0.4)  # drawn once, for both
    assert np.array_equal(tape.gradient(y, x) == 0, y == 0)


def test_dropout_draws_anew(device, jit):
    f = tf.function(lambda x: tfuse.dropout(x, 0.5), jit_compile=jit)
    x = tf.ones([1000])
    for call in (f, lambda x: tfuse.dropout(x, 0.5)):
        assert not np.array_equal(call(x), call(x))


def test_no_dropout():
    x = tf.constant(X)
    assert tfuse.dropout(x, 0) is x
    for layer in (tfuse.Dropout(0), tfuse.Dropout(0.5)):
        assert np.array_equal(layer(x), x) and np.array_equal(layer(x, training=False), x)
    assert not np.any(tfuse.Dropout(1)(x, training=True))
    assert not np.any(tfuse.dropout(tf.ones([4096]), 1 - 1e-7, seed=1))  # nearer to 1 than the steps of the rate
    with pytest.raises(ValueError, match="rate"):
        tfuse.Dropout(1.5)


def test_dropout_layer(tmp_path):
    layer = tfuse.Dropout(0.25, seed=3, name="drop")
    first, second = layer(tf.ones([1000]), training=True), layer(tf.ones([1000]), training=True)
    assert not np.array_equal(first, second) and set(np.unique(first)) == {0, np.float32(4 / 3)}
    assert np.array_equal(round_trip(layer)(tf.ones([1000]), training=True), first)
    assert isinstance(layer, keras.layers.Dropout) and not layer.trainable_weights

    shared = tfuse.Dropout(0.5, noise_shape=(None, 1, 6), seed=1)(tf.ones([3, 4, 6]), training=True)
    assert np.all(shared == shared[:, :1])

    model = keras.Sequential([keras.Input((8,)), layer])
    assert model.output_shape == (None, 8)
    again = saved(model, tmp_path)
    x = np.ones((5, 8), "float32")
    assert np.array_equal(again(x), x)
    fresh = tfuse.Dropout(0.25, seed=3)(x, training=True)  # Keras saves the seed, not how often it was used
    assert np.array_equal(again(x, training=True), fresh)


def test_training_with_dropout(jit):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(64, "relu"), tfuse.Dropout(0.2), keras.layers.Dense(1)])
    model.compile("adam", "mse", jit_compile=jit)
    x = RNG.normal(size=(64, 6)).astype("float32")
    losses = model.fit(x, x[:, :1], epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert int(model.layers[1].seed_generator.state.value[1]) >= 10  # a seed for each of the ten steps


# ---- rotary embedding ----


def rotated(x, positions, base=10000.0):
    """As KerasHub writes it: x [batch, time, …, features], positions [time] or [batch, time]."""
    d = x.shape[-1]
    angles = np.asarray(positions, "float64")[..., None] / base**(np.arange(0, d, 2) / d)
    angles = np.concatenate([angles, angles], -1)
    angles = angles.reshape((1,) * (3 - angles.ndim) + angles.shape)
    angles = angles.reshape(angles.shape[:2] + (1,) * (x.ndim - 3) + (d,))
    a, b = np.split(x, 2, -1)
    return x * np.cos(angles) + np.concatenate([-b, a], -1) * np.sin(angles)


QUERY = RNG.normal(size=(2, 5, 3, 8)).astype("float32")
close = lambda got, want: np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_positions(device):
    every = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
    close(tfuse.rope(QUERY), rotated(QUERY, np.arange(5)))
    close(tfuse.rope(QUERY, positions=7), rotated(QUERY, 7 + np.arange(5)))
    close(tfuse.rope(QUERY, positions=tf.constant(7, tf.int64)), rotated(QUERY, 7 + np.arange(5)))
    close(tfuse.rope(QUERY, positions=[7, 0]), rotated(QUERY, np.array([[7], [0]]) + np.arange(5)))
    close(tfuse.rope(QUERY, positions=tf.constant(every, tf.int32)), rotated(QUERY, every))
    query, key = tfuse.rope(QUERY, QUERY[:, :, :1], positions=every)
    close(query, rotated(QUERY, every))
    close(key, rotated(QUERY[:, :, :1], every))


def test_pairings_are_one_but_for_the_order(device):
    order = np.arange(8).reshape(2, 4).T.reshape(-1)  # 0 4 1 5 …
    got = tfuse.rope(QUERY[..., order], pairing="interleaved", positions=3)
    close(got, tfuse.rope(QUERY, positions=3).numpy()[..., order])


def test_turning_keeps_lengths_and_distances(device):
    """Products of query and key depend on how far apart they are."""
    q, k = (tf.constant(RNG.normal(size=(1, 1, 1, 64)), tf.float64) for _ in range(2))
    product = lambda i, j: float(tf.reduce_sum(tfuse.rope(q, positions=i) * tfuse.rope(k, positions=j)))
    assert abs(product(1000, 1010) - product(5, 15)) < 1e-9
    assert abs(product(7, 7) - float(tf.reduce_sum(q * k))) < 1e-9


def test_far_positions(device):
    """Angles keep their digits where float32 would lose them."""
    for position in (100_000, 1_000_003):
        np.testing.assert_allclose(tfuse.rope(QUERY, positions=position), rotated(QUERY, position + np.arange(5)), atol=1e-4)


def test_a_key_of_other_places_than_the_query(device, jit):
    """Batch and time are the query's, also where they and the heads are known only when the function runs."""
    f = tf.function(tfuse.rope, jit_compile=jit, autograph=False, input_signature=[tf.TensorSpec([None, None, None, 8])] * 2)
    for got, want in zip(f(QUERY, QUERY[:, :, :1]), (QUERY, QUERY[:, :, :1]), strict=True):
        close(got, rotated(want, np.arange(5)))
    for key in (QUERY[:1], QUERY[:, :4], np.concatenate([QUERY, QUERY]), np.concatenate([QUERY, QUERY], 1)):
        wrong = "key must have the shape of query up to the heads, .2, 5, 3, 8., got .%d, %d, 3, 8." % key.shape[:2]
        with pytest.raises(tf.errors.InvalidArgumentError, match=wrong):
            f(QUERY, key)


def test_gradient_of_one_of_two(device):
    q, k = tf.constant(QUERY), tf.constant(QUERY[:, :, :1])
    for which in (0, 1):
        with tf.GradientTape() as tape:
            tape.watch([q, k])
            y = tfuse.rope(q, k, 3)[which]
        gradients = tape.gradient(y, [q, k], tf.ones_like(y))
        close(gradients[which], rotated(np.ones(y.shape), -3 - np.arange(5)))
        other = gradients[1 - which]
        assert other is None or not np.any(other)


@pytest.mark.parametrize("shape", [(2, 5, 8), (2, 5, 3, 8), (2, 5, 3, 2, 8)])
def test_layer(device, shape):
    x = RNG.normal(size=shape).astype("float32")
    layer = tfuse.RotaryEmbedding(max_wavelength=500, scaling_factor=2.0)
    close(layer(x), rotated(x, np.arange(5) / 2, 500))
    close(layer(x, start_index=3), rotated(x, (3 + np.arange(5)) / 2, 500))
    close(layer(x, start_index=tf.constant(3)), rotated(x, (3 + np.arange(5)) / 2, 500))
    close(layer(x, positions=tf.constant([4, 2, 0, 2, 9])), rotated(x, np.array([4, 2, 0, 2, 9]) / 2, 500))
    close(layer(x, positions=tf.constant([[4, 2, 0, 2, 9], [1, 1, 2, 3, 5]])),
          rotated(x, np.array([[4, 2, 0, 2, 9], [1, 1, 2, 3, 5]]) / 2, 500))


def test_layer_on_other_axes(device):
    x = RNG.normal(size=(2, 3, 8, 5)).astype("float32")  # batch, heads, features, time
    got = tfuse.RotaryEmbedding(sequence_axis=3, feature_axis=2)(x)
    close(got, np.transpose(rotated(np.transpose(x, (0, 3, 1, 2)), np.arange(5)), (0, 2, 3, 1)))


def test_layer_in_a_model(tmp_path, jit):
    layer = round_trip(tfuse.RotaryEmbedding(500, 2.0, pairing="interleaved", rotary=4, dtype="float32", name="turn"))
    assert layer.rotary == 4 and layer.max_wavelength == 500
    x = keras.Input((None, 3, 8))
    model = keras.Model(x, layer(x))
    assert model.output_shape == (None, None, 3, 8)
    model.compile("sgd", "mse", jit_compile=jit)
    want = tfuse.rope(QUERY, base=500, pairing="interleaved", rotary=4, scale=0.5)
    close(model.predict(QUERY, verbose=0), want)
    close(saved(model, tmp_path).predict(QUERY, verbose=0), want)
