"""examples/gpt2.py for the tests, small."""

import pathlib
import sys

import keras
import tensorflow as tf
import tfuse

PATH = pathlib.Path(__file__).resolve().parent.parent / "examples" / "gpt2.py"
sys.path.append(str(PATH.parent))

import gpt2

SMALL = {"layers": 2, "width": 32, "heads": 2, "batch": 8, "length": 32, "vocabulary": 256, "every": 1000, "warmup": 1,
         "rate": 1e-3, "dtype": "float32"}
TEXT = gpt2.made_text()


def arguments(**options):
    return ["--%s=%s" % (name.replace("_", "-"), value) for name, value in {**SMALL, **options}.items()]


def trained(strategy=None, **options):
    """Trains as the example does; returns the losses of all steps, and the model."""
    options = gpt2.parse(arguments(**options))
    fused, policy = options.mode.startswith("tfuse"), keras.config.dtype_policy()
    strategy = strategy or tf.distribute.get_strategy()
    (tfuse.enable if fused else tfuse.disable)()
    try:
        with strategy.scope():
            model = gpt2.make_model(options, gpt2.Fused if fused else gpt2.Stock)
            if options.resume:
                gpt2.resume(model, options.resume)
        return gpt2.train(model, strategy, options, TEXT)["losses"], model
    finally:
        tfuse.disable()
        keras.config.set_dtype_policy(policy)
