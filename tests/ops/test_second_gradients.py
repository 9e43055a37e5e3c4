"""The gradient of every gradient, against that of the composition."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from case_runs import FIRST, VARIANTS, label, on
from conftest import FULL
from tfuse import cases


def second_gradients(case, options, f):
    """The function of a case's tensors that gives them."""

    def step(*tensors):
        watched = [*case.differentiable(tensors[:-1]), *tf.nest.flatten(tensors[-1])]
        with tf.GradientTape() as tape:
            tape.watch(watched)
            first = case.step(f, tensors[:-1], tensors[-1], options)[len(case.outputs):]
        rng = np.random.default_rng(1)  # not ones: many gradients have rows or columns whose sum is nothing
        second = tape.gradient(first, watched, [tf.constant(rng.normal(size=f.shape)) for f in first],
                               unconnected_gradients="zero")
        return [tf.convert_to_tensor(g) for g in second]

    return step


# A variant of each op, inside XLA: what its gradient sees of the op is the same in all of them.
_OF_EACH = list({case.name.split(",")[0]: (case, options) for case, options in FIRST}.values())


@pytest.mark.parametrize("route, case, options", [("eager", *v) for v in VARIANTS] + [("xla", *v) for v in _OF_EACH], ids=label)
@pytest.mark.parametrize("dtype", ["float64"])
def test_second_gradient(route, case, options, dtype):
    """Of the gradient, against that of the composition."""
    tensors = case.tensors((5, 6), dtype)
    check_second_gradients(case, options, tensors, on(route)(second_gradients(case, options, case.run)))


def check_second_gradients(case, options, tensors, got):
    for g, w in zip(got(*tensors), second_gradients(case, options, case.plain)(*tensors), strict=True):
        # Stock TensorFlow keeps some constants in float32 even for float64.
        assert cases.error(g, cases.as64(w)) < 1e-6


@pytest.mark.parametrize("route, case, options", [(route, *v) for i, v in enumerate(_OF_EACH) for route in (
    ["graph", "xla"] if FULL else ["xla" if i % 2 else "graph"])], ids=label)
def test_second_gradient_of_a_function(route, case, options):
    """Where the tapes are outside, and the op alone is in a function; without --config=full, one route for each op in turn."""
    run = lambda *inputs, **options: on(route)(functools.partial(case.run, **options))(*inputs)
    check_second_gradients(case, options, case.tensors((5, 6), "float64"), second_gradients(case, options, run))
