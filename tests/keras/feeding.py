"""What the tests of fit(), evaluate() and predict() by feeds share.

Feeds are for GPUs; here they also run on the CPU, where a slot is plain memory.
"""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import GPUS
from tfuse._keras import _feed, _replaced_trainer

needs_feeds = pytest.mark.skipif(not _replaced_trainer.TABLE, reason="this Keras makes its functions in another way")
DEVICE = "/device:GPU:0" if GPUS else "/device:CPU:0"


class Feeds:
    """Feeds on any device while tfuse is enabled, and how many there were."""

    def __init__(self):
        self.made, self.device = 0, DEVICE

    @contextlib.contextmanager
    def none(self):
        """Inside, Keras's own loop runs, with all else that tfuse does."""
        self.device, before = "", self.made
        yield
        self.device = DEVICE
        assert self.made == before


@pytest.fixture
def feeds(monkeypatch):
    feeds, own = Feeds(), _feed.Feed.__init__

    def count(feed, *arguments):
        feeds.made += 1
        own(feed, *arguments)

    monkeypatch.setattr(_replaced_trainer, "_device", lambda: feeds.device)
    monkeypatch.setattr(_feed.Feed, "__init__", count)
    with tfuse.enabled():
        yield feeds


def data(n=23, kind="float32"):
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 5)).astype(kind), rng.integers(3, size=n).astype("int32")


def model(kind=keras.Sequential, **options):
    keras.utils.set_random_seed(1)
    made = kind([keras.Input((5,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(3)])
    made.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                 **{"metrics": ["accuracy"], "jit_compile": False, **options})
    return made


def batches(n=23, size=4):
    return tf.data.Dataset.from_tensor_slices(data(n)).batch(size)


class Seen(keras.callbacks.Callback):
    """What a callback sees of every batch."""

    def __init__(self):
        super().__init__()
        self.all = []

    def on_train_batch_end(self, batch, logs=None):
        self.all.append((batch, dict(logs)))

    def on_test_batch_end(self, batch, logs=None):
        self.all.append(("test", batch, logs["loss"]))

    def on_predict_batch_end(self, batch, logs=None):
        self.all.append(("predict", batch, np.shape(logs["outputs"])))


def everything(options, fit):
    """What can be seen of a training."""
    made, seen = model(**options), Seen()
    history = made.fit(epochs=2, verbose=0, callbacks=[seen], **fit).history
    evaluated = made.evaluate(batches(), verbose=0, callbacks=[seen], return_dict=True)
    predicted = made.predict(batches(), verbose=0, callbacks=[seen])
    return history, evaluated, predicted, seen.all, made.get_weights()


def assert_same(ours, stock):
    """Of nested things of one structure; numbers up to rounding."""
    for a, b in zip(tf.nest.flatten(ours), tf.nest.flatten(stock), strict=True):
        if isinstance(b, (str, tuple)):
            assert a == b
        else:
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
