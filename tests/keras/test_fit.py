"""fit(), evaluate() and predict() by feeds: what they give is what Keras's own loop gives, whatever the data set does."""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import GPUS
from feeding import DEVICE, Seen, assert_same, batches, data, everything, feeds, model, needs_feeds
from tfuse._core import _library
from tfuse._keras import _feed, _replaced_trainer

pytestmark = needs_feeds


class Endless(keras.utils.PyDataset):
    """Batches without end, by workers that Keras stops at the end of every epoch and starts at the beginning of the next."""

    @property
    def num_batches(self):
        return None

    def __getitem__(self, i):
        x, y = data()
        return np.roll(x, i, 0)[:4], np.roll(y, i, 0)[:4]


FITS = {
    "tf.data": lambda: {"x": batches()},
    "unknown length": lambda: {"x": batches().filter(lambda *_: True)},
    "steps": lambda: {"x": batches().repeat(), "steps_per_epoch": 4},
    "arrays": lambda: dict(zip("xy", data()), batch_size=4, shuffle=False),
    "weights": lambda: dict(zip("xy", data()), batch_size=4, shuffle=False, sample_weight=np.linspace(0, 1, 23)),
    "class weights": lambda: dict(zip("xy", data()), batch_size=4, shuffle=False, class_weight={0: 1.0, 1: 2.0, 2: 0.5}),
    "validation": lambda: {"x": batches(), "validation_data": batches(9)},
    "split": lambda: dict(zip("xy", data()), batch_size=4, shuffle=False, validation_split=0.3),
    "generator": lambda: {"x": ((x[None], y[None]) for x, y in zip(*data(12))), "steps_per_epoch": 6},
    "workers": lambda: {"x": Endless(workers=2), "steps_per_epoch": 3},
    "int32 and bool": lambda: {"x": batches().map(lambda x, y: (x, y, y >= 0))},
}


FOUR, EAGERLY, XLA = {"steps_per_execution": 4}, {"run_eagerly": True}, {"jit_compile": True}


@pytest.mark.parametrize("name, options", [
    *((name, {}) for name in FITS), ("tf.data", FOUR), ("steps", FOUR), ("workers", FOUR), ("unknown length", FOUR), ("tf.data", EAGERLY),
    ("tf.data", XLA), ("int32 and bool", XLA)], ids=lambda of: of if isinstance(of, str) else "-".join(of) or "step")
def test_as_keras(feeds, name, options):
    ours = everything(options, FITS[name]())
    assert feeds.made
    with feeds.none():
        stock = everything(options, FITS[name]())
    assert_same(ours, stock)


def test_a_step_of_xla_is_called_by_itself(feeds):
    """And is traced once for batches of all sizes. Inside of another function XLA takes longer for each of its launches."""
    class Asking(keras.Model):
        def call(self, x):
            graphs.append(tf.compat.v1.get_default_graph())
            return x * self.weight_of_all

    graphs, made = [], Asking()
    made.weight_of_all = made.add_weight(shape=(5,))
    made.compile("sgd", "mse", jit_compile=True)
    made.build((None, 5))
    graphs.clear()
    made.fit(tf.data.Dataset.from_tensor_slices((data()[0],) * 2).batch(4), verbose=0)
    traced, = graphs
    assert not tf.compat.v1.get_default_graph().building_function and not traced.outer_graph.building_function
    assert feeds.made


def means(reduction, dtype):
    """A loss and its weight, traced with a batch of unknown size and called with 3 samples of 4 values: their values, and the
    casts from integers in the graph."""
    @tf.function(input_signature=[tf.TensorSpec([None, 4], dtype)])
    def step(values):
        mean.update_state(values[0, 0], sample_weight=tf.shape(values)[0])
        return keras.src.losses.loss.reduce_values(values, reduction=reduction), mean.count.value

    mean = keras.metrics.Mean()
    found = step.get_concrete_function()
    casts = [op for op in found.graph.get_operations() if op.type == "Cast" and op.inputs[0].dtype == tf.int32]
    return [x.numpy() for x in found(tf.reshape(tf.range(12, dtype=dtype), [3, 4]))], len(casts)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean", "mean_with_sample_weight"])
def test_sizes_are_counted_on_the_gpu(feeds, monkeypatch, reduction, dtype):
    monkeypatch.setattr(_library, "without_gpu", lambda: True)
    stock, casts = means(reduction, dtype)
    monkeypatch.setattr(_library, "without_gpu", lambda: False)
    ours, none = means(reduction, dtype)
    assert (ours, none) == (stock, 0) and casts and stock[1] == 3


def test_dtypes_and_shapes(feeds):
    """Every dtype that is staged, no dimension and none at all, none left over from a larger batch."""
    rng = np.random.default_rng(0)
    given = []
    for n in 7, 2, 0, 300:
        arrays = [rng.integers(0, 2, size=(n, 3)).astype(dtype.as_numpy_dtype) for dtype in _feed.DTYPES]
        given.append((*arrays, np.float32(n), np.zeros((0, 4), "float32")))
    spec = tuple(tf.TensorSpec((None, 3), dtype) for dtype in _feed.DTYPES) + (tf.TensorSpec(()), tf.TensorSpec((0, 4)))
    dataset = tf.data.Dataset.from_generator(lambda: iter(given), output_signature=spec)
    assert _feed.why_not(dataset.element_spec) == ""
    for route in "eager", "graph":
        feed, found = _feed.Feed(dataset, DEVICE), []
        whole = tf.function(lambda memory: _feed.unstaged(memory, feed.spec, DEVICE))
        while True:
            slot = feed.take()
            if slot is None:
                break
            found.append([t.numpy() for t in (slot.batch(feed.spec) if route == "eager" else whole(slot.memory))])
            feed.give_back(slot)
        assert len(found) == len(given)
        for got, wanted in zip(found, given):
            for a, b in zip(got, wanted):
                assert a.dtype == b.dtype and np.array_equal(a, b)


@pytest.mark.parametrize("what, why", [
    (lambda: tf.data.Dataset.from_tensors((tf.ragged.constant([[1.0], [2.0, 3.0]]), [1, 2])), "Ragged"),
    (lambda: tf.data.Dataset.from_tensors((tf.sparse.from_dense([[1.0, 0.0]]), [1])), "Sparse"),
    (lambda: tf.data.Dataset.from_tensors((["a"], [1])), "string"),
    (lambda: tf.data.Dataset.from_tensors(([1j], [1])), "complex128"),
    (lambda: tf.data.Dataset.from_generator(lambda: iter([]), output_signature=tf.TensorSpec(None)), "dimensions"),
])
def test_left_to_keras(what, why):
    assert why in _feed.why_not(what().element_spec)


def test_strings_take_keras_way(feeds):
    made = keras.Sequential([keras.layers.StringLookup(vocabulary=["a", "b"]), keras.layers.Embedding(4, 2)])
    y = made.predict(tf.data.Dataset.from_tensors((tf.constant([["a"], ["b"]]),)), verbose=0)
    assert y.shape == (2, 1, 2) and feeds.made == 0
    assert any(row["route"] == "Keras's own loop" and "string" in row["why"] for row in tfuse.explain(64))


def test_errors_come_at_their_step(feeds):
    """Batches before the one that fails are trained on; the error is the data set's own."""
    def wrong(i, x, y):
        with tf.control_dependencies([tf.debugging.assert_less(i, tf.constant(3, tf.int64), "no more")]):
            return tf.identity(x), y

    seen = Seen()
    with pytest.raises(tf.errors.InvalidArgumentError, match="no more"):
        model().fit(batches().enumerate().map(lambda i, xy: wrong(i, *xy)), verbose=0, callbacks=[seen])
    assert [batch for batch, _ in seen.all] == [0, 1, 2]


def test_several_at_once(feeds):
    """Trainings in threads of their own do not meet."""
    alone = [model().fit(batches(n), epochs=2, verbose=0).history["loss"] for n in (17, 23)]
    found = [None, None]

    def train(i, made):
        found[i] = made.fit(batches((17, 23)[i]), epochs=2, verbose=0).history["loss"]

    threads = [threading.Thread(target=train, args=(i, model())) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_allclose(found, alone, rtol=1e-5)


def test_on_the_cpu_by_hand():
    """Where the caller says so, nothing is copied to a GPU."""
    with tfuse.enabled(), tf.device("CPU:0"):
        assert _replaced_trainer._device() == ""
        assert np.isfinite(model().fit(batches(), verbose=0).history["loss"]).all()


def test_no_memory_for_slots(feeds, monkeypatch):
    """Then TensorFlow copies the batches when it runs their steps."""
    def refuse(**_):
        raise tf.errors.ResourceExhaustedError(None, None, "no memory for a slot")

    monkeypatch.setattr(_feed, "_idle", [])
    with feeds.none():
        stock = everything({}, {"x": batches()})
    monkeypatch.setattr(_feed, "_stage", refuse)
    assert_same(everything({}, {"x": batches()}), stock)
    assert _feed._idle and not any(slot.given for slot in _feed._idle)  # nothing keeps the last batches
    assert any(row["why"] == "no memory for a slot" for row in tfuse.explain(64))


@pytest.mark.skipif(not GPUS, reason="there is no GPU")
def test_prefetched_to_the_gpu(feeds):
    ahead = batches().apply(tf.data.experimental.prefetch_to_device("/GPU:0", 2))
    assert_same(everything({}, {"x": ahead}), everything({}, {"x": batches()}))
