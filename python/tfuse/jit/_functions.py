"""What expressions are made of: one row for each function. The parser, the composition in TensorFlow, derivatives, CUDA
C and programs for the CPU all read this table; a new row serves them all.

Conditions are numbers: a comparison gives 1 or 0, and what is not 0 is true.
"""

import math
from typing import Callable, NamedTuple

import tensorflow as tf


class Function(NamedTuple):
    token: str  # in programs; "stop" has none there
    tensorflow: Callable
    cuda: str  # with {0}, {1}, {2} for the arguments
    # For each argument the gradient that goes to it, in this same language: a, b, c are the arguments, y is the result
    # and d its gradient. At ties as in TensorFlow.
    gradients: tuple
    aliases: tuple = ()
    cost: int = 1  # what it takes NVRTC to compile it, in sums: _cuda.py


def _compare(f):
    return lambda a, b: tf.cast(f(a, b), a.dtype)


def _true(a):
    return tf.not_equal(a, 0)


_ROWS = [
    Function("add", tf.add, "({0} + {1})", ("d", "d")),
    Function("sub", tf.subtract, "({0} - {1})", ("d", "-d")),
    Function("mul", tf.multiply, "({0} * {1})", ("d * b", "d * a")),
    Function("div", tf.divide, "({0} / {1})", ("d / b", "-(d * y / b)"), cost=8),
    Function("neg", tf.negative, "(-{0})", ("-d",)),
    Function("pow", tf.pow, "pow({0}, {1})", ("d * b * pow(a, b - 1)", "d * y * (a > 0 ? log(a) : 0)"), ("powf",), cost=80),
    Function("exp", tf.exp, "exp({0})", ("d * y",), ("expf",), cost=30),
    Function("log", tf.math.log, "log({0})", ("d / a",), ("logf",), cost=30),
    Function("log1p", tf.math.log1p, "log1p({0})", ("d / (1 + a)",), ("log1pf",), cost=30),
    Function("expm1", tf.math.expm1, "expm1({0})", ("d * exp(a)",), ("expm1f",), cost=30),
    Function("tanh", tf.tanh, "tanh({0})", ("d * (1 - y * y)",), ("tanhf",), cost=30),
    Function("sqrt", tf.sqrt, "sqrt({0})", ("0.5 * d / y",), ("sqrtf",), cost=8),
    Function("rsqrt", tf.math.rsqrt, "rsqrt({0})", ("-0.5 * d * (y * y * y)",), ("rsqrtf",), cost=8),
    Function("abs", tf.abs, "fabs({0})", ("d * sign(a)",), ("fabs", "fabsf")),
    Function("min", tf.minimum, "jit_min({0}, {1})", ("a <= b ? d : 0", "a <= b ? 0 : d"), ("fmin", "fminf")),
    Function("max", tf.maximum, "jit_max({0}, {1})", ("a >= b ? d : 0", "a >= b ? 0 : d"), ("fmax", "fmaxf")),
    Function("floor", tf.floor, "floor({0})", ("0",), ("floorf",)),
    Function("ceil", tf.math.ceil, "ceil({0})", ("0",), ("ceilf",)),
    Function("sin", tf.sin, "sin({0})", ("d * cos(a)",), ("sinf",), cost=100),
    Function("cos", tf.cos, "cos({0})", ("-(d * sin(a))",), ("cosf",), cost=100),
    Function("erf", tf.math.erf, "erf({0})", ("d * 1.1283791670955126 * exp(-(a * a))",), ("erff",), cost=30),
    Function("sigmoid", tf.sigmoid, "jit_sigmoid({0})", ("d * (y * (1 - y))",), cost=40),
    Function("softplus", tf.nn.softplus, "jit_softplus({0})", ("d * sigmoid(a)",), cost=62),
    Function("lt", _compare(tf.less), "R({0} < {1})", ("0", "0")),
    Function("le", _compare(tf.less_equal), "R({0} <= {1})", ("0", "0")),
    Function("gt", _compare(tf.greater), "R({0} > {1})", ("0", "0")),
    Function("ge", _compare(tf.greater_equal), "R({0} >= {1})", ("0", "0")),
    Function("eq", _compare(tf.equal), "R({0} == {1})", ("0", "0")),
    Function("ne", _compare(tf.not_equal), "R({0} != {1})", ("0", "0")),
    Function("and", _compare(lambda a, b: _true(a) & _true(b)), "R({0} != 0 && {1} != 0)", ("0", "0")),
    Function("or", _compare(lambda a, b: _true(a) | _true(b)), "R({0} != 0 || {1} != 0)", ("0", "0")),
    Function("not", lambda a: tf.cast(tf.equal(a, 0), a.dtype), "R({0} == 0)", ("0",)),
    Function("select", lambda a, b, c: tf.where(_true(a), b, c), "({0} != 0 ? {1} : {2})",
             ("0", "a ? d : 0", "a ? 0 : d"), ("where",)),
    Function("stop", tf.stop_gradient, "{0}", ("0",), ("stop_gradient",)),  # its argument, as a constant to derivatives
]
FUNCTIONS = {row.token: row for row in _ROWS}
NAMES = {alias: row for row in _ROWS for alias in (row.token, *row.aliases)}

# Functions that are expressions in others: of how many arguments, and which. They are differentiated as they are written, so
# none may have a corner where the function itself has none.
SHORTHANDS = {
    "square": (1, "a * a"),
    "sign": (1, "stop(a > 0 ? 1 : a < 0 ? -1 : a)"),  # of NaN, and of 0, itself
    "relu": (1, "a > 0 ? a : stop(max(a, 0))"),  # of NaN itself; its gradient is 0 there, as it is at 0
    "silu": (1, "a * sigmoid(a)"),
    "gelu": (1, "0.5 * a * (1 + erf(a * 0.7071067811865476))"),
    "tan": (1, "sin(a) / cos(a)"),
    "exp2": (1, "exp(a * 0.6931471805599453)"),
    "log2": (1, "log(a) * 1.4426950408889634"),
    "clip": (3, "min(max(a, b), c)"),
    "fma": (3, "a * b + c"),
}

CONSTANTS = {"pi": math.pi, "inf": math.inf, "INFINITY": math.inf}

# Operators by how strongly they bind, the weakest first; "? :" is weaker than all, a sign or "!" stronger.
INFIX = {symbol: (power, token) for power, row in enumerate([
    {"||": "or"}, {"&&": "and"}, {"==": "eq", "!=": "ne"}, {"<": "lt", "<=": "le", ">": "gt", ">=": "ge"},
    {"+": "add", "-": "sub"}, {"*": "mul", "/": "div"}], 2) for symbol, token in row.items()}
