"""What tests of tfuse.jit's language share: random formulas, kernels of rows, and programs run by NumPy."""

import math
import random

import numpy as np
import pytest
import tensorflow as tf

import tfuse

X = np.random.default_rng(0).normal(size=(5, 37))
FLOATS = ["float32", "bfloat16", "float16", "float64"]


def gradient(f, *inputs, dy=None):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        y = f(*inputs)
    return tape.gradient(y, inputs, dy, unconnected_gradients="zero")


def refused(make, error=ValueError):
    with pytest.raises(error) as raised:
        make()
    return str(raised.value)


# ---- random formulas ----

# Of one, two and four formulas. All are defined for all numbers, and do not grow fast.
SMOOTH = ["exp(tanh({}))", "log(2 + square({}))", "log1p(abs({}))", "expm1(sin({}))", "tanh({})",
          "sqrt(1 + square({}))",
          "rsqrt(1.5 + square({}))", "sin({})", "cos({})", "erf({})", "sigmoid({})", "-({})", "pow(1.5 + cos({}), 1.7)",
          "pow({}, 2)", "softplus({})", "silu({})", "abs({})", "{} + {}", "({}) + 0.5 * ({})", "{} - {}",
          "({}) * sin({})",
          "{} * 0.3 - {}", "({}) / (2 + cos({}))", "max({}, {})", "min({}, {})", "pow(1.2 + sigmoid({}), tanh({}))"]
WITH_JUMPS = SMOOTH + ["floor({})", "ceil({})", "where({} < {}, {}, {})", "relu({})", "where({} >= {}, {}, {})"]


def formula(seed, productions=WITH_JUMPS, names=("x", "z", "w"), depth=4):
    """A text that is a formula in this language and in Python alike."""
    draw = random.Random(seed)

    def grow(depth):
        if depth == 0 or draw.random() < 0.1:
            name = draw.choice(names)  # never a number alone: TensorFlow would take it for float32
            return draw.choice([name, name, "(%s + %.3g)" % (name, draw.uniform(0.2, 2)),
                                "%.3g * %s" % (draw.uniform(0.2, 2), name)])
        text = draw.choice(productions)
        return text.format(*(grow(depth - 1) for _ in range(text.count("{}"))))

    lines = ["t = " + grow(depth - 1), "u = t * " + grow(1), "y = %s + t * sin(u)" % grow(depth)]
    return draw.choice(["; ", "\n", ";\n"]).join(lines)


def _namespace(m, erf, log1p, expm1, rsqrt, sigmoid):
    own = {name: getattr(m, name) for name in ("exp", "tanh", "sqrt", "sin", "cos", "abs", "square", "floor", "where")}
    log, relu = (tf.math.log, tf.nn.relu) if m is tf else (np.log, lambda a: np.where(a > 0, a, 0 * a))
    return {**own, "log": log, "relu": relu, "erf": erf, "log1p": log1p, "expm1": expm1, "rsqrt": rsqrt,
            "sigmoid": sigmoid,
            "pow": m.pow if m is tf else np.power, "ceil": tf.math.ceil if m is tf else np.ceil, "max": m.maximum,
            "min": m.minimum,
            "softplus": lambda a: m.maximum(a, 0 * a) + log1p(m.exp(-m.abs(a))), "silu": lambda a: a * sigmoid(a)}


NUMPY = _namespace(np, np.vectorize(math.erf), np.log1p, np.expm1, lambda a: 1 / np.sqrt(a),
                   lambda a: 1 / (1 + np.exp(-a)))
TENSORFLOW = _namespace(tf, tf.math.erf, tf.math.log1p, tf.math.expm1, tf.math.rsqrt, tf.sigmoid)


def by_python(text, namespace, values):
    """y of a text, which Python itself reads."""
    values = dict(values)
    exec(text, {**namespace}, values)
    return values["y"]


# ---- programs ----

_STEPS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "neg": np.negative, "pow": np.power,
          "log": np.log, "abs": np.abs, "min": np.minimum, "max": np.maximum, "ceil": np.ceil,
          "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal,
          "ne": np.not_equal,
          "and": np.logical_and, "or": np.logical_or, "not": np.logical_not, "select": lambda a, b,
          c: np.where(a != 0, b, c),
          **{name: NUMPY[name] for name in ("exp", "log1p", "expm1", "tanh", "sqrt", "rsqrt", "floor", "sin", "cos",
                                            "erf", "sigmoid")},
          "softplus": lambda a: np.logaddexp(0, a)}
_OPERANDS = {"select": 3, **{name: 2 for name in "add sub mul div pow min max lt le gt ge eq ne and or".split()}}
MOST_STACK, MOST_LOCALS = 32, 64  # of the library's interpreter


def sections(program):
    """{header: words} of a program."""
    found, words = {}, None
    for word in program.split():
        if word.endswith(":"):
            words = found[word[:-1]] = []
        else:
            words.append(word)
    return found


def run_section(words, symbols):
    """(outputs, what is left on the stack) of a section's words."""
    stack, outputs, symbols = [], {}, dict(symbols)
    for word in words:
        if word[0] == "=":
            (outputs if word[1] == "y" else symbols)[word[1:]] = stack.pop()
        elif word in _STEPS:
            count = _OPERANDS.get(word, 1)
            arguments = stack[-count:]
            assert len(arguments) == count, "%s has too few operands" % word
            stack[-count:] = [np.asarray(_STEPS[word](*arguments), np.float64)]
        else:
            stack.append(symbols[word] if word in symbols else np.float64(word))
        assert len(stack) <= MOST_STACK and len([s for s in symbols if s[0] == "t"]) <= MOST_LOCALS
    return outputs, stack


def run_program(kernel, arrays):
    """The outputs of a kernel by its program, in float64."""
    found, arrays = sections(kernel.program), [np.asarray(a, np.float64) for a in arrays]
    symbols = {"x%d" % i: a for i, a in enumerate(arrays)}
    if kernel.kind == "elementwise":
        outputs, stack = run_section(found["body"], symbols)
        assert not stack
        shape = np.broadcast_shapes(*(a.shape for a in arrays))
        return [np.broadcast_to(outputs["y%d" % i], shape) for i in range(len(kernel.outputs))]
    x = arrays[0]
    symbols["n"] = np.float64(x.shape[-1])
    for i in range(sum(name.startswith("map") for name in found)):
        (_, [mapped]), (_, [total]) = (run_section(found["%s%d" % (part, i)], symbols) for part in ("map", "identity"))
        for column in np.moveaxis(np.broadcast_to(mapped, x.shape), -1, 0):
            _, [total] = run_section(found["reduce%d" % i], {"a": total, "b": column})
        symbols["r%d" % i] = np.broadcast_to(total, x.shape[:-1])[..., None]
    if "final" in found:
        _, [y] = run_section(found["final"], {k: v for k, v in symbols.items() if k[0] != "x"})
        y = np.broadcast_to(y, (*x.shape[:-1], 1))
        return [y if "keep" in kernel.shapes else y[..., 0]]
    outputs, stack = run_section(found["post"], symbols)
    assert not stack
    return [np.broadcast_to(outputs["y%d" % i], x.shape) for i in range(len(kernel.outputs))]


# ---- kernels of rows ----

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
