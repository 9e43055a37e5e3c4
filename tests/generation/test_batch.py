"""model.generate() by chains gives what KerasHub's own gives."""

import keras_hub
import numpy as np
import pytest

from generating import FAMILIES, model
from tfuse.generation import batch
from tfuse.generation.decoders import NotServed


def prompts(lengths, room, seed=0):
    mask = np.arange(room) < np.array(lengths)[:, None]
    ids = np.random.default_rng(seed).integers(1, 97, size=mask.shape)
    return {"token_ids": np.where(mask, ids, 0).astype("int32"), "padding_mask": mask}


def assert_same(ours, stock):
    kept = np.asarray(stock["padding_mask"]).astype(bool)
    np.testing.assert_array_equal(ours["padding_mask"], kept)
    np.testing.assert_array_equal(np.asarray(ours["token_ids"])[kept], np.asarray(stock["token_ids"])[kept])
    assert ours["token_ids"].dtype == "int32"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_words_of_keras_hub(family):
    """Prompts of several lengths, one of them longer than a page."""
    lm = model(family)
    for stops in (None, (7, 9, 30, 41)):
        x = prompts([5, 3, 70], 90)
        assert_same(batch.generate(lm, x, stops), lm.generate(x, stop_token_ids=stops))


def test_weights_may_change():
    lm, x = model("Llama", num_layers=1), prompts([4], 12)
    before = batch.generate(lm, x)
    kernel = lm.trainable_variables[3]
    saved = kernel.numpy()
    kernel.assign(saved[::-1])
    after = batch.generate(lm, x)
    assert (np.asarray(before["token_ids"]) != np.asarray(after["token_ids"])).any()
    assert_same(after, lm.generate(x, stop_token_ids=None))
    kernel.assign(saved)
    assert_same(batch.generate(lm, x), before)


def test_seeds_repeat():
    lm, x = model("Llama"), prompts([4] * 8, 30)
    draw = lambda sampler: np.asarray(batch.generate(_compiled(lm, sampler), x)["token_ids"])
    top_k = lambda seed: keras_hub.samplers.TopKSampler(k=20, temperature=2.0, seed=seed)
    sampler = top_k(1)
    first, second = draw(sampler), draw(sampler)
    np.testing.assert_array_equal(draw(top_k(1)), first)
    assert (first != second).any() and (first != draw(top_k(2))).any()


def _compiled(lm, sampler):
    lm.compile(sampler=sampler, jit_compile=False)
    return lm


@pytest.mark.parametrize("sampler, why", [
    (keras_hub.samplers.BeamSampler(num_beams=2), "the sampler is a BeamSampler"),
    (keras_hub.samplers.ContrastiveSampler(), "the sampler is a ContrastiveSampler")], ids=["beam", "contrastive"])
def test_samplers_that_are_left(sampler, why):
    with pytest.raises(NotServed, match=why):
        batch.generate(_compiled(model("Llama"), sampler), prompts([4], 12))


def test_prompts_that_are_left():
    lm = _compiled(model("Llama"), "greedy")
    padded = prompts([4], 12)
    with pytest.raises(NotServed, match="prompts do not begin their rows"):
        batch.generate(lm, {name: value[:, ::-1] for name, value in padded.items()})
