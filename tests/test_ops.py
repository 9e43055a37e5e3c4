"""Every case of every op: values and gradients against float64, on every route, device and dtype; rejected inputs.

What the parameters of a test say, with the device, is a cell: case, options, dtype, route. `./run cells` prints them.
"""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import config

import cells
import tfuse
from conftest import FULL, SMALL, skip_broken_xla
from tfuse._core import _explain, _library, _op
from tfuse import cases
from tfuse.products.batched_matmul import fused

FAMILIES = {case.name: family for family, members in cases.all_cases().items() for case in members if case.shapes}
ALL = [case for members in cases.all_cases().values() for case in members if case.shapes]
VARIANTS = [(case, options) for case in ALL for options in case.options]
FIRST = [(case, case.options[min(1, len(case.options) - 1)]) for case in ALL]  # one variant each, not the trivial one
ROUTES = {
    "eager": lambda f: f,
    "graph": lambda f: tf.function(f, autograph=False),
    "unknown dims": None,
    "xla": lambda f: tf.function(f, autograph=False, jit_compile=True),
    "xla, unknown dims": None,
}


# What routes are tried with: an odd shape of three axes, nothing, more than a tile both ways.
ROUTED = [(3, 5, 129), (0, 8), (257, 1030)]


def full_name(case):
    """With the family's in it, so that `-k FAMILY` finds all that there is of one."""
    family = FAMILIES[case.name]
    return case.name if family in case.name else "%s: %s" % (family, case.name)


def label(value):
    if isinstance(value, cases.Case):
        return full_name(value)
    return " ".join(map(str, value.values())) if isinstance(value, dict) else None


def share(shapes, most, *places):
    """The shapes that one cell runs, chosen by its places in lists of things that shapes are to be met with.

    Cells take turns: of `most` cells next to each other in one list, each takes another part of the shapes, and so do cells
    next to each other in another list. Where both lists are at least `most` long, every shape is thus met with every entry
    of either list; not with every pair of them, as in the full product, which `./run test --config=full` runs.
    """
    most = min(most, len(shapes))
    return shapes if FULL else [shape for i, shape in enumerate(shapes) if (i - sum(places)) % most == 0]


def shapes_of(case, options, dtype, more=()):
    """Those of an eager cell: each shape of the case is met with every dtype, and with all of its options."""
    return share([*case.shapes, *more], min(len(case.options), len(cases.DTYPES)), case.options.index(options),
                 cases.DTYPES.index(dtype))


def shapes_on(route, dtype):
    """Those of a cell on another route: each of ROUTED is met with every dtype, and on every route."""
    return share(ROUTED, len(ROUTED), list(ROUTES).index(route), cases.DTYPES.index(dtype))


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
        # Of one number, a larger sample is no measure: many errors in a mean cancel. Other draws of it are.
        typical = lambda: (case.typical(dtype, options, shape) if np.size(w) == 1 else case.typical(dtype, options))[i]
        # Each of these allows at least as much as the one before, and takes longer: few results need the last.
        bounds = (lambda: cases.allowed(None, w, g.dtype.name), lambda: cases.allowed(naive()[i], w, g.dtype.name),
                  lambda: cases.allowed(naive()[i], w, g.dtype.name, typical()))
        error = cases.error(g, w)
        assert any(error <= bound() for bound in bounds), (
            "%s %s is off by %g, %g is allowed; plain TensorFlow is off by %g. Where terms cancel, the case's reference says how "
            "large they were: tfuse.cases.total, of_terms" % (name, shape, error, bounds[-1](), cases.error(naive()[i], w)))


@pytest.mark.parametrize("case, options", VARIANTS, ids=label)
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_eager(device, case, options, dtype):
    for shape in shapes_of(case, options, dtype):
        check(case, options, dtype, shape)


@pytest.mark.parametrize("route", list(ROUTES)[1:])
@pytest.mark.parametrize("case, options", FIRST, ids=label)
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_routes(device, route, case, options, dtype):
    for shape in shapes_on(route, dtype):
        check(case, options, dtype, shape, route)
    if "xla" in route and not _library.xla_status():
        wanted = "plain TensorFlow" if case.xla_own else "XLA custom call"
        assert [row["route"] for row in tfuse.explain() if row["when"] == "traced"][-1] == wanted


@pytest.mark.parametrize("route", ["xla"])
@pytest.mark.parametrize("case, options", [v for v in VARIANTS if v not in FIRST], ids=label)
@pytest.mark.parametrize("dtype", ["float32"])
def test_every_variant_in_xla(device, route, case, options, dtype):
    check(case, options, dtype, (257, 130), route)


@pytest.mark.parametrize("route", ["xla", "xla, unknown dims"])
@pytest.mark.parametrize("case, options", FIRST, ids=label)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_plain_in_xla(monkeypatch, device, route, case, options, dtype):
    """Where XLA takes no custom calls, as in TensorFlow 2.16 and 2.17, the plain composition serves. On a GPU, XLA's products
    are less exact than TensorFlow's own."""
    monkeypatch.setattr(_library, "xla_status", lambda: "none")
    check(case, options, dtype, (3, 5, 129), route, naive_route="xla" if "GPU" in device else "eager")
    assert [row["route"] for row in tfuse.explain() if row["when"] == "traced"][-1] == "plain TensorFlow"


# Functions, what is known of their inputs' shapes while they are traced, and shapes that they are then called with.
_UNKNOWN = {
    "batched_matmul's batches": (fused, [(None, 4, 5), (None, 5, 6)], [
        [(1, 4, 5), (3, 5, 6)], [(3, 4, 5), (1, 5, 6)], [(3, 4, 5), (3, 5, 6)], [(1, 4, 5), (0, 5, 6)]]),
    "batched_matmul's one batch": (fused, [(None, 4, 5), (3, 5, 3)], [[(1, 4, 5), (3, 5, 3)], [(3, 4, 5), (3, 5, 3)]]),
    "batched_matmul's batches of several axes": (fused, [(None, 4, 5), (None, None, 5, 6)], [[(3, 4, 5), (2, 1, 5, 6)]]),
    "attention's bias": (tfuse.attention, [(None, None, None, 8)] * 3 + [(None,) * 4], [
        [(3, 4, 2, 8), (3, 5, 2, 8), (3, 5, 2, 8), bias] for bias in [(1, 2, 1, 5), (3, 1, 4, 1), (3, 2, 4, 5)]]),
    "attention's bias alone": (tfuse.attention, [(3, 4, 2, 8), (3, 5, 2, 8), (3, 5, 2, 8), (None,) * 4], [
        [(3, 4, 2, 8), (3, 5, 2, 8), (3, 5, 2, 8), (1, 2, 4, 1)]]),
    "attention's mask": (lambda q, k, v, mask: tfuse.attention(q, k, v, mask=mask > -1), [(None, None, 2, 8)] * 3 + [
        (None,) * 4], [[(3, 4, 2, 8), (3, 5, 2, 8), (3, 5, 2, 8), mask] for mask in [(1, 2, 1, 5), (3, 1, 4, 1)]]),
    "softmax's mask": (lambda x, mask: tfuse.softmax(x, mask=mask), [(None, None, 5), (None, None, 5)], [
        [(3, 4, 5), (1, 4, 5)], [(3, 4, 5), (3, 1, 5)]]),
    "softmax's mask of fewer axes": (lambda x, mask: tfuse.softmax(x, mask=mask > -1), [(None, None, 5), (5, None)], [
        [(3, 5, 5), (5, 5)], [(3, 5, 5), (5, 1)]]),
    "softmax's mask alone": (lambda x, mask: tfuse.softmax(x, mask=mask), [(3, 4, 5), (None, None, None)], [
        [(3, 4, 5), (1, 4, 1)]]),
    "scale_bias_act's bias": (tfuse.scale_bias_act, [(None, 5), (5,), (None,)], [[(3, 5), (5,), (5,)]]),
    "layer_norm's beta": (tfuse.layer_norm, [(None, 5), (5,), (None,)], [[(3, 5), (5,), (5,)]]),
    "cross_entropy's targets": (lambda x, t: tfuse.cross_entropy(x, tf.nn.softmax(t)), [(None, None), (7, None)], [
        [(7, 5), (7, 5)]]),
}


@pytest.mark.usefixtures("xla")
@pytest.mark.parametrize("name", _UNKNOWN)
def test_unknown_sizes_that_differ(device, name):
    """XLA takes each output's sizes from the input that has them: of two that broadcast, not the one with 1; and two axes are
    not of one size because they are unknown both, or because a third one has what one of them has to have."""
    f, known, calls = _UNKNOWN[name]

    def step(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            y = f(*inputs)
        gradients = tape.gradient(y, inputs, tf.cos(y))
        return [y, *(g for g in gradients if g is not None)]

    compiled = tf.function(step, autograph=False, jit_compile=True, input_signature=list(map(tf.TensorSpec, known)))
    rng = np.random.default_rng(3)
    _explain._decisions.clear()
    for shapes in calls:
        inputs = [tf.constant(rng.normal(size=shape), tf.float32) for shape in shapes]
        for got, want in zip(compiled(*inputs), step(*inputs), strict=True):
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert {row["route"] for row in tfuse.explain() if row["when"] == "traced"} == {"XLA custom call"}


@pytest.fixture
def determinism():
    tf.config.experimental.enable_op_determinism()
    yield
    config.disable_op_determinism()


@pytest.mark.parametrize("case, options", VARIANTS, ids=label)
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_repeats_bit_for_bit(device, determinism, case, options, dtype):
    """Where TensorFlow asks for that, whatever serves it."""
    shapes = shapes_of(case, options, dtype, more=[(1037, 515)])
    if SMALL:
        shapes = [shape for shape in shapes if np.prod(shape) <= 1 << 17] or [min(shapes, key=np.prod)]
    for shape in shapes:
        tensors = case.tensors(shape, dtype)
        first, second = (case.step(case.run, tensors[:-1], tensors[-1], options) for _ in range(2))
        for a, b in zip(first, second):
            assert np.array_equal(cases.as64(a), cases.as64(b)), shape


@pytest.mark.parametrize("case, options", [v for v in FIRST if v[0].name in (
    "conv", "conv, groups", "conv_transpose", "conv_norm", "linear")], ids=label)
def test_exact_where_nothing_is_timed(device, determinism, case, options):
    """Where results have to repeat, no way is chosen by its time. It loses no more than the others."""
    for shape in case.shapes:
        check(case, options, "float32", shape)


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
    turned = lambda t: tf.logical_not(t) if t.dtype == tf.bool else -t
    every = lambda f, tensors: tf.nest.map_structure(f, tensors)
    for f in (lambda *t: cases.as_list(case.run(*t[:-1], **options)),
              lambda *t: case.step(case.run, t[:-1], t[-1], options)):
        # Turning is undone inside, so that what the op gets is nobody else's, and no copy that is optimised away.
        inside = on(route)(lambda *t: f(*every(turned, t)))
        for got, want in zip(inside(*every(turned, tensors)), f(*tensors), strict=True):
            assert np.array_equal(cases.as64(got), cases.as64(want))


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


@pytest.mark.parametrize("route", ["graph", "xla"])
@pytest.mark.parametrize("case, options", _OF_EACH, ids=label)
def test_second_gradient_of_a_function(route, case, options):
    """Where the tapes are outside, and the op alone is in a function."""
    run = lambda *inputs, **options: on(route)(functools.partial(case.run, **options))(*inputs)
    check_second_gradients(case, options, case.tensors((5, 6), "float64"), second_gradients(case, options, run))


@pytest.mark.parametrize("case, options", [v for v in VARIANTS if v[0].special], ids=label)
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_special_values(device, case, options, dtype):
    """NaN, infinities, zeros and the ends of the range come out as in stock TensorFlow, or as in float64, which older
    releases miss (2.16 gives gelu(-3e38) = -4e31)."""
    top = float(tf.as_dtype(dtype).max)
    values, shape = [np.nan, np.inf, -np.inf, 0.0, -0.0, top, -top, 1e-7], case.fit((1, 8))
    first, *others = case.inputs.values()
    x = tf.constant(np.resize(values, first.shape(shape)), dtype)
    others = [tf.cast(tf.ones(i.shape(shape)), i.dtype_in(dtype)) for i in others]
    got, stock = (cases.as64(cases.as_list(f(x, *others, **options))[0]) for f in (case.run, case.plain))
    with np.errstate(all="ignore"):
        exact = cases.as_list(case.reference(*map(cases.as64, (x, *others)), **options))[0]
        same = [(np.isnan(got) & np.isnan(want)) | (got == want) | (np.abs(got - want) <= 1e-2 * np.abs(want) + 1e-6)
                for want in (stock, exact)]
    assert np.all(same[0] | same[1]), "x %s: got %s, stock %s" % (cases.as64(x), got, stock)


def test_saturates(device):
    for sign in (1.0, -1.0):
        x = tf.constant([9.1, 12, 20, 1e30, np.inf], tf.float32) * sign
        assert np.all(tfuse.tanh(x).numpy() == sign)
        assert np.array_equal(tfuse.sigmoid(x * 12).numpy(), np.full(5, sign > 0, np.float32))


REJECTS = [(case, pattern, make) for case in ALL for pattern, make in case.rejects]


@pytest.mark.parametrize("route", ["eager", "graph", "xla"])
@pytest.mark.parametrize("case, pattern, make", REJECTS, ids=["%s: %s" % (full_name(c), p[:40]) for c, p, _ in REJECTS])
def test_rejects(route, case, pattern, make):
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=pattern):
        on(route)(make)()
    assert float(tf.add(1.0, 1.0)) == 2.0  # nothing aborted


GRADIENTS = sorted(name for name in _op.registry if name.endswith("Grad"))
# Axes of which any size will do: labels do not tell how many classes there are, results not how many values were reduced,
# along one axis or the other, nor, where there is padding, how large windows were.
_FREE = {"SparseCrossEntropyGrad": {"x": [1]}, "ReduceGrad": {"x": [0, 1]},
         "DepthwiseConvGrad": {"kernel": [0, 1]}, "AveragePoolGrad": {"dy": [0, 4]},
         "WeightedBincountGrad": {"dsums": [-1], "ids": [-1]}}
# Where not the argument itself is said to be wrong, since others are held against it: these.
_HELD = {"AttentionGrad": {"query": "doutput|bias|mask", "value": "doutput"}, "GatedGrad": {"a": "dy", "b": "dy"}}


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


def test_every_op_has_its_cells():
    """An op that no case runs, on some route or in some dtype, is not tested. And each shape of a case is met with every
    dtype and with all of its options; each of those that routes are tried with, with every dtype and on every route."""
    met = {(op, cell.dtype, cell.route) for cell in cells.of(test_eager, test_routes) for op in ops()[cell.case.name]}
    wanted = itertools.product(_op.registry, cases.DTYPES, ROUTES)
    assert sorted(set(wanted) - met) == []
    assert {(case.name, cells.words(options), dtype) for case, options in VARIANTS for dtype in cases.DTYPES} == {
        (cell.case.name, cells.words(cell.options), cell.dtype) for cell in cells.of(test_eager)}
    for case in ALL:
        runs = [(shape, options, dtype) for options in case.options for dtype in cases.DTYPES
                for shape in shapes_of(case, options, dtype)]
        assert {(shape, dtype) for shape, _, dtype in runs} == set(itertools.product(case.shapes, cases.DTYPES))
        assert {(shape, cells.words(options)) for shape, options, _ in runs} == set(
            itertools.product(case.shapes, map(cells.words, case.options)))
    runs = [(shape, route, dtype) for route in list(ROUTES)[1:] for dtype in cases.DTYPES
            for shape in shapes_on(route, dtype)]
    assert {run[:2] for run in runs} == set(itertools.product(ROUTED, list(ROUTES)[1:]))
    assert {run[::2] for run in runs} == set(itertools.product(ROUTED, cases.DTYPES))


@functools.lru_cache(None)
def gradient_calls():
    """By gradient op, the (attributes, inputs) that the cases call it with."""
    def of_lse(query, dlse):
        with tf.GradientTape() as tape:
            tape.watch(query)
            lse = tfuse.attention(query, query, query, return_lse=True)[1]
        return tape.gradient(lse, query, dlse)

    def read_twice(x, training):
        y = tfuse.batch_norm(x, None, None, tf.zeros([3]), tf.ones([3]), training)[0]
        return tf.gradients(tf.sin(y) + tf.cos(y), x)

    def by_signs(x):
        ones = [tf.ones([3])] * 4
        return tf.gradients(_op.registry["BatchNorm"](x, *ones, tf.identity(x), _op.sized(1), activation="relu")[0], x)

    calls = {}
    more = [(of_lse, tf.ones([2, 5, 4, 8]), tf.ones([2, 4, 5])), (read_twice, tf.ones([4, 3]), True),
            (read_twice, tf.ones([4, 3]), False), (by_signs, tf.ones([4, 3, 1]))]
    for graph in [*graphs().values(), *(tf.function(f).get_concrete_function(*inputs).graph for f, *inputs in more)]:
        for node in graph.get_operations():
            name = node.type.rpartition(">")[2]
            if name in GRADIENTS:
                attributes = {a: _op.registry[name]._attribute(node, a) for a in _op.registry[name]._attributes}
                calls.setdefault(name, []).append((attributes, [tf.zeros(i.shape, i.dtype) for i in node.inputs]))
    return calls


@pytest.mark.parametrize("name", GRADIENTS, ids=lambda name: _op.registry[name].stem)
def test_gradients_reject(device, name):
    """Whatever argument has another size on some axis, or an axis more, and what that is said to be."""
    op, given = _op.registry[name], set()
    arguments = [a.name for a in op._definition.input_arg]
    for attributes, inputs in gradient_calls()[name]:
        op(*inputs, **attributes)
        for i, (argument, tensor) in enumerate(zip(arguments, inputs)):
            if tensor.shape == [0]:
                continue
            given.add(argument)
            shapes = [[size + 7 * (a == axis) for a, size in enumerate(tensor.shape)] for axis in range(tensor.shape.rank)]
            for axis, shape in enumerate([*shapes, [*tensor.shape, 3]]):
                if {axis, axis - tensor.shape.rank} & set(_FREE.get(name, {}).get(argument, [])):
                    continue
                names = "|".join(filter(None, [argument, _HELD.get(name, {}).get(argument)]))
                wrong = r"%s: .*\b(%s)\b.*got" % (name, names)
                with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=wrong):
                    op(*inputs[:i], tf.zeros(shape, tensor.dtype), *inputs[i + 1:], **attributes)
    assert given == set(arguments)
