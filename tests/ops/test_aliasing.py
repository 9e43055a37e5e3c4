"""What an op may write over: inputs that nobody else needs."""

import numpy as np
import pytest
import tensorflow as tf

from case_runs import FIRST, label, on
from tfuse import cases

# Shapes of which the first input is as large as the first result, and neither is done with in one go.
_AS_LARGE = {"batched_matmul": (1, 2, 40, 270, 270), "linear": (1, 40, 270, 270), "matmul_own": (40, 270, 270),
             "gated_linear": (1, 40, 270, 270), "linear_cross_entropy": (1, 40, 270, 270),
             "attention": (2, 70, 70, 4, 2, 32)}


@pytest.mark.parametrize("route", ["graph"])
@pytest.mark.parametrize("case, options", FIRST, ids=label)
@pytest.mark.parametrize("dtype", ["float32"])
def test_memory_that_may_be_taken(device, determinism, route, case, options, dtype):
    """In a graph, an op may write its result over an input that nobody else needs. Only those do that get along with it:
    results are, bit for bit, those of inputs that are kept."""
    tensors = case.tensors(_AS_LARGE.get(case.name.split(",")[0], (40, 270)), dtype)
    flipped = lambda t: (tf.logical_not(t) if t.dtype == tf.bool else tf.bitwise.invert(t) if t.dtype.is_unsigned else -t)
    every = lambda f, tensors: tf.nest.map_structure(f, tensors)
    for f in (lambda *t: cases.as_list(case.run(*t[:-1], **options)),
              lambda *t: case.step(case.run, t[:-1], t[-1], options)):
        # Flipping is undone inside, so that what the op gets is nobody else's, and no copy that is optimised away.
        inside = on(route)(lambda *t: f(*every(flipped, t)))
        for got, want in zip(inside(*every(flipped, tensors)), f(*tensors), strict=True):
            assert np.array_equal(cases.as64(got), cases.as64(want))
