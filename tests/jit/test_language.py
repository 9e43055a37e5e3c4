"""The language of tfuse.jit: what it means, what it refuses, and its kernels in graphs, XLA and models."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import new_process
from formulas import SOFTMAX, X, gradient, refused, rows_case, rows_inputs, run_program
from tfuse import cases


def value(text, **numbers):
    """What an expression gives, in float64, by the composition and by the program."""
    names = list(numbers)
    function = tfuse.jit.elementwise(", ".join("T " + n for n in names), "T y", text)
    inputs = [tf.constant(float(v), tf.float64) for v in numbers.values()]
    y = function(*inputs).numpy()
    assert np.allclose(run_program(function.kernel, inputs)[0], y, rtol=1e-14, atol=0, equal_nan=True)
    return y


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
    ("/* a comment */\ny = a /* after */ + /**/ b /* of * two\n lines */\n", 5),
    ("t = a + 1\n\n;y = t", 3), ("y = b; u = y", 3),
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


LONG = {  # texts that nest a thousand deep, with what they are and their derivative
    "choices": (" ".join("x > %d ? %d * x :" % (i, i) for i in range(2000, 0, -1)) + " -x",
                lambda x: np.where(x > 1, np.ceil(x) - 1, -1) * x, lambda x: np.where(x > 1, np.ceil(x) - 1, -1)),
    "choices in choices": ("x > 0 ? " * 1500 + "2 * x" + " : 7" * 1500, lambda x: np.where(x > 0, 2 * x, 7),
                           lambda x: np.where(x > 0, 2, 0)),
    "calls": ("abs(" * 1200 + "x" + ")" * 1200, np.abs, np.sign),
    "two arguments": ("max(0.5 * x, " * 1000 + "x" + ")" * 1000, lambda x: np.maximum(0.5 * x, x),
                      lambda x: np.where(x > 0, 1, 0.5)),
    "brackets": ("(" * 3000 + "x" + ")" * 3000, lambda x: x, np.ones_like),
    "signs": ("- " * 3001 + "x", lambda x: -x, lambda x: -np.ones_like(x)),
    "sums": ("x + (" * 1500 + "x" + ")" * 1500, lambda x: 1501 * x, lambda x: 1501 + 0 * x),
    "statements": ("t = x; " + "t = t > 0 ? t : 2 * t; t = t * 1;" * 500 + "y = x > 0 ? t : -1",
                   lambda x: np.where(x > 0, x, -1), lambda x: x > 0),
}


@pytest.mark.parametrize("name", LONG)
def test_texts_nest_a_thousand_deep(name):
    text, value, derivative = LONG[name]
    x = np.array([-3.5, 1.5, 7.5, 600.5])
    f = tfuse.jit.elementwise("T x", "T y", text, grad=True)
    assert len(repr(f)) < 200
    assert np.allclose(f(tf.constant(x)), value(x)) and np.allclose(gradient(f, tf.constant(x))[0], derivative(x))
    if name not in ("choices", "sums"):
        return
    row = tfuse.jit.rows("T x", "T y", map=text, reduce="a + b", grad=True)
    assert np.allclose(row(tf.constant(x)), value(x).sum()) and np.allclose(gradient(row, tf.constant(x))[0], derivative(x))


def test_more_than_a_kernel_holds_is_computed_all_the_same():
    names = ["x%d" % i for i in range(20)]
    function = tfuse.jit.elementwise(", ".join("T " + n for n in names), "T y",
                                     " + ".join(n + " * " + n for n in names), grad=True)
    inputs = [tf.constant(X + i) for i in range(20)]
    assert np.allclose(function(*inputs), sum((X + i)**2 for i in range(20)))
    assert any("at most 16 inputs, this one 20" in row["why"] for row in tfuse.explain())
    for i, g in enumerate(gradient(function, *inputs)):
        assert np.allclose(g, 2 * (X + i))


def test_large_formulas_have_one_copy_and_a_limit():
    """What NVRTC would take long to compile in many copies gets one, and what takes too long even so is no kernel, on a CPU
    either. tests/jit/jit_compile_test.c compiles one of a thousand choices."""
    x = tf.constant(X)
    for n, copies in ((20, "many"), (1000, "one"), (5000, "none")):
        text = " ".join("x > %d ? x * %d + 1 :" % (i, i) for i in range(n, 0, -1)) + " -x"
        want = np.where(X > 1, X * (np.ceil(X) - 1) + 1, -X)
        makers = {"choices%d" % n: lambda **name: tfuse.jit.elementwise("T x", "T y", text, **name),
                  "rows%d" % n: lambda **name: tfuse.jit.rows("T x", "T y", map="x", reduce="max(a, b)", post=text, **name)}
        for name, make in makers.items():
            function = make(name=name)
            assert np.allclose(function(x), want)
            assert function.kernel.source.startswith("#define JIT_LARGE 1\n") == (copies != "many")
            why = [row["why"] for row in tfuse.explain() if row["op"] == "Jit " + name]
            limit = "at most 12000 operations, as docs/jit.md counts them, this one 20"
            assert any(limit in w for w in why) == (copies == "none")
    costs = {text: tfuse.jit.elementwise("T x", "T y", text).cost for text in ("x + 1", "x + sin(x)", "pow(x, 0.3) / x", "x")}
    assert list(costs.values()) == [1, 101, 88, 0]


# ---- what is refused, and how ----


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
    ("y = max(x beta)", "expected ')' after the arguments of max, got 'beta'", "beta"),
    ("y = t; t = x", "unknown name 't'", "t;"), ("y = x ** 2", "got '*'; powers are pow(a, b)", "* 2"),
    ("y = x; y += 1", "got '='; write y = y + 1", "= 1"), ("y = x # twice", "comments are /* … */", "#"),
    ("float a = x; y = a", "write name = value, without this", "float"),
    ("return x", "write name = value, without this", "return"),
    ("y = x // 2", "write floor(a / b) for a // b", "// 2"), ("t = x // half of it\ny = t", "comments as /* … */", "// half"),
    ("y = x\n// 2", "neither an operator nor a comment", "// 2"), ("y = x /* twice", "this comment has no end: */", "/* twice"),
    ("y = np.exp(x)", "'np.exp' has a dot, and names here have none: write exp(…)", "np.exp(x)"),
    ("y = 2 * tf.math.log(x)", "write log(…)", "tf.math.log"), ("y = x.shape", "functions are abs, ceil, ", "x.shape"),
    ("y = max(x, )", "expected a value, got ')'", ")"),
    ("y = (x, beta)", "expected ')' for the '(' at character 5, got ','", ","),
    ("y = x ? (x : beta)", "expected ')' for the '('", ": beta"), ("y = x : beta", "expected an operator or the end", ": beta"),
    ("y = max(x ? 1, 2)", "expected ':' of", ", 2"), ("y = x)", "expected an operator or the end", ")"),
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
    (lambda: tfuse.jit.rows("T x", "T y", map="x", reduce="a + b", final="result / x"),
     "final is computed once for each row, and x has a value for each element; write post=\"y = …\""),
])
def test_errors_before_anything_runs(make, problem):
    assert problem in refused(make)


def test_errors_of_calls():
    f = tfuse.jit.elementwise("T x, T z, R beta", "T y", "x + z * beta", name="mine")
    x = tf.ones([2, 3])
    assert np.all(f(x, x, tf.constant(1.)).numpy() == 2)  # so that these dtypes are known, and the short way is tried
    assert "got x (2, 3), z (2,), beta ()" in refused(lambda: f(x, tf.ones([2]), tf.constant(1.)))
    assert "mine takes 3 inputs (x, z, beta), got 1" in refused(lambda: f(x), TypeError)
    assert "mine takes its inputs in their order and without names, mine(x, z, beta); got beta=…" in refused(
        lambda: f(x, x, beta=1.0), TypeError)
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
    assert repr(f) == "<tfuse.jit.elementwise mine(T x, T z, R beta) -> T y: text='x + z * beta'>"
    assert repr(rows) == "<tfuse.jit.rows dot(T x, T z) -> T y: map='x * z', reduce='a + b'>"
    missing = refused(lambda: gradient(f, x, x, tf.constant(1.)), LookupError)
    assert "mine has no gradient: make it with grad=True" in missing


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
