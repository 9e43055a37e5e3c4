"""Trains a model of models.py by fit() on data that can be learned, and writes down the loss of every step. curves.py calls it.

  python examples/train_curve.py --model vit --row tfuse --small --steps 100
  python examples/train_curve.py --model gpt2 --row tfuse --float8    # of a model that is quantised to float8

All rows have the same weights and the same batches. Dropout is 0: tfuse drops other weights of attention than stock Keras,
by a rule of its own (docs/keras.md), and what is drawn otherwise would hide what is computed otherwise.
"""
import argparse
import itertools
import json
import pathlib

import numpy as np
import tensorflow as tf

import fitting
import models
import workloads
from curves import AGAIN, CURVES, EXACT, UNIT

POLICIES = list(UNIT)


def move(variables, seed):
    """Moves every weight up or down, as chance has it, by float32's unit: a unit in its last place, or two. That is as much
    as a rounding or two may do to it, and whatever is computed from it is rounded otherwise."""
    for i, weights in enumerate(variables):
        signs = tf.sign(tf.random.stateless_uniform(weights.shape, [seed, i], -1.0, 1.0))
        weights.assign(weights.value * (1 + 2.0**-23 * signs))


def losses(name, row, steps, small, rate, float8=False):
    """Of every step of fit().

    Keras divides the sum of weighted losses by the number of labels, not by the sum of the weights. How many labels count
    differs from batch to batch; divided by their share, a loss is the mean of those that count."""
    workload = workloads.WORKLOADS[name]
    sizes = workload.sizes(small, curve=True)
    batches = workload.batches(sizes, steps)
    shares = [float(np.mean(batch[2])) if len(batch) == 3 else 1 for batch in batches]
    model = models.build(name, sizes, float8)
    if row in AGAIN:
        move(model.trainable_variables, list(AGAIN).index(row))
    models.compile_model(model, row.endswith("xla") or row == EXACT, workload.optimizer, rate)
    each = fitting.EachLoss()
    model.fit(fitting.in_host_memory(batches), steps_per_epoch=steps, verbose=0, callbacks=[each])
    return [loss / share for loss, share in zip(each.losses, itertools.cycle(shares))]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=workloads.WORKLOADS, required=True)
    parser.add_argument("--row", choices=CURVES, required=True, help="again: stock, from weights moved by a rounding")
    parser.add_argument("--steps", type=int, default=300, help="(300)")
    parser.add_argument("--policy", choices=POLICIES, default=POLICIES[0], help="(%s)" % POLICIES[0])
    parser.add_argument("--small", action="store_true", help="sizes that a CPU trains in seconds, and ten times the rate")
    parser.add_argument("--float8", action="store_true", help="quantise the model to float8 before it is trained")
    parser.add_argument("--json", metavar="FILE", help="write the losses there")
    return parser.parse_args()


def main(options):
    models.set_up(options.row, EXACT if options.row == EXACT else options.policy)
    if options.policy == "float32":  # or its products are rounded to fewer bits on a GPU
        tf.config.experimental.enable_tensor_float_32_execution(False)
    rate = workloads.WORKLOADS[options.model].rate * (10 if options.small else 1)
    found = losses(options.model, options.row, options.steps, options.small, rate, options.float8)
    print("losses: " + " ".join("%.4f" % loss for loss in found))
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({"losses": found}))


if __name__ == "__main__":
    main(parse())
