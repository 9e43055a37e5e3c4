"""tfuse's layers of softmax and the norms beside Keras's own: results, gradients, files, training."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from comparing import close, normal, numbers
from conftest import skip_broken_xla

LAYERS = {
    "LayerNormalization": (tfuse.LayerNormalization, {}),
    "LayerNormalization, two axes": (tfuse.LayerNormalization, {"axis": [1, 2]}),
    "LayerNormalization, an axis before": (tfuse.LayerNormalization, {"axis": 1, "epsilon": 1e-5}),
    "LayerNormalization, bare": (tfuse.LayerNormalization, {"center": False, "scale": False}),
    "RMSNormalization": (tfuse.RMSNormalization, {"epsilon": 1e-5}),
    "GroupNormalization": (tfuse.GroupNormalization, {"groups": 3}),
    "GroupNormalization, channels first": (tfuse.GroupNormalization, {"groups": 5, "axis": 1}),
    "Softmax": (tfuse.Softmax, {}),
    "Softmax, an axis before": (tfuse.Softmax, {"axis": 1}),
}
LAYERS = {name: row for name, row in LAYERS.items() if hasattr(keras.layers, row[0].__name__)}
POLICIES = {"float32": "float32", "mixed_float16": "float16", "mixed_bfloat16": "bfloat16"}


def pair(name, **more):
    """tfuse's layer and Keras's, with the same weights that are not trivial."""
    ours, options = LAYERS[name]
    layers = [make(**options, **more) for make in (ours, getattr(keras.layers, ours.__name__))]
    for layer in layers:
        layer.build((None, 10, 12))
        layer.set_weights([numbers(normal(*w.shape, seed=i)) for i, w in enumerate(layer.weights)])
    return layers


@pytest.mark.parametrize("policy, compute", POLICIES.items())
@pytest.mark.parametrize("name", LAYERS)
def test_layers_follow_keras(device, route, name, policy, compute):
    x = normal(6, 10, 12, dtype=compute)
    results = []
    for layer in pair(name, dtype=policy):
        weights = [w.value for w in layer.trainable_weights]

        def step(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x)
                loss = tf.reduce_sum(tf.cast(y, tf.float32) * normal(6, 10, 12, seed=9))
            return [y, *tape.gradient(loss, [x, *weights])]

        results.append(route(step)(x))
        assert results[-1][0].dtype == compute
        assert {w.dtype for w in layer.weights} <= {"float32"}
    for got, want in zip(*results):
        assert got.dtype == want.dtype
        close(got, want, 16, compute)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_drop_ins(name, tmp_path):
    ours, stock = pair(name)
    assert [(w.name, w.shape) for w in ours.weights] == [(w.name, w.shape) for w in stock.weights]
    assert type(ours).from_config(ours.get_config()).get_config() == ours.get_config()
    assert {k: v for k, v in ours.get_config().items() if k != "name"} == {
        k: v for k, v in stock.get_config().items() if k != "name"}

    def model(layer):
        return keras.Sequential([keras.Input((10, 12)), layer])

    models = [model(ours), model(stock)]
    x = normal(3, 10, 12)
    for a, b in (models, models[::-1]):
        a.save_weights(tmp_path / "a.weights.h5")
        fresh = model(type(b.layers[0]).from_config(b.layers[0].get_config()))
        fresh.load_weights(tmp_path / "a.weights.h5")
        close(fresh(x), a(x), 16)
        a.save(tmp_path / "a.keras")
        again = keras.saving.load_model(tmp_path / "a.keras")
        assert type(again.layers[0]) is type(a.layers[0])
        np.testing.assert_array_equal(again(x), a(x))
        simple = type(ours).__name__  # how the file of either names its class
        other = keras.saving.load_model(tmp_path / "a.keras", custom_objects={
            simple: type(b.layers[0]), "tfuse>" + simple: type(b.layers[0])})
        close(other(x), a(x), 16)


def test_softmax_layer_with_a_mask(device):
    x, mask = normal(2, 3, 6), np.random.default_rng(0).random((2, 3, 6)) < 0.6
    got, want = (make()(x, mask=tf.constant(mask)) for make in (tfuse.Softmax, keras.layers.Softmax))
    assert np.all(got.numpy()[~mask] == 0)
    some = mask.any(-1)
    close(got.numpy()[some], want.numpy()[some])
    np.testing.assert_array_equal(tfuse.Softmax()(x, mask=tf.cast(mask, "float32")), got)


def test_functions_in_a_functional_model(tmp_path):
    x, mask = keras.Input((4, 6)), keras.Input((1, 6), dtype="bool")
    h = tfuse.softmax(x, axis=1) + tfuse.log_softmax(x)
    h = tfuse.layer_norm(h, np.linspace(1, 2, 6), np.zeros(6), residual=x)[1]
    h = tfuse.group_norm(tfuse.rms_norm(h, axis=(1, 2)), groups=3)
    model = keras.Model([x, mask], tfuse.softmax(h, mask=mask, scale=0.5))
    values = normal(2, 4, 6), tf.constant(np.random.default_rng(0).random((2, 1, 6)) < 0.7)

    def eager(x, mask):
        h = tf.nn.softmax(x, 1) + tf.nn.log_softmax(x) + x
        h = h / tf.sqrt(tf.reduce_mean(h * h, [1, 2], keepdims=True) + 1e-6)
        return tfuse.softmax(tfuse.group_norm(h, groups=3), mask=mask, scale=0.5)

    np.testing.assert_allclose(model(values), eager(*values), atol=1e-5)
    model.save(tmp_path / "model.keras")
    np.testing.assert_allclose(keras.saving.load_model(tmp_path / "model.keras")(values), eager(*values), atol=1e-5)

    noisy = keras.Model(x, tfuse.rms_norm(x, dropout=0.5))
    assert not np.array_equal(noisy(values[0]), noisy(values[0]))


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
def test_training_follows_keras(jit):
    if jit:
        skip_broken_xla()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(48, 10, 12)).astype("float32")
    y = x.mean((1, 2), keepdims=True)[..., 0]
    losses = []
    for layers in (tfuse, keras.layers):
        keras.utils.set_random_seed(1)
        h = inputs = keras.Input((10, 12))
        h = layers.LayerNormalization()(keras.layers.Dense(12)(h))
        h = h * layers.Softmax(axis=1)(keras.layers.Dense(12)(h))
        h = layers.GroupNormalization(4)(h)
        model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(h)))
        model.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=jit)
        losses.append(model.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0).history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-3)


def test_activation_of_a_stock_layer(tmp_path):
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, activation=tfuse.softmax)])
    x = normal(3, 6)
    np.testing.assert_allclose(np.sum(model(x), -1), 1, rtol=1e-5)
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(keras.saving.load_model(tmp_path / "model.keras")(x), model(x))
