"""GPT-2 in Keras, trained on text that is made here, with tfuse and without.

  python examples/gpt2.py --mode tfuse                      # 124 million parameters, 16 x 1024 tokens a step: a GPU's work
  python examples/gpt2.py --mode tfuse --layers 2 --width 128 --heads 4 --length 128 --vocabulary 256 --dtype float32 \\
      --rate 1e-3 --steps 400 --save /tmp/gpt2 --generate 200    # a minute on two CPU cores, and it writes sentences
  python examples/gpt2.py --resume /tmp/gpt2 …              # goes on where that stopped, with the same next loss
  python examples/gpt2.py --resume /tmp/gpt2 --steps 0 --generate 200 …      # only writes

The model is in gpt2_model.py; here is its text, its training, its checkpoints, and what it writes.
"""

import argparse
import json
import os
import pathlib
import random
import resource
import sys
import time

import keras
import numpy as np
import tensorflow as tf
import tfuse

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
    """Tokens and labels of every step from `first` on, where they are needed. A copy to a GPU waits for all that the GPU was
    told to do before; made ahead of time, it does not keep the next step waiting, too."""
    pieces = lambda: (batch_of(text, first + i, options.batch, options.length) for i in range(options.steps))
    gpus, replicas = tf.config.list_logical_devices("GPU"), strategy.num_replicas_in_sync
    if replicas == 1 and gpus:
        spec = tf.TensorSpec([options.batch, options.length], tf.int64)
        data = tf.data.Dataset.from_generator(pieces, output_signature=(spec, spec))
        return data.apply(tf.data.experimental.prefetch_to_device(gpus[0].name, 2))
    share = options.batch // replicas
    part = lambda piece: lambda replica: tf.constant(piece[replica.replica_id_in_sync_group * share:][:share])
    return (map(strategy.experimental_distribute_values_from_function, map(part, pair)) for pair in pieces())


# ---- training ----


def train_function(model, strategy, xla):
    """A step: (tokens, labels) of this process's replicas -> the mean loss over all."""
    def replica_step(tokens, labels):
        with tf.GradientTape() as tape:
            loss = model.mean_loss(tokens, labels) / strategy.num_replicas_in_sync
            scaled = model.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, [v.value for v in model.trainable_variables])
        model.optimizer.apply(gradients, model.trainable_variables)
        return loss

    @tf.function(jit_compile=xla)
    def train_step(tokens, labels):
        return strategy.reduce("SUM", strategy.run(replica_step, (tokens, labels)), axis=None)

    return train_step


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


def make_strategy(name):
    if name == "mirrored":  # on all GPUs, or on the CPU twice
        kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
        cpu, = tf.config.list_physical_devices("CPU")
        if kind == "CPU" and not tf.config.get_logical_device_configuration(cpu):
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        return tf.distribute.MirroredStrategy([device.name for device in tf.config.list_logical_devices(kind)])
    # One process per worker; TF_CONFIG in the environment says who they are.
    return tf.distribute.MultiWorkerMirroredStrategy() if name == "multiworker" else tf.distribute.get_strategy()


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


def peak_memory():
    """In bytes: the GPU's since it was last reset, or this process's."""
    if tf.config.list_logical_devices("GPU"):
        return tf.config.experimental.get_memory_info("GPU:0")["peak"]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def train(model, strategy, options, text):
    """Prints a line now and then; returns the losses and what was measured after the first steps."""
    step = int(keras.ops.convert_to_numpy(model.steps))
    chief = strategy.cluster_resolver is None or strategy.cluster_resolver.task_id == 0
    train_step = train_function(model, strategy, options.mode.endswith("xla"))
    losses, warm, tokens = [], min(options.warmup, options.steps - 1), options.batch * options.length
    start = time.perf_counter()
    for i, pair in enumerate(batches(strategy, options, text, step)):
        losses.append(train_step(*pair))
        if i + 1 == warm:
            losses[-1].numpy()  # waits for the GPU
            if tf.config.list_logical_devices("GPU"):
                tf.config.experimental.reset_memory_stats("GPU:0")
            start = time.perf_counter()
        elif i + 1 > warm and ((i + 1) % options.every == 0 or i + 1 == options.steps):
            loss = float(losses[-1])
            ms = (time.perf_counter() - start) / (i + 1 - warm) * 1e3
            print("step %5d  loss %.4f  %8.2f ms/step  %9.0f tokens/s  %6.2f GB" % (
                step + i + 1, loss, ms, tokens / ms * 1e3, peak_memory() / 1e9), flush=True)
        if options.save and chief and ((i + 1) % options.save_every == 0 or i + 1 == options.steps):
            save(model, options.save, step + i + 1)
    return {"ms_per_step": ms, "tokens_per_s": tokens / ms * 1e3, "peak_GB": peak_memory() / 1e9,
            "losses": [float(loss) for loss in losses]}


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     allow_abbrev=False)  # what starts this script looks for --profile by its whole name
    parser.add_argument("--mode", choices=["stock", "xla", "tfuse", "tfuse+xla"], default="tfuse")
    parser.add_argument("--dtype", choices=["float32", "mixed_bfloat16", "mixed_float16"], default="mixed_bfloat16")
    parser.add_argument("--strategy", choices=["none", "mirrored", "multiworker"], default="none")
    for name, value, text in [
            ("batch", 16, "sequences a step, over all replicas"), ("length", 1024, "tokens of a sequence"),
            ("steps", 50, "steps to train"), ("layers", 12, "blocks"), ("width", 768, "of the stream"),
            ("heads", 12, "of attention"), ("vocabulary", 50304, "at least 256"), ("seed", 1, "of the weights"),
            ("warmup", 5, "steps that are not timed"), ("every", 10, "steps between two lines"),
            ("save-every", 100, "steps between two checkpoints"), ("generate", 0, "tokens of text to write at the end")]:
        parser.add_argument("--" + name, type=int, default=value, help="%s (%d)" % (text, value))
    parser.add_argument("--rate", type=float, default=6e-4, help="learning rate (0.0006)")
    parser.add_argument("--prompt", default="The old captain ", help="what the written text begins with")
    parser.add_argument("--save", metavar="FOLDER", help="keep checkpoints there")
    parser.add_argument("--resume", metavar="FOLDER", help="go on from the checkpoint there")
    parser.add_argument("--json", metavar="FILE", help="write what was measured there")
    parser.add_argument("--profile", action="store_true", help="show where the time of a step goes, and end")
    options = parser.parse_args(arguments)
    if options.strategy != "none" and options.mode.endswith("xla"):
        parser.error("--strategy goes with --mode stock or tfuse: XLA compiles a step of one device")
    if not options.prompt:
        parser.error("--prompt is empty: the text has to begin with something")
    return options


def main(options):
    strategy = make_strategy(options.strategy)  # first: several workers meet before anything else runs
    if options.mode.startswith("tfuse"):
        tfuse.enable()
    if options.batch % strategy.num_replicas_in_sync:
        sys.exit("--batch %d cannot be shared by %d replicas evenly" % (options.batch, strategy.num_replicas_in_sync))
    with strategy.scope():
        model = make_model(options, Fused if options.mode.startswith("tfuse") else Stock)
        if options.resume:
            resume(model, options.resume)
    print("%s, %s, %.1f million parameters, %d x %d tokens a step" % (
        options.mode, options.dtype, model.count_params() / 1e6, options.batch, options.length), flush=True)
    measured = train(model, strategy, options, made_text()) if options.steps else {"losses": []}
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({**vars(options), **measured}))
    if options.generate:
        print(options.prompt, end="", flush=True)
        for token in model.generate(options.prompt.encode(), options.generate):
            print(chr(token) if 32 <= token < 127 else "?", end="", flush=True)
        print()


if __name__ == "__main__":
    if "--profile" in sys.argv:
        rest = [argument for argument in sys.argv if argument != "--profile"]
        os.execv(sys.executable, [sys.executable, "-m", "tfuse", "profile", *rest])
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    main(parse())
