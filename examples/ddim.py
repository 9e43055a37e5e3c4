"""keras.io's diffusion U-Net (DDIM), trained by fit() on noise, and timed: images of 64 x 64, widths 64 to 512, batches of 128.

  python examples/ddim.py --mode tfuse+xla              # or stock, xla, tfuse
  python examples/ddim.py --mode tfuse --small          # on a CPU, in seconds
"""
import argparse
import time

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

import tfuse


def residual(x, width):
    passed = x if x.shape[-1] == width else layers.Conv2D(width, 1)(x)
    x = layers.BatchNormalization(center=False, scale=False)(x)
    x = layers.Conv2D(width, 3, padding="same", activation="swish")(x)
    return layers.Add()([layers.Conv2D(width, 3, padding="same")(x), passed])


def embedded(variance, size=32):
    """Of the noise's variance: sines and cosines of 16 frequencies from 1 to 1000."""
    angles = ops.cast(2 * np.pi * np.geomspace(1, 1000, size // 2), "float32") * ops.cast(variance, "float32")
    return ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1)


def ddim(image=64, widths=(64, 128, 256, 512), depth=2, interpolation="bilinear"):
    noisy, variance = keras.Input((image, image, 3)), keras.Input((1, 1, 1))
    told = layers.Lambda(embedded)(variance)
    told = layers.UpSampling2D(image, interpolation="nearest")(told)
    x = layers.Concatenate()([layers.Conv2D(widths[0], 1)(noisy), told])
    passed = []
    for width in widths[:-1]:
        for _ in range(depth):
            x = residual(x, width)
            passed.append(x)
        x = layers.AveragePooling2D(2)(x)
    for _ in range(depth):
        x = residual(x, widths[-1])
    for width in reversed(widths[:-1]):
        x = layers.UpSampling2D(2, interpolation=interpolation)(x)
        for _ in range(depth):
            x = residual(layers.Concatenate()([x, passed.pop()]), width)
    return keras.Model([noisy, variance], layers.Conv2D(3, 1, kernel_initializer="zeros", dtype="float32")(x))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", default="tfuse+xla", choices=["stock", "xla", "tfuse", "tfuse+xla"])
    parser.add_argument("--interpolation", default="bilinear")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    keras.config.set_dtype_policy("mixed_bfloat16")
    if options.mode.startswith("tfuse"):
        tfuse.enable()
    keras.utils.set_random_seed(1)
    image, batch, widths = (16, 4, (8, 16)) if options.small else (64, 128, (64, 128, 256, 512))
    model = ddim(image, widths, interpolation=options.interpolation)
    model.compile(keras.optimizers.AdamW(1e-3, weight_decay=1e-4), "mae", jit_compile=options.mode.endswith("xla"))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, image, image, 3), np.float32), rng.random((batch, 1, 1, 1), np.float32)
    data = tf.data.Dataset.from_tensors((x, rng.standard_normal((batch, image, image, 3), np.float32))).repeat()
    model.fit(data, steps_per_epoch=3, verbose=0)
    seconds = []
    for steps in (options.steps, 3 * options.steps):
        start = time.perf_counter()
        history = model.fit(data, steps_per_epoch=steps, verbose=0)
        seconds.append(time.perf_counter() - start)
    print("%s: %.2f ms a step, loss %.4f" % (
        options.mode, (seconds[1] - seconds[0]) / (2 * options.steps) * 1e3, history.history["loss"][-1]))


if __name__ == "__main__":
    main()
