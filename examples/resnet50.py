"""ResNet-50 of keras.applications, trained on JPEG files, with tfuse and without.

  python examples/resnet50.py --mode tfuse                  # 256 images of 224 x 224 a step, 1000 classes: a GPU's work
  python examples/resnet50.py --mode tfuse --image 32 --batch 16 --classes 4 --files 256 --dtype float32 --rate 0.001 \\
      --steps 60                                            # a minute on two CPU cores, and the loss falls
  python examples/resnet50.py --pictures ~/photos …         # pictures of your own, in a folder for each class

The model is Keras's own, and tfuse adds tfuse.enable(), and that is all. Without --pictures, JPEG files are drawn once, and
kept for the next time: stripes whose colours and angle tell the class. They are decoded, cropped and mirrored on the CPU
while the GPU trains (pictures.py). At the end the last batch is taken again and again, without any input: how much less a
step takes then is the share of its time that it waits for input.

The same in PyTorch is `models_torch.py --model resnet50`; `compare.py --models resnet50` measures all of them.
"""

import argparse
import itertools
import json
import pathlib
import sys
import tempfile

import keras
import tensorflow as tf
import tfuse

import pictures
import training
from workloads import DEVIATION, MEAN

MOMENTUM, DECAY = 0.9, 1e-4
AGAIN = 30  # steps without input, at most


def make_model(options):
    keras.utils.set_random_seed(options.seed)
    keras.config.set_dtype_policy(options.dtype)
    model = keras.applications.ResNet50(weights=None, input_shape=(options.image, options.image, 3), classes=options.classes,
                                        classifier_activation=None)
    optimizer = keras.optimizers.SGD(options.rate, momentum=MOMENTUM, weight_decay=DECAY)
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    model.compile(optimizer, jit_compile=False)  # which wraps it for float16, to scale the loss
    model.optimizer.build(model.trainable_variables)
    return model


def mean_loss(model):
    """A function of a batch as the pipeline gives it: bytes, which become numbers around 0 where they are needed."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return lambda images, labels: loss(labels, model((tf.cast(images, tf.float32) - MEAN) / DEVIATION, training=True))


def batches(strategy, options):
    """Images and labels of every step, without end, where they are needed."""
    folder = options.pictures or pathlib.Path(tempfile.gettempdir(), "tfuse_pictures_%d_%d_%d" % (
        options.image, options.classes, options.files))
    pictures.made(folder, options.image, options.classes, options.files)
    paths, labels = pictures.labelled(folder)
    if not paths or max(labels) >= options.classes:
        sys.exit("%s must have pictures, FOLDER/CLASS/*.jpg, of at most %d classes (--classes)" % (folder, options.classes))
    print("%d pictures of %d classes in %s" % (len(paths), max(labels) + 1, folder), flush=True)
    data = strategy.distribute_datasets_from_function(
        lambda context: pictures.pipeline(paths, labels, options.image, options.batch, options.seed, context))
    return iter(training.ahead(data) if strategy.num_replicas_in_sync == 1 else data)


def train(model, strategy, options):
    """Returns the losses and what was measured; prints which share of a step's time the input takes."""
    data = batches(strategy, options)
    train_step = training.train_function(model, mean_loss(model), strategy, options.mode.endswith("xla"))
    measured = training.train(train_step, data, options, options.batch, "images")
    print("the last batch again and again:", flush=True)
    some = argparse.Namespace(**{**vars(options), "steps": min(options.steps, AGAIN)})
    fed = training.train(train_step, itertools.repeat(next(data)), some, options.batch, "images")["ms_per_step"]
    share = max(0.0, 1 - fed / measured["ms_per_step"])
    print("input takes %.1f%% of a step: %.2f ms with the pipeline, %.2f ms without" % (
        100 * share, measured["ms_per_step"], fed))
    return {**measured, "ms_without_input": fed, "input_share": share}


def parse(arguments=None):
    parser = training.parser(__doc__, [
        ("batch", 256, "images a step, over all replicas"), ("image", 224, "pixels on a side of an image"),
        ("classes", 1000, "of the model"), ("files", 4096, "pictures to draw, where there are none"),
        ("steps", 100, "steps to train"), ("seed", 1, "of the weights and of what is random in the input"),
        ("warmup", 5, "steps that are not timed"), ("every", 10, "steps between two lines")])
    parser.add_argument("--rate", type=float, default=0.1, help="learning rate (0.1)")
    parser.add_argument("--pictures", metavar="FOLDER", type=pathlib.Path,
                        help="take the pictures FOLDER/CLASS/*.jpg, or draw them there if there is no such folder")
    options = training.parsed(parser, arguments)
    if options.steps < 1:
        parser.error("--steps %d: there is nothing to measure" % options.steps)
    if options.image < 32:
        parser.error("--image %d: ResNet-50 halves an image five times, and takes no less than 32" % options.image)
    return options


def main(options):
    strategy = training.make_strategy(options.strategy, options.batch)  # first: several workers meet here
    if options.mode.startswith("tfuse"):
        tfuse.enable()
    with strategy.scope():
        model = make_model(options)
    print("%s, %s, %.1f million parameters, %d images of %d x %d a step" % (
        options.mode, options.dtype, model.count_params() / 1e6, options.batch, options.image, options.image), flush=True)
    measured = train(model, strategy, options)
    if options.json:
        options.json.write_text(json.dumps({**vars(options), **measured}, default=str))


if __name__ == "__main__":
    training.start(main, parse)
