"""Steps of fit() on the CPU, of small models around a layer each: stock Keras beside tfuse.enable(), in one process, in turns.

  ./run python tools/cpu_layers.py                         # all of them, a table
  ./run python tools/cpu_layers.py Softmax Attention       # those whose names contain one of these
  ./run python tools/cpu_layers.py --seconds 20 --dtype mixed_bfloat16 --jit-compile

A machine that others use makes single times useless. So a turn of stock follows each turn of tfuse and the other way round, and
of the ratios tfuse / stock of neighboring turns the median is shown; beside it, the ratio of the shortest times of a step. Both
are shown of the clock, and of the processor time of all threads, which others disturb less: where there is more to run than
there are cores, a call that two threads share waits for the one that does not run. A row whose four ratios are all
above --most ends with "slower", and the exit status is 1.
"""
import argparse
import os
import statistics
import sys
import time

os.environ.update(CUDA_VISIBLE_DEVICES="", TF_CPP_MIN_LOG_LEVEL="3")
import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from keras import layers  # noqa: E402

import tfuse  # noqa: E402

WORDS = 5000
STEPS = 4  # of a turn, after one that is not counted


class Shift(layers.Layer):
    """x + a weight for each channel: what a layer without weights needs before it, to have a gradient."""

    def build(self, shape):
        self.weight = self.add_weight(shape=shape[-1:])

    def call(self, x):
        return x + self.weight


def chain(*parts):
    def model(x):
        for part in parts:
            x = part(x)
        return x
    return model


def residual(filters):
    def block(x):
        y = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)))
        y = layers.BatchNormalization()(layers.Conv2D(filters, 3, padding="same", use_bias=False)(y))
        return layers.ReLU()(layers.Add()([x, y]))
    return block


def transformer(heads, width):
    def block(x):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.Dropout(0.1)(layers.MultiHeadAttention(heads, width // heads)(y, y, use_causal_mask=True))])
        y = layers.Dense(width)(layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x)))
        return layers.Add()([x, y])
    return block


def attention(heads, size, **options):
    return lambda x: layers.MultiHeadAttention(heads, size)(x, x, **options)


def shifted(*parts):
    return lambda: chain(Shift(), *(part() for part in parts))


def words(*parts, size=128, classes=5):
    return lambda: chain(layers.Embedding(WORDS, size), *(part() for part in parts), layers.Dense(classes))


# Name: (the shape of a batch, a function that makes what turns the input into the output). Input of rank 2 of models whose name
# begins with "Embedding" are words. The loss of models that end with "classes" is a cross entropy; of others, the mean square.
MODELS = {
    "MultiHeadAttention 1 x 512": ((4, 128, 512), lambda: attention(1, 512)),
    "MultiHeadAttention 1 x 512, 512 steps": ((1, 512, 512), lambda: attention(1, 512)),
    "MultiHeadAttention 1 x 512, causal": ((4, 128, 512), lambda: attention(1, 512, use_causal_mask=True)),
    "MultiHeadAttention 8 x 64": ((4, 128, 512), lambda: attention(8, 64)),
    "MultiHeadAttention 4 x 16, batch 32": ((32, 32, 64), lambda: attention(4, 16)),
    "MultiHeadAttention 2 x 8, tiny": ((2, 8, 16), lambda: attention(2, 8)),
    "Attention 256": ((4, 128, 256), lambda: lambda x: layers.Attention()([Shift()(x), x])),
    "Softmax 2048 x 8192": ((2048, 8192), shifted(layers.Softmax)),
    "Softmax 4096 x 1000": ((4096, 1000), shifted(layers.Softmax)),
    "Softmax 65536 x 64": ((65536, 64), shifted(layers.Softmax)),
    "Softmax 32 x 10": ((32, 10), shifted(layers.Softmax)),
    "Embedding, GlobalAveragePooling1D, classes": ((64, 200), words(layers.GlobalAveragePooling1D)),
    "Embedding, GlobalMaxPooling1D, classes": ((64, 200), words(layers.GlobalMaxPooling1D)),
    "Embedding, Flatten, classes": ((64, 50), words(layers.Flatten)),
    "Embedding, LSTM, classes": ((32, 40), words(lambda: layers.LSTM(128))),
    "Embedding, transformer, classes": ((4, 128), words(lambda: transformer(4, 256), size=256, classes=WORDS)),
    "Dense": ((256, 1024), lambda: layers.Dense(1024, activation="relu")),
    "Dense, batch 1": ((1, 64), lambda: layers.Dense(64, activation="gelu")),
    "EinsumDense": ((32, 64, 256), lambda: layers.EinsumDense("abc,cd->abd", (None, 256), bias_axes="d")),
    "LayerNormalization": ((4096, 512), layers.LayerNormalization),
    "RMSNormalization": ((4096, 512), layers.RMSNormalization),
    "GroupNormalization": ((16, 32, 32, 64), lambda: layers.GroupNormalization(8)),
    "BatchNormalization": ((32, 32, 32, 64), layers.BatchNormalization),
    "Conv2D": ((16, 32, 32, 64), lambda: layers.Conv2D(64, 3, padding="same", activation="relu")),
    "Conv1D": ((16, 256, 64), lambda: layers.Conv1D(64, 3, padding="causal", activation="relu")),
    "DepthwiseConv2D": ((16, 32, 32, 64), lambda: layers.DepthwiseConv2D(3, padding="same")),
    "SeparableConv2D": ((16, 32, 32, 64), lambda: layers.SeparableConv2D(64, 3, padding="same")),
    "Conv2DTranspose": ((8, 16, 16, 64), lambda: layers.Conv2DTranspose(64, 3, strides=2, padding="same")),
    "MaxPooling2D": ((16, 64, 64, 32), shifted(layers.MaxPooling2D)),
    "AveragePooling2D": ((16, 64, 64, 32), shifted(layers.AveragePooling2D)),
    "GlobalAveragePooling2D": ((16, 64, 64, 32), shifted(layers.GlobalAveragePooling2D)),
    "UpSampling2D": ((16, 32, 32, 32), shifted(layers.UpSampling2D)),
    "LSTM": ((32, 32, 128), lambda: layers.LSTM(128, return_sequences=True)),
    "GRU": ((32, 32, 128), lambda: layers.GRU(128, return_sequences=True)),
    "SimpleRNN": ((32, 32, 128), lambda: layers.SimpleRNN(128)),
    "Bidirectional LSTM, batch 1": ((1, 16, 32), lambda: layers.Bidirectional(layers.LSTM(32))),
    "Dropout": ((2048, 2048), shifted(lambda: layers.Dropout(0.3))),
    **{"Activation " + name: ((2048, 2048), shifted(lambda name=name: layers.Activation(name)))
       for name in ("gelu", "silu", "relu", "tanh", "softplus", "hard_silu", "mish")},
    "MLP, classes": ((256, 784), lambda: chain(layers.Dense(512, activation="relu"), layers.Dropout(0.2), layers.Dense(10))),
    "MLP, batch 8": ((8, 32), lambda: chain(layers.Dense(64, activation="relu"), layers.Dense(64, activation="relu"),
                                            layers.Dense(1))),
    "ResNet, classes": ((8, 32, 32, 64), lambda: chain(residual(64), residual(64), layers.GlobalAveragePooling2D(),
                                                       layers.Dense(10))),
}


class Times(keras.callbacks.Callback):
    """Seconds between the ends of the steps: of the clock, and of the processors."""

    def on_train_begin(self, logs=None):
        self.ends = []

    def on_train_batch_end(self, batch, logs=None):
        self.ends.append((time.perf_counter(), time.process_time()))

    def steps(self):
        return [(b[0] - a[0], b[1] - a[1]) for a, b in zip(self.ends, self.ends[1:])]


def built(name, options):
    """A function of how many steps fit() shall make, whose result are their times. It is made as tfuse is on or off."""
    shape, make = MODELS[name]
    keras.utils.set_random_seed(1)
    is_words = name.startswith("Embedding")
    inputs = keras.Input(shape[1:], dtype="int32" if is_words else None)
    model = keras.Model(inputs, make()(inputs))
    classes = name.endswith("classes")
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True) if classes else "mse",
                  jit_compile=options.jit_compile)
    x = np.random.randint(WORDS, size=shape) if is_words else np.random.normal(size=shape).astype("float32")
    y = np.zeros(model(x).shape[:-1] if classes else model(x).shape, "int32" if classes else "float32")
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(len(x)).cache().repeat()
    times = Times()

    def fit(steps):
        model.fit(data, steps_per_epoch=steps + 1, verbose=0, shuffle=False, callbacks=[times])
        return times.steps()

    fit(2)
    return fit


def measured(name, options):
    """[(seconds, processor seconds) of each of the turns] of stock, and of tfuse."""
    modes = [tfuse.disable, tfuse.enable]
    fits, turns = [], ([], [])
    for mode in modes:
        mode()
        fits.append(built(name, options))
    end = time.perf_counter() + options.seconds
    while time.perf_counter() < end or len(turns[0]) < 5:
        for i in (0, 1) if len(turns[0]) % 2 else (1, 0):
            modes[i]()
            turns[i].append(fits[i](STEPS))
    return turns


def ratios(turns):
    """For the clock and the processors: of turns, the median ratio, and the ratio of the shortest steps."""
    for clock in 0, 1:
        stock, ours = ([min(step[clock] for step in turn) for turn in mode] for mode in turns)
        yield min(stock) * 1e3, min(ours) * 1e3, statistics.median(b / a for a, b in zip(stock, ours)), min(ours) / min(stock)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="parts of names")
    parser.add_argument("--seconds", type=float, default=6, help="for each model (%(default)s)")
    parser.add_argument("--most", type=float, default=1.05, help="the ratio above which tfuse is slower (%(default)s)")
    parser.add_argument("--dtype", default="float32", help="Keras's dtype policy (%(default)s)")
    parser.add_argument("--jit-compile", action="store_true")
    options = parser.parse_args()
    keras.config.set_dtype_policy(options.dtype)
    slower = 0
    print("%-44s %27s %27s" % ("", "clock: ms, ratio, of best", "processors: ms, ratio, of best"))
    for name in MODELS:
        if not options.names or any(part in name for part in options.names):
            found = list(ratios(measured(name, options)))
            is_slower = all(ratio > options.most for row in found for ratio in row[2:])
            slower += is_slower
            print("%-44s %s%s" % (name, "   ".join("%7.2f %7.2f  %5.2f %5.2f" % row for row in found),
                                  "  slower" * is_slower), flush=True)
            keras.backend.clear_session()
    return slower > 0


if __name__ == "__main__":
    sys.exit(main())
