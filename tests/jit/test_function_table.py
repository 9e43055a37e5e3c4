"""Every function of tfuse.jit's table at its corners and ends, and gradients of branches that are not taken."""

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

import tfuse
from formulas import gradient, run_program
from tfuse.jit._functions import FUNCTIONS, INFIX, SHORTHANDS

POINTS = [-np.inf, -1e30, -30, -2, -1, -0.5, -0.0, 0.0, 0.5, 1, 2, 30, 1e30, np.inf, np.nan]
SPELT = {**{token: "x %s z" % symbol for symbol, (_, token) in INFIX.items()}, "neg": "-x", "not": "!x"}


def kernel(name, arguments):
    names = "xzw"[:arguments]
    text = SPELT.get(name, "%s(%s)" % (name, ", ".join(names)))
    return tfuse.jit.elementwise(", ".join("T " + n for n in names), "T y", text, grad=True)


def points(arguments):
    few = POINTS if arguments < 3 else POINTS[::2] + [0.5]
    return [tf.constant(column, tf.float64) for column in np.array(list(itertools.product(few, repeat=arguments))).T]


def alike(got, want, rtol=1e-12):
    return np.isclose(got, want, rtol=rtol, atol=1e-15, equal_nan=True)


def check(name, what, at, got, want, rtol=1e-12):
    got = np.broadcast_to(got, at[0].shape)
    for i in np.flatnonzero(~alike(got, np.broadcast_to(want, got.shape), rtol))[:1]:
        pytest.fail("%s%s: %s is %s, not %s" % (name, [float(t[i]) for t in at], what, got[i],
                                                np.broadcast_to(want, got.shape)[i]))


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def clip(a, b, c):
    """At ties and of NaN as tf.maximum and tf.minimum, which go to their first argument where that is no less, or no more."""
    inner = np.maximum(a, b)
    return np.minimum(inner, c), (a >= b) & (inner <= c), 0, ~(a >= b) & (inner <= c), ~(inner <= c)


def gelu(a):
    whole, density = 0.5 * (1 + np.vectorize(math.erf)(a / np.sqrt(2))), np.exp(-a * a / 2) / np.sqrt(2 * np.pi)
    return a * whole, whole + a * density, density * (2 - a * a)


def silu(a):
    s = sigmoid(a)
    return a * s, s * (1 + a * (1 - s)), s * (1 - s) * (2 + a * (1 - 2 * s))


# The value, the derivative by the first argument, that of this one by the same, and derivatives by other arguments.
CLOSED = {
    "square": lambda a: (a * a, 2 * a, 2),
    "sign": lambda a: (np.sign(a), 0, 0),
    "relu": lambda a: (np.maximum(a, 0), a > 0, 0),
    "silu": silu,
    "softplus": lambda a: (np.logaddexp(0, a), sigmoid(a), sigmoid(a) * sigmoid(-a)),
    "gelu": gelu,
    "tan": lambda a: (np.tan(a), 1 + np.tan(a)**2, 2 * np.tan(a) * (1 + np.tan(a)**2)),
    "exp2": lambda a: (np.exp2(a), np.log(2) * np.exp2(a), np.log(2)**2 * np.exp2(a)),
    "log2": lambda a: (np.log2(a), 1 / a / np.log(2), -1 / a / a / np.log(2)),
    "clip": clip,
    "fma": lambda a, b, c: (a * b + c, b, 0, a, 1),
}


@pytest.mark.parametrize("name", ["softplus", *SHORTHANDS])
def test_shorthands_are_their_closed_forms(name, device):
    assert name in CLOSED, "write down its closed form, with first and second derivative"
    arguments = SHORTHANDS.get(name, (1,))[0]
    f, at = kernel(name, arguments), points(arguments)
    with np.errstate(all="ignore"):
        value, first, second, *others = CLOSED[name](*(t.numpy() for t in at))
        check(name, "the value", at, f(*at), value)
        check(name, "the program's value", at, run_program(f.kernel, at)[0], value)
    for i, (got, want) in enumerate(zip(gradient(f, *at), [first, *others])):
        check(name, "the gradient of argument %d" % i, at, got, want)
    twice = gradient(lambda x: gradient(lambda x: f(x, *at[1:]), x)[0], at[0])[0]
    check(name, "the second gradient", at, twice, second)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "stop"])  # it has no gradient, TensorFlow's has none
def test_functions_are_tensorflows(name, device):
    row = FUNCTIONS[name]
    f, at = kernel(name, len(row.gradients)), points(len(row.gradients))
    want = row.tensorflow(*at)
    if name == "erf":  # of an infinity, which stock TensorFlow takes for NaN on some processors
        want = tf.where(tf.math.is_inf(at[0]), tf.sign(at[0]), want)
    check(name, "the value", at, f(*at), want)
    for i, pair in enumerate(zip(gradient(f, *at), gradient(row.tensorflow, *at))):
        check(name, "the gradient of argument %d" % i, at, *pair)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_corners_in_other_dtypes(dtype, device):
    x = tf.constant([0, -0.0, np.nan], dtype)
    softplus, relu, sign = (kernel(name, 1) for name in ("softplus", "relu", "sign"))
    assert gradient(softplus, x)[0].numpy().tolist()[:2] == [0.5, 0.5]
    assert gradient(lambda x: gradient(softplus, x)[0], x)[0].numpy().tolist()[:2] == [0.25, 0.25]
    for f in (relu, sign, softplus):
        assert np.isnan(tf.cast(f(x), tf.float64)).tolist() == [False, False, True]
    assert relu(x).numpy().tolist()[:2] == [0, 0] and gradient(relu, x)[0].numpy().tolist() == [0, 0, 0]


# ---- branches that are not taken ----

BRANCHES = {  # with the derivative where x > 0; it is 0 elsewhere
    "x > 0 ? sqrt(x) : 0": lambda x: 0.5 / np.sqrt(x),
    "x > 0 ? rsqrt(x) : 0": lambda x: -0.5 * x**-1.5,
    "x > 0 ? log(x) : 0": lambda x: 1 / x,
    "x > 0 ? 1 / x : 0": lambda x: -1 / x**2,
    "x > 0 ? pow(x, 0.3) : 0": lambda x: 0.3 * x**-0.7,
    "x > 0 ? x * log(x) : 0": lambda x: np.log(x) + 1,
    "x <= 0 ? 0 : log1p(sqrt(x) - 1)": lambda x: 0.5 / x,
    "where(x > 0, log(x) * rsqrt(x), 3)": lambda x: x**-1.5 * (1 - 0.5 * np.log(x)),
    "x > 0 && x < inf ? exp(-1 / x) : 0": lambda x: np.exp(-1 / x) / x**2,
    "t = sqrt(x); y = x > 2 ? t : x > 0 ? 3 * t : 0": lambda x: np.where(x > 2, 0.5, 1.5) / np.sqrt(x),
    "t = log(x); y = (x > 0 ? t : 0) + (x > 2 ? t : 0)": lambda x: np.where(x > 2, 2, 1) / x,
    "x > 0 ? (x > 2 ? log(x - 2) : sqrt(2 - x)) : 0": lambda x: np.where(
        x > 2, 1 / np.abs(x - 2), -0.5 / np.sqrt(np.abs(2 - x))),
}


@pytest.mark.parametrize("text", BRANCHES)
def test_a_branch_that_is_not_taken_leaves_the_gradient_alone(text, device):
    x = np.array([-3, -0.0, 0, 0.25, 1, 3, 4])
    f = tfuse.jit.elementwise("T x", "T y", text, grad=True)
    with np.errstate(all="ignore"):
        want, step = np.where(x > 0, BRANCHES[text](x), 0), 1e-5
        curved = np.where(x > 0, (BRANCHES[text](x + step) - BRANCHES[text](x - step)) / (2 * step), 0)
    assert alike(gradient(f, tf.constant(x))[0], want).all()
    second = lambda x: gradient(lambda x: gradient(f, x)[0], x)[0]
    assert alike(second(tf.constant(x)), curved, 1e-6).all()
    row = tfuse.jit.rows("T x", "T y", map=text, reduce="a + b", grad=True)
    assert alike(gradient(row, tf.constant(x))[0], want).all()


def test_gradients_are_linear_in_what_comes_in():
    """Also where that is 0: forward differentiation by two tapes asks for the gradient of a gradient there."""
    f = tfuse.jit.elementwise("T x", "T y", "x > 0 ? x * sqrt(x) : 0", grad=True)
    x, dy = tf.constant([-1.0, 0, 4], tf.float64), tf.zeros([3], tf.float64)
    assert np.array_equal(gradient(lambda dy: gradient(f, x, dy=dy)[0], dy)[0], [0, 0, 3])


def test_a_chain_of_corners_does_not_double():
    text = "\n".join("t%d = t%d > 0 ? t%d : 0.5 * t%d" % (i + 1, i, i, i) for i in range(40))
    f = tfuse.jit.elementwise("T x", "T y", text.replace("t0", "x") + "\ny = t40", grad=True)
    assert np.allclose(gradient(f, tf.constant([3.0, -1.0], tf.float64))[0], [1, 0.5**40], rtol=1e-12, atol=0)
    assert len(f._gradient_operation((0,))[0].kernel.program.split()) < 1000
