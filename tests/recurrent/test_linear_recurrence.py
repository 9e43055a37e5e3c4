"""LinearRecurrence against its formulas, step by step."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse


def sigmoid(v):
    return 1 / (1 + np.exp(-v))


def expected(layer, x, mask, state):
    x, kernel, bias = (np.asarray(t, np.float64) for t in (x, layer.kernel, layer.bias))
    first, second = np.split(x @ kernel + bias, 2, -1)
    if layer.form == "min_gru":
        a, b = 1 - sigmoid(first), sigmoid(first) * second
    else:
        a = np.exp(-8 * np.log1p(np.exp(np.asarray(layer.decay, np.float64))) * sigmoid(first))
        b = np.sqrt(1 - a * a) * sigmoid(second) * x
    y, h = np.zeros(b.shape), np.asarray(state, np.float64)
    for t in range(x.shape[1])[::-1 if layer.reverse else 1]:
        y[:, t] = h = np.where(mask[:, t, None], a[:, t] * h + b[:, t], h)
    return y, h


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("form", ["min_gru", "rg_lru"])
def test_values(device, form, reverse, dtype):
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(size=[3, 9, 5]), "float32" if dtype == "float32" else "bfloat16")
    mask, state = rng.random([3, 9]) < 0.7, rng.normal(size=[3, 5]).astype("float32")
    layer = tfuse.LinearRecurrence(5, form, return_state=True, reverse=reverse, dtype=dtype, bias_initializer="random_normal")
    layer.build(x.shape)
    want = expected(layer, tf.cast(x, tf.float32), mask, state)
    step = lambda: layer(x, initial_state=state, mask=mask)
    for run in (step, tf.function(step, jit_compile=True)):
        y, h = run()
        assert y.dtype == x.dtype and h.dtype == tf.float32
        for got, exact in zip((y, h), want):
            assert np.allclose(tf.cast(got, tf.float32), exact, atol=1e-5 if dtype == "float32" else 5e-2)


def test_as_a_layer(tmp_path):
    """In a model that learns, behind masks, saved and loaded."""
    ids = np.random.default_rng(0).integers(0, 9, [8, 6])
    model = keras.Sequential([keras.Input([None], dtype="int32"), keras.layers.Embedding(9, 4, mask_zero=True),
                              tfuse.LinearRecurrence(4, "rg_lru"), tfuse.LinearRecurrence(7, return_sequences=False),
                              keras.layers.Dense(9)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses = model.fit(ids, ids[:, -1], epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0] and model.output_shape == (None, 9)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.layers[1].form == "rg_lru" and np.allclose(loaded(ids), model(ids), atol=1e-6)


def test_states_of_a_functional_model():
    """They have all digits in mixed precision, too, and are said to."""
    inputs, x = keras.Input([6, 4]), tf.ones([2, 6, 4])
    said = tfuse.LinearRecurrence(5, return_state=True, dtype="mixed_bfloat16")(inputs)
    got = keras.Model(inputs, said)(x)
    assert [(t.dtype, tuple(t.shape[1:])) for t in said] == [(t.dtype.name, tuple(t.shape[1:])) for t in got]
    assert [t.dtype for t in said] == ["bfloat16", "float32"]


def test_no_steps(device):
    assert tfuse.LinearRecurrence(5)(tf.zeros([2, 0, 4])).shape == [2, 0, 5]
    for reverse in (False, True):
        layer = tfuse.LinearRecurrence(5, return_state=True, reverse=reverse)
        assert np.all(layer(tf.zeros([2, 0, 4]))[1] == tf.zeros([2, 5]))
        of_any = tf.function(layer, input_signature=[tf.TensorSpec([2, None, 4]), tf.TensorSpec([2, 5])])
        assert np.all(of_any(tf.zeros([2, 0, 4]), tf.ones([2, 5]))[1] == tf.ones([2, 5]))
        assert np.allclose(of_any(tf.ones([2, 3, 4]), tf.ones([2, 5]))[1], layer(tf.ones([2, 3, 4]), tf.ones([2, 5]))[1])


def test_states_that_nothing_enters(device):
    """Gates that keep all of the state have a of 1, where the slope of the root of 1 - a² is infinite."""
    layer = tfuse.LinearRecurrence(3, "rg_lru", bias_initializer=keras.initializers.Constant(-200.0))
    x = tf.constant(np.random.default_rng(0).normal(size=[2, 5, 3]), tf.float32)
    layer.build(x.shape)

    def step(x, state):
        with tf.GradientTape() as tape:
            tape.watch([x, state])
            y = layer(x, initial_state=state)
        return y, tape.gradient(y, [x, *(w.value for w in layer.trainable_weights), state])

    for run in (step, tf.function(step, jit_compile=True)):
        y, gradients = run(x, tf.ones([2, 3]))
        assert np.allclose(y, 1)
        assert all(np.allclose(g, 0) for g in gradients[:-1]) and np.allclose(gradients[-1], 5)


def test_what_is_refused():
    with pytest.raises(ValueError, match="form must be one of min_gru, rg_lru, got 'lru'"):
        tfuse.LinearRecurrence(4, "lru")
    with pytest.raises(ValueError, match="units must be a positive integer, got 0"):
        tfuse.LinearRecurrence(0)
    with pytest.raises(ValueError, match="an rg_lru of 4 units takes as many channels"):
        tfuse.LinearRecurrence(4, "rg_lru")(tf.zeros([2, 3, 5]))
