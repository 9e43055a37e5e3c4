"""fit() with steps and functions of a model's own, or made before tfuse.enable(): they give what they give without tfuse."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from feeding import Seen, assert_same, batches, feeds, model, needs_feeds
from tfuse.generation import batch

pytestmark = needs_feeds


class InAFunction(keras.Sequential):
    """Its function draws inside of a graph."""

    draw = next

    def make_train_function(self, force=False):
        if self.train_function is None:
            self.train_function = tf.function(lambda iterator: self.train_step(type(self).draw(iterator)))


class GetsNext(InAFunction):
    draw = lambda iterator: iterator.get_next()


class Eagerly(keras.Sequential):
    """Its function draws as a program of Python does."""

    def make_train_function(self, force=False):
        step = tf.function(self.train_step)
        self.train_function = lambda iterator: step(next(iterator))


def trained(made, **options):
    seen = Seen()
    made.fit(batches(), epochs=2, verbose=0, callbacks=[seen], **options)
    return seen.all, made.get_weights()


@pytest.mark.parametrize("kind", [InAFunction, GetsNext, Eagerly])
def test_functions_of_a_models_own(feeds, kind):
    ours = trained(model(kind))
    assert feeds.made
    with feeds.none():
        assert_same(ours, trained(model(kind)))
    why = [row["why"] for row in tfuse.explain(64) if row["route"] == "Keras's own loop" and row["op"].startswith("fit")]
    assert kind is Eagerly or any("the model's own" in reason for reason in why)


@pytest.mark.parametrize("steps", [1, 4])
def test_a_function_that_was_made_before(feeds, steps):
    """It draws its batches itself: of six it takes four, and then two."""
    def run():
        made = model(steps_per_execution=steps)
        made.train_function = type(made)._make_function.__wrapped__(made, made.train_step)
        return trained(made)

    ours = run()
    assert feeds.made
    with feeds.none():
        assert_same(ours, run())


def test_a_step_without_a_name(feeds):
    def run():
        made = model()
        made.train_step = functools.partial(type(made).train_step, made)
        return trained(made)

    ours = run()
    assert feeds.made
    with feeds.none():
        assert_same(ours, run())


@pytest.mark.parametrize("options", [{}, {"steps_per_execution": 4}, {"run_eagerly": True}], ids=str)
def test_a_step_that_gives_nothing(feeds, options):
    """All batches are still trained on, and what fails is what fails without feeds."""
    class Silent(keras.Sequential):
        def train_step(self, data):
            super().train_step(data)

    def run():
        made, seen = model(Silent, **options), []
        count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append((batch, dict(logs))))
        with pytest.raises(Exception) as raised:
            made.fit(batches(), verbose=0, callbacks=[count])
        return type(raised.value), str(raised.value), seen, made.get_weights()

    (*ours, weights), made = run(), feeds.made
    with feeds.none():
        *stock, wanted = run()
    assert made and ours == stock
    assert_same(weights, wanted)


def test_disabled_inside_a_block():
    """It takes effect at the end of the block, its arguments' too."""
    with tfuse.enabled(cache_dtype="float8_e4m3fn"):
        tfuse.enable()
        with tfuse.enabled(cache_dtype="float8_e4m3fn"):
            tfuse.disable()
            assert batch.cache_dtype == "float8_e4m3fn"
        assert batch.cache_dtype is None
    tfuse.enable(cache_dtype="float8_e4m3fn")
    with tfuse.enabled():
        tfuse.disable()
    assert batch.cache_dtype is None
