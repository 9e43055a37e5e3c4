"""model.generate() by chains gives what KerasHub's own gives. What is left to that, and why: test_enable_generate.py."""

import gc
import threading
import weakref

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import since_now
from generating import FAMILIES, assert_same, fresh, model, prompts
from tfuse.generation import batch, transfers


@pytest.mark.parametrize("family", FAMILIES)
def test_the_words_of_keras_hub(as_on_a_gpu, family):
    """Prompts of several lengths, one of them longer than a page and one that has no room for more."""
    lm, x = model(family), prompts([5, 3, 70, 90], 90)
    stops = None if family == "Llama" else (7, 9)
    stock = lm.make_generate_function()({name: tf.constant(value) for name, value in x.items()}, stop_token_ids=stops)
    told = since_now()
    with tfuse.enabled():
        assert_same(lm.generate(x, stop_token_ids=stops), stock)
    assert told(route="chain", when="ran") and not told(op="CausalLM.generate")


def test_prompts_without_room():
    x = prompts([12, 12], 12)
    assert_same(batch.generate(model("Llama"), x, (7,)), x)


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
    assert not np.intersect1d(*(batch.seeds_of(top_k(seed), 100) for seed in (1, 1 + (1 << 20)))).size


def _compiled(lm, sampler):
    lm.compile(sampler=sampler, jit_compile=False)
    return lm


def test_the_dtype_of_ids():
    x = prompts([4, 2], 12)
    wide = {**x, "token_ids": x["token_ids"].astype("int64")}
    found = batch.generate(_compiled(model("Llama"), "greedy"), wide)
    assert found["token_ids"].dtype == tf.int64 and found["padding_mask"].dtype == tf.bool
    assert_same({**found, "token_ids": tf.cast(found["token_ids"], "int32")}, batch.generate(model("Llama"), x))


def test_weights_that_are_converted():
    """Variables of float32 in a model that computes in bfloat16 give what the same variables in bfloat16 give."""
    x = prompts([4, 9], 40)
    mixed, pure = (fresh("Llama", num_layers=1, dtype=dtype) for dtype in ("mixed_bfloat16", "bfloat16"))
    pure.set_weights([tf.cast(w, "bfloat16") for w in mixed.get_weights()])
    assert keras.backend.standardize_dtype(mixed.variables[0].dtype) == "float32"
    assert_same(batch.generate(mixed, x), batch.generate(pure, x))


def test_nothing_of_a_model_stays():
    """Neither weights after a call, which would be there twice while the model is trained, nor anything once it is gone."""
    lm = fresh("Llama", num_layers=1)
    lm.make_generate_function()
    batch.generate(lm, prompts([4], 12))
    kept = batch._kept[lm].batch
    for *_, chain, places in kept.chains.values():
        assert places and all(chain._inputs[i] is None for i, _ in places)
    gone = weakref.ref(lm), weakref.ref(kept)
    del lm, kept, chain
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


def test_a_large_cache_does_not_stay(monkeypatch):
    lm, x = fresh("Llama", num_layers=1), prompts([4], 12)
    first = batch.generate(lm, x)
    kept = batch._kept[lm].batch
    assert kept.bytes == 2 * 64 * 2 * 8 * 4 + kept.memory.shape[0] and kept.memory.shape[0] > 0
    keys = weakref.ref(kept.cache.layers[0][0])
    monkeypatch.setattr(batch, "KEPT_BYTES", 100)
    gc.disable()  # nothing that lies on the GPU waits for Python to look for cycles
    try:
        assert_same(batch.generate(lm, x), first)
        del kept
        assert batch._kept[lm].batch is None and keys() is None
    finally:
        gc.enable()


def test_chains_share_memory():
    """Those of prompts of several lengths; it is as large as the largest wants it."""
    lm = _compiled(fresh("Llama", num_layers=1), "greedy")
    x, sizes = {n: prompts([n, 3], 200) for n in (5, 150)}, []
    found = []
    for n in (5, 150, 5, 150):
        found.append(batch.generate(lm, x[n]))
        sizes.append(batch._kept[lm].batch.memory.shape[0])
    chains = batch._kept[lm].batch.chains
    assert set(chains) == {1, 64, 192} and all(chain._memory is None for *_, chain, _ in chains.values())
    assert sizes[0] < sizes[1] == sizes[2] == sizes[3]
    assert_same(found[2], found[0])
    assert_same(found[3], found[1])


def test_chains_stay_whatever_stops():
    """Their number is rounded up, so that it is nearly always the same; what was for another number does not stay."""
    lm, x = _compiled(fresh("Llama", num_layers=1), "greedy"), prompts([4, 6], 100)
    whole = np.asarray(batch.generate(lm, x)["token_ids"])[0]
    kept = batch._kept[lm].batch
    for stops in ((whole[9],), (98, whole[9], 99), range(97, 105)):
        found = np.asarray(batch.generate(lm, x, stops)["padding_mask"])[0].sum()
        assert found == (100 if isinstance(stops, range) else 5 + whole[4:].tolist().index(whole[9]))
        chains = dict(kept.chains) if len(stops) == 1 else chains
        assert kept.chains == chains and kept.sequences.stops.shape == [8] and len(kept.sequences.chains) == 1
    assert_same(batch.generate(lm, x, range(97, 106)), batch.generate(lm, x))
    assert kept is batch._kept[lm].batch and kept.sequences.stops.shape == [0] and len(kept.sequences.chains) == 1


@pytest.fixture
def queued(monkeypatch):
    """What is queued for words, and what is waited for, in order: numbers of steps, and "look"."""
    found, run, look = [], batch._Batch.run, batch._Batch._are_done

    def counted(mine, chain, left):
        own = chain.run
        with monkeypatch.context() as patch:
            patch.setattr(chain, "run", lambda times: found.append(times) or own(times))
            return run(mine, chain, left)

    monkeypatch.setattr(batch._Batch, "run", counted)
    monkeypatch.setattr(batch._Batch, "_are_done", lambda mine, asked: found.append("look") or look(mine, asked))
    return found


@pytest.mark.parametrize("reports", [True, False])
def test_steps_are_queued_before_the_host_looks(monkeypatch, queued, reports):
    """And none are queued once it has seen that all is done, with reports and where no key of them is left."""
    lm, x = _compiled(fresh("Llama", num_layers=1), "greedy"), prompts([4, 6], 100)
    whole = np.asarray(batch.generate(lm, x)["token_ids"])
    assert queued == [8] * 11 + [7]  # the prompt's step makes a word of each, and nobody has to look
    if not reports:
        monkeypatch.setattr(transfers.Reports, "key", property(lambda self: -1, lambda self, key: None), raising=False)
    stops = (int(whole[0, 40]), int(whole[1, 40]))
    last = max(next(i for i in range(x["padding_mask"][row].sum(), 100) if whole[row, i] in stops) for row in (0, 1))
    queued.clear()
    found = batch.generate(lm, x, stops)
    for row in (0, 1):
        assert np.asarray(found["padding_mask"])[row].sum() <= last + 1
        np.testing.assert_array_equal(np.asarray(found["token_ids"])[row, :4], whole[row, :4])
    assert queued[:3] == [8, "look", 8]
    steps = sum(times for times in queued if times != "look")
    assert last - 4 <= steps < last - 4 + 2 * batch.AT_A_TIME < 88


def test_vectors_stay_where_they_are():
    """Steps that were captured know where they are; what they have is the model's, as it is now."""
    lm, x = fresh("Llama", num_layers=1), prompts([4], 12)
    lm.make_generate_function()
    before = batch.generate(lm, x)
    weights = batch._kept[lm].weights
    at = lambda: [id(tensor) for tensor in weights.read() if tensor.shape.rank == 1]
    first, norm = at(), lm.backbone.layer_norm.scale
    assert len(first) == 3
    norm.assign(-norm)
    after = batch.generate(lm, x)
    assert at() == first and batch._kept[lm].weights is weights
    assert (np.asarray(before["token_ids"]) != np.asarray(after["token_ids"])).any()


def test_several_threads():
    lm = _compiled(model("Llama"), "greedy")
    given = [prompts([3 + i, 5], 20 + i % 2, seed=i) for i in range(6)]
    expected, found = [batch.generate(lm, x) for x in given], [None] * 6

    def work(i):
        found[i] = batch.generate(lm, given[i])

    threads = [threading.Thread(target=work, args=[i]) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for ours, alone in zip(found, expected):
        assert_same(ours, alone)


def test_inside_of_another(monkeypatch):
    """As from a signal handler: one of the same model is left to KerasHub, one of another model is not, and nobody waits."""
    lm, other = _compiled(model("Llama"), "greedy"), _compiled(model("Llama", num_layers=1), "greedy")
    x, own, found = prompts([3, 5], 20), batch._generated, []
    expected = [batch.generate(other, x), *[batch.generate(lm, x)] * 2]

    def inside(*arguments):
        monkeypatch.setattr(batch, "_generated", own)
        found.append(batch.generate(other, x))
        with pytest.raises(batch.NotServed, match="inside of another generate"):
            batch.generate(lm, x)
        return own(*arguments)

    monkeypatch.setattr(batch, "_generated", inside)
    thread = threading.Thread(target=lambda: found.append(batch.generate(lm, x)), daemon=True)
    thread.start()
    thread.join(60)
    assert len(found) == 2  # or it waits for itself
    for ours, alone in zip((*found, batch.generate(lm, x)), expected):
        assert_same(ours, alone)
