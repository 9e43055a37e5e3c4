"""What a step gives as its logs: callbacks and the progress bar get what Keras gives them, when they ask for it."""

import collections
import copy
import functools
import json
import pickle
import re
import threading
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from feeding import DEVICE, Seen, batches, data, feeds, model, needs_feeds
from tfuse._keras import _hooks, _replaced_trainer, _report

pytestmark = needs_feeds


def test_numbers_are_read_when_asked_for(feeds, monkeypatch):
    read = []
    monkeypatch.setattr(_report, "read", lambda value, own=_report.read: read.append(1) or own(value))

    class Some(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append((set(logs), len(logs), "loss" in logs))
            if batch % 3 == 0:
                numbers.append((logs["loss"], logs.get("loss")))

    seen, numbers = [], []
    model().fit(batches(), verbose=0, callbacks=[Some()])
    assert seen == [({"loss", "accuracy"}, 2, True)] * 6
    assert len(read) == 2 and all(isinstance(a, float) and a == b for a, b in numbers)  # of batches 0 and 3


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


def test_numbers_of_steps_long_gone(feeds, monkeypatch):
    """Whoever keeps logs gets the numbers of their step, however many have followed."""
    monkeypatch.setattr(_hooks, "read_by_methods", lambda callback, name: True)
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
    make = lambda: _report.Logs.of({"b": tf.constant(2.0), "a": {"c": tf.constant(1)}, "text": "x"})
    want = {"b": 2.0, "c": 1.0, "text": "x"}
    assert dict(make()) == want == {**make()} == make() == make().copy() == (make() | {})
    assert sorted(make().items()) == sorted(want.items()) and sorted(map(str, make().values())) == ["1.0", "2.0", "x"]
    assert json.loads(json.dumps(make())) == want and pickle.loads(pickle.dumps(make())) == want
    assert list(make()) == ["c", "b", "text"] and "%(b).1f" % make() == "2.0" and repr(make()) == repr(dict(make()))
    logs = make()
    logs["b"] = 5
    logs.update(d=7)
    assert logs["b"] == 5 and logs.pop("c") == 1.0 and logs.get("nothing", 3) == 3 and logs["d"] == 7
    assert not _report.Logs.of(None) and type(_report.Logs()) is type(_report.Logs.of(None).copy()) is dict
    logs = make()
    del logs["c"]
    assert logs == {"b": 2.0, "text": "x"} and len(logs) == 2
    logs.update({"b": [3]}, e=1)
    logs |= {"text": "y"}
    assert logs.setdefault("b", 4) == [3] and logs["text"] == "y" and logs.pop("e") == 1
    logs.clear()
    assert logs == {} and not logs.items() and not logs.is_under_way()
    with pytest.raises(KeyError):
        del logs["c"]


WITH_LOGS = {  # what callbacks do
    "map": lambda logs: tf.nest.map_structure(lambda x: x + 1, logs),
    "flatten": lambda logs: tf.nest.pack_sequence_as(logs, tf.nest.flatten(logs)),
    "two": lambda logs: tf.nest.map_structure(lambda x, y: x + y, dict(logs), logs),
    "keras": lambda logs: keras.tree.map_structure(lambda x: x + 1, logs),
    "keras, two": lambda logs: keras.tree.map_structure(lambda x, y: x + y, dict(logs), logs),
    "paths": lambda logs: keras.tree.flatten_with_path(logs),
    "leaves": lambda logs: keras.tree.pack_sequence_as(logs, keras.tree.flatten(logs)),
    "copy": lambda logs: (copy.copy(logs), copy.deepcopy(logs)),
    "pickle": lambda logs: pickle.loads(pickle.dumps(logs)),
    "json": lambda logs: json.dumps(logs, indent=1, sort_keys=True),
    "type": lambda logs: (type(logs), type(logs)(), type(logs)(logs), type(logs).fromkeys(logs)),
    "raw": lambda logs: (sorted(dict.items(logs)), collections.OrderedDict(logs), {**logs}, logs | {"a": 1}),
    "array": lambda logs: np.array(list(logs.values())).tolist(),
    "changed": lambda logs: logs.update(more=1, loss=logs.pop("accuracy")) or logs,
}


@pytest.mark.parametrize("name", WITH_LOGS)
def test_whatever_a_callback_does(name, monkeypatch):
    """It finds what it finds in Keras, and so do the callbacks before and after it, which only read."""
    class Does(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(WITH_LOGS[name](logs))

    class Reads(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append((batch, logs["loss"], list(logs)))

    def run():
        seen.clear()
        model().fit(batches(), verbose=0, callbacks=[Reads(), Does(), Reads()])
        return re.sub(r"(\d\.\d{4})\d*", r"\1", repr(seen))

    seen = []
    stock = run()
    monkeypatch.setattr(_replaced_trainer, "_device", lambda: DEVICE)
    with tfuse.enabled():
        assert run() == stock and "loss" in stock


def hooks(tf=tf, kept=[]):
    """Hooks whose code uses the methods of logs alone, and others."""
    def reads(self, batch, logs=None):
        if batch % 9 == 0 and logs and "loss" in logs:
            print(logs["loss"], logs.get("accuracy"), len(logs), sorted(logs), [name for name in logs])

    def has_none(self, batch, logs=None):
        logs = logs or {}
        logs["rate"] = logs.pop("loss", 0)

    def ignores(self, batch, logs=None):
        kept.append(batch)

    def keeps(self, batch, logs=None):
        kept.append(logs)

    def returns(self, batch, logs=None):
        return logs

    def calls_in_a_row(self, batch, logs=None):
        return len, kept.append(logs)

    def names_it(self, batch, logs=None):
        other = logs or {}
        kept.append(other)

    def has_it_inside(self, batch, logs=None):
        return lambda: logs["loss"]

    def maps(self, batch, logs=None):
        return tf.nest.map_structure(abs, logs)

    def of_any_name(self, batch, values):
        kept.append(values)

    def of_all(self, *arguments, **logs):
        kept.append(logs)

    def all_here(self, batch, logs=None):
        kept.append(locals())

    def names_it_first(self, batch, logs=None):
        logs = (other := logs) or {}
        kept.append(other)

    def by_name(self, batch, logs=None):
        kept.append(eval("logs"))

    def by_variables(self, batch, logs=None):
        kept.append(vars())

    def by_method(self, batch, logs=None):
        kept.append(logs.get.__self__)

    @functools.wraps(keras.callbacks.Callback.on_train_batch_end)  # whose __module__ it gets
    def wraps_one_of_keras(batch, logs=None):
        kept.append(logs)

    def calls_its_own(self, batch, logs=None):
        dict(logs)

    calls_its_own = types.FunctionType(calls_its_own.__code__, {"dict": kept.append})
    return {reads: True, has_none: True, ignores: True, keeps: False, returns: False, calls_in_a_row: False,
            names_it: False, has_it_inside: False, maps: False,
            of_any_name: False, of_all: False, all_here: False, names_it_first: False, by_name: False, by_variables: False,
            by_method: False, wraps_one_of_keras: False, calls_its_own: False, functools.partial(keeps, None): False}


@pytest.mark.parametrize("hook, late", hooks().items(), ids=lambda of: getattr(of, "__name__", ""))
def test_who_gets_numbers_that_are_read_late(hook, late):
    callback = keras.callbacks.Callback()
    callback.on_train_batch_end = hook
    assert _hooks.read_by_methods(callback, "on_train_batch_end") == late


def test_hooks_of_keras():
    """They read late; and what is a hook of every loop decides where there is no other."""
    class Every(keras.callbacks.Callback):
        def on_batch_end(self, batch, logs=None):
            print(logs)

    for callback in keras.callbacks.History(), keras.callbacks.ProgbarLogger(), keras.callbacks.TerminateOnNaN():
        assert _hooks.read_by_methods(callback, "on_train_batch_end") and _hooks.read_by_methods(callback, "on_test_batch_end")
    assert not _hooks.read_by_methods(Every(), "on_train_batch_end") and _hooks.read_by_methods(Every(), "on_test_batch_end")


class Pair(keras.metrics.Metric):
    """A metric of two numbers."""

    def update_state(self, *_, **__):
        pass

    def result(self):
        return tf.constant([3.0, 4.0])


def test_arrays_are_what_keras_makes_of_them():
    class Asks(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append((type(logs["pair"]), np.asarray(logs["pair"]).tolist()))

        def on_predict_batch_end(self, batch, logs=None):
            seen.append((type(logs["outputs"]), np.asarray(logs["outputs"]).argmax(-1).tolist()))

    def run():
        made = model(metrics=[Pair(name="pair")])
        made.fit(batches(4), verbose=0, callbacks=[Asks()])
        made.predict(batches(4), verbose=0, callbacks=[Asks()])

    seen = []
    run()
    stock, seen = seen, []
    with tfuse.enabled():
        run()
    assert seen == stock and len(seen) == 2


def test_a_number_whose_rank_is_not_known(feeds):
    """Where a number is one only when the step has run, the others are still their own."""
    class Told(keras.metrics.Metric):
        def update_state(self, *_, **__):
            pass

        def result(self):
            return tf.py_function(lambda: 7.0, [], tf.float32)

    def run():
        seen = Seen()
        made = model(metrics=[Told(name="a"), "accuracy"])
        made.fit(batches(), verbose=0, callbacks=[seen])
        return [logs for _, logs in seen.all]

    ours = run()
    with feeds.none():
        assert ours == run()
    assert {logs["a"] for logs in ours} == {7.0} and len({logs["loss"] for logs in ours}) == 6


def test_a_thread_for_each_progress_bar(feeds, capsys):
    """Jupyter shows what a thread prints below the cell that has started the thread."""
    drawing = lambda: {thread.ident for thread in threading.enumerate() if thread.name.startswith("tfuse progress bar")}

    class Looks(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(len(drawing()))

        def on_epoch_end(self, epoch, logs=None):
            seen.append("end")

        def on_epoch_begin(self, epoch, logs=None):
            assert not drawing()

    seen = []
    model().fit(batches(12), epochs=2, verbose=1, callbacks=[Looks()])
    assert seen == [0, 1, 1, "end"] * 2 and not drawing()
