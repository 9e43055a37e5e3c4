"""Models whose ops are joined by looking back: on two replicas, in files and copies, and traced before the switch turned."""

import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from enabling import RNG, SPARSE, close, left_as_it_was, ran, start
from looking_back import joined, runs
from tfuse._keras import _replaced_joined

pytestmark = pytest.mark.usefixtures("as_on_a_gpu")
TOKENS = RNG.integers(1, 32, (8, 6))
RULES = {"the norm of a sum", "gelu_tanh of a product", "silu times another tensor",
         "sparse_categorical_crossentropy of a product: its logits are not made as a whole"}


@pytest.fixture(autouse=True)
def few_classes(monkeypatch):
    monkeypatch.setattr(_replaced_joined, "LEAST_CLASSES", 1)


def model():
    """With something for every rule, of stock layers alone."""
    keras.utils.set_random_seed(4)
    tokens = keras.Input((6,), dtype="int32")
    x = keras.layers.Embedding(32, 8)(tokens)
    h = x + keras.layers.Dense(8)(keras.ops.gelu(keras.layers.Dense(16)(x)))
    y = keras.layers.LayerNormalization()(h)
    gates = keras.ops.multiply(keras.layers.Dense(16, "silu")(y), keras.layers.Dense(16)(y))
    y = keras.layers.LayerNormalization()(h + keras.layers.Dense(8)(gates))
    made = keras.Model(tokens, keras.layers.Dense(32)(y))
    made.compile(keras.optimizers.SGD(0.5), SPARSE(), jit_compile=False)
    return made


def losses(made):
    return made.fit(TOKENS, np.roll(TOKENS, -1, 1), batch_size=8, epochs=3, shuffle=False, verbose=0).history["loss"]


def test_two_replicas():
    want = losses(model())
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        with tfuse.enabled():
            got = losses(model())
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert RULES <= set(joined())


def test_files_and_copies(tmp_path):
    want = model().predict(TOKENS, verbose=0)
    with tfuse.enabled():
        made = model()
        losses(made)
        made.set_weights(model().get_weights())
        made.save(tmp_path / "model.keras")
        made.export(tmp_path / "saved", verbose=False)
        copies = [keras.saving.load_model(tmp_path / "model.keras"), pickle.loads(pickle.dumps(made)),
                  keras.models.clone_model(made)]
        copies[2].set_weights(made.get_weights())
        found = [copy.predict(TOKENS, verbose=0) for copy in copies]
        loaded = tf.saved_model.load(str(tmp_path / "saved"))
        found.append(loaded.serve(TOKENS.astype("float32")))
    assert RULES <= set(joined()) and "tfuse" not in made.to_json()
    for got in found:
        close(got, want, 1e-5)


def test_what_is_traced_stays_as_it_was():
    made = model()
    before = losses(made)
    with tfuse.enabled():
        losses(made)
        assert not joined() and not runs("Linear")
        made.compile(keras.optimizers.SGD(0.5), SPARSE(), jit_compile=False)
        losses(made)
        assert RULES <= set(joined())
        start()
        losses(made)  # as it was traced, without another trace
        assert "LinearCrossEntropy" in ran() and not joined()
    start()
    losses(made)  # batches come by Keras's own function again, which is traced now
    assert not ran() and not joined()
    np.testing.assert_allclose(losses(model()), before, rtol=1e-6)
