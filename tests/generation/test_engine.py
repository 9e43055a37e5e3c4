"""Requests that come and go get what each would get alone."""

import numpy as np
import pytest

from generating import model
from tfuse.generation import batch, pages
from tfuse.generation.engine import Engine

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


def test_stops_and_limits(engine):
    words = alone(PROMPTS[1], 20)
    number = engine.add(PROMPTS[1], 20, stop_token_ids=[words[4]])
    run(engine)
    assert engine.result(number) == words[:words.index(words[4]) + 1]


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


@pytest.mark.parametrize("prompt, new, message", [
    ([], 3, "at least one token"), ([1], 0, "asks for at least one"), ([1] * 1000, 100, "more than the 1024"),
    ([5, 97], 3, "ids are from 0 to 96, got 97"), ([5, -1], 3, "ids are from 0 to 96, got -1"),
], ids=["empty", "nothing", "long", "word", "negative"])
def test_what_is_refused(engine, prompt, new, message):
    with pytest.raises(ValueError, match=message):
        engine.add(prompt, new)


def test_more_pages_than_there_are():
    lm = model("Llama")
    with pytest.raises(ValueError, match="200 tokens take 4 pages of 64, and there are 3"):
        Engine(lm, pages=3, rows=2, room=1024).add([1] * 150, 50)


def test_as_many_pages_as_there_is_memory(monkeypatch):
    lm = model("Llama")  # of which a page takes 3 * 2 * 64 * 2 * 8 floats
    count = lambda: Engine(lm, rows=4, room=200)._pages.available()
    assert count() == 16
    for there, found in ((2 * 6 * 24576, 6), (100, 4)):
        monkeypatch.setattr(pages, "_free", lambda device: there)
        assert count() == found
