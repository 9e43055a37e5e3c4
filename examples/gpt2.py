"""GPT-2 in Keras, trained on text that is made here, with tfuse and without.

  python examples/gpt2.py --mode tfuse                      # 124 million parameters, 16 x 1024 tokens a step: a GPU's work
  python examples/gpt2.py --mode tfuse --layers 2 --width 128 --heads 4 --length 128 --vocabulary 256 --dtype float32 \\
      --rate 1e-3 --steps 400 --save /tmp/gpt2 --generate 200    # a minute on two CPU cores, and it writes sentences
  python examples/gpt2.py --resume /tmp/gpt2 …              # goes on where that stopped, with the same next loss
  python examples/gpt2.py --resume /tmp/gpt2 --steps 0 --generate 200 …      # only writes

The model is in gpt2_model.py; here is its text, its training, its checkpoints, and what it writes.
"""

import json
import os
import pathlib
import random

import keras
import numpy as np
import tensorflow as tf
import tfuse

import training
from gpt2_model import GPT2, Fused, Stock

# ---- text ----


def made_text(sentences=20000):
    """Sentences about who does what where, as bytes: a token is a byte, and most of the vocabulary stays unused."""
    words = [part.split("|") for part in (
        "the old captain|a small grey fox|my neighbour|the last dragon|an honest baker|the night train|a tired student",
        "finds|forgets|paints|counts|follows|carries|dreams of",
        "seven silver keys|the longest river|a letter from home|warm bread|all the stars|an empty boat|the green door",
        "at noon|before the storm|in the harbour|behind the mill|on a quiet Sunday|when nobody looks|under the bridge")]
    draw = random.Random(1)
    text = " ".join(" ".join(map(draw.choice, words)).capitalize() + "." for _ in range(sentences))
    return np.frombuffer(text.encode(), np.uint8)


def batch_of(text, step, batch, length):
    """Tokens, and what follows each. Which, depends on the step alone: to go on from a step needs no other state."""
    starts = np.random.default_rng(step).integers(len(text) - length, size=batch)
    pieces = np.stack([text[start:start + length + 1] for start in starts])
    return pieces[:, :-1].astype(np.int64), pieces[:, 1:].astype(np.int64)


def batches(strategy, options, text, first):
    """Tokens and labels of every step from `first` on, where they are needed."""
    pieces = lambda: (batch_of(text, first + i, options.batch, options.length) for i in range(options.steps))
    if strategy.num_replicas_in_sync == 1:
        spec = tf.TensorSpec([options.batch, options.length], tf.int64)
        return training.ahead(tf.data.Dataset.from_generator(pieces, output_signature=(spec, spec)))
    share = options.batch // strategy.num_replicas_in_sync
    part = lambda piece: lambda replica: tf.constant(piece[replica.replica_id_in_sync_group * share:][:share])
    return (map(strategy.experimental_distribute_values_from_function, map(part, pair)) for pair in pieces())


# ---- training ----


def save(model, folder, steps):
    """Keeps weights, optimizer and how many steps were made. It is written aside first: whenever that is interrupted, the
    checkpoint before it is still whole."""
    os.makedirs(folder, exist_ok=True)
    aside, path = (pathlib.Path(folder, name + ".weights.h5") for name in ("aside", "last"))
    model.steps.assign(steps)
    model.save_weights(aside)
    with open(aside, "rb") as file:
        os.fsync(file.fileno())
    os.replace(aside, path)


def resume(model, folder):
    model.load_weights(pathlib.Path(folder, "last.weights.h5"))


def make_model(options, parts):
    keras.utils.set_random_seed(options.seed)
    keras.config.set_dtype_policy(options.dtype)
    model = GPT2(parts, options.vocabulary, options.length, options.layers, options.width, options.heads)
    model.build()
    optimizer = parts.AdamW(options.rate, weight_decay=0.1, beta_2=0.95)
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    model.compile(optimizer, jit_compile=False)  # which wraps it for float16, to scale the loss
    model.optimizer.build(model.trainable_variables)
    return model


def train(model, strategy, options, text):
    """Returns the losses and what was measured; keeps checkpoints where that is asked for."""
    first = int(keras.ops.convert_to_numpy(model.steps))
    chief = strategy.cluster_resolver is None or strategy.cluster_resolver.task_id == 0

    def keep(done):
        if options.save and chief and (done % options.save_every == 0 or done == options.steps):
            save(model, options.save, first + done)

    train_step = training.train_function(model, model.mean_loss, strategy, options.mode.endswith("xla"))
    return training.train(train_step, batches(strategy, options, text, first), options, options.batch * options.length,
                          "tokens", first, keep)


def parse(arguments=None):
    parser = training.parser(__doc__, [
        ("batch", 16, "sequences a step, over all replicas"), ("length", 1024, "tokens of a sequence"),
        ("steps", 50, "steps to train"), ("layers", 12, "blocks"), ("width", 768, "of the stream"),
        ("heads", 12, "of attention"), ("vocabulary", 50304, "at least 256"), ("seed", 1, "of the weights"),
        ("warmup", 5, "steps that are not timed"), ("every", 10, "steps between two lines"),
        ("save-every", 100, "steps between two checkpoints"), ("generate", 0, "tokens of text to write at the end")])
    parser.add_argument("--rate", type=float, default=6e-4, help="learning rate (0.0006)")
    parser.add_argument("--prompt", default="The old captain ", help="what the written text begins with")
    parser.add_argument("--save", metavar="FOLDER", help="keep checkpoints there")
    parser.add_argument("--resume", metavar="FOLDER", help="go on from the checkpoint there")
    options = training.parsed(parser, arguments)
    if not options.prompt:
        parser.error("--prompt is empty: the text has to begin with something")
    return options


def main(options):
    strategy = training.make_strategy(options.strategy, options.batch)  # first: several workers meet here
    if options.mode.startswith("tfuse"):
        tfuse.enable()
    with strategy.scope():
        model = make_model(options, Fused if options.mode.startswith("tfuse") else Stock)
        if options.resume:
            resume(model, options.resume)
    print("%s, %s, %.1f million parameters, %d x %d tokens a step" % (
        options.mode, options.dtype, model.count_params() / 1e6, options.batch, options.length), flush=True)
    measured = train(model, strategy, options, made_text()) if options.steps else {"losses": []}
    if options.json:
        options.json.write_text(json.dumps({**vars(options), **measured}, default=str))
    if options.generate:
        print(options.prompt, end="", flush=True)
        for token in model.generate(options.prompt.encode(), options.generate):
            print(chr(token) if 32 <= token < 127 else "?", end="", flush=True)
        print()


if __name__ == "__main__":
    training.start(main, parse)
