"""What is measured of whole models: their sizes, their data, and how their steps are timed.

Here is nothing of a framework, so that Keras's models (models.py) and their twins in PyTorch (models_torch.py) share it.
"""
import argparse
import functools
import itertools
import json
import os
import pathlib
import statistics
import time
import types

import numpy as np

EPSILON, DECAY = 1e-7, 0.004  # of AdamW: Keras's own defaults
MOMENTUM, SGD_DECAY = 0.9, 1e-4
RATES = {"adamw": 1e-4, "sgd": 0.01}  # what models are trained by, and the learning rate
BATCHES = 4  # that lie in the memory of the host, and are taken in turn
FIRST, NEXT = 3, 20  # steps: until the first time is taken, and those after it whose loss is told
SHORT, MOST, ROUNDS, SECONDS = 5, 640, 3, 1.0  # of slope(): steps of a short run, most of a long one, pairs, a long run's time

KINDS, FOLLOWERS, WALK = 32, 3, 1 << 18  # tokens that can be learned, how many may follow each, the length of walk()
CONTRAST = 0.3  # of images that can be learned, beside noise of 1
MEAN, DEVIATION = 118.0, 58.0  # of the pixels of common photographs
ROOM = 1 << 30  # bytes that the batches of a training may take

# ---- data: what Keras's fit() takes, (inputs, labels) or (inputs, labels, weights of the samples) ----
#
# Times need no more than random numbers. `learnable` asks for data in which there is something to find, so that losses fall.
#
# Numbers are int64, as NumPy's are: TensorFlow keeps int32 arguments of a function in the memory of the CPU, and every step
# would wait for a copy.


@functools.lru_cache(None)
def walk():
    """A long row of tokens, each one of the few that may follow the one before. Who knows these has a loss of log(3)."""
    rng = np.random.default_rng(0)
    followers, turns = rng.integers(KINDS, size=(KINDS, FOLLOWERS)).tolist(), rng.integers(FOLLOWERS, size=WALK).tolist()
    tokens = itertools.accumulate(turns, lambda token, turn: followers[token][turn])
    return np.fromiter(tokens, np.int64)


def drawn(most, shape, rng, learnable):
    """Tokens below `most`: any, or pieces of the walk."""
    if not learnable:
        return rng.integers(most, size=shape)
    return walk()[rng.integers(WALK - shape[1], size=(shape[0], 1)) + np.arange(shape[1])]


def next_tokens(sizes, rng, learnable=False):
    """Tokens, and at each place the one that follows."""
    tokens = drawn(sizes.vocabulary, (sizes.batch, sizes.length + 1), rng, learnable)
    return tokens[:, :-1], tokens[:, 1:]


def unpadded_tokens(sizes, rng, learnable=False):
    """The same with a padding mask, which KerasHub's models ask for, and which hides nothing."""
    tokens, labels = next_tokens(sizes, rng, learnable)
    return {"token_ids": tokens, "padding_mask": np.ones_like(tokens)}, labels


def masked_tokens(sizes, rng, learnable=False):
    """Sequences that fill a quarter to all of their row. Of their tokens 15% are replaced by one token, number 3, and the
    weights are 1 there and 0 elsewhere: only these are to be found."""
    shape = sizes.batch, sizes.length
    there = np.arange(sizes.length) < rng.integers(sizes.length // 4, sizes.length + 1, size=(sizes.batch, 1))
    hidden = there & (rng.random(shape) < 0.15)
    labels = np.where(there, 4 + drawn(sizes.vocabulary - 4, shape, rng, learnable), 0)
    inputs = {"token_ids": np.where(hidden, 3, labels), "segment_ids": np.zeros(shape, np.int64),
              "padding_mask": there.astype(np.int64)}
    return inputs, labels, hidden.astype(np.float32)


def padded_pairs(sizes, rng, learnable=False):
    """Sequences to read and sequences to write, which fill a quarter to all of their rows. The decoder is given what was written
    so far, from a token number 0 on; the weights are 1 where there is a token to be written, and 0 beyond."""
    tokens, there = [], []
    for length in (sizes.length, sizes.target):
        there.append(np.arange(length) < rng.integers(length // 4, length + 1, size=(sizes.batch, 1)))
        tokens.append(np.where(there[-1], 1 + drawn(sizes.vocabulary - 1, (sizes.batch, length), rng, learnable), 0))
    inputs = {"encoder_token_ids": tokens[0], "encoder_padding_mask": there[0].astype(np.int64),
              "decoder_token_ids": np.pad(tokens[1], ((0, 0), (1, 0)))[:, :-1], "decoder_padding_mask": there[1].astype(np.int64)}
    return inputs, tokens[1], there[1].astype(np.float32)


def images(sizes, rng, learnable=False):
    """Noise, and a class for each. Of some classes, which can be learned, each adds a pattern of 4 × 4 coloured fields."""
    pixels = rng.standard_normal((sizes.batch, sizes.image, sizes.image, 3), np.float32)
    if not learnable:
        return pixels, rng.integers(sizes.classes, size=sizes.batch)
    classes = rng.integers(min(sizes.classes, KINDS), size=sizes.batch)
    patterns = CONTRAST * np.random.default_rng(0).standard_normal((KINDS, 4, 4, 3), np.float32)
    return pixels + patterns[classes].repeat(sizes.image // 4, 1).repeat(sizes.image // 4, 2), classes


def pixels(sizes, rng, learnable=False):
    """The same as images(), in numbers as pixels have them, for models that normalise what they are given."""
    made, classes = images(sizes, rng, learnable)
    return MEAN + DEVIATION * made, classes


def segments(sizes, rng, learnable=False):
    """Noise, and a class for each pixel. What can be learned: fields of 8 x 8 have a class, and each class adds a colour."""
    made = rng.standard_normal((sizes.batch, sizes.image, sizes.image, 3), np.float32)
    if not learnable:
        return made, rng.integers(sizes.classes, size=made.shape[:3])
    fields = rng.integers(sizes.classes, size=(sizes.batch, sizes.image // 8, sizes.image // 8))
    classes = fields.repeat(8, 1).repeat(8, 2)
    return made + np.random.default_rng(0).standard_normal((sizes.classes, 3), np.float32)[classes], classes


# ---- models ----


class Workload:
    """A model: its title, what is counted, its data, its sizes, and what differs of these where a CPU trains it in seconds,
    and where its loss curve is drawn. `record` is where compare.py keeps its times, `optimizer` what trains it."""

    def __init__(self, title, unit, data, sizes, small, curve={}, record="models", optimizer="adamw"):
        self.title, self.unit, self.data, self.record, self.optimizer = title, unit, data, record, optimizer
        self._sizes, self._small, self._curve = sizes, small, curve

    @property
    def rate(self):
        return RATES[self.optimizer]

    def count(self, labels):
        """How much a batch of these labels counts: its tokens or its images."""
        return labels.size if self.unit == "tokens" else len(labels)

    def sizes(self, small=False, curve=False, batch=None):
        """`batch` is that of the sizes, or another."""
        return types.SimpleNamespace(**{**self._sizes, **(self._curve if curve else {}), **(self._small if small else {}),
                                        **({"batch": batch} if batch else {})})

    def step(self, small=False, curve=False, batch=None):
        """What a step trains on, in words."""
        sizes = self.sizes(small, curve, batch)
        if self.unit != "tokens":
            return "%d images" % sizes.batch
        length = "%d + %d" % (sizes.length, sizes.target) if hasattr(sizes, "target") else "%d" % sizes.length
        return "%d × %s tokens" % (sizes.batch, length)

    def batch(self, sizes, number=0):
        """A batch of those that are trained on where time is measured: the same for all frameworks."""
        return self.data(sizes, np.random.default_rng(1 + number))

    def batches(self, sizes, steps):
        """A batch for each step of a training that learns something, or as many as there is room for."""
        first = self.data(sizes, np.random.default_rng(0), learnable=True)
        arrays = [array for part in first for array in (part.values() if isinstance(part, dict) else [part])]
        fitting = max(1, ROOM // sum(array.nbytes for array in arrays))
        return [first, *(self.data(sizes, np.random.default_rng(i), learnable=True) for i in range(1, min(steps, fitting)))]


def vision(title, data, small={}, optimizer="sgd", **sizes):
    """A convolutional network for 256 images of 224 x 224 and 1000 classes, unless sizes say otherwise."""
    return Workload(title, "images", data, {"batch": 256, "image": 224, "classes": 1000, **sizes},
                    {"batch": 8, "image": 32, "classes": 10, **small}, record="vision", optimizer=optimizer)


TINY = {"batch": 8, "layers": 2, "width": 32, "heads": 2}
WORKLOADS = {
    "gpt2": Workload(
        "GPT-2 124M", "tokens", next_tokens,
        {"batch": 16, "length": 1024, "vocabulary": 50304, "layers": 12, "width": 768, "heads": 12},
        {**TINY, "length": 16, "vocabulary": 64}),
    "vit": Workload(
        "ViT-B/16", "images", images,
        {"batch": 128, "image": 224, "patch": 16, "classes": 1000, "layers": 12, "width": 768, "heads": 12},
        {**TINY, "image": 32, "patch": 8, "classes": 10}),
    # Frameworks draw dropout's numbers in their own ways; without it they can be held against each other.
    "bert": Workload(
        "BERT base", "tokens", masked_tokens,
        {"batch": 32, "length": 512, "vocabulary": 30522, "layers": 12, "width": 768, "heads": 12, "dropout": 0.1},
        {**TINY, "length": 16, "vocabulary": 64, "dropout": 0.0}, curve={"dropout": 0.0}),
    "llama": Workload(
        "Llama 1.1B", "tokens", unpadded_tokens,
        {"batch": 4, "length": 2048, "vocabulary": 32000, "layers": 22, "width": 2048, "inner": 5632, "heads": 32,
         "shared_heads": 4},
        {**TINY, "length": 16, "vocabulary": 64, "inner": 48, "shared_heads": 1}, curve={"batch": 1}),
    "t5": Workload(  # version 1.1, whose gate is a gelu, and whose head has weights of its own
        "T5 base", "tokens", padded_pairs,
        {"batch": 16, "length": 512, "target": 512, "vocabulary": 32128, "layers": 12, "width": 768, "inner": 2048, "heads": 12,
         "dropout": 0.1},
        {**TINY, "length": 16, "target": 12, "vocabulary": 64, "inner": 48, "dropout": 0.0}, curve={"dropout": 0.0}),
    "lstm": Workload(
        "LSTM", "tokens", next_tokens, {"batch": 64, "length": 512, "vocabulary": 10000, "layers": 2, "width": 1024},
        {"batch": 8, "layers": 2, "width": 32, "length": 16, "vocabulary": 64}),
    "resnet50": vision("ResNet-50", images),
    "convnext": vision("ConvNeXt-T", pixels, optimizer="adamw", batch=128),
    "efficientnet": vision("EfficientNet-B0", pixels),
    "mobilenet": vision("MobileNetV2", images),
    "unet": vision("U-Net", segments, {"width": 8}, batch=32, image=256, classes=21, width=32, levels=4),
}


# ---- timing ----
#
# A way is a function run(n), which makes n steps, waits for the last, and returns the mean of their losses.


def clock(run, n):
    start = time.perf_counter()
    run(n)
    return time.perf_counter() - start


def begun(run):
    """The first steps, with all that is traced, compiled and tried in them, and some more: how long the first took, and the
    mean losses of both, which are alike in all rows that begin with like weights."""
    start = time.perf_counter()
    losses = [float(run(FIRST))]
    first = time.perf_counter() - start
    return {"first_s": first, "losses": [*losses, float(run(NEXT))]}


def slope(run, steps=None):
    """Milliseconds that a step takes: by how much a run is longer that has some steps more, or as many as take a second. What a
    run takes to begin, as fit() does, and to wait for its last step, is in the short runs and in the long ones."""
    run(SHORT)  # whatever has to be traced and compiled
    if not steps:
        steps = SHORT
        while steps < MOST and clock(run, steps) < SECONDS:
            steps *= 2
    short, long = zip(*((clock(run, SHORT), clock(run, SHORT + steps)) for _ in range(ROUNDS)))
    return (statistics.median(long) - statistics.median(short)) / steps * 1e3


def parse(doc, modes, *flags):
    """The command line of both frameworks' scripts. A flag is (its name, what it does)."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=WORKLOADS, required=True)
    parser.add_argument("--mode", choices=modes, default=modes[-1])
    parser.add_argument("--batch", type=int, help="of another size than the model's own")
    parser.add_argument("--small", action="store_true", help="sizes that a CPU trains in seconds")
    parser.add_argument("--steps", type=int, help="that are timed, three times (as many as take a second)")
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path, help="write what was measured there")
    for name, text in flags:
        parser.add_argument(name, action="store_true", help=text)
    return parser.parse_args()


def measure(options, count, ways, reset_peak, peak_memory):
    """Measures a model in all ways, {what its milliseconds are called: run(n)}, prints what comes out, and writes it down where
    that is asked for, after each way: of a process that is stopped, what it has measured is known.

    `count` is how many tokens or images a step has; memory is the most that was in use in the timed steps of the first way,
    which is fit() or what PyTorch has in its place, and of the step alone."""
    workload, first = WORKLOADS[options.model], next(iter(ways))
    found = {"model": options.model, "mode": options.mode}
    for name, run in ways.items():
        if name == first:
            found.update(begun(run))
            print("%s, %s: %.1f s until the third step's end; mean losses: %s" % (
                workload.title, options.mode, found["first_s"], " ".join("%.4f" % loss for loss in found["losses"])))
        reset_peak()
        found[name] = slope(run, options.steps)
        peak = peak_memory() / 1e9
        if name == first:
            found.update({workload.unit + "_per_s": count / found[name] * 1e3, "peak_GB": peak})
        elif name == "ms_per_step":
            found["step_GB"] = peak
        print("%-16s %8.2f ms, %.2f GB" % (name, found[name], peak), flush=True)
        if options.json:
            keep(options.json, json.dumps(found))


def keep(path, text):
    """Writes a file anew. Whatever is cut short, there is a whole one."""
    aside = path.with_suffix(".tmp")
    aside.write_text(text)
    os.replace(aside, path)
