"""fit(), evaluate() and predict() by feeds: what they give is what Keras's own loop gives, whatever the data set does.

Feeds are for GPUs; here they also run on the CPU, where a slot is plain memory.
"""

import contextlib
import gc
import json
import pickle
import re
import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import GPUS
from tfuse._core import _library
from tfuse._keras import _feed, _predictions, _replaced_trainer, _report

pytestmark = pytest.mark.skipif(not _replaced_trainer.TABLE, reason="this Keras makes its functions in another way")
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


def model(**options):
    keras.utils.set_random_seed(1)
    made = keras.Sequential([keras.Input((5,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(3)])
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
            np.testing.assert_allclose(a.astype("float64"), b.numpy().astype("float64"), rtol=1e-2 if a.itemsize == 2 else 1e-5)
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


def test_a_failing_step_ends_it(feeds):
    class Stops(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                raise KeyboardInterrupt

    made = model()
    with pytest.raises(KeyboardInterrupt):
        made.fit(batches(), verbose=0, callbacks=[Stops()])
    made.fit(batches(), verbose=0)  # and it can go on


@pytest.mark.parametrize("epoch", [0, 3])
def test_how_much_is_drawn_ahead(feeds, epoch):
    """Two batches at most; nothing before the first is asked for, nor after the last; and where ends of epochs are told, nothing
    of the next epoch."""
    drawn = []

    def draw():
        for i in range(100):
            drawn.append(i)
            yield np.zeros((4, 5), "float32"), np.zeros(4, "int32")

    spec = tf.TensorSpec((None, 5)), tf.TensorSpec((None,), tf.int32)
    options = tf.data.Options()
    options.autotune.enabled = False  # or tf.data itself draws ahead
    dataset = tf.data.Dataset.from_generator(draw, output_signature=spec).with_options(options)
    feed = _feed.Feed(dataset, DEVICE, epoch)
    time.sleep(0.1)
    assert drawn == []
    for i in range(5):
        slot = feed.take()
        time.sleep(0.1)
        assert len(drawn) <= (i + 2 if epoch == 0 else min(i + 2, -(-(i + 1) // epoch) * epoch))
        feed.give_back(slot)
        if (i + 1) % 3 == 0:  # the end of an epoch, or not
            time.sleep(0.1)
            assert len(drawn) == i + 1 if epoch else len(drawn) > i + 1
    del feed, slot
    gc.collect()
    count = len(drawn)
    time.sleep(0.1)
    assert len(drawn) == count <= 8


def test_nothing_is_left_behind(feeds):
    """Neither threads nor slots, however often data sets are read."""
    made = model()
    for _ in range(40):
        made.fit(batches().repeat(), steps_per_epoch=2, verbose=0)
        made.evaluate(batches(), verbose=0)
    gc.collect()
    assert not [t for t in threading.enumerate() if t.name == "tfuse feed"]
    taken = [_library.library.tfu_slot_open() for _ in range(60)]
    assert min(taken) >= 0  # of 64: all but those few that wait for the next data set
    for number in taken:
        _library.library.tfu_slot_close(number)


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


def test_enabled_after_a_first_fit(feeds):
    """A function that was made before takes feeds as it takes any iterator."""
    with feeds.none():
        tfuse.disable()
        made = model()
        made.fit(batches(), verbose=0)
    loss = made.fit(batches(), verbose=0).history["loss"]
    assert np.isfinite(loss).all() and made.predict(batches(), verbose=0).shape == (23, 3)


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
    assert any(row["why"] == "no memory for a slot" for row in tfuse.explain(64))


@pytest.mark.skipif(not GPUS, reason="there is no GPU")
def test_prefetched_to_the_gpu(feeds):
    ahead = batches().apply(tf.data.experimental.prefetch_to_device("/GPU:0", 2))
    assert_same(everything({}, {"x": ahead}), everything({}, {"x": batches()}))


# ---- numbers ----


def test_numbers_are_read_when_asked_for(feeds, monkeypatch):
    read = []
    monkeypatch.setattr(_report, "read", lambda value, own=_report.read: read.append(1) or own(value))

    class Some(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            assert set(logs) == {"loss", "accuracy"} and len(logs) == 2 and "loss" in logs
            if batch % 3 == 0:
                assert isinstance(logs["loss"], float) and logs["loss"] == logs.get("loss")

    model().fit(batches(), verbose=0, callbacks=[Some()])
    assert len(read) == 2  # of batches 0 and 3


def test_the_progress_bar_is_drawn(feeds, capsys):
    """All of it, in order, and before what follows is printed."""
    model().fit(batches(), epochs=2, verbose=1)
    ours = capsys.readouterr().out
    model().evaluate(batches(), verbose=1)
    evaluated = capsys.readouterr().out
    with feeds.none():
        model().fit(batches(), epochs=2, verbose=1)
        stock = capsys.readouterr().out
        model().evaluate(batches(), verbose=1)
    told = lambda text: re.findall(r"Epoch \d/2|loss: [\d.]+", re.sub(r"\x1b\[\d+m", "", text))
    last = lambda text: [told(part)[-1] for part in text.split("Epoch")[1:]]
    assert last(ours) == last(stock) and told(evaluated)[-1] == told(capsys.readouterr().out)[-1]
    assert re.findall("Epoch ./2", ours) == ["Epoch 1/2", "Epoch 2/2"] and "6/6" in ours.split("Epoch 2/2")[1]


def test_numbers_of_steps_long_gone(feeds):
    """Whoever keeps logs gets the numbers of their step, however many have followed."""
    kept = []

    class Keeps(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            kept.append(logs)

    made = model()
    made.fit(batches(23, 1), verbose=0, callbacks=[Keeps()])
    seen = Seen()
    again = model()
    again.fit(batches(23, 1), verbose=0, callbacks=[seen])
    assert [dict(logs) for logs in kept] == [logs for _, logs in seen.all]


def test_logs_are_a_dict():
    make = lambda: _report.Logs({"b": tf.constant(2.0), "a": {"c": tf.constant(1)}, "text": "x"})
    want = {"b": 2.0, "c": 1.0, "text": "x"}
    assert dict(make()) == want == {**make()} == make() == make().copy() == (make() | {})
    assert sorted(make().items()) == sorted(want.items()) and sorted(map(str, make().values())) == ["1.0", "2.0", "x"]
    assert json.loads(json.dumps(make())) == want and pickle.loads(pickle.dumps(make())) == want
    assert list(make()) == ["c", "b", "text"] and "%(b).1f" % make() == "2.0" and repr(make()) == repr(dict(make()))
    logs = make()
    logs["b"] = 5
    logs.update(d=7)
    assert logs["b"] == 5 and logs.pop("c") == 1.0 and logs.get("nothing", 3) == 3 and logs["d"] == 7
    assert not _report.Logs(None)
