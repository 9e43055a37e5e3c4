"""examples/gpt2.py for the tests, small."""

import contextlib
import json
import sys

import keras
import tensorflow as tf
import tfuse
from conftest import ROOT, since_now

PATH = ROOT / "examples" / "gpt2.py"
sys.path.append(str(PATH.parent))

import gpt2

SMALL = {"layers": 2, "width": 32, "heads": 2, "batch": 8, "length": 32, "vocabulary": 256, "every": 1000, "warmup": 1,
         "rate": 1e-3, "dtype": "float32"}
TEXT = gpt2.made_text()


def arguments(**options):
    return ["--%s=%s" % (name.replace("_", "-"), value) for name, value in {**SMALL, **options}.items()]


@contextlib.contextmanager
def left_as_it_was():
    policy = keras.config.dtype_policy()
    tfuse.disable()
    try:
        yield
    finally:
        tfuse.disable()
        keras.config.set_dtype_policy(policy)


def trained(strategy=None, **options):
    """Trains as the example does; returns the losses of all steps, and the model."""
    options = gpt2.parse(arguments(**options))
    fused = options.mode.startswith("tfuse")
    strategy = strategy or tf.distribute.get_strategy()
    with left_as_it_was():
        if fused:
            tfuse.enable()
        with strategy.scope():
            model = gpt2.make_model(options, gpt2.Fused if fused else gpt2.Stock)
            if options.resume:
                gpt2.resume(model, options.resume)
        return gpt2.train(model, strategy, options, TEXT)["losses"], model


def command(folder, **options):
    """Runs the example's command line in this process; returns what it writes as JSON. What it prints is for capsys."""
    with left_as_it_was():
        gpt2.main(gpt2.parse(arguments(json=folder / "measured.json", **options)))
    return json.loads((folder / "measured.json").read_text())


def explained(act, *args, **options):
    """What act() returns, and what tfuse.explain() tells of it alone."""
    told = since_now()
    return act(*args, **options), told()


def runs(rows):
    """How often each op ran."""
    ops = [row["op"] for row in rows if row["when"] == "ran"]
    return {op: sum(row["calls"] for row in rows if row["when"] == "ran" and row["op"] == op) for op in ops}
