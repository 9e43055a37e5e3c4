"""Every case of every op: values and gradients against float64, on every route, device and dtype."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

import cells
import tfuse
from case_runs import ALL, EMPTY, FIRST, LARGE, ODD, ROUTES, VARIANTS, check, label, ops, shapes_of, shapes_on
from conftest import FULL
from tfuse import cases
from tfuse._core import _library, _op


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


# Unknown sizes and casts are where compositions go wrong: what is simpler, in the full tests.
@pytest.mark.parametrize("route, dtype", [("xla, unknown dims", "bfloat16")] + [
    ("xla", "float32"), ("xla", "bfloat16"), ("xla, unknown dims", "float32")] * FULL)
@pytest.mark.parametrize("case, options", FIRST, ids=label)
def test_plain_in_xla(monkeypatch, device, route, case, options, dtype):
    """Where XLA takes no custom calls, as in TensorFlow 2.16 and 2.17, the plain composition serves. It is held against stock ops
    inside XLA, whose products and convolutions are less exact than TensorFlow's own."""
    monkeypatch.setattr(_library, "xla_status", lambda: "none")
    check(case, options, dtype, ODD, route, naive_route="xla")
    assert [row["route"] for row in tfuse.explain() if row["when"] == "traced"][-1] == "plain TensorFlow"


@pytest.mark.parametrize("case, options", [v for v in FIRST if v[0].name in (
    "conv", "conv, groups", "conv_transpose", "conv_norm", "linear")], ids=label)
def test_exact_where_nothing_is_timed(device, determinism, case, options):
    """Where results have to repeat, no way is chosen by its time. It loses no more than the others."""
    for shape in case.shapes:
        check(case, options, "float32", shape)


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
    assert {run[:2] for run in runs} == set(itertools.product([ODD, EMPTY, LARGE], list(ROUTES)[1:]))
    assert {run[::2] for run in runs} == set(itertools.product([ODD, EMPTY, LARGE], cases.DTYPES))
