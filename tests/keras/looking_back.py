"""What the tests of fusion by looking back share."""

import keras
import tensorflow as tf

from enabling import jit_of_ours, layer, normal, told

X = normal(3, 5, 8)
DENSE = layer(lambda: keras.layers.Dense(16), None, 5, 8)


def runs(op):
    """What the library ran of an op since start()."""
    return [row for row in told(op=op, when="ran") for _ in range(row["calls"])]


def joined():
    return [row["why"] for row in told(route="joined by looking back")]


def results(f, x, weights, jit):
    """f(x), and the gradients of x and of weights."""

    @tf.function(autograph=False, jit_compile=jit_of_ours(jit))
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
            total = tf.reduce_sum(tf.sin(tf.cast(y, tf.float32))) if y.shape.rank else y
        return y, tape.gradient(total, [x, *weights])

    y, gradients = step(tf.constant(x))
    return [y, *gradients]


def needed(graph):
    """The ops that a graph's results need."""
    found, ops = set(), [output.op for output in graph.outputs]
    while ops:
        op = ops.pop()
        if op not in found:
            found.add(op)
            ops += [tensor.op for tensor in op.inputs]
    return found
