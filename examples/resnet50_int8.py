"""ResNet-50 of keras.applications in inference: in bfloat16, and calibrated to 8 bits by tfuse.calibrate.

  python examples/resnet50_int8.py                                       # 128 images of 224 x 224: a GPU's work
  python examples/resnet50_int8.py --image 64 --batch 4 --calls 2        # a minute on two CPU cores

Both run by tfuse, compiled by XLA unless --plain. Weights are random, and the norms have the statistics of the data, which are
random as well; the last norm of each block is small, as it is after training. What is measured is speed, and how far apart the
two models' results are. --predict measures model.predict() on as many batches as there are calls, which take 77 MB each, with
their copies to the GPU and back; else the images are where they are needed.
"""

import argparse
import json
import pathlib
import time

import keras
import numpy as np
import tensorflow as tf
import tfuse


def make_model(options, images):
    keras.utils.set_random_seed(options.seed)
    keras.config.set_dtype_policy(options.dtype)
    model = keras.applications.ResNet50(weights=None, input_shape=(options.image, options.image, 3), classes=options.classes,
                                        classifier_activation=None)
    norms = [layer for layer in model.layers if isinstance(layer, keras.layers.BatchNormalization)]
    for norm in norms:  # one step takes the statistics as they are
        norm.before, norm.momentum = norm.momentum, 0.0
        if norm.name.endswith("_3_bn"):
            norm.gamma.assign(tf.fill(norm.gamma.shape, 0.25))
    model(images[:32], training=True)
    for norm in norms:
        norm.momentum = norm.before
    return model


def seconds(f, calls):
    """Of one call, the least of five rounds; f returns a tensor, or an array."""
    rounds = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(calls):
            last = f()
        np.asarray(last)  # which waits for all of them
        rounds.append((time.perf_counter() - begin) / calls)
    return min(rounds)


def timed(model, images, options):
    """Milliseconds for a batch, and the results."""
    if options.predict:
        model.compile(jit_compile=not options.plain)
        batches = np.concatenate([images.numpy()] * options.calls)
        run, calls, batches_of_a_call = lambda: model.predict(batches, batch_size=options.batch, verbose=0), 1, options.calls
    else:
        call = tf.function(lambda x: model(x, training=False), autograph=False, jit_compile=not options.plain)
        run, calls, batches_of_a_call = lambda: call(images), options.calls, 1
    results = np.asarray(tf.cast(run()[:options.batch], tf.float32))
    return 1e3 * seconds(run, calls) / batches_of_a_call, results


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value, text in (("batch", 128, "images of a call"), ("image", 224, "pixels on a side"),
                              ("classes", 1000, "of the model"), ("calls", 20, "in a row"), ("seed", 1, "of weights and images")):
        parser.add_argument("--" + name, type=int, default=value, help="%s (%d)" % (text, value))
    parser.add_argument("--dtype", choices=["bfloat16", "mixed_bfloat16", "float16", "float32"], default="bfloat16")
    parser.add_argument("--method", choices=["entropy", "percentile", "mse", "max"], default="max")
    parser.add_argument("--plain", action="store_true", help="without XLA")
    parser.add_argument("--predict", action="store_true", help="measure model.predict()")
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path, help="write what was measured there")
    return parser.parse_args(arguments)


def main(options):
    tfuse.enable()
    images = tf.random.stateless_normal([options.batch, options.image, options.image, 3], [options.seed, 0])
    model = make_model(options, images)
    before, want = timed(model, images, options)
    print("%-10s %8.3f ms, %7.0f images/s" % (options.dtype, before, 1e3 * options.batch / before), flush=True)
    found = tfuse.calibrate(model, [images[i:i + 16] for i in range(0, min(32, options.batch), 16)], options.method)
    after, got = timed(found.model, images, options)
    error = float(np.sqrt(np.mean((got - want)**2) / np.mean(want**2)))
    print("%-10s %8.3f ms, %7.0f images/s: %.2f times as fast; %d of %d layers in 8 bits, results off by %.1f%%" % (
        "int8", after, 1e3 * options.batch / after, before / after, sum(row.quantized for row in found.rows), len(found.rows),
        100 * error), flush=True)
    measured = {"ms": before, "ms_int8": after, "speedup": before / after, "error": error}
    if options.json:
        options.json.write_text(json.dumps({**vars(options), **measured}, default=str))
    return measured


if __name__ == "__main__":
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    main(parse())
