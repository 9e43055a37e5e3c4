"""What predict() returns while tfuse is enabled: copied to the host while it runs, or joined at its end."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from feeding import assert_same, batches, data, feeds, model, needs_feeds
from tfuse._keras import _predictions

pytestmark = needs_feeds


@pytest.mark.parametrize("shapes", [[(4, 3), (4, 3), (1, 3)], [(4, 3)], [(2, 3), (2, 5)], [(), ()]], ids=str)
def test_what_predict_joins(feeds, shapes):
    tensors = [tf.random.normal(shape) for shape in shapes]
    joined = keras.src.backend.tensorflow.trainer.potentially_ragged_concat
    ours, stock = joined(tensors), joined.__wrapped__(tensors)
    assert type(ours) is type(stock)
    assert_same([ours.to_list()] if isinstance(ours, tf.RaggedTensor) else [ours],
                [stock.to_list()] if isinstance(stock, tf.RaggedTensor) else [stock])


@pytest.fixture
def copying(monkeypatch):
    """Every output of predict() is copied while it runs, on any device; the tensors of which Keras joined none itself."""
    joined = []
    monkeypatch.setattr(_predictions, "is_worth_it", lambda tensor: tensor.shape.rank)
    own = _predictions.of
    monkeypatch.setattr(_predictions, "of", lambda tensors: joined.append(own(tensors)) or joined[-1])
    return joined


@pytest.mark.parametrize("options", [{}, {"steps": 3}, {"steps_per_execution": 4}], ids=str)
def test_predictions_are_copied_while_it_runs(feeds, copying, options):
    x, steps = keras.Input((5,)), options.get("steps")
    y = keras.layers.Dense(3)(x)
    made = keras.Model(x, {"a": y, "b": [y + 1, keras.ops.cast(y, "bfloat16")]})
    made.compile(steps_per_execution=options.get("steps_per_execution", 1), jit_compile=False)
    for size in 4, 23, 1:
        found = made.predict(data()[0][: size * (steps or 9**9)], batch_size=size, steps=steps, verbose=0)
        assert len(copying) == 3 and all(copying)
        whole = made(data()[0][: size * (steps or 9**9)])
        for a, b in zip(tf.nest.flatten(found), tf.nest.flatten(whole)):
            assert type(a) is np.ndarray and a.dtype == b.dtype.as_numpy_dtype and a.flags.writeable
            half, a, b = a.itemsize == 2, a.astype("float64"), b.numpy().astype("float64")
            np.testing.assert_allclose(a, b, rtol=1e-2 if half else 1e-5, atol=1e-6)  # sums near 0 have the rounding of their terms
        copying.clear()


def test_predictions_that_cannot_be_copied_while_it_runs(feeds, copying):
    """A data set of unknown length, batches whose rows differ, a copy that fails: as ever, and nothing is lost."""
    made = model()
    unknown = tf.data.Dataset.from_generator(lambda: iter([data()[0]] * 2), output_signature=tf.TensorSpec((None, 5)))
    assert made.predict(unknown, verbose=0).shape == (46, 3) and copying == [None]
    any_length = keras.Sequential([keras.Input((None, 5)), keras.layers.Dense(3)])
    lengths = tf.data.Dataset.range(2, 4).map(lambda n: tf.ones([2, n, 5]))
    assert any_length.predict(lengths, verbose=0).shape == (4, None, 3) and copying == [None, None]
    want = made.predict(batches(), verbose=0)
    assert copying[2]
    stop = keras.callbacks.LambdaCallback()
    stop.on_predict_batch_end = lambda batch, logs=None: setattr(made, "stop_predicting", batch == 5)
    found = made.predict(batches().repeat(), steps=10**14, verbose=0, callbacks=[stop])  # no memory has room for all of these
    np.testing.assert_array_equal(found, want)
    assert copying.pop() is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_predictions, "_on_host", lambda tensor: 1 / 0)
        np.testing.assert_array_equal(made.predict(batches(), verbose=0), want)
    assert copying[3:] == [None]


def test_callbacks_of_ones_own(feeds):
    """A list of them that has no model says nothing about steps."""
    made, seen = model(), []
    callbacks = keras.callbacks.CallbackList([keras.callbacks.LambdaCallback()], steps=6)
    callbacks.callbacks[0].on_predict_batch_end = lambda batch, logs=None: seen.append(batch)
    assert made.predict(batches(), callbacks=callbacks, verbose=0).shape == (23, 3) and seen == list(range(6))
