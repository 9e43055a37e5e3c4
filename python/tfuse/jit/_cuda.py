"""Formulas in CUDA C: device functions over values of type R, which the walks over tensors call (kernels/jit)."""

import re

from tfuse.jit import _tree
from tfuse.jit._functions import FUNCTIONS

# Unlike fmin and fmax, these give NaN where an argument is NaN, as TensorFlow does.
_HELPERS = {
    "jit_min": "static __device__ R jit_min(R a, R b) { return a < b || a != a ? a : b; }",
    "jit_max": "static __device__ R jit_max(R a, R b) { return a > b || a != a ? a : b; }",
    "jit_sigmoid": "static __device__ R jit_sigmoid(R a) { return R(1) / (R(1) + exp(-a)); }",
    "jit_softplus": "static __device__ R jit_softplus(R a) { return (a > R(0) ? a : R(0)) + log1p(exp(-fabs(a))); }",
}


def _number(value):
    if abs(value) == float("inf"):
        return "R(%s__int_as_float(0x7f800000))" % ("-" * (value < 0))
    return "R(%r)" % value


def texts(roots, symbols):
    """Statements for locals, and an expression for each root."""
    return _tree.write(roots, symbols, _number, lambda op, args: FUNCTIONS[op].cuda.format(*args),
                       "const R {} = {};".format)


def function(name, parameters, roots, symbols, outputs=()):
    """A device function: of one value, which it returns, or one that writes `outputs`."""
    lines, values = texts(roots, symbols)
    lines += ["%s = %s;" % pair for pair in zip(outputs, values)] or ["return %s;" % values[0]]
    signature = ", ".join(["R " + p for p in parameters] + ["R &" + o for o in outputs])
    return "static __device__ %s %s(%s) {\n%s}\n" % (
        "void" if outputs else "R", name, signature, "".join("  %s\n" % line for line in lines))


def source(name, numbers, functions):
    """The whole of a kernel's source: numbers as #defines, the helpers that are used, functions."""
    text = "\n".join(functions)
    defines = ["#define JIT_%s %s" % (key, value) for key, value in (("NAME", name), *numbers.items())]
    helpers = [line for helper, line in _HELPERS.items() if re.search(r"\b%s\b" % helper, text)]
    return "\n".join([*defines, *helpers, text])
