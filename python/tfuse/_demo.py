"""python -m tfuse demo: a small Keras model with tfuse's layers beside the same model in stock Keras."""

import argparse
import os
import tempfile
import time

import keras
import numpy as np
import tensorflow as tf

import tfuse

WIDTH, SAMPLES, BATCH = 1024, 8192, 512


@keras.saving.register_keras_serializable("tfuse_demo")
class StockScaleBiasAct(keras.layers.Layer):
    """What tfuse.ScaleBiasAct does, in stock Keras: three ops, three passes over memory."""

    def build(self, shape):
        self.scale = self.add_weight(name="scale", shape=shape[-1:], initializer="ones")
        self.bias = self.add_weight(name="bias", shape=shape[-1:], initializer="zeros")

    def call(self, x):
        return keras.activations.gelu(x * self.scale + self.bias)


def model(layer):
    keras.utils.set_random_seed(1)
    m = keras.Sequential([keras.Input((32,))] + [part for _ in range(3) for part in (
        keras.layers.Dense(WIDTH, use_bias=False), layer())] + [keras.layers.Dense(1)])
    m.compile(keras.optimizers.Adam(1e-3), "mse", jit_compile=False)
    return m


def train(name, m, x, y, epochs):
    m.train_on_batch(x[:BATCH], y[:BATCH])  # tracing stays out of the time
    start = time.perf_counter()
    losses = m.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0).history["loss"]
    seconds = time.perf_counter() - start
    print("  %-12s losses %s   %.2f s" % (name, " ".join("%.4f" % l for l in losses), seconds), flush=True)
    return losses, seconds


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tfuse demo", description=(
        "Trains a small Keras model with tfuse's layers and the same in stock Keras, compares losses and speed, saves and "
        "reloads it, and changes a constant in a running function."))
    parser.add_argument("--epochs", type=int, default=4)
    epochs = parser.parse_args(arguments).epochs
    gpus = tf.config.list_physical_devices("GPU")
    print("tfuse %s, TensorFlow %s, Keras %s, on %s\n" % (tfuse.__version__, tf.__version__, keras.__version__,
                                                         "a GPU" if gpus else "the CPU"))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SAMPLES, 32)).astype("float32")
    y = np.sin(x[:, :1]) * x[:, 1:2]

    print("1. Training %d samples through three Dense layers of %d, each with a fused scale, bias and gelu:" % (SAMPLES, WIDTH))
    fused, stock = model(lambda: tfuse.ScaleBiasAct("gelu")), model(StockScaleBiasAct)
    ours, our_time = train("tfuse", fused, x, y, epochs)
    theirs, their_time = train("stock Keras", stock, x, y, epochs)
    apart = max(abs(a - b) / b for a, b in zip(ours, theirs))
    assert apart < 2e-2, "the losses differ by %.1e" % apart
    print("   The losses agree to %.1e; tfuse took %.2f times the time of stock Keras.\n" % (apart, our_time / their_time))

    print("2. The fused step alone, forward and backward on [%d, 4096]:" % BATCH)
    v, s, b = (tf.Variable(rng.normal(size=shape).astype("float32")) for shape in ((BATCH, 4096), (4096,), (4096,)))
    for name, f in [("tfuse", lambda: tfuse.scale_bias_act(v, s, b, "gelu")),
                    ("stock", lambda: tf.nn.gelu(v * s + b, approximate=False))]:
        def step(f=f):
            with tf.GradientTape() as tape:
                loss = f()
            return tape.gradient(loss, [v, s, b])
        graph = tf.function(step)
        graph()
        start = time.perf_counter()
        for _ in range(30):
            result = graph()
        result[0].numpy()
        print("  %-12s %.2f ms per tf.function call" % (name, (time.perf_counter() - start) / 30 * 1e3), flush=True)

    print("\n3. Saved, and loaded again:")
    with tempfile.TemporaryDirectory() as folder:
        fused.save(os.path.join(folder, "model.keras"))
        again = keras.saving.load_model(os.path.join(folder, "model.keras"))
        fused.export(os.path.join(folder, "saved_model"), verbose=False)
        served = tf.saved_model.load(os.path.join(folder, "saved_model"))
        want = fused(x[:BATCH]).numpy()
        for name, got in [("model.keras", again(x[:BATCH])), ("SavedModel", served.serve(x[:BATCH]))]:
            difference = float(np.max(np.abs(got.numpy() - want)))
            assert difference < 1e-5, name
            print("  %-12s gives the same predictions (largest difference %.0e)" % (name, difference))

    print("\n4. A constant that changes without a new trace:")
    constant = tf.Variable(1.0)
    f = tf.function(lambda t: tfuse.add_constant(t, constant))
    first = f(tf.zeros([3])).numpy()
    constant.assign(42.0)
    print("   %s, then %s, traced %d time" % (first, f(tf.zeros([3])).numpy(), f.experimental_get_tracing_count()))

    print("\nWhat ran, as tfuse.explain() tells it:\n%r" % tfuse.explain(4))
    print("\nShown: tfuse's layers train like Keras's own, save and load like them, and one kernel does the work of several.")
    return 0
