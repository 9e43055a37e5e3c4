"""What is measured of generation: models, works, prompts, and how calls are timed.

Here is nothing of a framework, so that KerasHub's models (generation_models.py) and their twins in Transformers
(generation_torch.py) share it.
"""
import argparse
import dataclasses
import json
import pathlib
import time
import types
import typing

import numpy as np

from workloads import keep

MODELS = {
    "1.1B": {"vocabulary": 32000, "layers": 16, "width": 2048, "inner": 8192, "heads": 32, "shared_heads": 8},
    "8B": {"vocabulary": 128256, "layers": 32, "width": 4096, "inner": 14336, "heads": 32, "shared_heads": 8},
}
SMALL_MODEL = {"vocabulary": 64, "layers": 2, "width": 32, "inner": 48, "heads": 4, "shared_heads": 2}
CALLS = 2  # that are timed after the first; the faster counts, as the other still captures the prompt's CUDA graph
ALONE = 4  # requests that are also run one by one
PADDED = 32  # requests of a padded batch


@dataclasses.dataclass(frozen=True)
class Work:
    """`kind` says what counts: "tokens" a second of a batch that is continued; milliseconds to the "first" token; tokens a
    second of "requests" of mixed lengths by tfuse.generate, or of some of them, "padded", by model.generate(); seconds from a
    process's "start" to its first token."""
    model: str
    title: str
    kind: str
    batch: int  # or requests
    prompt: int = 128  # of requests: the most
    new: int = 256
    bar: typing.Optional[int] = None  # what tfuse is meant to reach
    batch_invariant: bool = False  # of requests
    quantized: typing.Optional[str] = None  # as model.quantize() takes it
    cache_dtype: typing.Optional[str] = None  # as tfuse.enable() takes it

    def setting(self):
        """What all works of a process have in common."""
        return self.model, self.quantized, self.cache_dtype

    def small(self):
        """Sizes that a CPU runs in seconds."""
        requests = self.kind in ("requests", "padded")
        return dataclasses.replace(self, batch=6 if requests else min(self.batch, 2), prompt=20, new=min(self.new, 6))


WORKS = {
    "batch1": Work("1.1B", "batch 1", "tokens", 1, bar=1500),
    "batch32": Work("1.1B", "batch 32", "tokens", 32, bar=30000),
    "batch128": Work("1.1B", "batch 128", "tokens", 128, bar=80000),
    "first": Work("1.1B", "to the first token of a prompt of 2,048", "first", 1, prompt=2048, new=1),
    "requests": Work("1.1B", "256 requests of mixed lengths, by tfuse.generate", "requests", 256, prompt=1024, new=512),
    "invariant": Work("1.1B", "the same with batch_invariant=True", "requests", 256, prompt=1024, new=512, batch_invariant=True),
    "padded": Work("1.1B", "128 of these requests, in padded batches of 32", "padded", 128, prompt=1024, new=512),
    "8b-batch1": Work("8B", "batch 1", "tokens", 1, bar=230),
    "8b-batch64": Work("8B", "batch 64", "tokens", 64, bar=9000),
    "batch1-int8": Work("1.1B", "batch 1, int8", "tokens", 1, bar=2200, quantized="int8"),
    "batch1-int4": Work("1.1B", "batch 1, int4", "tokens", 1, bar=3000, quantized="int4"),
    "8b-batch1-int8": Work("8B", "batch 1, int8", "tokens", 1, bar=400, quantized="int8"),
    "8b-batch1-int4": Work("8B", "batch 1, int4", "tokens", 1, bar=650, quantized="int4"),
    "batch128-float8": Work("1.1B", "batch 128, cache of float8_e4m3fn", "tokens", 128, cache_dtype="float8_e4m3fn"),
    "start": Work("1.1B", "from the start of a process to its first token", "start", 1, new=1),
}


def sizes(model, small):
    return types.SimpleNamespace(**(SMALL_MODEL if small else MODELS[model]))


def prompts(vocabulary, lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(1, vocabulary, n).tolist() for n in lengths]


def rows(prompts, longest, left=False):
    """Prompts as an array [prompts, longest], padded with zeros on one side, and where they are."""
    ids, there = np.zeros([2, len(prompts), longest], np.int64)
    for row, prompt in enumerate(prompts):
        begin = longest - len(prompt) if left else 0
        ids[row, begin:begin + len(prompt)], there[row, begin:begin + len(prompt)] = prompt, 1
    return ids, there


def requests(work, vocabulary):
    """Prompts, and how many tokens each asks for: from 16 of each on, where there are more."""
    rng = np.random.default_rng(1)
    lengths, new = (rng.integers(min(16, most), most + 1, work.batch) for most in (work.prompt, work.new))
    return prompts(vocabulary, lengths.tolist(), 2), new.tolist()


# ---- measuring ----
#
# A framework gives continued(prompts, longest, new), which continues a batch of prompts, of at most `longest` tokens each, by
# `new` or more, and returns when that is done; and where it has such a thing many(prompts, new, batch_invariant), which gives each
# prompt its own number of new tokens, and returns them.


def took(call):
    """Seconds."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def seconds(call):
    """Of the first call, and of the fastest after it."""
    return took(call), min(took(call) for _ in range(CALLS))


def tokens(work, vocabulary, continued, many):
    given = prompts(vocabulary, [work.prompt] * work.batch)
    first, best = seconds(lambda: continued(given, work.prompt, work.new))
    return {"tokens_per_s": work.batch * work.new / best, "first_s": first}


def first(work, vocabulary, continued, many):
    given = prompts(vocabulary, [work.prompt] * work.batch)
    first, best = seconds(lambda: continued(given, work.prompt, work.new))
    return {"ms": best * 1e3, "first_s": first}


def mixed(work, vocabulary, continued, many):
    given, new = requests(work, vocabulary)
    run = lambda some, limits: many(some, limits, work.batch_invariant)
    begin, found = took(lambda: run(given[:ALONE], [2] * ALONE)), []  # what is chosen and loaded once
    whole = took(lambda: found.extend(run(given, new)))
    alone = [run([given[i]], [new[i]])[0] for i in range(ALONE)]
    assert [len(tokens) for tokens in found] == new
    return {"tokens_per_s": sum(new) / whole, "first_s": begin,
            "same": [sum(list(a) == list(b) for a, b in zip(alone, found)), ALONE]}


def padded(work, vocabulary, continued, many):
    """Batches as they come, all of one size; a batch is done when all that was asked for is there."""
    given, new = requests(work, vocabulary)
    most = work.prompt + work.new - 2
    full = prompts(vocabulary, [most] * min(PADDED, work.batch))
    begin = took(lambda: continued(full, most, 2))  # compiles, and makes few steps
    whole = took(lambda: [continued(given[i:i + PADDED], work.prompt, work.new) for i in range(0, work.batch, PADDED)])
    return {"tokens_per_s": sum(new) / whole, "first_s": begin}


MEASURES = {"tokens": tokens, "first": first, "requests": mixed, "padded": padded}


def parse(doc, modes):
    """The command line of both frameworks' scripts."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=modes, default=modes[0])
    parser.add_argument("--works", default="batch1",
                        help="of one setting, with commas between them: %s (%%(default)s)" % ", ".join(WORKS))
    parser.add_argument("--small", action="store_true", help="sizes that a CPU runs in seconds")
    parser.add_argument("--started", type=float, help="when this process was started, for the work called start")
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path, help="write what was measured there")
    options = parser.parse_args()
    options.works = {name: WORKS[name].small() if options.small else WORKS[name] for name in options.works.split(",")}
    if len({work.setting() for work in options.works.values()}) > 1:
        parser.error("--works are of one model, quantised in one way, and with one cache")
    return options


def measure(options, make, reset_peak, peak_memory):
    """Measures all works, prints each and writes it down: of a process that is stopped, what it has measured is known.

    make(sizes, quantized, cache_dtype) builds the model and gives continued and many, or None for the latter."""
    one, found = next(iter(options.works.values())), {}
    config = sizes(one.model, options.small)
    continued, many = make(config, one.quantized, one.cache_dtype)
    for name, work in options.works.items():
        reset_peak()
        if work.kind == "start":
            continued(prompts(config.vocabulary, [work.prompt]), work.prompt, work.new)
            found[name] = {"seconds": time.time() - options.started}
        elif work.kind == "requests" and many is None:
            continue
        else:
            found[name] = MEASURES[work.kind](work, config.vocabulary, continued, many)
        found[name]["peak_GB"] = peak_memory() / 1e9
        print("%-12s %s" % (name, found[name]), flush=True)
        if options.json:
            keep(options.json, json.dumps(found))
