"""tfuse.generate: lists of prompts, texts and ids, in their order; and what is told of those that fail."""

import gc
import io
import re
import types
import weakref

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from generating import fresh, model, prompts, writer
from tfuse.__main__ import main
from tfuse._tools import _generate
from tfuse.generation import batch, generate as module
from tfuse.generation.engine import Engine
from tfuse.generation.families import decoder_of

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


def test_a_common_beginning_is_computed_once(monkeypatch):
    """Of prompts that come together: one is no longer than that, one is alike in two pages only, and one in none."""
    read, own = [], Engine._read

    def counted(engine, request):
        begin, n = request.ready, own(engine, request)
        read.append(request.ready - begin)
        return n

    monkeypatch.setattr(Engine, "_read", counted)
    common = RNG.integers(1, 97, size=600).tolist()  # nine pages, and more than a chunk
    given = [common + PROMPTS[1], common + [3], common[:577], common + PROMPTS[3], common[:130] + [5, 6], PROMPTS[1]]
    found = tfuse.generate(greedy(), given, 6)
    assert sum(read) == (599 + 90) + (600 - 576) + 0 + (599 + 64 - 576) + (131 - 128) + 89
    assert found == [alone(prompt, 6) for prompt in given]


def test_stops():
    first = alone(PROMPTS[2], 20)
    found = tfuse.generate(greedy(), PROMPTS[2:4], 20, stop_token_ids=np.array([first[3], 1]))
    assert found == [alone(prompt, 20, [first[3], 1]) for prompt in PROMPTS[2:4]]
    assert found[0] == first[:first.index(first[3]) + 1]


@pytest.mark.parametrize("given, found", [
    (None, []), ("auto", []), ([], []), ((7, 9), [7, 9]), ({7}, [7]), (7, [7]), (np.array([0]), [0]), (np.int32(7), [7]),
    (tf.constant([7, 9]), [7, 9]), ([tf.constant(7), np.array(9)], [7, 9])])
def test_forms_of_stops(given, found):
    assert module.stops_of(model("Llama"), given) == found


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
    found = tfuse.generate(lm, [*texts, [1, 2], texts[0].encode()], 12)
    assert found[4] == found[0] and found[:3] == [lm.generate(text, max_length=len(text) + 12, strip_prompt=True) for text in texts]
    assert isinstance(found[3], list) and len(found[3]) <= 12
    assert lm.preprocessor.tokenizer.end_token_id in found[3][-1:]  # of which a text shows nothing


@pytest.mark.parametrize("family, words, stops", [
    ("Gemma3", {"<end_of_turn>": 106}, [1, 106]), ("Phi3", {"<|end|>": 7}, [1, 7]), ("Phi3", {}, [1]), ("Llama", {}, [1])])
def test_ends_of_turns(family, words, stops):
    lm = fresh(family, num_layers=1)
    tokenizer = types.SimpleNamespace(end_token_id=1, token_to_id=lambda word: words.get(word, 0))
    lm.preprocessor = types.SimpleNamespace(tokenizer=tokenizer)
    assert module.stops_of(lm, "auto") == stops


def test_prompts_without_images():
    """A model that reads images generates from tokens as its decoder alone does."""
    eyes = keras_hub.models.Gemma3VisionEncoder(image_size=16, patch_size=4, num_heads=2, hidden_dim=8, num_layers=1,
                                                intermediate_dim=8, output_dim=32, pool_size=2)
    found = [tfuse.generate(lm, PROMPTS, LIMITS) for lm in (fresh("Gemma3", vision_encoder=eyes), model("Gemma3"))]
    assert found[0] == found[1]


def test_one_that_fails_does_not_take_others_along(monkeypatch):
    held = []

    def engine(*arguments, **options):
        made = Engine(*arguments, **options)
        held.extend(map(weakref.ref, (made.decoder, made._cache, made._rows)))
        return made

    def on_token(i, token):
        if i == 1:
            raise KeyError("no more")

    monkeypatch.setattr(module, "Engine", engine)
    with pytest.raises(tfuse.generation.Failed, match=r"3 of 5 prompts failed. Prompt 1: 'no more'") as failed:
        tfuse.generate(greedy(), [PROMPTS[0], PROMPTS[2], [], [5, 97], PROMPTS[4]], 6, on_token=on_token)
    first, *wrong, last = failed.value.results
    assert [first, last] == [alone(PROMPTS[0], 6), alone(PROMPTS[4], 6)]
    assert [type(error) for error in wrong] == [KeyError, ValueError, ValueError]
    assert "at least one token" in str(wrong[1]) and "ids are from 0 to 96, got 97" in str(wrong[2])
    assert isinstance(failed.value.__cause__, KeyError)
    gc.collect()
    assert [ref() for ref in held] == [None] * 3  # though the errors know where they were raised


@pytest.mark.parametrize("call, error, message", [
    (lambda: tfuse.generate(greedy(), "a text", 5), TypeError, "prompts is a list"),
    (lambda: tfuse.generate(greedy(), ["a text"], 5), ValueError, "has no preprocessor"),
    (lambda: tfuse.generate(greedy(), PROMPTS, [1, 2]), ValueError, "max_new_tokens has 2 numbers, and there are %d prompts" % len(PROMPTS)),
    (lambda: tfuse.generate(greedy(), [5, 17, 3], 5), TypeError, r"such as \[\[5, 17, 3\]\]; got \[5, 17, 3\]"),
    (lambda: tfuse.generate(greedy(), PROMPTS, 5, sampler="beam"), ValueError, "the sampler is a BeamSampler"),
    (lambda: tfuse.generate(greedy(), PROMPTS, 5, stop_token_ids="end"), ValueError, "ids, None or \"auto\", got 'end'"),
    (lambda: tfuse.generate(greedy(), PROMPTS, 5, stop_token_ids=["a"]), ValueError, "ids, None or \"auto\", got \\['a'\\]"),
    (lambda: tfuse.generate(keras_hub.models.GPTNeoXCausalLM(keras_hub.models.GPTNeoXBackbone(
        vocabulary_size=97, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=8)), PROMPTS, 5), ValueError,
     "does not serve this model, and its own generate.. does: KerasHub.s own generate.. rotates the query"),
    (lambda: tfuse.generate(keras.Sequential([keras.Input([3])]), PROMPTS, 5), ValueError,
     "does not serve this model: a Sequential is no CausalLM of KerasHub"),
], ids=["one text", "no preprocessor", "limits", "one prompt", "sampler", "stop", "stops", "family", "another model"])
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


# ---- python -m tfuse generate ----


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A preset with a preprocessor, and a file without one."""
    folder = tmp_path_factory.mktemp("models")
    writer().save_to_preset(str(folder / "preset"))
    small = fresh("Llama", num_layers=1)
    small.save(folder / "model.keras")
    return folder


def command(capsys, *arguments):
    status = main(["generate", *map(str, arguments)])
    return status, *capsys.readouterr()


def test_the_command_writes_a_text(saved, capsys):
    status, out, err = command(capsys, saved / "preset", "--prompt", "the fox", "--max-new-tokens", 12, "--sampler", "greedy")
    assert status == 0 and out == tfuse.generate(writer(), ["the fox"], 12, sampler="greedy")[0] + "\n"
    assert re.search(r"^\d+ tokens, the first after \d+\.\d\d s", err.strip().splitlines()[-1])


def test_the_command_writes_ids(saved, capsys):
    status, out, err = command(capsys, saved / "model.keras", "--ids", "5,17", "--max-new-tokens", 9, "--sampler", "greedy")
    expected, = tfuse.generate(fresh("Llama", num_layers=1), [[5, 17]], 9)
    assert status == 0 and out.split() == list(map(str, expected))
    assert re.search(r"^9 tokens, the first after .* s; [\d.]+ tokens a second", err.strip().splitlines()[-1])


@pytest.mark.parametrize("arguments, message", [
    (["model.keras", "--prompt", "a"], "has no preprocessor"),
    (["model.keras", "--ids", "200"], "ids are from 0 to 96, got 200"),
    (["nothing.keras", "--ids", "1"], "there is no .*nothing.keras"),
    (["model.keras", "--ids", "1", "--dtype", "float16"], "--dtype is"),
], ids=["text", "id", "file", "dtype"])
def test_what_the_command_refuses(saved, capsys, arguments, message):
    try:
        status, out, err = command(capsys, saved / arguments[0], *arguments[1:])
    except SystemExit as error:
        status, err = 1, str(error)
    assert status == 1 and re.search(message, err)


def test_what_the_command_says_of_speed():
    """Four tokens at a time: the first after two seconds, the next after three, and seven more at a tenth of a second each."""
    ends = [(1.5, 0), (2.0, 4), (3.0, 8), (3.4, 12), (3.7, 15)]  # the first step of all read the prompt
    assert _generate.summary(ends, 2e9, 0) == "15 tokens, the first after 2.00 s; 10.0 tokens a second"
    assert _generate.summary(ends, 2e9, 4e10).endswith(
        "50% of the memory's rate: each reads 2.00 GB of weights, and the GPU copies 40 GB/s")
    assert _generate.summary([(1.0, 1), (2.0, 2)], 2e9, 4e10) == "2 tokens, the first after 1.00 s"


def test_the_bytes_of_a_token():
    """Tables count where they are the head, and experts that a token has."""
    sizes = lambda lm: 4 * sum(v.shape.num_elements() for v in lm.trainable_variables)
    untied, tied = model("Llama"), model("GPT2")
    assert _generate.weight_bytes(decoder_of(untied)) == sizes(untied) - 4 * 97 * 32
    assert _generate.weight_bytes(decoder_of(tied)) == sizes(tied) - 4 * 100 * 32  # those of positions do not
    mixed = model("Mixtral")
    assert _generate.weight_bytes(decoder_of(mixed)) == sizes(mixed) - 4 * 97 * 32 - 2 * 3 * (5 - 2) * 4 * 32 * 48
