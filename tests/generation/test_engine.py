"""Requests that come and go get what each would get alone."""

import numpy as np
import pytest

from generating import model
from tfuse.generation import batch
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
    run(engine)
    free = len(engine._pages.free)
    second = engine.add(COMMON + [9], 6)
    engine.step()
    assert engine._requests[second].ready == 128 or engine._requests[second].pages[:2]
    assert free - len(engine._pages.free) == 1  # of three pages two are there
    run(engine)
    assert [engine.result(first), engine.result(second)] == [alone(COMMON + [3, 4], 6), alone(COMMON + [9], 6)]


def test_stops_and_limits(engine):
    words = alone(PROMPTS[1], 20)
    number = engine.add(PROMPTS[1], 20, stop_token_ids=[words[4]])
    run(engine)
    assert engine.result(number) == words[:words.index(words[4]) + 1]


def test_no_page_is_lost(engine):
    rng = np.random.default_rng(2)
    for _ in range(3):
        left = {engine.add(rng.integers(1, 97, size=rng.integers(1, 300)).tolist(), int(rng.integers(1, 40))) for _ in range(12)}
        while engine.busy():
            engine.step()
            if left and rng.random() < 0.2:
                number = left.pop()
                engine.cancel(number)
                engine.result(number)
        for number in left:
            engine.result(number)
        assert engine._pages.available() == 24 and not engine._requests and not engine._pages.users


def test_one_that_fails_ends_alone(engine):
    def fail(number, token):
        raise RuntimeError("no more")

    numbers = [engine.add(PROMPTS[1], 5, on_token=fail), engine.add(PROMPTS[2], 5)]
    run(engine)
    with pytest.raises(RuntimeError, match="no more"):
        engine.result(numbers[0])
    assert engine.result(numbers[1]) == alone(PROMPTS[2], 5)


@pytest.mark.parametrize("prompt, new, message", [
    ([], 3, "at least one word"), ([1], 0, "asks for at least one"), ([1] * 1000, 100, "more than the 1024"),
], ids=["empty", "nothing", "long"])
def test_what_is_refused(engine, prompt, new, message):
    with pytest.raises(ValueError, match=message):
        engine.add(prompt, new)


def test_more_pages_than_there_are():
    lm = model("Llama")
    with pytest.raises(ValueError, match="200 words take 4 pages of 64, and there are 3"):
        Engine(lm, pages=3, rows=2, room=1024).add([1] * 150, 50)
