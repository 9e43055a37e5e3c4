"""Requests that come and go get what each would get alone."""

import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from generating import model
from tfuse.generation import batch, pages, steps, transfers
from tfuse.generation.engine import Engine
from tfuse.generation.requests import names_of

RNG = np.random.default_rng(1)
COMMON = RNG.integers(1, 97, size=140).tolist()
PROMPTS = [*(RNG.integers(1, 97, size=n).tolist() for n in (1, 5, 64, 65, 200, 700)), COMMON + [3, 4], COMMON + [9],
           COMMON[:128]]
NEW = [7, 20, 5, 9, 30, 11, 6, 6, 12]


@pytest.fixture
def engine():
    lm = model("Llama")
    lm.compile(sampler="greedy", jit_compile=False)
    return Engine(lm, pages=24, rows=4, room=1024)


def run(engine):
    while engine.busy():
        engine.step()


def alone(prompt, new):
    room = len(prompt) + new
    ids = np.zeros([1, room], "int32")
    ids[0, :len(prompt)] = prompt
    found = batch.generate(model("Llama"), {"token_ids": ids, "padding_mask": np.arange(room)[None] < len(prompt)})
    return np.asarray(found["token_ids"])[0, len(prompt):].tolist()


def test_as_alone(engine):
    seen = {}
    numbers = [engine.add(p, n, on_token=lambda i, token: seen.setdefault(i, []).append(token)) for p, n in zip(PROMPTS, NEW)]
    run(engine)
    found = [engine.result(number) for number in numbers]
    assert found == [alone(p, n) for p, n in zip(PROMPTS, NEW)] == [seen[number] for number in numbers]


def test_a_common_beginning_is_read_once(engine):
    first = engine.add(COMMON + [3, 4], 6)
    engine.step()
    pages = engine._requests[first].pages[:2]
    run(engine)
    free = len(engine._pages.free)
    second = engine.add(COMMON + [9], 6)
    engine.step()
    assert engine._requests[second].pages[:2] == pages
    assert free - len(engine._pages.free) == 1  # of three pages two are there
    run(engine)
    assert [engine.result(first), engine.result(second)] == [alone(COMMON + [3, 4], 6), alone(COMMON + [9], 6)]


def test_names_of_pages():
    """They are short, and say all words up to there."""
    long = COMMON[:128] * 100
    names = names_of(long + [1])
    assert len(set(names)) == 200 and {len(name) for name in names} == {32}
    assert names_of(long) == names[:199] and names_of([1] * 64 + long)[2] not in names


def test_the_end_of_a_prompt_is_forgotten_first():
    """Its beginning is of use to others without it."""
    engine = Engine(model("Llama"), pages=4, rows=1, room=256)
    for prompt in (COMMON, PROMPTS[4][:150]):  # of three pages each, of which two stay
        engine.add(prompt, 4)
        run(engine)
    assert [engine._pages.find(name) is not None for name in names_of(COMMON)] == [True, False]


def test_stops_and_limits(engine):
    words = alone(PROMPTS[1], 20)
    number = engine.add(PROMPTS[1], 20, stop_token_ids=words[4])
    run(engine)
    assert engine.result(number) == words[:words.index(words[4]) + 1]


@pytest.mark.parametrize("at_a_time", [2, 8, 100])
def test_steps_at_a_time(at_a_time):
    """They give what one by one gives: drawn, with stops in the middle of a group, in rows that move, watched or not."""
    rng, lm = np.random.default_rng(4), model("Llama")
    prompts = [rng.integers(1, 97, size=n).tolist() for n in rng.integers(1, 150, size=60)]
    new = [80 if i % 20 == 19 else int(n) for i, n in enumerate(rng.integers(1, 25, size=60))]  # a few go on in fewer rows

    def found(**options):
        sampler = keras_hub.samplers.RandomSampler(temperature=2.0, seed=6)
        engine, seen = Engine(lm, rows=40, room=256, batch_invariant=True, **options), {}
        told = lambda number, token: seen.setdefault(number, []).append(token)
        numbers = [engine.add(prompt, n, sampler, [7, 11] if i % 3 else None, told if i % 2 else None)
                   for i, (prompt, n) in enumerate(zip(prompts, new))]
        run(engine)
        assert set(engine._rows.groups) == {10, 40} and engine._pages.available() == 160
        words = [engine.result(number) for number in numbers]
        assert all(seen[number] == words[i] for i, number in enumerate(numbers) if i % 2)
        return words

    words = found(at_a_time=at_a_time)
    assert words == found(at_a_time=1)
    assert all(len(some) == n or some[-1] in (7, 11) and i % 3 for i, (some, n) in enumerate(zip(words, new)))
    assert any(len(some) < n for some, n in zip(words, new))


def test_tokens_come_in_their_order(engine):
    seen = []
    for i in range(3):
        engine.add(PROMPTS[i], 6, on_token=lambda number, token: seen.append((number, token)))
    run(engine)
    words = [alone(PROMPTS[i], 6) for i in range(3)]
    assert seen == [(i, words[i][step]) for step in range(6) for i in range(3)]


def test_a_stop_while_the_next_steps_run(engine):
    """What they find for it is dropped, and its row and pages serve another, which they do not write."""
    words = alone(PROMPTS[3], 30)
    stop = words[9]
    numbers = [engine.add(PROMPTS[3], 900, stop_token_ids=[stop]), *(engine.add(PROMPTS[1], 20) for _ in range(3))]
    after = [engine.add(PROMPTS[i], 40) for i in (2, 4)]  # of 24 pages 16 are taken, of 4 rows all
    run(engine)
    assert engine.result(numbers[0]) == words[:words.index(stop) + 1]
    assert [engine.result(number) for number in numbers[1:]] == [alone(PROMPTS[1], 20)] * 3
    assert [engine.result(number) for number in after] == [alone(PROMPTS[i], 40) for i in (2, 4)]


def test_cancelled_while_its_steps_run(engine):
    first, second = engine.add(PROMPTS[1], 60), engine.add(PROMPTS[2], 60)
    while not engine._requests[first].queued:
        engine.step()
    assert engine.busy() and not engine._requests[first].tokens  # they are under way
    engine.cancel(first)
    third = engine.add(PROMPTS[4], 30)
    run(engine)
    assert [engine.result(number) for number in (first, second, third)] == [[], alone(PROMPTS[2], 60), alone(PROMPTS[4], 30)]
    fourth = engine.add(PROMPTS[1], 60)
    while not engine._requests[fourth].queued:
        engine.step()
    engine.cancel(fourth)
    assert not engine.busy() and engine._pages.available() == 24


def test_nobody_waits_for_what_is_queued(engine, monkeypatch):
    """Neither words on their way to the device nor tokens on their way back are copied by TensorFlow."""
    run_before = engine.add(PROMPTS[4], 30)
    run(engine)
    monkeypatch.setattr(steps, "constants", None)
    seen, read = [], engine._receiver.read
    monkeypatch.setattr(engine._receiver, "read", lambda asked: seen.append(asked) or read(asked))
    number = engine.add(PROMPTS[4], 30)
    run(engine)
    assert engine.result(number) == engine.result(run_before)
    assert seen and not any(isinstance(asked, tf.Tensor) for asked in seen)


def test_transfers():
    """More than there are slots, in any sizes; without slots; and more than a report takes."""
    device = tf.zeros([1]).device
    for sender in (transfers.Sender(device, 64, slots=3), transfers.Sender(device, 64, slots=0)):
        for n in (1, 5, 300, 2, 7, 1000, 3):
            arrays = [np.arange(n), np.ones([2, n], np.float32), np.arange(4 * n).reshape(2, -1)[:, ::2]]
            for sent, array in zip(sender.send(arrays), arrays):
                np.testing.assert_array_equal(sent, array)
    receiver = transfers.Receiver()
    for size in (3, transfers.BYTES // 8, transfers.BYTES // 8 + 1):
        for _ in range(3):
            asked = [receiver.ask(tf.fill([1, size], tf.constant(i, tf.int64))) for i in range(15)]
            found = [receiver.read(some) for some in asked]
            assert all(array.shape == (1, size) and (array == i).all() for i, array in enumerate(found))
    old = receiver.ask(tf.zeros([3], tf.int64))
    for _ in range(16):
        receiver.ask(tf.ones([3], tf.int64))
    with pytest.raises(RuntimeError, match="could not be copied"):
        receiver.read(old)


def test_a_thousand_requests_lose_no_page():
    """They come a few at a time, some are cancelled, waiting, reading or running, and some begin alike."""
    rng, lm = np.random.default_rng(2), model("Llama", num_layers=1)
    engine = Engine(lm, pages=40, rows=16, room=320)
    left, ended = set(), 0
    while ended < 1000:
        for _ in range(min(rng.integers(0, 9), 1000 - ended - len(left))):
            prompt = rng.integers(1, 97, size=rng.integers(1, 200)).tolist()
            prompt = COMMON[:rng.integers(60, 140)] + prompt[:50] if rng.random() < 0.3 else prompt
            left.add(engine.add(prompt, int(rng.integers(1, 12)), stop_token_ids=[5]))
        if left and rng.random() < 0.3:
            number = rng.choice(sorted(left))
            engine.cancel(number)
            assert engine.has_ended(number)
        if engine.busy():
            engine.step()
        for number in [number for number in left if engine.has_ended(number)]:
            engine.result(number)
            left.remove(number)
            ended += 1
        there = engine._pages
        held = [page for request in engine._requests.values() for page in request.pages]
        assert there.available() + len(set(held)) == 40 and len(there.free) == len(set(there.free))
        assert {page: held.count(page) for page in held} == dict(there.users)
    assert engine._pages.available() == 40 and not engine._requests and not engine._pages.users


def test_one_that_fails_ends_alone(engine):
    def fail(number, token):
        raise RuntimeError("no more")

    numbers = [engine.add(PROMPTS[1], 5, on_token=fail), engine.add(PROMPTS[2], 5)]
    run(engine)
    with pytest.raises(RuntimeError, match="no more"):
        engine.result(numbers[0])
    assert engine.result(numbers[1]) == alone(PROMPTS[2], 5)


def test_an_interrupt_loses_no_token(engine, monkeypatch):
    """Ctrl-C is noticed where the host waits for tokens."""
    number, own, interrupts = engine.add(PROMPTS[1], 20), engine._receiver.read, [KeyboardInterrupt, None] * 20

    def read(asked):
        found, interrupt = own(asked), interrupts.pop()
        if interrupt:
            raise interrupt
        return found

    monkeypatch.setattr(engine._receiver, "read", read)
    while engine.busy():
        try:
            engine.step()
        except KeyboardInterrupt:
            pass
    assert engine.result(number) == alone(PROMPTS[1], 20)


@pytest.mark.parametrize("at_a_time", [1, 8])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_on_token_that_is_interrupted_loses_no_token(error, at_a_time):
    """However often: each token is told once, in its order, and the interrupted request goes on."""
    engine, seen = Engine(model("Llama"), pages=24, rows=4, room=1024, at_a_time=at_a_time), []

    def told(number, token):
        seen.append((number, token))
        if len(seen) % 3:
            raise error

    numbers = [engine.add(PROMPTS[i], 10, on_token=told) for i in range(3)]
    interrupts = 0
    while engine.busy():
        try:
            engine.step()
        except error:
            interrupts += 1
    words = [alone(PROMPTS[i], 10) for i in range(3)]
    assert interrupts == 20 and seen == [(number, words[number][i]) for i in range(10) for number in numbers]
    assert all(map(engine.has_ended, numbers)) and [engine.result(number) for number in numbers] == words
    assert engine._pages.available() == 24


def test_a_step_while_tokens_are_handed_out(engine):
    number = engine.add(PROMPTS[1], 5, on_token=lambda number, token: engine.step())
    run(engine)
    with pytest.raises(RuntimeError, match=r"step\(\) was called by an on_token"):
        engine.result(number)


def test_cancelled_and_added_while_tokens_come(engine):
    """on_token may call the engine: the first request ends itself and the second, and adds another."""
    numbers, added = [], []

    def once(number, token):
        if len(added) == 1:
            engine.cancel(numbers[0])
            engine.cancel(numbers[1])
        added.append(engine.add(PROMPTS[2], 4)) if len(added) < 2 else None

    numbers += [engine.add(PROMPTS[1], 9, on_token=once), engine.add(PROMPTS[0], 9), engine.add(PROMPTS[3], 9)]
    run(engine)
    words = [engine.result(number) for number in (*numbers, *added)]
    assert words[:3] == [alone(PROMPTS[1], 9)[:2], alone(PROMPTS[0], 9)[:len(words[1])], alone(PROMPTS[3], 9)]
    assert words[3:] == [alone(PROMPTS[2], 4)] * 2
    assert 1 <= len(words[1]) < 9 and engine._pages.available() == 24


def test_samplers():
    """By name as well; a seed repeats, and without one engines differ."""
    def drawn(sampler, **options):
        engine = Engine(model("Llama"), pages=2, rows=1, room=64)
        number = engine.add(PROMPTS[1], 20, sampler, **options)
        run(engine)
        return engine.result(number)

    random = lambda **options: keras_hub.samplers.RandomSampler(temperature=3.0, **options)
    assert drawn("greedy") == alone(PROMPTS[1], 20)
    assert drawn(random(seed=1)) == drawn(random(seed=1)) != drawn(random(seed=2))
    assert drawn(random(), seed=7) == drawn(random(), seed=7)
    assert drawn(random(), seed=2**64 - 3) == drawn(random(), seed=-3)
    assert drawn(random()) != drawn(random()) and drawn("random") != drawn("random")


def test_requests_that_are_not_there(engine):
    number = engine.add(PROMPTS[1], 5)
    with pytest.raises(ValueError, match=r"request 0 has not ended: step\(\) until has_ended\(0\)"):
        engine.result(number)
    run(engine)
    assert engine.result(number) == alone(PROMPTS[1], 5)
    for ask in (engine.result, engine.cancel, engine.has_ended):
        with pytest.raises(ValueError, match="there is no request 0: .* has forgotten it"):
            ask(number)


@pytest.mark.parametrize("prompt, new, message", [
    ([], 3, "at least one token"), ([1], 0, "at least one new token; got 1 and 0"), ([1] * 1000, 100, "more than the 1024"),
    ([5, 97], 3, "ids are from 0 to 96, got 97"), ([5, -1], 3, "ids are from 0 to 96, got -1"),
    ("hi", 3, "a prompt is a list of token ids, got 'hi'"), ([[1, 2]], 3, "a prompt is a list of token ids"),
], ids=["empty", "nothing", "long", "word", "negative", "text", "nested"])
def test_what_is_refused(engine, prompt, new, message):
    with pytest.raises(ValueError, match=message):
        engine.add(prompt, new)


def test_more_pages_than_there_are():
    lm = model("Llama")
    for wrong in {"rows": 0}, {"at_a_time": 0}:
        with pytest.raises(ValueError, match="rows and at_a_time must be at least 1"):
            Engine(lm, **wrong)
    with pytest.raises(ValueError, match="200 tokens take 4 pages of 64, and there are 3"):
        Engine(lm, pages=3, rows=2, room=1024).add([1] * 150, 50)


def test_as_many_pages_as_there_is_memory(monkeypatch):
    lm = model("Llama")  # of which a page takes 3 * 2 * 64 * 2 * 8 floats
    count = lambda: Engine(lm, rows=4, room=200)._pages.available()
    assert count() == 16
    for there, found in ((2 * 6 * 24576, 6), (100, 4)):
        monkeypatch.setattr(pages, "_free", lambda device: there)
        assert count() == found
