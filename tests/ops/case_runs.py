"""What the tests of this folder share: every case of every op, the routes that it is run on, and the bound of its error.

What the parameters of a test say, with the device, is a cell: case, options, dtype, route. `./run cells` prints them.
"""

import functools

import numpy as np
import tensorflow as tf

import conftest
from conftest import FULL, GPUS, skip_broken_xla
from tfuse import cases
from tfuse._core import _op

FAMILIES = {case.name: family for family, members in cases.all_cases().items() for case in members}
ALL = [case for members in cases.all_cases().values() for case in members]
VARIANTS = [(case, options) for case in ALL for options in case.options]
FIRST = [(case, case.options[min(1, len(case.options) - 1)]) for case in ALL]  # one variant each, not the trivial one
ROUTES = {**conftest.ROUTES, "unknown dims": None, "xla, unknown dims": None}


def full_name(case):
    """With the family's in it, so that `-k FAMILY` finds all that there is of one."""
    family = FAMILIES[case.name]
    return case.name if family in case.name else "%s: %s" % (family, case.name)


def label(value):
    if isinstance(value, cases.Case):
        return full_name(value)
    return " ".join(map(str, value.values())) if isinstance(value, dict) else None


# ---- which shapes a cell runs ----


# What routes are tried with, and why.
ODD = (3, 5, 129)  # three axes, and rows of one element more than whole vectors
EMPTY = (0, 8)  # no elements
# More than a tile both ways, and rows of two elements more than whole vectors. Tiles of the CPU have fewer rows.
LARGE = (257 if GPUS or FULL else 129, 1030)
ROUTED = {  # one for each dtype: every shape on every route, and in every dtype
    # route              float32 float16 bfloat16 float64
    "graph":             [EMPTY, LARGE, ODD, EMPTY],
    "unknown dims":      [LARGE, ODD, EMPTY, LARGE],
    "xla":               [ODD, EMPTY, LARGE, ODD],
    "xla, unknown dims": [EMPTY, LARGE, ODD, EMPTY],
}

# Which part of a case's shapes an eager cell runs, where the case has several options: a line for each option, and again from
# the first on where there are more; a column for each dtype. Part 1 of 3 is the second shape and every third after it. As no
# number comes twice in a line or a column, but where dtypes are more, each shape is met with every option and every dtype, and
# not with every pair of them, as in `./run test --config=full`.
LATIN_SQUARES = [
    ["0000"],
    ["0101", "1010"],
    ["0120", "1201", "2012"],
    ["0123", "1230", "2301", "3012"],
]


def shapes_of(case, options, dtype, more=()):
    """Those of an eager cell: each shape of the case is met with every dtype, and with all of its options."""
    shapes = [*case.shapes, *more]
    square = LATIN_SQUARES[min(len(case.options), len(LATIN_SQUARES), len(shapes)) - 1]
    line = square[case.options.index(options) % len(square)]
    return shapes if FULL else shapes[int(line[cases.DTYPES.index(dtype)])::len(square)]


def shapes_on(route, dtype):
    """Those of a cell on another route."""
    return [ODD, EMPTY, LARGE] if FULL else [ROUTED[route][cases.DTYPES.index(dtype)]]


# ---- running ----


def on(route):
    """The function that puts another on a route."""
    if "xla" in route:
        skip_broken_xla()
    return ROUTES[route]


def traced(route, case, options, tensors, f=None):
    """step() of the case, or of another function, as a function of its tensors, on a route."""
    step = lambda *t: case.step(f or case.run, t[:-1], t[-1], options)
    if "unknown" not in route:
        return on(route)(step)
    on(route)
    # Outside XLA not even the rank is known; inside, the sizes that the first input has before its channels are unknown,
    # as in a Keras model.
    rows = tensors[0].shape[:-1]
    shape = lambda t: (None if "xla" not in route else [None if a < len(rows) and size == rows[a] else size
                                                        for a, size in enumerate(t.shape)]) if t.shape.rank else []
    return tf.function(step, autograph=False, jit_compile="xla" in route, input_signature=tf.nest.map_structure(
        lambda t: tf.TensorSpec(shape(t), t.dtype), tensors))


def check(case, options, dtype, shape, route="eager", naive_route="eager"):
    """Holds values and gradients against float64: at most twice the error of the naive composition, cases.allowed()."""
    tensors = case.tensors(shape, dtype)
    got = traced(route, case, options, tensors)(*tensors)
    want = case.truth(tensors[:-1], tensors[-1], options)
    naive = functools.lru_cache(None)(lambda: traced(naive_route, case, options, tensors, case.plain)(*tensors))
    results = case.results()
    assert len(got) == len(want) == len(results)
    for i, (name, g, w) in enumerate(zip(results, got, want)):
        assert g.dtype == results[name].dtype_in(dtype) and g.shape == np.shape(w), name
        assert np.all(np.isfinite(cases.as64(g))), (
            "%s %s is not finite everywhere; if an input must be positive, say, give its Input values=" % (name, shape))
        error = cases.error(g, w)
        if error <= cases.allowed(None, w, g.dtype.name):  # two roundings are allowed whatever the composition loses
            continue
        # Of one number, a larger sample is no measure: many errors in a mean cancel. Other draws of it are.
        typical = case.typical(dtype, options, shape) if np.size(w) == 1 else case.typical(dtype, options)
        bound = cases.allowed(naive()[i], w, g.dtype.name, typical[i])
        assert error <= bound, (
            "%s %s is off by %g, %g is allowed; plain TensorFlow is off by %g. Where terms cancel, the case's reference says how "
            "large they were: tfuse.cases.total, of_terms" % (name, shape, error, bound, cases.error(naive()[i], w)))


# ---- which ops a case runs ----


@functools.lru_cache(None)
def graphs():
    """The steps of all cases as graphs, by the case's name."""
    made = {}
    for case, options in FIRST:
        tensors = case.tensors((5, 6), "float32")
        made[case.name] = traced("graph", case, options, tensors).get_concrete_function(*tensors).graph
    return made


@functools.lru_cache(None)
def ops():
    """The registered ops that each case runs, gradients among them, by the case's name."""
    return {name: {node.type.rpartition(">")[2] for node in graph.get_operations()} & set(_op.registry)
            for name, graph in graphs().items()}
