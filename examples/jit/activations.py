"""GELU, Swish and Mish as formulas beside tfuse's built-in ones: their values, and on a GPU their times."""

import time
import numpy as np
import tensorflow as tf
import tfuse

FORMULAS = {
    tfuse.gelu: "0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * pow(x, 3))))",
    tfuse.silu: "x / (1 + exp(-x))",
    tfuse.mish: "x * tanh(softplus(x))",
}


def microseconds(f, x, calls=100):
    f(x)[0, 0].numpy()  # compiled, and done
    start = time.perf_counter()
    for _ in range(calls):
        y = f(x)
    y[0, 0].numpy()
    return 1e6 * (time.perf_counter() - start) / calls


gpu = tf.config.list_physical_devices("GPU")
x = tf.random.uniform([8192, 4096] if gpu else [64, 4096], -4, 4)
for built_in, formula in FORMULAS.items():
    ours = tfuse.jit.elementwise("T x", "T y", formula, grad=True, name=built_in.__name__)
    times = ", %.0f us, built-in %.0f us" % (microseconds(ours, x), microseconds(built_in, x)) if gpu else ""
    print("%s: largest error %.1e%s" % (built_in.__name__, np.abs(ours(x) - built_in(x)).max(), times))
