"""python -m tfuse demo: GPT-2 in Keras, stock and with tfuse, in turns: losses, time, memory, and what it writes.

Small on a CPU; the one of 124 million parameters on a GPU. The model is examples/gpt2_model.py, the text the licence, a
word a token. demo_files/ has links to them, and to the record of a GPU; the wheel holds them as files.
"""

import argparse
import contextlib
import ctypes
import json
import os
import pathlib
import re
import statistics
import sys
import textwrap
import time

import keras
import numpy as np
import rich.progress
import tensorflow as tf

import tfuse
from tfuse._tools import _driver, _numbers
from tfuse._tools.demo_files import gpt2_model

FILES = pathlib.Path(__file__).with_name("demo_files")
STOCK, ENABLED, FUSED = "stock Keras", "tfuse.enable()", "tfuse's GPT-2"
TURN = 5  # steps, then it is the other's
CPU = {"model": {"length": 256, "depth": 2, "width": 128, "heads": 4}, "batch": 4, "rate": 3e-3, "policy": "float32",
       "runs": (STOCK, ENABLED), "compared": None}
# In bfloat16 stock Keras adds up the gradients of biases in bfloat16, tfuse in float32, and training makes more of the
# difference: examples/README.md holds both against float32. So only the first steps must agree.
GPU = {"model": {"vocabulary": 50304}, "batch": 16, "rate": 6e-4, "policy": "mixed_bfloat16",
       "runs": (STOCK, ENABLED, FUSED), "compared": 10}
AGREE = 1e-2  # the most that losses may differ by, as a part of the loss
NEEDED = {16: 48e9, 4: 16e9, 1: 0}  # bytes of a GPU that stock Keras needs for so many sequences
PROMPT = 8  # words of the licence that the text begins with

# ---- text ----


def words():
    """The licence as numbers, and the words that they stand for."""
    found = re.findall(r"\w[\w.-]*\w|[\w.,;:()]", (FILES / "LICENSE").read_text())
    known = sorted(set(found))
    number = {word: i for i, word in enumerate(known)}
    return np.array([number[word] for word in found]), known


def batch_of(text, step, batch, length):
    """Tokens, and what follows each; which, depends on the step alone."""
    starts = np.random.default_rng(step).integers(len(text) - length, size=batch)
    pieces = np.stack([text[start:start + length + 1] for start in starts])
    return tf.constant(pieces[:, :-1], tf.int64), tf.constant(pieces[:, 1:], tf.int64)


def written(known, tokens):
    """Words as a text: no space before punctuation that ends something, none after what opens."""
    return re.sub(r" ([,.;:)\]])|([(\[]) ", r"\1\2", " ".join(known[token] for token in tokens if token < len(known)))


# ---- a model and its steps ----


class Run:
    """A model with its losses and the seconds of its turns. All have the same weights and the same batches."""

    def __init__(self, name, setting, words, steps):
        self.setting, self.enabled, self.losses, self.seconds = setting, name != STOCK, [], []
        parts = gpt2_model.Fused if name == FUSED else gpt2_model.Stock
        keras.utils.set_random_seed(1)
        self.model = gpt2_model.GPT2(parts, **{"vocabulary": words, **setting["model"]})
        self.model.build()
        rate = keras.optimizers.schedules.CosineDecay(setting["rate"] / 20, steps, warmup_target=setting["rate"],
                                                      warmup_steps=20, alpha=0.1)
        self.model.compile(parts.AdamW(rate, beta_2=0.95), jit_compile=False)
        self.model.optimizer.build(self.model.trainable_variables)
        self._step = tf.function(self._train, autograph=False)

    def _train(self, tokens, labels):
        with tf.GradientTape() as tape:
            loss = self.model.mean_loss(tokens, labels)
        gradients = tape.gradient(loss, [v.value for v in self.model.trainable_variables])
        self.model.optimizer.apply(gradients, self.model.trainable_variables)
        return loss

    def train(self, text, count):
        """Makes so many steps; returns the seconds that they took."""
        batches = [batch_of(text, len(self.losses) + i, self.setting["batch"], self.model.length) for i in range(count)]
        with tfuse.enabled() if self.enabled else contextlib.nullcontext():
            start = time.perf_counter()
            losses = [self._step(*batch) for batch in batches]
            self.losses += [float(loss) for loss in losses]  # waits for the GPU
            return time.perf_counter() - start

    def memory(self, text):
        """Bytes that a step takes at its peak beside what is there before it; None where the system does not tell."""
        found = []
        for _ in range(3):
            before = _memory(reset=True)
            self.train(text, 1)
            after = _memory()
            if before is None or after is None:
                return None
            found.append(after - before)
        return statistics.median(found)


def _memory(reset=False):
    """Bytes that this process, or its GPU, holds at its peak since the last reset."""
    if tf.config.list_physical_devices("GPU"):
        if reset:
            tf.config.experimental.reset_memory_stats("GPU:0")
        return tf.config.experimental.get_memory_info("GPU:0")["peak"]
    try:
        if reset:
            ctypes.CDLL(None).malloc_trim(0)  # what is free goes back first, or a step would find it there
            pathlib.Path("/proc/self/clear_refs").write_text("5")
        return 1024 * int(re.search(r"VmHWM:\s*(\d+) kB", pathlib.Path("/proc/self/status").read_text())[1])
    except (OSError, AttributeError, TypeError):
        return None


def _others():
    """Seconds that other processes have kept the machine's cores busy; 0 where the system does not tell."""
    try:
        user, nice, system, _, _, interrupts, soft, *_ = map(int, pathlib.Path("/proc/stat").read_text().split()[1:9])
    except (OSError, ValueError):
        return 0
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK") - time.process_time()


# ---- what is shown ----


@contextlib.contextmanager
def progress():
    """A bar on a terminal, which goes away, and nothing elsewhere; gives the function that shows a part and a text."""
    columns = rich.progress.BarColumn(24), rich.progress.TextColumn("{task.description}")
    with rich.progress.Progress(*columns, transient=True, disable=not sys.stdout.isatty()) as shown:
        task = shown.add_task("", total=1)
        yield lambda part, text: shown.update(task, completed=part, description=text)


def table(runs, memory, tokens):
    """Losses, time, speed and memory of the runs, as lines."""
    steps = min(len(run.losses) for run in runs.values())
    shown = sorted({0, steps // 4, steps // 2, steps - 1})
    yield "  %-16s %s  %10s %12s %16s" % ("", " ".join("%8s" % ("step %d" % (i + 1)) for i in shown),
                                           "ms a step", "tokens/s", "memory of a step")
    for name, run in runs.items():
        seconds = statistics.median(run.seconds)
        yield "  %-16s %s  %10.1f %12s %16s" % (
            name, " ".join("%8.4f" % run.losses[i] for i in shown), 1e3 * seconds, format(round(tokens / seconds), ","),
            megabytes(memory[name]))


def explained():
    """What tfuse.explain() tells of the last steps, each op once, and what was left to Keras, as lines."""
    rows = tfuse.explain(64)
    for op, kernel, device in sorted({(row["op"], row["kernel"], row["device"]) for row in rows if row["when"] == "ran"}):
        yield "  %-26s ran: %s on the %s" % (op, kernel, device)
    for what, why in sorted({(row["op"], row["why"]) for row in rows if row["route"] == "Keras's own code"}):
        yield "  %-26s left to Keras: %s" % (what, why)


def apart(runs):
    """Of every step that all have made, the largest difference between its losses, as a part of the loss."""
    return [(max(losses) - min(losses)) / min(losses) for losses in zip(*(run.losses for run in runs.values()))]


def outcome(ours, runs, memory):
    """What was measured, whichever way it went."""
    ms, stock_ms = (1e3 * statistics.median(runs[name].seconds) for name in (ours, STOCK))
    said = "%.2f times as fast" % (stock_ms / ms) if ms <= stock_ms else "slower, by %.0f%%" % (100 * (ms / stock_ms - 1))
    return "Measured: a step took %.1f ms and %s of memory with %s, %.1f ms and %s in stock Keras: tfuse is %s." % (
        ms, megabytes(memory[ours]), ours, stock_ms, megabytes(memory[STOCK]), said)


def megabytes(count):
    return "an unknown amount" if count is None else "%.0f MB" % (count / 1e6)


def record():
    """What a GPU gives, by the record that is kept."""
    saved = json.loads((FILES / "gpt2_nvidia_h200.json").read_text())
    ms = {row["name"]: row["ms_per_step"] for row in saved["rows"] if (row["batch"], row["length"]) == (16, 1024)}
    return ("A GPU is what tfuse is made for: on an %s a step of GPT-2 with 124 million parameters took %.1f ms by "
            "examples/gpt2.py with tfuse, %.1f ms in stock Keras and %.1f ms in compiled PyTorch." % (
                saved["hardware"], ms["Keras with tfuse"], ms["Keras"], ms["PyTorch, compiled"]))


# ---- the demo ----


def choose():
    """The setting for this machine, and what the machine is called."""
    if not tf.config.list_physical_devices("GPU"):
        return CPU, "%d CPU cores" % os.cpu_count()
    gpu = _driver.Driver.find().devices()[0]
    return {**GPU, "batch": next(batch for batch, least in NEEDED.items() if gpu.memory >= least)}, gpu.name


def compare(runs, text, turns, seconds, show):
    """Trains all in turns, at least three each, until the time is over; returns the bytes that a step of each takes."""
    for i, (name, run) in enumerate(runs.items()):
        show(i / len(runs), "tracing " + name)
        run.train(text, 1)
    begin = time.perf_counter()
    for turn in range(turns):
        if turn >= 3 and time.perf_counter() - begin > seconds:
            break
        for name, run in runs.items():
            show(turn / turns, "in turns: %s, step %d, loss %.2f" % (name, len(run.losses), run.losses[-1]))
            run.seconds.append(run.train(text, TURN) / TURN)
    show(1, "memory")
    return {name: run.memory(text) for name, run in runs.items()}


def go_on(run, text, steps, seconds, show):
    """Trains one until so many steps are made, or the time is over."""
    begin = time.perf_counter()
    while len(run.losses) < steps and time.perf_counter() - begin < seconds:
        show(len(run.losses) / steps, "going on: step %d, loss %.2f" % (len(run.losses), run.losses[-1]))
        run.train(text, TURN)


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tfuse demo", description=(
        "Trains GPT-2 in stock Keras and with tfuse, side by side, and shows that the losses agree, a step's time and memory, "
        "what ran, and some generated text. The model is a small one on a CPU, and has 124 million parameters on a GPU."))
    parser.add_argument("--steps", type=_numbers.positive, default=200,
                        help="training steps of the model that generates text (200); others take half as many")
    parser.add_argument("--seconds", type=_numbers.seconds, default=50, help="time after which training stops early (50)")
    chosen = parser.parse_args(arguments)
    setting, machine = choose()
    keras.config.set_dtype_policy(setting["policy"])
    text, known = words()
    versions = tfuse.__version__, tf.__version__, keras.__version__
    print("tfuse %s, TensorFlow %s, Keras %s, %s" % (*versions, machine), flush=True)
    with progress() as show:
        show(0, "making the models")
        runs = {name: Run(name, setting, len(known), chosen.steps) for name in setting["runs"]}
    ours = setting["runs"][-1]
    last = runs[ours]
    tokens = setting["batch"] * last.model.length
    print("\nGPT-2 in plain Keras, %.1f million parameters, %d × %d tokens a step, trained by each in turns of %d steps:" % (
        last.model.count_params() / 1e6, setting["batch"], last.model.length, TURN), flush=True)
    begin, others = time.perf_counter(), _others()
    with progress() as show:
        memory = compare(runs, text, max(1, chosen.steps // 2 // TURN), 0.6 * chosen.seconds, show)
    busy = (_others() - others) / (time.perf_counter() - begin)
    print("\n".join(table(runs, memory, tokens)))
    if FUSED in runs:
        print("  %s says five places in tfuse's words, as class Fused of examples/gpt2_model.py does." % FUSED)
    differences = apart(runs)
    first = differences[:setting["compared"]]
    later = differences[len(first):]
    print("  The losses of %d steps agree to %.0e." % (len(first), max(first)))
    if later:
        print("  Later ones differ by up to %.0e: stock Keras adds up bfloat16 gradients of biases in bfloat16, tfuse in float32."
              % max(later))
    if max(first) > AGREE:
        print("tfuse and stock Keras do not compute the same: please report this", file=sys.stderr)
        return 1
    print("\nWhat tfuse.explain() says of the last steps:\n" + "\n".join(explained()), flush=True)

    with progress() as show:
        go_on(last, text, chosen.steps, 0.4 * chosen.seconds, show)
        show(1, "writing")
        with tfuse.enabled():
            tokens = list(last.model.generate(list(text[:PROMPT]), 60))
    print("\nWhat it writes after %d steps on the text of the licence, a word a token:" % len(last.losses))
    print(textwrap.fill(written(known, [*text[:PROMPT], *tokens]), 100, initial_indent="  ", subsequent_indent="  "))

    if busy > 0.25:
        print("\nMeanwhile other work took %.1f of %d cores: the times say little." % (busy, os.cpu_count()))
    gpu = "" if tf.config.list_physical_devices("GPU") else " " + record()
    print("\n" + textwrap.fill(outcome(ours, runs, memory) + gpu, 100))
    return 0
