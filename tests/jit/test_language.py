"""The language of tfuse.jit: what it means, what it refuses, dtypes, broadcasting, rows, and models."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import new_process
from formulas import run_program
from tfuse import cases
from tfuse.jit._functions import FUNCTIONS, SHORTHANDS

X = np.random.default_rng(0).normal(size=(5, 37))
FLOATS = ["float32", "bfloat16", "float16", "float64"]


def value(text, **numbers):
    """What an expression gives, in float64, by the composition and by the program."""
    names = list(numbers)
    function = tfuse.jit.elementwise(", ".join("T " + n for n in names), "T y", text)
    inputs = [tf.constant(float(v), tf.float64) for v in numbers.values()]
    y = function(*inputs).numpy()
    assert np.allclose(run_program(function.kernel, inputs)[0], y, rtol=1e-14, atol=0, equal_nan=True)
    return y


def gradient(f, *inputs, dy=None):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        y = f(*inputs)
    return tape.gradient(y, inputs, dy, unconnected_gradients="zero")


# ---- what texts mean ----


@pytest.mark.parametrize("text, want", [
    ("y = a + b * c", 2 + 3 * 5), ("y = (a + b) * c", 25), ("y = a - b - c", -6), ("y = a / b / c", 2 / 3 / 5),
    ("y = -a * b", -6), ("y = - -a", 2), ("y = a - -b", 5), ("y = !a + 1", 1), ("y = !(a - 2)", 1), ("y = +a", 2),
    ("y = a < b == 1", 1), ("y = a + 1 > b", 0), ("y = a + 1 >= b", 1), ("y = a <= 2 && b != 3 || c == 5", 1),
    ("y = 0 && 0 || 1", 1), ("y = 1 || 0 && 0", 1), ("y = a > b ? a : b", 3), ("y = 0 ? 1 : 0 ? 2 : 3", 3),
    ("y = 1 ? 0 ? 1 : 2 : 3", 2),
    ("y = where(a > b, a, b) + select(1, 10, 20)", 13), ("y = 1e2 + .5 + 2. + 1.5f + 1E-1", 104.1), ("y = 3f", 3),
    ("a * 2", 4), ("t = a; t = t * t; y = t + t", 8), ("y = a\n  + b\n  * c", 17), ("y = max(a,\n b)", 3),
    ("y = a *\n b;\n", 6),
    ("// a comment\ny = a // behind\n", 2), ("t = a + 1\n\n;y = t", 3), ("y = b; u = y", 3),
    ("y = fmaxf(a, fminf(b, c)) + fabs(-a)", 5),
    ("y = pow(a, 2) + pow(a, 3) + pow(a, 0.5) + pow(a, -1)", 4 + 8 + 2**.5 + .5), ("y = pi", np.pi),
    ("y = -inf", -np.inf),
    ("y = square(b) + sign(-a) + clip(c, a, b) + fma(a, b, c) + exp2(b) + log2(8)", 9 - 1 + 3 + 11 + 8 + 3),
    ("y = tan(a) - sin(a) / cos(a) + stop(b)", 3), ("y = max(0 / 0, a)", np.nan), ("y = min(a, 0 / 0)", np.nan),
])
def test_meaning(text, want):
    assert np.allclose(value(text, a=2, b=3, c=5), want, rtol=1e-15, equal_nan=True)


def test_long_texts_nest_and_repeat():
    """Neither the parser, nor programs, nor gradients grow with the tree that repeated locals stand for."""
    doubled = "t0 = x\n" + "\n".join("t%d = t%d * 0.5 + t%d * 0.5" % (i + 1, i, i) for i in range(60)) + "\ny = t60"
    function = tfuse.jit.elementwise("T x", "T y", doubled, grad=True)
    x = tf.constant(X)
    assert np.allclose(function(x), X) and np.allclose(gradient(function, x)[0], 1)
    long_sum = tfuse.jit.elementwise("T x", "T y", "y = " + " + ".join(["x"] * 3000), grad=True)
    assert np.allclose(long_sum(x), 3000 * X) and np.allclose(gradient(long_sum, x)[0], 3000)
    nested = tfuse.jit.elementwise("T x", "T y", "y = " + "sin(1 + " * 60 + "x" + ")" * 60, grad=True)
    assert np.allclose(run_program(nested.kernel, [X])[0], nested(x))


def test_more_than_a_kernel_holds_is_computed_all_the_same():
    names = ["x%d" % i for i in range(20)]
    function = tfuse.jit.elementwise(", ".join("T " + n for n in names), "T y",
                                     " + ".join(n + " * " + n for n in names), grad=True)
    inputs = [tf.constant(X + i) for i in range(20)]
    assert np.allclose(function(*inputs), sum((X + i)**2 for i in range(20)))
    assert any("at most 16 inputs, this one 20" in row["why"] for row in tfuse.explain())
    for i, g in enumerate(gradient(function, *inputs)):
        assert np.allclose(g, 2 * (X + i))


# ---- what is refused, and how ----


def refused(make, error=ValueError):
    with pytest.raises(error) as raised:
        make()
    return str(raised.value)


@pytest.mark.parametrize("text, problem, marked", [
    ("y = x + bta", "unknown name 'bta' (is it beta?); known are x, beta", "bta"),
    ("y = foo(x)", "unknown function 'foo'", "foo"), ("y = sgmoid(x)", "(is it sigmoid?)", "sgmoid"),
    ("y = exp(x, beta)", "exp takes 1 argument, got 2", "exp"), ("y = max(x)", "max takes 2 arguments, got 1", "max"),
    ("y = exp()", "exp takes 1 argument, got 0", "exp"), ("y = exp + x", "'exp' is a function: write exp(…)", "exp"),
    ("y = x +", "expected a value, got the end", None),
    ("y = (x + beta", "expected ')' for the '(' at character 5, got the end", None),
    ("y = x beta", "expected an operator or the end of the statement, got 'beta'", "beta"),
    ("t = x\ny = t ^ 2", "'^' has no meaning here; powers are pow(a, b)", "^"), ("y = x % 2", "remainder", "%"),
    ("y = x[0]", "tfuse.jit.raw", "["), ("y = 1.2.3", "this is no number", "1.2.3"),
    ("y = 2x", "this is no number", "2x"),
    ("y = 1e999", "larger than any number", "1e999"), ("y = x ? 1", "expected ':' of \"condition ? a : b\"", None),
    ("x = 1; y = x", "'x' is given and cannot be assigned to", "x"), ("", "nothing is computed", None),
    ("\n;", "nothing is computed", None),
    ("x * 2; y = x", "only the last statement may do without", "x"), ("y = , x", "expected a value, got ','", ","),
    ("y = max(x beta)", "expected ')' behind the arguments of max, got 'beta'", "beta"),
    ("y = t; t = x", "unknown name 't'", "t;"), ("y = x ** 2", "got '*'; powers are pow(a, b)", "* 2"),
    ("y = x; y += 1", "got '='; write y = y + 1", "= 1"), ("y = x # twice", "comments begin with //", "#"),
    ("float a = x; y = a", "write name = value, without this", "float"),
    ("return x", "write name = value, without this", "return"),
])
def test_errors_in_texts_show_the_place(text, problem, marked):
    message = refused(lambda: tfuse.jit.elementwise("T x, R beta", "T y", text, name="swish"))
    assert message.startswith("swish, in the formula: ") and problem in message, message
    *_, line, caret = message.split("\n")
    if marked:
        assert line[caret.index("^"):].startswith(marked) and line.strip() in text


@pytest.mark.parametrize("inputs, outputs, problem, marked", [
    ("T x, beta", "T y", "'beta' does not declare one of the inputs", "beta"),
    ("T x,, R b", "T y", "is missing here", ","),
    ("", "T y", "is missing here", ""), ("T x", "", "of outputs is missing", ""),
    ("float x", "T y", "'float' is no placeholder", "float"),
    ("T x, T x", "T y", "'x' is declared twice", "x"), ("T x, T 2y", "T y", "does not declare", "T 2y"),
    ("T x", "Ty", "does not declare one of the outputs", "Ty"),
])
def test_errors_in_declarations_show_the_place(inputs, outputs, problem, marked):
    message = refused(lambda: tfuse.jit.elementwise(inputs, outputs, "y = x"))
    assert problem in message, message
    *_, line, caret = message.split("\n")
    assert line[caret.index("^"):].startswith(marked)


@pytest.mark.parametrize("make, problem", [
    (lambda: tfuse.jit.elementwise("T x", "U y", "y = x"),
     "output y is U, which stands for the dtype of an input, and no input is U"),
    (lambda: tfuse.jit.elementwise("T x", "T x", "x = x"), "cannot be assigned to"),
    (lambda: tfuse.jit.elementwise("T x, T y", "T y", "t = x"),
     "must assign every output; y is missing, assigned are t"),
    (lambda: tfuse.jit.elementwise("T x, T y", "T y", "x"), "y is declared as an input and as an output"),
    (lambda: tfuse.jit.elementwise("T x", "T y, T z", "y = x"),
     "must assign every output; z is missing, assigned are y"),
    (lambda: tfuse.jit.elementwise("T x", "T y", "x", name="two words"), "name must be letters, digits and _"),
    (lambda: tfuse.jit.elementwise("T x", "T y", 3), "the formula must be text, got 3"),
    (lambda: tfuse.jit.elementwise("T x", "T y", "x", grad=3), "grad must be True, text, a function or None, got 3"),
    (lambda: tfuse.jit.elementwise("T x", "T y", "x", grad="dz = dy"), "grad assigns none of dx"),
    (lambda: tfuse.jit.elementwise("T x", "T y", "x", grad="dx = dw"),
     "in grad: unknown name 'dw'; known are x, y, dy"),
    (lambda: tfuse.jit.elementwise("T x, T dy", "T y", "x", grad="dx = dy"),
     "dy is declared and is also the gradient of y; rename it"),
    (lambda: tfuse.jit.rows("T x", "T y", map="x", reduce="a - b"), "needs an identity"),
    (lambda: tfuse.jit.rows("T x", "T y", map="x", reduce="a + c"), "in reduce: unknown name 'c'; known are a, b"),
    (lambda: tfuse.jit.rows("T x", "T y", map=["x", "x"], reduce=["a + b", "a * b", "a + b"]),
     "map has 2 passes, reduce 3"),
    (lambda: tfuse.jit.rows("T x", "T y", map=["x - r1", "x"], reduce="a + b"), "in map of pass 0: unknown name 'r1'"),
    (lambda: tfuse.jit.rows("T x", "T y", map="x = x", reduce="a + b"), "'x' is given and cannot be assigned to"),
    (lambda: tfuse.jit.rows("T x", "T y", map="result = x", reduce="a + b"), "the result is called result"),
    (lambda: tfuse.jit.rows("T n", "T y", map="n", reduce="a + b"), "n has a meaning in rows"),
    (lambda: tfuse.jit.rows("T x", "T y", map="x", reduce="a + b", post="y = x", final="y = 1"), "not both"),
    (lambda: tfuse.jit.rows("T x", "T y, T z", map="x", reduce="a + b", final="y = 1; z = 2"),
     "rows without post have one output"),
    (lambda: tfuse.jit.rows("T x", "T y", map="x", reduce="a * b", grad=True),
     "grad=True takes a reduce of a + b, max(a, b) or min(a, b)"),
    (lambda: tfuse.jit.rows("T x", "T y", map="x", reduce="a + b", identity="x"), "in identity: unknown name 'x'"),
])
def test_errors_before_anything_runs(make, problem):
    assert problem in refused(make)


def test_errors_of_calls():
    f = tfuse.jit.elementwise("T x, T z, R beta", "T y", "x + z * beta", name="mine")
    x = tf.ones([2, 3])
    assert np.all(f(x, x, tf.constant(1.)).numpy() == 2)  # so that these dtypes are known, and the short way is tried
    assert "got x (2, 3), z (2,), beta ()" in refused(lambda: f(x, tf.ones([2]), tf.constant(1.)))
    assert "mine takes 3 inputs (x, z, beta), got 1" in refused(lambda: f(x), TypeError)
    other, half = tf.cast(x, tf.float64), tf.constant(1, tf.float16)
    assert "x and z are both T and must have one dtype, got float32 and float64" in refused(lambda: f(x, other, 1))
    assert "beta must be float32, the type that is computed in, got float16" in refused(lambda: f(x, x, half))
    assert "shapes must broadcast, got x (2, 3), z (2,), beta ()" in refused(lambda: f(x, tf.ones([2]), 1))
    assert "x must be float32 or" in refused(lambda: f(tf.cast(x, tf.complex64), 1, 1))
    assert "must be a dense tensor" in refused(lambda: f(x, tf.RaggedTensor.from_row_splits([1.], [0, 1]), 1))
    assert "z must be a dense tensor, an array or a number, got None" in refused(lambda: f(x, None, 1))
    assert "output y is T, which is int32 in this call" in refused(lambda: f(tf.ones([2], tf.int32), 1, 1))
    rows = tfuse.jit.rows("T x, T z", "T y", map="x * z", reduce="a + b", name="dot")
    assert "dot: z (4, 3) must broadcast to x (3,)" in refused(lambda: rows(tf.ones([3]), tf.ones([4, 3])))
    assert "x must have at least one axis" in refused(lambda: rows(tf.constant(1.), 1.))
    missing = refused(lambda: gradient(f, x, x, tf.constant(1.)), LookupError)
    assert "mine has no gradient: make it with grad=True" in missing


# ---- elementwise ----


@pytest.mark.parametrize("dtype", FLOATS)
def test_dtypes_and_mixed_placeholders(dtype, device):
    f = tfuse.jit.elementwise("T x, U mask, V scale, R beta", "T y, V z", "y = mask ? x * beta : 0; z = scale * beta",
                              grad=True)
    x, scale = tf.constant(X, dtype), tf.constant(X[0], tf.float32)
    for mask in (X > 0, (X > 0).astype(np.int32) * 3, (X > 0).astype(np.int64)):
        mask = tf.constant(mask)
        y, z = f(x, mask, scale, 0.5)
        assert y.dtype == dtype and z.dtype == tf.float32 and y.shape == z.shape == X.shape
        assert np.array_equal(tf.cast(y, tf.float64), np.where(X > 0, tf.cast(x, tf.float64) * 0.5, 0))
        with tf.GradientTape() as tape:
            tape.watch([x, mask, scale])
            y, z = f(x, mask, scale, 0.5)
        dx, dmask, dscale = tape.gradient([y, z], [x, mask, scale])
        assert dmask is None and dx.dtype == dtype and dscale.shape == scale.shape
        assert np.array_equal(tf.cast(dx, tf.float64), (X > 0) * 0.5) and np.allclose(dscale, 0.5 * 5)


def test_numbers_arrays_and_variables():
    f = tfuse.jit.elementwise("T x, R beta", "T y", "x * beta")
    for dtype in FLOATS:
        for beta in (2, 2.0, np.float32(2), np.int64(2), True + 1):
            y = f(tf.constant([1, 2], dtype), beta)
            assert y.dtype == dtype and y.numpy().tolist() == [2, 4]
    assert f(tf.Variable([1., 2.]), tf.Variable(2.)).numpy().tolist() == [2, 4]
    assert f([1., 2.], [3., 4.]).numpy().tolist() == [3, 8] and f(3, 4).dtype == tf.float32
    assert f(np.ones(2), np.ones(2)).dtype == tf.float64
    same = tfuse.jit.elementwise("T x, T z", "T y", "x + z")
    assert same(1, tf.constant([1, 2], tf.float16)).dtype == tf.float16
    assert same(np.ones(2), tf.ones(2, tf.bfloat16)).dtype == tf.bfloat16


def test_another_number_is_the_same_kernel():
    f, seen = tfuse.jit.elementwise("T x, R beta", "T y", "x * beta"), []
    traced = tf.function(lambda x, beta: seen.append(1) or f(x, beta))
    assert [traced(tf.ones([2]), tf.constant(b)).numpy()[0] for b in (1., 2., 3.)] == [1, 2, 3] and len(seen) == 1


def test_numbers_that_are_kept_as_tensors():
    """From call to call, by value, type and the other inputs' dtypes."""
    f = tfuse.jit.elementwise("T x, R beta", "T y", "x * beta")
    for _ in range(2):
        for beta in (2, 2.0, 0.0, True, *range(300)):
            for dtype in (tf.float32, tf.float64, tf.bfloat16):
                y = f(tf.ones([2], dtype), beta)
                assert y.dtype == dtype and np.all(tf.cast(y, tf.float64) == float(tf.cast(beta, dtype)))
        assert np.all(np.isnan(f(tf.ones([2]), float("nan"))))
    assert len(f._ready) <= 256


SHAPES = [((2, 3, 4), (3, 1)), ((4,), (2, 3, 4)), ((2, 1, 4), (1, 3, 1)), ((), (5,)), ((0, 3), (3,)), ((2, 3), (2, 3)),
          ((), ()), ((1,), (1, 1))]


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_broadcasting(shapes, known, device):
    """Gradients of what was broadcast are summed, whether sizes are known or not."""
    f = tfuse.jit.elementwise("T x, T z", "T y", "x * exp(z)", grad=True)
    draw = np.random.default_rng(3)
    x, z = (tf.constant(draw.normal(size=s)) for s in shapes)
    both = lambda x, z: (f(x, z), *gradient(f, x, z))
    if not known:
        both = tf.function(both, input_signature=[tf.TensorSpec([None] * len(s), tf.float64) for s in shapes])
    y, dx, dz = both(x, z)
    assert np.allclose(y, x.numpy() * np.exp(z.numpy()))
    wants = gradient(lambda x, z: x * tf.exp(z), x, z)
    for got, want in zip((dx, dz), wants):
        assert got.shape == want.shape and np.allclose(got, want, rtol=1e-13, atol=1e-14)


def test_an_output_that_uses_no_input_has_the_shape_of_all():
    f = tfuse.jit.elementwise("T x, T z", "T y, T u", "y = 2; u = z", grad=True)
    y, u = f(tf.ones([2, 1]), tf.ones([3]))
    assert y.shape == u.shape == [2, 3] and np.all(y.numpy() == 2)
    dx, dz = gradient(lambda x, z: f(x, z)[0], tf.ones([2, 1]), tf.ones([3]))
    assert not np.any(dx) and not np.any(dz) and dx.shape == [2, 1]


def test_outputs_that_are_inputs_have_gradients():
    f = tfuse.jit.elementwise("T x", "T y, T u, T v", "y = x; u = x; v = x * x", grad=True)
    x = tf.constant(X)
    assert np.allclose(gradient(lambda x: f(x)[0] + 2 * f(x)[1] + f(x)[2], x)[0], 3 + 2 * X)
    second = gradient(lambda x: gradient(lambda x: sum(y * y for y in f(x)), x)[0], x)[0]
    assert np.allclose(second, 4 + 12 * X * X)


def test_gradient_as_text():
    f = tfuse.jit.elementwise("T x, R beta, T z", "T y", "y = x * sigmoid(beta * x) + z",
                              grad="""s = sigmoid(beta * x)
                                      dx = dy * (s + beta * (y - z) * (1 - s)); dbeta = dy * x * x * s * (1 - s)""")
    x, beta, z = tf.constant(X), tf.constant(1.5, tf.float64), tf.constant(X[::-1].copy())
    naive = lambda x, beta, z: x * tf.sigmoid(beta * x) + z
    (dx, dbeta, dz), want = gradient(f, x, beta, z), gradient(naive, x, beta, z)
    assert np.allclose(dx, want[0]) and np.allclose(dbeta, want[1]) and not np.any(dz)  # z is left out: 0
    second = lambda f: gradient(lambda x: gradient(lambda x: f(x, beta, z), x)[0], x)[0]
    assert np.allclose(second(f), second(naive))  # through y, which the text uses


def test_gradient_as_function():
    f = tfuse.jit.elementwise("T x, T z", "T y", "x * z", grad=lambda x, z, y, dy: (dy * z, dy * y / z))
    x, z = tf.constant(X), tf.constant(X[::-1].copy())
    assert all(np.allclose(a, b) for a, b in zip(gradient(f, x, z), (z, x)))
    wrong = tfuse.jit.elementwise("T x, T z", "T y", "x * z", grad=lambda x, z, y, dy: dy)
    assert "a gradient, or None, for each of x, z; got 1" in refused(lambda: gradient(wrong, x, z))


@pytest.mark.parametrize("text, naive", [
    ("abs(x)", tf.abs), ("max(x, z)", None), ("min(x, z)", None), ("relu(x)", tf.nn.relu), ("sign(x)", tf.sign),
    ("x > 0 ? x : z", None), ("clip(x, -1, 1)", None)])
def test_gradients_at_ties_are_tensorflows(text, naive):
    x, z = tf.constant([0., 0., 1., -1., 2.]), tf.constant([0., 1., 1., -1., -2.])
    naives = {"max(x, z)": tf.maximum, "min(x, z)": tf.minimum, "x > 0 ? x : z": lambda x, z: tf.where(x > 0, x, z),
              "clip(x, -1, 1)": lambda x, z: tf.minimum(tf.maximum(x, -1), 1)}
    want = gradient(naives.get(text, lambda x, z: naive(x) if naive else x), x, z)
    for g, w in zip(gradient(tfuse.jit.elementwise("T x, T z", "T y", text, grad=True), x, z), want):
        assert np.array_equal(g, w)


def test_every_function_has_a_gradient():
    """Each against a difference, where it is smooth."""
    calls = {**{n: len(row.gradients) for n, row in FUNCTIONS.items()},
             **{n: count for n, (count, _) in SHORTHANDS.items()}}
    for name, count in calls.items():
        if name in "and or not neg add sub mul div lt le gt ge eq ne stop".split():
            continue  # operators, which formulas of test_gradients have; stop, which has none
        names = "xzw"[:count]
        f = tfuse.jit.elementwise(", ".join("T " + n for n in names), "T y", "%s(%s)" % (name, ", ".join(names)),
                                  grad=True)
        at, step = [tf.constant(v, tf.float64) for v in (0.7, 0.4, 1.3)][:count], 1e-6
        for i, got in enumerate(gradient(f, *at)):
            moved = [f(*(t + s * step * (k == i) for k, t in enumerate(at))) for s in (1, -1)]
            assert abs(got - (moved[0] - moved[1]) / (2 * step)) < 1e-8, name


# ---- rows ----


SOFTMAX = dict(map=["x", "exp(x - stop(r0))"], reduce=["max(a, b)", "a + b"], post="y = exp(x - stop(r0)) / r1")
THROUGH_MAX = dict(map=["x", "exp(x - r0)"], reduce=["max(a, b)", "a + b"], post="y = exp(x - r0) / r1")
NORM = dict(map=["total = x", "squares = square(x - total / n)"], reduce="a + b",
            post="y = (x - total / n) * rsqrt(squares / n + eps) * gamma")
ROWS = {  # declarations of inputs, arguments, a naive composition, inputs besides x
    "abs_max": ("T x", dict(map="abs(x)", reduce="max(a, b)", identity="0"), lambda x: tf.reduce_max(tf.abs(x), -1),
                []),
    "min": ("T x", dict(map="x", reduce="fmin(a, b)", keepdims=True), lambda x: tf.reduce_min(x, -1, keepdims=True),
            []),
    "mean": ("T x", dict(map="x", reduce="a + b", final="result / n"), lambda x: tf.reduce_mean(x, -1), []),
    "softmax": ("T x", SOFTMAX, tf.nn.softmax, []),
    "rms": ("T x, R eps", dict(map="x * x", reduce="a + b", final="y = sqrt(result / n + eps)"),
            lambda x, eps: tf.sqrt(tf.reduce_mean(x * x, -1) + tf.cast(eps, x.dtype)), [np.float64(1e-3)]),
    "layer_norm": ("T x, R eps, T gamma", NORM, lambda x, eps,
                   gamma: gamma * (x - tf.reduce_mean(x, -1, keepdims=True)) * tf.math.rsqrt(
        tf.math.reduce_variance(x, -1, keepdims=True) + tf.cast(eps, x.dtype)), [np.float64(1e-3), X[1]]),
    "dot": ("T x, U z", dict(map="x * z", reduce="a + b"), lambda x, z: tf.reduce_sum(x * tf.cast(z, x.dtype), -1),
            [X[2]]),
    "logsumexp": ("T x", dict(map=["top = x", "total = exp(x - stop(top))"], reduce=["max(a, b)", "a + b"],
                              final="log(total) + stop(top)"),
                  lambda x: tf.reduce_logsumexp(x, -1), []),
}


def softmax_through_max(x):
    e = tf.exp(x - tf.reduce_max(x, -1, keepdims=True))
    return e / tf.reduce_sum(e, -1, keepdims=True)


ROWS["softmax_through_max"] = "T x", THROUGH_MAX, softmax_through_max, []


def rows_case(name, grad=True):
    declared, arguments, naive, more = ROWS[name]
    return tfuse.jit.rows(declared, "T y", **arguments, grad=grad, name=name), naive, declared.split(", "), more


def rows_inputs(declared, more, dtype):
    kinds = {"T": dtype, "U": dtype, "R": "float64" if dtype == "float64" else "float32"}
    return [tf.constant(v, kinds[d[0]]) for d, v in zip(declared, [X, *more])]


def typical(naive, inputs, dtype):
    """Errors of the naive composition's value and gradients over a few larger draws, where luck plays no part."""
    draws = []
    for seed in range(1, 4):
        rng = np.random.default_rng(seed)
        drawn = [tf.constant(rng.normal(size=(64, 37)), dtype), *inputs[1:]]
        wide = [tf.cast(t, tf.float64) for t in drawn]
        want = naive(*wide)
        dy = tf.constant(rng.normal(size=want.shape), dtype)
        pairs = zip([naive(*drawn), *gradient(naive, *drawn, dy=dy)],
                    [want, *gradient(naive, *wide, dy=tf.cast(dy, tf.float64))])
        draws.append([cases.error(got, w.numpy()) for got, w in pairs])
    return [max(errors) for errors in zip(*draws)]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ROWS)
def test_rows(name, dtype, device):
    """Values and gradients, against the composition in float64; and of programs."""
    function, naive, declared, more = rows_case(name)
    inputs = rows_inputs(declared, more, dtype)
    wide = [tf.cast(t, tf.float64) for t in inputs]
    want, y = naive(*wide), function(*inputs)
    often, *often_of_gradients = typical(naive, inputs, dtype)
    assert y.dtype == dtype and y.shape == want.shape
    assert cases.error(y, want.numpy()) <= cases.allowed(naive(*inputs), want.numpy(), dtype, often)
    dy = tf.constant(np.random.default_rng(5).normal(size=want.shape), dtype)
    wants = gradient(naive, *wide, dy=tf.cast(dy, tf.float64))
    naives = gradient(naive, *inputs, dy=dy)
    for got, naive_one, w, often in zip(gradient(function, *inputs, dy=dy), naives, wants, often_of_gradients):
        assert got.shape == w.shape and cases.error(got, w.numpy()) <= cases.allowed(naive_one, w.numpy(), dtype, often)
    if dtype == "float64":
        assert cases.error(tf.constant(run_program(function.kernel, inputs)[0]), y.numpy()) < 1e-13
        derived, _ = function._gradient_operation(tuple(range(len(inputs))))
        known = dict(zip(function._gradient_names(), [*inputs, function._spread(y), function._spread(dy)]))
        tensors = [known[n] for n in derived.names]
        for got, plain in zip(run_program(derived.kernel, tensors), derived.kernel.plain(tensors)):
            assert cases.error(tf.constant(got), plain.numpy()) < 1e-12


@pytest.mark.parametrize("name", ["softmax", "softmax_through_max", "layer_norm", "rms", "logsumexp"])
def test_second_gradients_of_rows(name):
    function, naive, declared, more = rows_case(name)
    inputs = rows_inputs(declared, more, "float64")
    dy = tf.constant(np.random.default_rng(5).normal(size=naive(*inputs).shape))

    def second(f):
        return gradient(lambda *inputs: tf.add_n([tf.reduce_sum(tf.sin(g)) for g in gradient(f, *inputs, dy=dy)]),
                        *inputs)

    for got, want in zip(second(function), second(naive)):
        assert cases.error(got, want.numpy()) < 1e-11


def test_gradients_of_equal_maxima_are_shared():
    x = tf.constant([[1., 3., 3.], [2., 2., 2.], [-1., -5., -1.]])
    f = tfuse.jit.rows("T x", "T y", map="x", reduce="max(a, b)", grad=True)
    assert np.array_equal(gradient(f, x)[0], gradient(lambda x: tf.reduce_max(x, -1), x)[0])
    floored = tfuse.jit.rows("T x", "T y", map="x", reduce="max(a, b)", identity="0", grad=True)
    assert floored(x).numpy().tolist() == [3, 2, 0]
    assert np.allclose(gradient(floored, x)[0], [[0, .5, .5], [1 / 3] * 3, [0, 0, 0]])


@pytest.mark.parametrize("columns", [0, 1, 2, 3, 8, 37])
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_any_reduction(columns, known):
    """One that TensorFlow has not: the value of the largest magnitude."""
    f = tfuse.jit.rows("T x", "T y", map="x", reduce="abs(a) >= abs(b) ? a : b", identity=0)
    x = X[:, :columns]
    call = f if known else tf.function(f, input_signature=[tf.TensorSpec([None, None], tf.float64)])
    want = [row[np.argmax(np.abs(row))] if columns else 0 for row in x]
    assert np.array_equal(call(tf.constant(x)), want) and np.array_equal(run_program(f.kernel, [x])[0], want)


def test_an_unknown_number_of_axes():
    any_shape = tf.TensorSpec(None, tf.float64)
    for function in (rows_case("softmax")[0], rows_case("mean")[0],
                     tfuse.jit.elementwise("T x", "T y", "x * exp(x)", grad=True)):
        both = lambda x: (function(x), *gradient(function, x))
        for got, want in zip(tf.function(both, input_signature=[any_shape])(tf.constant(X)), both(tf.constant(X))):
            assert got.shape == want.shape and np.allclose(got, want, rtol=1e-13, atol=1e-15)


def test_text_of_a_gradient_sees_results_that_the_value_does_not_use():
    f = tfuse.jit.rows("T x, R eps", "T y", map=["x", "x * x"], reduce="a + b", final="r0 + eps",
                       grad="dx = dy * result")
    assert np.allclose(gradient(f, tf.constant(X), tf.constant(1., tf.float64))[0],
                       (X * X).sum(-1, keepdims=True) + 0 * X)


def test_rows_without_elements():
    total = tfuse.jit.rows("T x", "T y", map="x", reduce="a + b", grad=True)
    assert total(tf.ones([3, 0])).numpy().tolist() == [0] * 3 and total(tf.ones([0, 3])).shape == [0]
    assert gradient(total, tf.ones([3, 0]))[0].shape == [3, 0]


def test_gradient_of_rows_as_text_and_function():
    x, dy = tf.constant(X), tf.constant(X[:, 0])
    text = tfuse.jit.rows("T x", "T y", map="x * x", reduce="a + b", final="sqrt(result)", grad="dx = dy * x / y")
    function = tfuse.jit.rows("T x", "T y", map="x * x", reduce="a + b", final="sqrt(r0)",
                              grad=lambda x, y, dy: dy[:, None] * x / y[:, None])
    for f in (text, function):
        assert np.allclose(gradient(f, x, dy=dy)[0], gradient(lambda x: tf.norm(x, axis=-1), x, dy=dy)[0])
    uses = tfuse.jit.rows("T x", "T y", map="x", reduce="max(a, b)", post="x - result",
                          grad="dx = dy * (x < result) + n")
    assert np.allclose(gradient(uses, x)[0], (X < X.max(-1, keepdims=True)) + 37)


def test_several_outputs_of_rows():
    f = tfuse.jit.rows("T x", "T y, T z", map="x", reduce="a + b", post="y = x / result; z = result", grad=True)
    y, z = f(tf.constant(X))
    assert np.allclose(y, X / X.sum(-1, keepdims=True)) and np.allclose(z, X.sum(-1, keepdims=True) + 0 * X)
    got = gradient(lambda x: tf.reduce_sum(tf.sin(f(x)[0]) * f(x)[1]), tf.constant(X))[0]
    total = lambda x: tf.reduce_sum(x, -1, keepdims=True)
    assert np.allclose(got, gradient(lambda x: tf.reduce_sum(tf.sin(x / total(x)) * total(x)), tf.constant(X))[0])


# ---- in graphs, XLA and models ----


@pytest.mark.parametrize("name", ["swish", "softmax", "layer_norm"])
def test_routes_agree(name, jit, device):
    if name == "swish":
        function = tfuse.jit.elementwise("T x, R beta", "T y", "y = x / (1 + exp(-beta * x))", grad=True)
        inputs = [tf.constant(X, tf.float32), tf.constant(1.5)]
    else:
        function, _, declared, more = rows_case(name)
        inputs = rows_inputs(declared, more, "float32")
    dy = tf.constant(X[::-1].copy(), tf.float32)
    both = lambda *inputs: (function(*inputs), *gradient(function, *inputs, dy=dy))
    for want, got in zip(both(*inputs), tf.function(both, jit_compile=jit)(*inputs)):
        assert cases.error(got, want.numpy()) <= 2**-20
    traced = tf.function(function, jit_compile=jit)  # differentiated from outside
    for want, got in zip(gradient(function, *inputs, dy=dy), gradient(traced, *inputs, dy=dy)):
        assert cases.error(got, want.numpy()) <= 2**-20


def test_a_model_with_kernels(tmp_path, jit):
    swish = tfuse.jit.elementwise("T x, R beta", "T y", "y = x * sigmoid(beta * x)", grad=True, name="swish")
    softmax = tfuse.jit.rows("T x", "T y", **SOFTMAX, grad=True)
    inputs = keras.Input([8])
    outputs = softmax(keras.layers.Dense(5)(swish(keras.layers.Dense(16)(inputs), 1.5)))
    model = keras.Model(inputs, outputs)
    assert outputs.shape == (None, 5)
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=jit)
    x, labels = X[:, :8].astype(np.float32), np.arange(5)
    losses = model.fit(x, labels, epochs=30, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert np.allclose(again.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-6)


def test_a_model_is_loaded_where_nothing_was_declared(tmp_path):
    inputs = keras.Input([4])
    double = tfuse.jit.elementwise("T x", "T y", "2 * x", grad=True)
    keras.Model(inputs, double(inputs)).save(tmp_path / "model.keras")
    done = new_process("import sys, keras, tfuse, numpy as np\nmodel = keras.saving.load_model(sys.argv[1])\n"
                       "assert np.all(model.predict(np.ones([2, 4]), verbose=0) == 2)", tmp_path / "model.keras")
    assert done.returncode == 0, done.stdout
    by_function = tfuse.jit.elementwise("T x", "T y", "2 * x", grad=lambda x, y, dy: 2 * dy)
    model = keras.Model(inputs, by_function(inputs))
    assert "grad is a Python function" in refused(lambda: model.save(tmp_path / "other.keras"))


def test_mixed_precision_layer():
    class Swish(keras.layers.Layer):
        def build(self, shape):
            self.beta = self.add_weight(shape=(), initializer="ones", dtype="float32", autocast=False)
            self.function = tfuse.jit.elementwise("T x, R beta", "T y", "x * sigmoid(beta * x)", grad=True)

        def call(self, x):
            return self.function(x, self.beta.value)

    layer = Swish(dtype="mixed_bfloat16")
    with tf.GradientTape() as tape:
        y = layer(tf.constant(X, tf.float32))
    assert y.dtype == tf.bfloat16 and tape.gradient(y, layer.beta.value).dtype == tf.float32
