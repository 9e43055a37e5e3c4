"""tfuse.generate: lists of prompts, texts and ids, in their order; and what is told of those that fail."""

import io

import keras_hub
import numpy as np
import pytest

import tfuse
from generating import fresh, model, prompts, writer
from tfuse.generation import batch, generate as module

RNG = np.random.default_rng(3)
PROMPTS = [RNG.integers(1, 97, size=n).tolist() for n in (1, 90, 5, 64, 7, 30)]
LIMITS = [3, 9, 20, 1, 12, 5]


def alone(prompt, limit, stops=None):
    """The tokens that generate() gives to one prompt."""
    x = prompts([len(prompt)], len(prompt) + limit)
    x["token_ids"][0, :len(prompt)] = prompt
    found = {name: np.asarray(value)[0, len(prompt):] for name, value in batch.generate(greedy(), x, stops).items()}
    return found["token_ids"][found["padding_mask"]].tolist()


def greedy():
    lm = model("Llama")
    lm.compile(sampler="greedy", jit_compile=False)
    return lm


def test_results_are_in_the_order_of_prompts():
    seen = {}
    found = tfuse.generate(greedy(), PROMPTS, LIMITS, on_token=lambda i, token: seen.setdefault(i, []).append(token))
    assert found == [alone(*some) for some in zip(PROMPTS, LIMITS)] == [seen[i] for i in range(6)]


def test_more_prompts_than_rows_and_pages(monkeypatch):
    monkeypatch.setattr(module, "ROWS", 2)
    assert tfuse.generate(greedy(), PROMPTS, LIMITS, pages=2) == [alone(*some) for some in zip(PROMPTS, LIMITS)]


def test_stops():
    first = alone(PROMPTS[2], 20)
    found = tfuse.generate(greedy(), PROMPTS[2:4], 20, stop_token_ids=[first[3], 1])
    assert found == [alone(prompt, 20, [first[3], 1]) for prompt in PROMPTS[2:4]]
    assert found[0] == first[:first.index(first[3]) + 1]


def test_samplers():
    """By name and as an object; one with a seed repeats, whatever else there is."""
    lm = greedy()
    drawn = lambda given: tfuse.generate(lm, given, 15, sampler=keras_hub.samplers.RandomSampler(temperature=3.0, seed=5))
    first = drawn(PROMPTS)
    assert drawn(PROMPTS) == first and drawn(PROMPTS[:3]) == first[:3]
    assert first[2] != alone(PROMPTS[2], 15)
    assert tfuse.generate(lm, PROMPTS[2:3], 15, sampler="greedy") == [alone(PROMPTS[2], 15)]
    assert tfuse.generate(lm, PROMPTS[2:3], 15, sampler="random") != [alone(PROMPTS[2], 15)]


def test_texts():
    lm = writer()
    texts = ["the fox", "a", "of it"]
    found = tfuse.generate(lm, [*texts, [1, 2]], 12)
    assert found[:3] == [lm.generate(text, max_length=len(text) + 12, strip_prompt=True) for text in texts]
    assert isinstance(found[3], list) and len(found[3]) <= 12
    assert lm.preprocessor.tokenizer.end_token_id in found[3][-1:]  # of which a text shows nothing


def test_one_that_fails_does_not_take_others_along():
    def on_token(i, token):
        if i == 1:
            raise KeyError("no more")

    with pytest.raises(tfuse.generation.Failed, match=r"3 of 5 prompts failed. Prompt 1: 'no more'") as failed:
        tfuse.generate(greedy(), [PROMPTS[0], PROMPTS[2], [], [5, 97], PROMPTS[4]], 6, on_token=on_token)
    first, *wrong, last = failed.value.results
    assert [first, last] == [alone(PROMPTS[0], 6), alone(PROMPTS[4], 6)]
    assert [type(error) for error in wrong] == [KeyError, ValueError, ValueError]
    assert "at least one token" in str(wrong[1]) and "ids are from 0 to 96, got 97" in str(wrong[2])
    assert isinstance(failed.value.__cause__, KeyError)


@pytest.mark.parametrize("call, error, message", [
    (lambda: tfuse.generate(greedy(), "a text", 5), TypeError, "prompts is a list"),
    (lambda: tfuse.generate(greedy(), ["a text"], 5), ValueError, "has no preprocessor"),
    (lambda: tfuse.generate(greedy(), PROMPTS, [1, 2]), ValueError, "broadcast"),
    (lambda: tfuse.generate(greedy(), PROMPTS, 5, sampler="beam"), ValueError, "the sampler is a BeamSampler"),
    (lambda: tfuse.generate(keras_hub.models.GPTNeoXCausalLM(keras_hub.models.GPTNeoXBackbone(
        vocabulary_size=97, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=8)), PROMPTS, 5), ValueError,
     "does not serve this model, and its own generate.. does: tfuse has no steps for a GPTNeoXBackbone"),
], ids=["one text", "no preprocessor", "limits", "sampler", "family"])
def test_what_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_more_positions_than_a_model_has():
    with pytest.raises(tfuse.generation.Failed, match="more than the 100 that a request may have") as failed:
        tfuse.generate(model("GPT2"), [[1] * 90, [2]], 20)
    assert len(failed.value.results[1]) == 20


def test_nothing():
    assert tfuse.generate(greedy(), [], 5) == []


def test_a_bar_where_somebody_looks(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    tfuse.generate(greedy(), PROMPTS[:2], 3)
    assert "prompts" in shown.getvalue() and "100%" in shown.getvalue()
    monkeypatch.setattr("sys.stderr", quiet := io.StringIO())
    tfuse.generate(greedy(), PROMPTS[:2], 3)
    assert not quiet.getvalue()
