"""What a feed draws ahead, and what is left of it when its fit() has ended, however that came."""

import gc
import itertools
import re
import sys
import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.trainers.epoch_iterator import EpochIterator

import tfuse
from feeding import DEVICE, batches, feeds, model, needs_feeds
from tfuse._core import _library
from tfuse._keras import _feed

pytestmark = needs_feeds


def assert_nothing_is_left():
    assert not [t for t in threading.enumerate() if t.name == "tfuse feed"]
    taken = [_library.library.tfu_slot_open() for _ in range(60)]
    for number in taken:
        _library.library.tfu_slot_close(number)
    assert min(taken) >= 0  # of 64: all but those few that wait for the next data set


def drawn_by(draw, spec):
    """A data set that draws nothing ahead, as tf.data itself otherwise may."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return tf.data.Dataset.from_generator(draw, output_signature=spec).with_options(options)


@pytest.mark.parametrize("epoch", [0, 3])
def test_how_much_is_drawn_ahead(feeds, epoch):
    """Two batches at most; nothing before the first is asked for, nor after the last; and where ends of epochs are told, nothing
    of the next epoch."""
    drawn = []

    def draw():
        for i in range(100):
            drawn.append(i)
            yield np.zeros((4, 5), "float32"), np.zeros(4, "int32")

    feed = _feed.Feed(drawn_by(draw, (tf.TensorSpec((None, 5)), tf.TensorSpec((None,), tf.int32))), DEVICE, epoch)
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
    assert_nothing_is_left()


class Ends(keras.callbacks.Callback):
    """Ends it at the second batch of one of its loops."""

    def __init__(self, loop, why):
        super().__init__()
        setattr(self, "on_%s_batch_end" % loop, self.end)
        self.why = why

    def end(self, batch, logs=None):
        if batch == 1 and self.why:
            raise self.why
        self.model.stop_training = self.model.stop_evaluating = self.model.stop_predicting = batch == 1


FITS = {
    "known": ("train", lambda made, **options: made.fit(batches(), **options)),
    "unknown": ("train", lambda made, **options: made.fit(batches().filter(lambda *_: True), **options)),
    "steps": ("train", lambda made, **options: made.fit(batches().repeat(), steps_per_epoch=4, **options)),
    "validation": ("test", lambda made, **options: made.fit(batches(), validation_data=batches(), **options)),
    "predict": ("predict", lambda made, **options: made.predict(batches(), **options)),
}


class Kept:
    """A generator that has what it had when it is closed, too, as in Python 3.12.0 to 3.12.3."""

    def __init__(self, generator):
        self.generator = generator

    def __next__(self):
        return next(self.generator)

    def close(self):
        pass


@pytest.mark.parametrize("closed", ["has nothing", "has what it had"])
def test_what_ends_early_leaves_nothing(closed, feeds, monkeypatch):
    """Without Python's search for cycles, and while somebody keeps the errors, as an interpreter keeps the last one."""
    made, errors, left, own = model(), [], [], EpochIterator._enumerate_iterator
    if closed == "has what it had":
        monkeypatch.setattr(EpochIterator, "_enumerate_iterator", lambda epoch: Kept(own(epoch)))
    gc.collect()
    gc.disable()
    try:
        for name, (loop, run) in FITS.items():
            for why in None, ValueError("no more"), KeyboardInterrupt():
                try:
                    run(made, verbose=0, callbacks=[Ends(loop, why)])
                    assert why is None
                except (ValueError, KeyboardInterrupt) as error:
                    assert error is why
                    errors.append(error)
                left += [(name, why) for thread in threading.enumerate() if thread.name == "tfuse feed"]
        assert len(errors) == 2 * len(FITS) and not left
        assert_nothing_is_left()
    finally:
        gc.enable()
    assert len(made.fit(batches(), verbose=0).history["loss"]) == 1  # and it can go on


def test_a_feed_that_is_found_where_it_draws():
    """The search for cycles may run in the thread that a batch is waited for from."""
    lost = threading.Event()

    def draw():
        for i in itertools.count():
            if i == 2:  # what is drawn when the first batch has been given back
                lost.wait(60)
            gc.collect()
            yield np.zeros((4, 5), "float32")

    feed = _feed.Feed(tf.data.Dataset.from_generator(draw, output_signature=tf.TensorSpec((None, 5))), DEVICE)
    feed.give_back(feed.take())
    thread, feed.itself = feed._drawing.thread, feed
    gc.disable()
    try:
        feed.take()
        del feed
        lost.set()
        thread.join(20)
    finally:
        gc.enable()
    assert not thread.is_alive()
    assert_nothing_is_left()


def interrupted(at):
    """Begins a feed, and interrupts that before its bytecode of number `at`; whether there was one."""
    left, feed = [at], _feed.Feed(batches(), DEVICE)

    def trace(frame, event, argument):
        if frame.f_code.co_filename != _feed.__file__:
            return None
        frame.f_trace_opcodes = True
        left[0] -= event == "opcode"
        if left[0] < 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    sys._getframe().f_trace_opcodes = True  # or Python 3.12 does not look for bytecodes at all
    sys.settrace(trace)
    try:
        feed.take()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
        feed.end()  # as _inside_an_epoch
    return left[0] < 0


def test_interrupts_while_a_feed_begins(monkeypatch):
    """At any bytecode of it, and inside of Thread.start() before and after there is a thread."""
    at = 0
    while interrupted(at):
        at += 1
    assert at > 100
    own = threading.Thread.start

    def start(thread, first):
        if first:
            own(thread)
        raise KeyboardInterrupt

    for first in (False, True) * 3:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", lambda thread: start(thread, first))
            feed = _feed.Feed(batches(), DEVICE)
            with pytest.raises(KeyboardInterrupt):
                feed.take()
    del feed
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "tfuse feed":
            thread.join(20)
    assert_nothing_is_left()
    assert not _feed._running


def test_a_data_set_that_waits_for_ever(feeds, monkeypatch):
    """Whoever ends a fit() waits for it only so long."""
    monkeypatch.setattr(_feed, "PATIENCE", 0.1)
    more = threading.Event()

    def draw():
        for _ in range(2):
            yield np.zeros((4, 5), "float32"), np.zeros(4, "int32")
        more.wait(60)

    spec = tf.TensorSpec((None, 5)), tf.TensorSpec((None,), tf.int32)
    begin = time.monotonic()
    model().fit(tf.data.Dataset.from_generator(draw, output_signature=spec), steps_per_epoch=2, verbose=0)
    assert time.monotonic() - begin < 30
    more.set()
    for thread in threading.enumerate():
        if thread.name == "tfuse feed":
            thread.join(20)
    assert_nothing_is_left()


def test_feeds_of_one_data_set_take_turns(monkeypatch):
    """What is behind it may not be for two at a time: the second draws when the first has ended, even if nobody has waited for that."""
    monkeypatch.setattr(_feed, "PATIENCE", 0.1)
    drawing, most, go = [], [], threading.Event()

    def draw():
        for i in range(3):
            drawing.append(i)
            most.append(len(drawing))
            if i:
                go.wait(20)
            drawing.pop()
            yield np.zeros((4, 5), "float32")

    dataset = drawn_by(draw, tf.TensorSpec((None, 5)))
    first, second = _feed.Feed(dataset, DEVICE), _feed.Feed(dataset, DEVICE)
    first.give_back(first.take())
    while not drawing:
        time.sleep(0.01)
    first.end()
    threading.Timer(0.3, go.set).start()
    assert [second.give_back(slot) for slot in iter(second.take, None)] == [None] * 3
    assert max(most) == 1 and len(most) == 5
    assert_nothing_is_left()


def test_there_are_no_slots(feeds, monkeypatch):
    """Then tensors are handed on as they are."""
    monkeypatch.setattr(_feed, "_idle", [])
    taken = list(iter(_library.library.tfu_slot_open, -1))
    try:
        assert len(model().fit(batches(), epochs=2, verbose=0).history["loss"]) == 2 and feeds.made
    finally:
        for number in taken:
            _library.library.tfu_slot_close(number)
    assert_nothing_is_left()


def test_ops_that_are_asynchronous(feeds):
    """A step may have been called and not have taken its batch."""
    tf.config.experimental.set_synchronous_execution(False)
    try:
        model().fit(batches(), verbose=0)
    finally:
        tf.config.experimental.set_synchronous_execution(True)
    assert feeds.made == 0 and "eager ops are asynchronous" in str(tfuse.explain())


class Told(keras.callbacks.Callback):
    """Raises at one of its hooks, or calls fit() there."""

    def __init__(self, hook, does):
        super().__init__()
        setattr(self, hook, lambda *arguments, **options: does())


def fails():
    raise ValueError("no more")


def told_once(text):
    """What an error says; on a GPU, TensorFlow may say it for two places of a function."""
    text = re.sub(r"(?s)2 root error\(s\) found\.\n  \(0\).*\n  \(1\) \w+:  (.*)\n0 successful operations\.\n\d+ derived "
                  r"errors ignored\.", r"\1", text)
    return re.sub(r"(?m)^(Detected at node .*\n<stack traces unavailable>\n)\1", r"\1", text)


def raised(dataset, loop="fit", **options):
    """An error's type and text, but for a function's number."""
    with pytest.raises(Exception) as caught:
        getattr(model(**options), loop)(dataset(), verbose=0)
    return type(caught.value), re.sub(r"(multi_step_on_iterator)_\d+|MapDataset:\d+|_false_\d+", r"\1", told_once(str(caught.value)))


def broken(at, error):
    def draw():
        for i in range(4):
            if i == at:
                raise error("boom")
            yield np.zeros((4, 5), "float32"), np.zeros(4, "int32")
        if at is None:
            raise error("boom")

    return lambda: drawn_by(draw, (tf.TensorSpec((None, 5)), tf.TensorSpec((None,), tf.int32)))


def broken_map():
    def checked(x, y):
        with tf.control_dependencies([tf.debugging.assert_less(x, 0.1, message="too large")]):
            return tf.identity(x), y

    return batches().map(checked)


BROKEN = {"first": broken(0, ValueError), "later": broken(2, ValueError), "end": broken(None, TypeError),
          "interrupt": broken(1, KeyboardInterrupt), "map": broken_map}


@pytest.mark.parametrize("name, loop, options", [
    *((name, "fit", {}) for name in BROKEN), ("map", "evaluate", {}), ("later", "predict", {}), ("later", "fit", {"run_eagerly": True})])
def test_errors_of_a_data_set_in_the_words_of_keras(feeds, name, loop, options):
    ours = raised(BROKEN[name], loop, **options)
    assert feeds.made
    with feeds.none():
        assert ours == raised(BROKEN[name], loop, **options)
    assert_nothing_is_left()


HOOKS = [name for name in dir(keras.callbacks.Callback) if re.match("on_(epoch|(train_|test_)(batch_)?)_?(begin|end)", name)]


def test_callbacks_that_raise_and_that_call_fit(feeds):
    made, again = model(), model()
    for hook in HOOKS:
        run = lambda does: made.fit(batches(9), validation_data=batches(5), verbose=0, callbacks=[Told(hook, does)])
        with pytest.raises(ValueError, match="no more"):
            run(fails)
        assert len(run(lambda: again.fit(batches(5), verbose=0)).history["val_loss"]) == 1
    assert len(HOOKS) == 10
    assert_nothing_is_left()


def test_fit_in_two_threads(feeds):
    losses = {}
    run = lambda i: losses.update({i: model().fit(batches(), epochs=3, verbose=0).history["loss"]})
    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert losses.keys() == {0, 1} and all(len(found) == 3 for found in losses.values())
    assert_nothing_is_left()
